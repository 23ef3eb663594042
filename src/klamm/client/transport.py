"""Byte streams to brokers: the socket operations that a connection needs, with or without TLS."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from klamm.client.security import Security
from klamm.properties import parse_int

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONNECT_TIMEOUT_S: Final = 5.0
_TIMEOUT: Final = "request.timeout.ms"
_PLAINTEXT: Final = Security()
_MAX_VIEWS: Final = 512
"""Maximum number of views per system call, below IOV_MAX (1024)."""


class Transport(Protocol):
    """A connected, non-blocking byte stream."""

    def fileno(self) -> int:
        """Return the file descriptor to select on."""
        ...

    def receive_into(self, view: memoryview) -> int | None:
        """Read the available bytes. Returns 0 if the peer has closed the stream, None if nothing is available now."""
        ...

    def send_views(self, views: Sequence[memoryview]) -> int:
        """Send as many bytes as possible without blocking, in order, and return their number."""
        ...

    def pending(self) -> bool:
        """Return whether the transport holds bytes that selecting on the descriptor does not reveal."""
        ...

    def close(self) -> None:
        """Close the stream."""
        ...


class PlainTransport:
    """TCP without TLS."""

    __slots__ = ("_socket",)

    def __init__(self, connected: socket.socket) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setblocking(False)
        self._socket = connected

    def fileno(self) -> int:
        """Return the file descriptor to select on."""
        return self._socket.fileno()

    def receive_into(self, view: memoryview) -> int | None:
        """Read the available bytes. Returns 0 if the peer has closed the stream, None if nothing is available now."""
        try:
            return self._socket.recv_into(view)
        except (BlockingIOError, InterruptedError):
            return None

    def send_views(self, views: Sequence[memoryview]) -> int:
        """Send as many bytes as possible without blocking, in order, and return their number."""
        try:
            return self._socket.sendmsg(views[:_MAX_VIEWS])
        except (BlockingIOError, InterruptedError):
            return 0

    def pending(self) -> bool:
        """Return False: a plain socket buffers nothing outside the kernel."""
        return False

    def close(self) -> None:
        """Close the stream."""
        self._socket.close()


class TlsTransport:
    """TCP with TLS."""

    __slots__ = ("_socket",)

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, host: str) -> None:
        """Perform the TLS handshake, within the socket's timeout.

        Raises:
            OSError: The peer's identity is wrong, or it does not support TLS.
        """
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = context.wrap_socket(connected, server_hostname=host)
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """Return the file descriptor to select on."""
        return self._socket.fileno()

    def receive_into(self, view: memoryview) -> int | None:
        """Read the available bytes. Returns 0 if the peer has closed the stream, None if nothing is available now."""
        filled = 0
        try:
            # One read returns at most one TLS record (16 KiB).
            while filled < len(view):
                count = self._socket.recv_into(view[filled:])
                if count == 0:
                    break
                filled += count
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return filled or None
        return filled

    def send_views(self, views: Sequence[memoryview]) -> int:
        """Send as many bytes as possible without blocking, in order, and return their number."""
        total = 0
        try:
            for view in views:
                sent = self._socket.send(view)
                total += sent
                if sent < len(view):
                    break
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        return total

    def pending(self) -> bool:
        """Return whether decrypted bytes have not been read yet. Selecting on the descriptor does not reveal them."""
        return self._socket.pending() > 0

    def close(self) -> None:
        """Close the stream."""
        self._socket.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Connection settings for the brokers of one cluster. They are sent to Spark's tasks."""

    bootstrap_servers: tuple[str, ...]
    client_id: str
    security: Security = _PLAINTEXT
    request_timeout_s: float = 30.0

    @classmethod
    def of(
        cls, bootstrap_servers: tuple[str, ...], properties: Mapping[str, str], client_id: str
    ) -> ConnectionSettings:
        """Parse a client's properties.

        Raises:
            SettingsError: A setting is not supported. The message has the property, its value and the allowed values.
        """
        timeout = properties.get(_TIMEOUT, "30000")
        return cls(
            bootstrap_servers=bootstrap_servers,
            client_id=properties.get("client.id", client_id),
            security=Security.of(properties),
            request_timeout_s=parse_int(_TIMEOUT, timeout, at_least=1) / 1000,
        )


def connect(host: str, port: int, security: Security = _PLAINTEXT) -> Transport:
    """Open a connection, with TLS if ``security`` requires it. SASL authentication happens later.

    Raises:
        OSError: The broker is unreachable, or its identity is wrong.
    """
    connected = socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S)
    try:
        if security.uses_tls:
            return TlsTransport(connected, security.tls_context(), host)
        return PlainTransport(connected)
    except BaseException:
        connected.close()
        raise

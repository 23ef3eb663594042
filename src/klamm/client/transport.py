"""Byte streams to brokers: what a connection needs of a socket, whatever secures it."""

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
"""Fewer than IOV_MAX (1024) views per system call."""


class Transport(Protocol):
    """A connected stream that never blocks."""

    def fileno(self) -> int:
        """Return the descriptor to select on."""
        ...

    def receive_into(self, view: memoryview) -> int | None:
        """Read what is there; 0 means: the peer closed, None: nothing there now."""
        ...

    def send_views(self, views: Sequence[memoryview]) -> int:
        """Send from the front as much as fits now; returns the number of bytes."""
        ...

    def pending(self) -> bool:
        """Tell whether bytes wait here that selecting does not show."""
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
        """Return the descriptor to select on."""
        return self._socket.fileno()

    def receive_into(self, view: memoryview) -> int | None:
        """Read what is there; 0 means: the peer closed, None: nothing there now."""
        try:
            return self._socket.recv_into(view)
        except (BlockingIOError, InterruptedError):
            return None

    def send_views(self, views: Sequence[memoryview]) -> int:
        """Send from the front as much as fits now; returns the number of bytes."""
        try:
            return self._socket.sendmsg(views[:_MAX_VIEWS])
        except (BlockingIOError, InterruptedError):
            return 0

    def pending(self) -> bool:
        """Nothing waits beside the socket."""
        return False

    def close(self) -> None:
        """Close the stream."""
        self._socket.close()


class TlsTransport:
    """TCP with TLS."""

    __slots__ = ("_socket",)

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, host: str) -> None:
        """Shake hands, within the time limit of the socket.

        Raises:
            OSError: the peer is not who it should be, or speaks no TLS.
        """
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = context.wrap_socket(connected, server_hostname=host)
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor to select on."""
        return self._socket.fileno()

    def receive_into(self, view: memoryview) -> int | None:
        """Read what is there; 0 means: the peer closed, None: nothing there now."""
        filled = 0
        try:
            # One read gives one TLS record (16 KiB) at most.
            while filled < len(view):
                count = self._socket.recv_into(view[filled:])
                if count == 0:
                    break
                filled += count
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return filled or None
        return filled

    def send_views(self, views: Sequence[memoryview]) -> int:
        """Send from the front as much as fits now; returns the number of bytes."""
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
        """Tell whether bytes were decrypted and not read yet: selecting does not show them."""
        return self._socket.pending() > 0

    def close(self) -> None:
        """Close the stream."""
        self._socket.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """How to reach the brokers of one cluster. Travels to Spark's tasks."""

    bootstrap_servers: tuple[str, ...]
    client_id: str
    security: Security = _PLAINTEXT
    request_timeout_s: float = 30.0

    @classmethod
    def of(
        cls, bootstrap_servers: tuple[str, ...], properties: Mapping[str, str], client_id: str
    ) -> ConnectionSettings:
        """Read a client's properties.

        Raises:
            SettingsError: what the connections can not honour; names the property, its value and what is allowed.
        """
        timeout = properties.get(_TIMEOUT, "30000")
        return cls(
            bootstrap_servers=bootstrap_servers,
            client_id=properties.get("client.id", client_id),
            security=Security.of(properties),
            request_timeout_s=parse_int(_TIMEOUT, timeout, at_least=1) / 1000,
        )


def connect(host: str, port: int, security: Security = _PLAINTEXT) -> Transport:
    """Open a connection, encrypted if ``security`` says so; logging in is for later.

    Raises:
        OSError: the broker is away, or not who it should be.
    """
    connected = socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S)
    try:
        if security.uses_tls:
            return TlsTransport(connected, security.tls_context(), host)
        return PlainTransport(connected)
    except BaseException:
        connected.close()
        raise

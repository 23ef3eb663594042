"""Byte streams to brokers: the socket operations that a connection needs, with or without TLS."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, Any, Final, Protocol

from klamm.kafka_client.connection.security import KEYWORDS, Security
from klamm.lazy_dataclass import dataclass
from klamm.properties import SettingsError, parse_int, split_servers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_PLAINTEXT: Final = Security()
_MAX_VIEWS: Final = 512
"""Maximum number of views per system call, below IOV_MAX (1024)."""
_MAX_TLS_SEND: Final = 64 * 1024
"""Maximum number of bytes per call of OpenSSL. It reports none of them before the socket has taken all, so a peer that
reads a large view slowly would look stuck. It then expects the same bytes again.
"""
_CLOSED: Final = (
    "the broker closed the connection during the TLS handshake: its listener has no TLS, or it rejects our certificate;"
    " its log has the reason"
)
_CERTIFICATE_ALERTS: Final = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED")


class TlsRejectedError(OSError):
    """One side of a TLS connection rejects the other's certificate."""


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
            if len(views) == 1:
                return self._socket.send(views[0])
            return self._socket.sendmsg(views[:_MAX_VIEWS])
        except (BlockingIOError, InterruptedError):
            return 0

    def pending(self) -> bool:
        """Return False: a plain socket buffers nothing outside the kernel."""
        return False

    def close(self) -> None:
        """Close the stream."""
        self._socket.close()


class TlsStream:
    """An open TLS connection on a non-blocking socket, of a client or of a server, as a ``Transport``."""

    __slots__ = ("_socket",)

    def __init__(self, connected: ssl.SSLSocket) -> None:
        self._socket = connected

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
        except OSError:
            if not filled:
                raise
            # The peer's last response may have arrived before its reset. The next read fails, or finds the end.
        return filled

    def send_views(self, views: Sequence[memoryview]) -> int:
        """Send as many bytes as possible without blocking, in order, and return their number."""
        total = 0
        try:
            for view in views:
                rest = view
                while rest:
                    sent = self._socket.send(rest[:_MAX_TLS_SEND])
                    total += sent
                    rest = rest[sent:]
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        return total

    def pending(self) -> bool:
        """Return whether decrypted bytes have not been read yet. Selecting on the descriptor does not reveal them."""
        return self._socket.pending() > 0

    def close(self) -> None:
        """Close the stream."""
        self._socket.close()


class TlsTransport(TlsStream):
    """Client side of a TLS connection."""

    __slots__ = ("_has_received",)

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, host: str) -> None:
        """Perform the TLS handshake, within the socket's timeout.

        Raises:
            TlsRejectedError: One side rejects the other's certificate.
            OSError: The peer does not support TLS.
        """
        self._has_received = False
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            super().__init__(context.wrap_socket(connected, server_hostname=host.rstrip(".")))
        except OSError as error:
            raise self._named(error) from error
        self._socket.setblocking(False)

    def _named(self, error: OSError) -> OSError:
        """Return an error that names what went wrong in the TLS handshake, or else the error itself.

        In TLS 1.3 the client ends the handshake before the broker has checked the client's certificate. So until the
        first bytes arrive, a closed connection belongs to the handshake.
        """
        if isinstance(error, ssl.SSLCertVerificationError):
            return TlsRejectedError(f"our side rejects the broker's certificate: {error.strerror or error}")
        reason = getattr(error, "reason", None) or ""
        alert = reason.partition("ALERT_")[2]
        if any(word in alert for word in _CERTIFICATE_ALERTS):
            return TlsRejectedError(f"the broker rejects our certificate: {alert.replace('_', ' ').lower()}")
        if not self._has_received and isinstance(error, (ssl.SSLEOFError, ConnectionResetError, BrokenPipeError)):
            return ConnectionResetError(_CLOSED)
        return error

    def receive_into(self, view: memoryview) -> int | None:
        """Read the available bytes, as ``TlsStream`` does.

        Raises:
            TlsRejectedError: One side rejects the other's certificate.
            OSError: The connection is broken.
        """
        try:
            filled = super().receive_into(view)
        except OSError as error:
            raise self._named(error) from error
        if filled is None:
            return None
        if not filled and not self._has_received:
            raise ConnectionResetError(_CLOSED)
        self._has_received = True
        return filled

    def send_views(self, views: Sequence[memoryview]) -> int:
        """Send as many bytes as possible, as ``TlsStream`` does.

        Raises:
            TlsRejectedError: One side rejects the other's certificate.
            OSError: The connection is broken.
        """
        try:
            return super().send_views(views)
        except OSError as error:
            raise self._named(error) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Connection settings for the brokers of one cluster. Those from properties are sent to Spark's tasks."""

    bootstrap_servers: tuple[str, ...]
    client_id: str
    security: Security = _PLAINTEXT
    request_timeout_s: float = 30.0
    connect_timeout_s: float = 5.0
    """Time limit in seconds for the TCP connection, and for the TLS handshake."""
    reconnect_backoff_s: float = 0.05
    reconnect_backoff_max_s: float = 1.0
    """Kafka's default of ``reconnect.backoff.max.ms``."""
    retry_backoff_s: float = 0.1
    """Pause in seconds before a request is repeated."""
    socket_options: tuple[tuple[int, int, int], ...] = ()
    """Arguments of ``socket.setsockopt``."""
    software_name: str = "klamm"
    """Name of the client software in ApiVersions (KIP-511)."""

    @property
    def max_silence_s(self) -> float:
        """Time limit in seconds for a request in flight of which no byte is sent or received.

        A broker may use ``request_timeout_s`` before it sends the first byte, so the limit is longer.
        """
        return self.request_timeout_s + _SILENCE_S

    @classmethod
    def of(
        cls, bootstrap_servers: tuple[str, ...], properties: Mapping[str, str], client_id: str
    ) -> ConnectionSettings:
        """Parse a client's properties.

        Raises:
            SettingsError: A setting is not supported. The message has the property, its value and the allowed values.
        """

        def seconds(name: str, default: int, *, at_least: int = 0) -> float:
            return parse_int(name, properties.get(name, str(default)), at_least=at_least) / 1000

        client_id = properties.get("client.id", client_id)
        if (size := len(client_id.encode(errors="surrogateescape"))) > _MAX_CLIENT_ID:
            raise SettingsError(f"client.id={client_id}: expected at most {_MAX_CLIENT_ID:,} bytes, got {size:,}")
        return cls(
            bootstrap_servers=bootstrap_servers,
            client_id=client_id,
            security=Security.of(properties),
            request_timeout_s=seconds("request.timeout.ms", 30_000, at_least=1),
            reconnect_backoff_s=seconds("reconnect.backoff.ms", 50),
            reconnect_backoff_max_s=seconds("reconnect.backoff.max.ms", 1_000),
        )

    @classmethod
    def of_keywords(cls, bootstrap_servers: str | Sequence[str], settings: Mapping[str, Any]) -> ConnectionSettings:
        """Return the settings for keyword arguments with kafka-python's names.

        Raises:
            ValueError: A setting is unknown or has a wrong value.
            OSError: A file of certificates cannot be read.
        """
        unknown = sorted(set(settings) - _KEYWORDS - _UNUSED - KEYWORDS)
        if unknown:
            raise ValueError(f"Unknown connection settings: {', '.join(unknown)}")
        return cls(
            bootstrap_servers=split_servers(bootstrap_servers),
            client_id=settings.get("client_id") or "",
            security=Security.of_keywords(settings),
            request_timeout_s=settings.get("request_timeout_ms", 30_000) / 1000,
            connect_timeout_s=settings.get("socket_connection_setup_timeout_ms", 5_000) / 1000,
            reconnect_backoff_s=settings.get("reconnect_backoff_ms", 50) / 1000,
            reconnect_backoff_max_s=settings.get("reconnect_backoff_max_ms", 1_000) / 1000,
            retry_backoff_s=settings.get("retry_backoff_ms", 100) / 1000,
            socket_options=tuple(settings.get("socket_options") or ()),
            software_name=settings.get("client_software_name", "klamm"),
        )


_SILENCE_S: Final = 10.0
"""Seconds for which a response may be late."""
_MAX_CLIENT_ID: Final = 32_767
"""Bytes of a client id, whose length is an int16 in every request."""
_KEYWORDS: Final = frozenset(
    {
        "client_id",
        "client_software_name",
        "reconnect_backoff_max_ms",
        "reconnect_backoff_ms",
        "request_timeout_ms",
        "retry_backoff_ms",
        "socket_connection_setup_timeout_ms",
        "socket_options",
    }
)
"""kafka-python's names of settings that are not about security."""
_UNUSED: Final = frozenset(
    {
        "api_version",
        "client_dns_lookup",
        "client_software_version",
        "connections_max_idle_ms",
        "max_in_flight_requests_per_connection",
        "metadata_max_age_ms",
        "receive_message_max_bytes",
        "socket_connection_setup_timeout_max_ms",
    }
)
"""Settings that tune kafka-python's own connections. They are accepted without effect."""


def connect(
    host: str, port: int, settings: ConnectionSettings, on_connected: Callable[[socket.socket], None] | None = None
) -> Transport:
    """Open a connection, with TLS if the settings require it. SASL authentication happens later.

    Args:
        host: Name or address of the broker.
        port: Port of the broker.
        settings: Settings of the connection.
        on_connected: Callback for the TCP connection, before the TLS handshake.

    Raises:
        TlsRejectedError: One side rejects the other's certificate.
        OSError: The host name is invalid, the broker is unreachable, its listener has no TLS, or a store of
            certificates cannot be read now.
    """
    try:
        connected = socket.create_connection((host, port), timeout=settings.connect_timeout_s)
    except UnicodeError as error:  # an empty label, or one of more than 63 bytes
        raise OSError(f"invalid host name: {error}") from error
    try:
        if on_connected is not None:
            on_connected(connected)
        for option in settings.socket_options:
            connected.setsockopt(*option)
        if settings.security.uses_tls:
            return TlsTransport(connected, _tls_context(settings.security), host)
        return PlainTransport(connected)
    except BaseException:
        connected.close()
        raise


def _tls_context(security: Security) -> ssl.SSLContext:
    """Return the TLS context of a connection, from the present files.

    The settings were checked when the client was created. A file that cannot be used now may be half written, because
    it is being replaced, so a later connection may succeed.

    Raises:
        OSError: A store cannot be opened at present.
    """
    try:
        return security.tls_context()
    except SettingsError as error:
        raise OSError(str(error)) from error

"""One client connection: facts about the client, and an observer of its requests."""

from __future__ import annotations

from typing import Protocol

from klamm.lazy_dataclass import dataclass
from klamm.security.principals import ANONYMOUS


class ConnectionWatch(Protocol):
    """Observer of the requests of one client connection. It may replace three values in their frames.

    The values are patched in place, so the messages are not decoded. ``client_id`` is that of the request.
    """

    def on_software(self, name: str, version: str) -> None:
        """Record the client's software from ApiVersions (KIP-511)."""
        ...

    def on_request(self, api_key: int, client_id: str | None, *, is_heartbeat: bool) -> None:
        """Record a request of a client that is logged in, or need not log in.

        Args:
            api_key: API key of the request.
            client_id: Client id of the request.
            is_heartbeat: Whether it is a heartbeat of the classic protocol.
        """
        ...

    def acks(self, requested: int, client_id: str | None) -> int:
        """Return the acks to enforce for a Produce request."""
        ...

    def session_timeout_ms(self, requested: int, client_id: str | None) -> int:
        """Return the session timeout of a member of the classic protocol that joins its group."""
        ...

    def heartbeat_interval_ms(self, offered: int, client_id: str | None) -> int:
        """Return the heartbeat interval for a member of the consumer protocol (KIP-848)."""
        ...

    def close(self) -> None:
        """Record the end of the connection."""
        ...


@dataclass(slots=True, kw_only=True)
class Peer:
    """One client connection. The relay writes to it."""

    host: str
    port: int
    node_id: int
    """Node id of the port or the host name that the client connected to."""
    is_bootstrap: bool = False
    """Whether another broker is used if that one cannot be reached."""
    principal: str = ANONYMOUS
    client_id: str | None = None
    """Client id of the latest request."""
    watch: ConnectionWatch | None = None
    """Observer of the connection; None without one."""

    @property
    def name(self) -> str:
        """Address of the client, for the log."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

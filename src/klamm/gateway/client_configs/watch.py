"""Connected clients of one gateway, and the values that are enforced for them."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from klamm.client_configs.definitions import ACKS, HEARTBEAT_INTERVAL_MS, SESSION_TIMEOUT_MS
from klamm.server.session import UNKNOWN_SOFTWARE, Session

if TYPE_CHECKING:
    from collections.abc import Callable

    from klamm.client_config_runtime.enforcement import EnforcementService
    from klamm.client_configs.enforcement import TimingLimits
    from klamm.gateway.frames.peer import Peer
    from klamm.server.client_registry import ClientRegistry


class ClientWatch:
    """Observer of all client connections. Used on the event loop only.

    Args:
        registry: List of clients.
        enforcement: Values enforced for clients.
        timings: Function that returns the limits for heartbeat intervals.
    """

    def __init__(
        self,
        registry: ClientRegistry,
        enforcement: EnforcementService,
        *,
        timings: Callable[[], TimingLimits],
    ) -> None:
        self.registry = registry
        self.enforcement = enforcement
        self.timings = timings
        self._numbers = count(1)

    def open(self, peer: Peer) -> WatchedClient:
        """Return the observer of a new connection."""
        return WatchedClient(self, peer, next(self._numbers))


class WatchedClient:
    """Observer of one connection (see ``gateway.peer.ConnectionWatch``).

    A member of the consumer protocol (KIP-848) keeps the session timeout of its group, because only the upstream
    measures it. The client itself follows the heartbeat interval in its responses, so that one can be replaced.
    """

    __slots__ = ("_peer", "_watch", "session")

    def __init__(self, watch: ClientWatch, peer: Peer, connection_id: int) -> None:
        self._watch = watch
        self._peer = peer
        self.session = Session(
            connection_id=connection_id,
            node_id=peer.node_id,
            client_host=peer.host,
            client_port=peer.port,
            principal=peer.principal,
        )

    def on_software(self, name: str, version: str) -> None:
        """Record the client's software."""
        self.session.software_name = name or UNKNOWN_SOFTWARE
        self.session.software_version = version or UNKNOWN_SOFTWARE

    def on_request(self, api_key: int, client_id: str | None, *, is_heartbeat: bool) -> None:
        """Record the client in the list, and measure the time between heartbeats of the classic protocol."""
        session = self.session
        session.principal = self._peer.principal
        self._watch.registry.seen(session, client_id, api_key)
        if is_heartbeat:
            if session.last_heartbeat_ms:
                session.reported[HEARTBEAT_INTERVAL_MS] = session.last_seen_ms - session.last_heartbeat_ms
            session.last_heartbeat_ms = session.last_seen_ms

    def acks(self, requested: int, client_id: str | None) -> int:
        """Return the stronger of the requested and the enforced acks."""
        self.session.reported[ACKS] = requested
        return self._watch.enforcement.acks(requested, self.session, client_id)

    def session_timeout_ms(self, requested: int, client_id: str | None) -> int:
        """Return the enforced session timeout, or the requested one."""
        self.session.reported[SESSION_TIMEOUT_MS] = requested
        enforced = self._watch.enforcement.session_timeout_ms(self.session, client_id)
        return requested if enforced is None else enforced

    def heartbeat_interval_ms(self, offered: int, client_id: str | None) -> int:
        """Return the enforced interval within the limits, or the one that the upstream offers."""
        return self._watch.enforcement.heartbeat_interval_ms(
            offered, self.session, client_id, limits=self._watch.timings()
        )

    def close(self) -> None:
        """Record the end of the connection."""
        self._watch.registry.left(self.session)

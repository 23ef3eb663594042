"""Objects that all relays of a gateway share."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from klamm.gateway.frames.counts import RequestCounts
from klamm.gateway.frames.cutter import HeldBudget
from klamm.gateway.relay.interceptors import NO_INTERCEPTION
from klamm.gateway.relay.pacing import Pacer
from klamm.gateway.relay.streams import Backlog
from klamm.protocol.frames import DEFAULT_MAX_FRAME_BYTES
from klamm.server.time_slice import Turns

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Coroutine, Mapping

    from klamm.admin import AdminClient
    from klamm.gateway.frames.addresses import AddressBook
    from klamm.gateway.frames.cutter import Piece
    from klamm.gateway.frames.exchange import InFlight, RelayedExchange
    from klamm.gateway.frames.peer import Peer
    from klamm.gateway.relay.interceptors import Interception
    from klamm.gateway.relay.sessions import UpstreamSession
    from klamm.protocol.errors import ProtocolError
    from klamm.server.security.endpoints import Endpoint


class OpenRelay(Protocol):
    """Relay of one client connection, as its judge of requests and its interceptors need it."""

    peer: Peer
    exchanges: deque[InFlight]
    """Requests in flight, oldest first."""
    upstream_versions: Mapping[int, tuple[int, int]] | None
    """Versions by API key that the upstream offers on this connection; None before an interceptor asked for it."""
    session: UpstreamSession | None
    """Session of the gateway's own login on this connection; None if it does not expire, or there is none."""
    held_bytes: int
    """Bytes that the gateway keeps for requests in flight, estimated: above all its own responses."""

    def expect(self, exchange: RelayedExchange) -> None:
        """Add a request in flight for which the gateway keeps bytes."""
        ...

    @property
    def is_intercepting(self) -> bool:
        """Return whether an interceptor is at work."""
        ...

    def is_turn_over(self) -> bool:
        """Return whether other connections have their turn next. If so, this one continues after them."""
        ...

    def run(self, work: Coroutine[None, None, None]) -> None:
        """Run an interceptor; no further request is read until it is done."""
        ...

    def end_requests(self, error: ProtocolError) -> None:
        """End the stream of requests at a malformed one. Those before it are still answered."""
        ...

    def send_upstream(self, frame: Piece, exchange: RelayedExchange | None) -> None:
        """Send a request of the gateway itself; ``exchange`` is None if there is no response.

        Raises:
            ConnectionLostError: The connection is closed.
        """
        ...

    @property
    def kept_bytes(self) -> int:
        """Number of bytes that the two sides have not taken so far."""
        ...

    def expire(self, now: float, stuck_s: float, ended_s: float) -> None:
        """Close the connection if it has waited too long for one of its sides."""
        ...

    def drain(self) -> None:
        """Serve the requests received so far, then close."""
        ...

    def close(self, reason: str | None) -> None:
        """Close the connection at once."""
        ...


@dataclass(slots=True)
class RelayedTraffic:
    """Bytes relayed by all connections, by direction."""

    from_clients: int = 0
    to_upstream: int = 0
    from_upstream: int = 0
    to_clients: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Objects that all relays of a gateway share."""

    served: Mapping[int, tuple[int, int]]
    """First and last version of each API that the gateway serves."""
    book: AddressBook
    admin: AdminClient
    interception: Interception = NO_INTERCEPTION
    listener: str | None = None
    """Name of the listener of clients, for policies."""
    needs_login: bool = False
    """Whether clients must log in by SASL, through the gateway, before any other request."""
    endpoint: Endpoint | None = None
    """Settings of logins that end at the gateway; None if logins pass through to the upstream."""
    principal_claim: str = "sub"
    """``sasl.oauthbearer.sub.claim.name``."""
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    """``socket.request.max.bytes``."""
    request_budget: HeldBudget = field(default_factory=HeldBudget)
    response_budget: HeldBudget = field(default_factory=HeldBudget)
    """Budget of its own, so that clients with unfinished requests cannot keep others from their responses."""
    backlog: Backlog = field(default_factory=Backlog)
    turns: Turns = field(default_factory=Turns)
    pacer: Pacer = field(default_factory=Pacer)
    traffic: RelayedTraffic = field(default_factory=RelayedTraffic)
    counts: RequestCounts = field(default_factory=RequestCounts)
    refused: Counter[str] = field(default_factory=Counter)
    """Connections that the gateway closed, by reason."""
    relays: set[OpenRelay] = field(default_factory=set)
    """Open connections. Each one adds and removes itself."""
    none_left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the last open connection was closed."""

    def remove(self, relay: OpenRelay) -> None:
        """Remove a closed connection."""
        self.relays.discard(relay)
        if not self.relays:
            self.none_left.set()

    async def all_closed(self) -> None:
        """Wait until no connection is open."""
        while self.relays:
            self.none_left.clear()
            await self.none_left.wait()

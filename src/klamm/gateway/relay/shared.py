"""Objects that all relays of a gateway share."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import field
from typing import TYPE_CHECKING, Final

from klamm.gateway.frames.cutter import HeldBudget
from klamm.gateway.relay.pacing import Pacer
from klamm.gateway.relay.streams import Backlog
from klamm.lazy_dataclass import dataclass
from klamm.protocol.frames import DEFAULT_MAX_FRAME_BYTES
from klamm.server.time_slice import Turns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from klamm.admin import AdminClient
    from klamm.gateway.frames.addresses import AddressBook
    from klamm.gateway.relay.api import ServedApi
    from klamm.gateway.relay.features import Feature
    from klamm.gateway.relay.open_relay import OpenRelay
    from klamm.server.security.endpoints import Endpoint


MAX_CLIENT_IDS: Final = 500
"""Client ids that have their own counters. Requests of further ones are counted under ``OTHER``."""
MAX_CLIENT_ID_LENGTH: Final = 256
"""Characters of a client id that has its own counters. Clients could fill the page of metrics with 32 KiB for each."""
OTHER: Final = "(other)"


class RequestCounts:
    """Requests by API and client id. Used on the event loop only."""

    __slots__ = ("_client_ids", "counts")

    def __init__(self) -> None:
        self._client_ids: set[str | None] = set()
        self.counts: Counter[tuple[int, str | None]] = Counter()
        """Requests by API key and client id."""

    def counted_id(self, client_id: str | None) -> str | None:
        """Return the client id under which requests of a client id are counted."""
        if client_id not in self._client_ids:
            if len(self._client_ids) >= MAX_CLIENT_IDS or len(client_id or "") > MAX_CLIENT_ID_LENGTH:
                return OTHER
            self._client_ids.add(client_id)
        return client_id

    def count(self, api_key: int, client_id: str | None) -> None:
        """Count one request."""
        self.counts[api_key, self.counted_id(client_id)] += 1


@dataclass(slots=True)
class RelayedTraffic:
    """Bytes relayed by all connections, by direction."""

    from_clients: int = 0
    to_upstream: int = 0
    from_upstream: int = 0
    to_clients: int = 0


@dataclass(slots=True)
class RelayFigures:
    """Figures of all connections."""

    traffic: RelayedTraffic = field(default_factory=RelayedTraffic)
    requests: RequestCounts = field(default_factory=RequestCounts)
    closed: Counter[str] = field(default_factory=Counter)
    """Connections that the gateway closed, by reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayMemory:
    """Limits of the memory that all connections together use."""

    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    """``socket.request.max.bytes``."""
    request_budget: HeldBudget = field(default_factory=HeldBudget)
    response_budget: HeldBudget = field(default_factory=HeldBudget)
    """Budget of its own, so that clients with unfinished requests cannot keep others from their responses."""
    backlog: Backlog = field(default_factory=Backlog)
    rewriting: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a long response is rewritten. Decoded, it takes some ten times its size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLogins:
    """Logins of clients."""

    is_needed: bool = False
    """Whether clients must log in by SASL, through the gateway, before any other request."""
    endpoint: Endpoint | None = None
    """Settings of logins that end at the gateway; None if logins pass through to the upstream."""
    principal_claim: str = "sub"
    """``sasl.oauthbearer.sub.claim.name``."""


class OpenConnections:
    """Open connections. Each one adds and removes itself. Used on the event loop only."""

    def __init__(self) -> None:
        self._relays: set[OpenRelay] = set()
        self._none_left = asyncio.Event()

    def __len__(self) -> int:
        """Return the number of open connections."""
        return len(self._relays)

    def __iter__(self) -> Iterator[OpenRelay]:
        """Iterate over the connections that are open now. They may be closed meanwhile."""
        return iter(tuple(self._relays))

    def add(self, relay: OpenRelay) -> None:
        """Add a connection."""
        self._relays.add(relay)

    def remove(self, relay: OpenRelay) -> None:
        """Remove a closed connection."""
        self._relays.discard(relay)
        if not self._relays:
            self._none_left.set()

    async def all_closed(self) -> None:
        """Wait until no connection is open."""
        while self._relays:
            self._none_left.clear()
            await self._none_left.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Objects that all relays of a gateway share, one for each subject."""

    apis: Mapping[int, ServedApi]
    """APIs that the gateway serves, by key."""
    features: Sequence[Feature] = ()
    book: AddressBook
    admin: AdminClient
    listener: str | None = None
    """Name of the listener of clients, for policies."""
    logins: ClientLogins = field(default_factory=ClientLogins)
    memory: RelayMemory = field(default_factory=RelayMemory)
    turns: Turns = field(default_factory=Turns)
    pacer: Pacer = field(default_factory=Pacer)
    figures: RelayFigures = field(default_factory=RelayFigures)
    connections: OpenConnections = field(default_factory=OpenConnections)

"""Connected and recently disconnected clients, with or without support for KIP-649. Kept in memory and bounded.

Clients without KIP-649 are not written to the registration topic: a record there would claim that they registered, and
one write per connection would make reconnects of many clients expensive. So this list is lost with the process. It is
not served by any Kafka API, only by the page ``/clients.json``.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.client_configs.kinds import GROUP_PROTOCOL_OF_API, KIND_OF_API
from klamm.client_configs.registrations import short_name
from klamm.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from klamm.client_configs.definitions import ClientKind
    from klamm.client_configs.kinds import GroupProtocol
    from klamm.server.session import Session

MAX_GONE: Final = 10_000

ClientKey: TypeAlias = tuple[str, str, str, str, str]
"""Principal, client id, software name, software version and host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenClient:
    """All connections of one application from one host: same principal, client id and software."""

    principal: str
    """``Type:name``."""
    client_id: str
    """Client id; empty when the client sends none. The end of a long one is replaced when the client disconnects."""
    software_name: str
    software_version: str
    host: str
    connections: int
    """Number of open connections; 0 when the client has disconnected."""
    last_seen_ms: int
    """Time of the latest request, in milliseconds since the epoch."""
    fetched: tuple[tuple[str, str], ...] | None = None
    """Dynamic configs that were last sent to the client, by key; None when it never requested them."""
    fetched_at_ms: int = 0
    kinds: frozenset[ClientKind] = frozenset()
    """Kinds of client that its requests reveal; empty before a request specific to one kind."""
    protocols: frozenset[GroupProtocol] = frozenset()
    """Group protocols that its requests reveal; empty before it joins a group."""

    reported: Mapping[str, int] = field(default_factory=dict)
    """Client configs that its requests reveal, by key."""
    client_instance_id: UUID | None = None
    """Instance whose metrics it pushes (KIP-714); None if it fetched no subscriptions."""

    @property
    def key(self) -> ClientKey:
        """Key that identifies this entry, whether its names are shortened or not."""
        software = short_name(self.software_name), short_name(self.software_version)
        return (self.principal, short_name(self.client_id), *software, self.host)

    @property
    def application(self) -> tuple[str, str, str]:
        """Principal, client id and host: the key without the software."""
        return (self.principal, self.client_id, self.host)

    def shortened(self) -> SeenClient:
        """Return this entry without the ends of long names."""
        return replace(
            self,
            client_id=short_name(self.client_id),
            software_name=short_name(self.software_name),
            software_version=short_name(self.software_version),
        )

    def joined_with(self, other: SeenClient) -> SeenClient:
        """Return one entry that merges both, with the client id that is not shortened if there is one."""
        latest = max(self, other, key=lambda one: one.fetched_at_ms)
        return replace(
            self,
            client_id=max(self.client_id, other.client_id, key=len),
            connections=self.connections + other.connections,
            last_seen_ms=max(self.last_seen_ms, other.last_seen_ms),
            fetched=latest.fetched,
            fetched_at_ms=latest.fetched_at_ms,
            kinds=self.kinds | other.kinds,
            protocols=self.protocols | other.protocols,
            reported={**self.reported, **other.reported},
            client_instance_id=other.client_instance_id or self.client_instance_id,
        )


class ClientRegistry:
    """Owner of the list of clients: open connections and closed ones. Used on the event loop only.

    Args:
        now_ms: Wall clock, in milliseconds since the epoch.
        max_gone: Maximum number of disconnected clients. The one that disconnected first is dropped first.
    """

    def __init__(self, *, now_ms: Callable[[], int], max_gone: int = MAX_GONE) -> None:
        self._now_ms = now_ms
        self._max_gone = max_gone
        self._open: dict[int, Session] = {}
        self._gone: OrderedDict[ClientKey, SeenClient] = OrderedDict()
        self.on_left: Callable[[Session], None] = _ignore
        """Called when a connection has ended."""

    def seen(self, session: Session, client_id: str | None, api_key: int) -> None:
        """Record a request of a client that is logged in, or need not log in."""
        name = client_id or ""
        if session.client_id not in {None, name}:
            self._remember(_sighting(session, connections=0))
            session.kinds = frozenset()
            session.protocols = frozenset()
            session.reported = {}
            session.last_heartbeat_ms = 0
        kind = KIND_OF_API.get(api_key)
        if kind is not None and kind not in session.kinds:
            session.kinds |= {kind}
        protocol = GROUP_PROTOCOL_OF_API.get(api_key)
        if protocol is not None:
            session.protocols |= {protocol}
        session.client_id = name
        session.last_seen_ms = self._now_ms()
        self._open[session.connection_id] = session

    def left(self, session: Session) -> None:
        """Record the end of a connection."""
        self.on_left(session)
        if self._open.pop(session.connection_id, None) is not None:
            self._remember(_sighting(session, connections=0))

    def clients(self) -> tuple[SeenClient, ...]:
        """Return all clients, sorted by principal, client id, software and host."""
        clients = dict(self._gone)
        for session in self._open.values():
            one = _sighting(session, connections=1)
            client = clients.get(one.key)
            clients[one.key] = one if client is None else client.joined_with(one)
        return tuple(clients[key] for key in sorted(clients))

    def _remember(self, one: SeenClient) -> None:
        client = self._gone.pop(one.key, None)
        one = one.shortened()
        self._gone[one.key] = one if client is None else client.joined_with(one)
        if len(self._gone) > self._max_gone:
            self._gone.popitem(last=False)


def _ignore(_session: Session) -> None:
    pass


def _sighting(session: Session, *, connections: int) -> SeenClient:
    return SeenClient(
        principal=session.principal,
        client_id=session.client_id or "",
        software_name=session.software_name,
        software_version=session.software_version,
        host=session.client_host,
        connections=connections,
        last_seen_ms=session.last_seen_ms,
        fetched=session.fetched_configs,
        fetched_at_ms=session.fetched_at_ms,
        kinds=session.kinds,
        protocols=session.protocols,
        reported=dict(session.reported),
        client_instance_id=session.client_instance_id,
    )

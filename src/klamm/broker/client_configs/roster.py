"""Who is connected, and who was: also clients that know nothing of KIP-649. In memory only, and bounded.

A record in the registration topic would claim that such a client had registered; a write per connection would make a
reconnecting fleet expensive. So nothing of this outlives the process, and nothing of it is on the wire.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.client_configs.kinds import KIND_OF_API

if TYPE_CHECKING:
    from collections.abc import Callable

    from klamm.broker.session import Session
    from klamm.client_configs.definitions import ClientKind

MAX_GONE: Final = 10_000

ClientKey: TypeAlias = tuple[str, str, str, str, str]
"""Principal, client id, software name, software version, host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenClient:
    """The connections of one application from one address: same principal, client id and software."""

    principal: str
    """``Type:name``"""
    client_id: str
    """Empty when the client sends none."""
    software_name: str
    software_version: str
    host: str
    connections: int
    """Open ones; 0: it is gone."""
    last_seen_ms: int
    """Of its latest request, milliseconds since the epoch."""
    fetched: tuple[tuple[str, str], ...] | None = None
    """Key and value of the dynamic configs that it was told last, by key; None: it never asked."""
    fetched_at_ms: int = 0
    kinds: frozenset[ClientKind] = frozenset()
    """The kinds of client that its requests reveal; empty until it has sent one that only one kind sends."""

    @property
    def key(self) -> ClientKey:
        """What tells it from the others."""
        return (self.principal, self.client_id, self.software_name, self.software_version, self.host)

    @property
    def application(self) -> tuple[str, str, str]:
        """Principal, client id and host: the key without the software."""
        return (self.principal, self.client_id, self.host)

    def joined_with(self, other: SeenClient) -> SeenClient:
        """Return both sightings as one."""
        latest = max(self, other, key=lambda one: one.fetched_at_ms)
        return replace(
            self,
            connections=self.connections + other.connections,
            last_seen_ms=max(self.last_seen_ms, other.last_seen_ms),
            fetched=latest.fetched,
            fetched_at_ms=latest.fetched_at_ms,
            kinds=self.kinds | other.kinds,
        )


class ClientRoster:
    """Keeps the sessions of open connections, and the latest of those that ended. Loop-confined.

    Args:
        now_ms: Wall clock, milliseconds since the epoch.
        max_gone: How many applications that left are remembered; who left first is forgotten first.
    """

    def __init__(self, *, now_ms: Callable[[], int], max_gone: int = MAX_GONE) -> None:
        self._now_ms = now_ms
        self._max_gone = max_gone
        self._open: dict[int, Session] = {}
        self._gone: OrderedDict[ClientKey, SeenClient] = OrderedDict()

    def seen(self, session: Session, client_id: str | None, api_key: int) -> None:
        """Record a request of a client that is logged in, or does not have to be."""
        name = client_id or ""
        if session.client_id not in {None, name}:
            self._remember(_sighting(session, connections=0))
            session.kinds = frozenset()
        kind = KIND_OF_API.get(api_key)
        if kind is not None and kind not in session.kinds:
            session.kinds |= {kind}
        session.client_id = name
        session.last_seen_ms = self._now_ms()
        self._open[session.connection_id] = session

    def left(self, session: Session) -> None:
        """Note that a connection ended."""
        if self._open.pop(session.connection_id, None) is not None:
            self._remember(_sighting(session, connections=0))

    def clients(self) -> tuple[SeenClient, ...]:
        """Return everybody known, by principal, client id, software and host."""
        found = dict(self._gone)
        for session in self._open.values():
            one = _sighting(session, connections=1)
            known = found.get(one.key)
            found[one.key] = one if known is None else known.joined_with(one)
        return tuple(found[key] for key in sorted(found))

    def _remember(self, one: SeenClient) -> None:
        known = self._gone.pop(one.key, None)
        self._gone[one.key] = one if known is None else known.joined_with(one)
        if len(self._gone) > self._max_gone:
            self._gone.popitem(last=False)


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
    )

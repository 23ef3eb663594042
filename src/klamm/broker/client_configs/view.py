"""Who is connected, what each can take, what applies to it and what it was told: the facts joined, no I/O.

Three states that must not be mixed up: a client that *registered* some keys, one that registered *none* (it says that
it supports nothing), and one that never registered, of which nothing is known but what its connection tells.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from klamm.broker.session import UNKNOWN_SOFTWARE
from klamm.client_configs.entities import ClientConfigEntity
from klamm.client_configs.kinds import concerns, kinds_of_configs
from klamm.client_configs.registrations import client_information

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from klamm.broker.client_configs.roster import ClientRoster, SeenClient
    from klamm.broker.client_configs.service import ClientConfigService
    from klamm.client_configs.definitions import ClientKind
    from klamm.client_configs.describing import Compatibility


CLIENTS_PAGE: Final = "/clients.json"


class Standing(StrEnum):
    """How a client stands to what is set for it."""

    NOTHING_SET = "nothing set"
    IN_LINE = "in line"
    """It was told the values in force, and supports each of them."""
    PENDING = "pending"
    """It follows, but has not asked since the values changed."""
    IGNORES = "ignores"
    """A key that concerns its kind is set, and it did not register that key, or never registered."""
    NOT_CONCERNED = "not concerned"
    """Every key that is set is for other kinds of clients: ``acks`` for a consumer, any key for an admin client."""
    UNKNOWN = "unknown"
    """It never registered and has neither produced nor consumed, so nothing shows which keys concern it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientView:
    """One application as operators see it."""

    client: SeenClient
    registered: tuple[str, ...] | None
    """Keys that it registered; None: it never registered, so nothing is known of what it supports."""
    effective: Mapping[str, str]
    """What is set for it, merged."""

    @property
    def kinds(self) -> frozenset[ClientKind]:
        """Its kinds, by the requests it sends and by the keys it registered; empty: unknown so far."""
        return self.client.kinds | kinds_of_configs(self.registered or ())

    @property
    def concerning(self) -> frozenset[str]:
        """Keys that are set and concern its kinds."""
        if not self.kinds and self.registered is None:
            return frozenset()
        return frozenset(key for key in self.effective if concerns(key, self.kinds))

    @property
    def ignored(self) -> tuple[str, ...]:
        """Keys that concern it and that it did not register, sorted."""
        return tuple(sorted(self.concerning - set(self.registered or ())))

    @property
    def standing(self) -> Standing:
        """How it stands to what is set for it."""
        if self.registered and self.client.fetched is not None and dict(self.client.fetched) != dict(self.effective):
            return Standing.PENDING
        if not self.effective:
            return Standing.NOTHING_SET
        if not self.concerning:
            return Standing.NOT_CONCERNED if self.kinds else Standing.UNKNOWN
        return Standing.IGNORES if self.ignored else Standing.IN_LINE

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        seen = self.client
        return {
            "principal": seen.principal,
            "client_id": seen.client_id,
            "software_name": seen.software_name,
            "software_version": seen.software_version,
            "host": seen.host,
            "kinds": sorted(self.kinds),
            "connections": seen.connections,
            "last_seen_ms": seen.last_seen_ms,
            "registered": None if self.registered is None else list(self.registered),
            "effective": dict(sorted(self.effective.items())),
            "told": None if seen.fetched is None else dict(seen.fetched),
            "told_at_ms": seen.fetched_at_ms or None,
            "ignored": list(self.ignored),
            "standing": self.standing.value,
        }


def view_clients(
    seen: Iterable[SeenClient],
    registered: Mapping[ClientConfigEntity, Compatibility],
    resolve: Callable[[ClientConfigEntity], Mapping[str, str]],
) -> tuple[ClientView, ...]:
    """Join who was seen with what was registered and with what applies.

    Some libraries do not tell their software; where the very same application (principal, client id, host) is known
    by name, because a connection of klamm asks on its behalf, it is one client and not two.

    Args:
        seen: The connections, in the order wanted.
        registered: What registrations tell, per ``<user, client-id>``.
        resolve: Tells what applies to a ``<user, client-id>``.
    """
    views = []
    for client in _with_their_unnamed(tuple(seen)):
        entity = ClientConfigEntity.of_client(client.principal.partition(":")[2], client.client_id)
        information = client_information(client.software_name, client.software_version)
        views.append(
            ClientView(
                client=client,
                registered=registered.get(entity, {}).get(information),
                effective=resolve(entity),
            )
        )
    return tuple(views)


def _with_their_unnamed(seen: tuple[SeenClient, ...]) -> tuple[SeenClient, ...]:
    asking = {
        client.application: client.key
        for client in seen
        if client.software_name != UNKNOWN_SOFTWARE and client.fetched is not None
    }
    joined = {client.key: client for client in seen}
    for client in seen:
        key = asking.get(client.application)
        if client.software_name == UNKNOWN_SOFTWARE and key is not None:
            joined[key] = joined[key].joined_with(joined.pop(client.key))
    return tuple(joined.values())


def clients_page(roster: ClientRoster, service: ClientConfigService, at_ms: int) -> tuple[str, str]:
    """Return content type and text of what tells the clients."""
    views = view_clients(roster.clients(), service.registered, service.resolve)
    return "application/json", json.dumps(clients_document(views, at_ms=at_ms), ensure_ascii=False)


def clients_document(views: Iterable[ClientView], *, at_ms: int) -> dict[str, Any]:
    """Return what ``GET /clients.json`` answers."""
    return {"version": 0, "at_ms": at_ms, "clients": [view.document() for view in views]}

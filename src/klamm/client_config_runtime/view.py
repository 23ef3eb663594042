"""View of all clients for operators: connections, registrations and configs joined. No I/O.

Three cases must be kept apart: a client that registered some keys, a client that registered none (it declares that it
supports no key), and a client that never registered. Of the last one only the facts of its connection are known.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from klamm.client_configs.enforcement import NOTHING_ENFORCED, Compliance, compliance, differs, enforceable, value_text
from klamm.client_configs.entities import ClientConfigEntity
from klamm.client_configs.kinds import concerns, kinds_of_configs
from klamm.client_configs.registrations import client_information
from klamm.lazy_dataclass import dataclass
from klamm.protocol.primitives import uuid_text
from klamm.server.session import UNKNOWN_SOFTWARE
from klamm.server.time_slice import TimeSlice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from klamm.client_config_runtime.enforcement import EnforcementService
    from klamm.client_config_runtime.source import ClientConfigSource
    from klamm.client_configs.definitions import ClientKind
    from klamm.client_configs.description import Compatibility
    from klamm.client_configs.enforcement import Enforced
    from klamm.server.client_registry import ClientRegistry, SeenClient


CLIENTS_PAGE: Final = "/clients.json"


class Standing(StrEnum):
    """Relation of a client to the configs set for it."""

    NOTHING_SET = "nothing set"
    IN_LINE = "in line"
    """The client received the values in force and supports each of their keys."""
    PENDING = "pending"
    """The client supports dynamic configs, but has not requested them since the values changed, or since the server
    started.
    """
    ENFORCED = "enforced"
    """The client did not register some keys that apply to it, and the broker enforces all of them."""
    IGNORES = "ignores"
    """A key for its kind of client is set, the client did not register that key, or never registered, and the broker
    does not enforce it.
    """
    NOT_CONCERNED = "not concerned"
    """All keys that are set are for other kinds of clients: ``acks`` for a consumer, any key for an admin client."""
    UNKNOWN = "unknown"
    """The client never registered and has neither produced nor consumed, so it is unknown which keys apply to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientView:
    """Application as shown to operators."""

    client: SeenClient
    registered: tuple[str, ...] | None
    """Registered keys; None when the client never registered, so its support is unknown."""
    effective: Mapping[str, str]
    """Merged configs that apply to the client."""
    kinds: frozenset[ClientKind]
    """Kinds of the client, by its requests and by its registered keys; empty when unknown."""
    compliance: Mapping[str, Compliance]
    """Way in which each key that is set and applies to the client's kinds reaches it, by key in order."""
    enforced: Enforced = NOTHING_ENFORCED
    """Values that the broker enforces for the client."""

    @property
    def reported(self) -> Mapping[str, str]:
        """Values that the client's requests reveal, by key; see ``Session.reported``."""
        return {key: value_text(key, value) for key, value in sorted(self.client.reported.items())}

    @property
    def drift(self) -> tuple[str, ...]:
        """Keys that apply to the client and for which it reports another value, sorted."""
        reported = self.client.reported
        return tuple(
            key
            for key in self.compliance
            if key in reported and differs(key, reported=reported[key], wanted=self.effective[key])
        )

    @property
    def ignored(self) -> tuple[str, ...]:
        """Keys that apply to the client, that it did not register and that the broker does not enforce, sorted."""
        return tuple(key for key, way in self.compliance.items() if way in {Compliance.CANNOT, Compliance.OFF})

    @property
    def standing(self) -> Standing:
        """Relation of the client to the configs set for it."""
        if self._is_pending:
            return Standing.PENDING
        if not self.effective:
            return Standing.NOTHING_SET
        if not self.compliance:
            return Standing.NOT_CONCERNED if self.kinds else Standing.UNKNOWN
        if self.ignored:
            return Standing.IGNORES
        return Standing.ENFORCED if Compliance.ENFORCED in self.compliance.values() else Standing.IN_LINE

    @property
    def _is_pending(self) -> bool:
        """Whether the client still has to request the current values.

        Registrations are stored, but the fetched configs are only known since the server started.
        """
        if self.client.fetched is None:
            return Compliance.FOLLOWS in self.compliance.values()
        return bool(self.registered) and dict(self.client.fetched) != dict(self.effective)

    def document(self) -> dict[str, Any]:
        """Return the view as a JSON object."""
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
            "compliance": dict(self.compliance),
            "enforceable": sorted(enforceable(self.enforced, seen.protocols)),
            "client_instance_id": None if seen.client_instance_id is None else uuid_text(seen.client_instance_id),
            "reported": dict(self.reported),
            "drift": list(self.drift),
            "ignored": list(self.ignored),
            "standing": self.standing.value,
        }


def view_clients(
    seen: Iterable[SeenClient],
    registered: Mapping[ClientConfigEntity, Compatibility],
    resolve: Callable[[ClientConfigEntity], Mapping[str, str]],
    enforced: Callable[[ClientConfigEntity], Enforced] = lambda _: NOTHING_ENFORCED,
) -> Iterator[ClientView]:
    """Join clients with their registrations and the configs that apply to them.

    Some libraries do not send their software name. When the same application (principal, client id, host) also has a
    connection with a known name, because a connection of klamm fetches configs on its behalf, both are shown as one
    client.

    Args:
        seen: Clients in the order of the result.
        registered: Supported keys by client information, for each ``<user, client-id>``.
        resolve: Function that returns the configs of a ``<user, client-id>``.
        enforced: Function that returns the values that the broker enforces for a ``<user, client-id>``.
    """
    return (_view_client(client, registered, resolve, enforced) for client in _join_unnamed(tuple(seen)))


def _view_client(
    client: SeenClient,
    registered: Mapping[ClientConfigEntity, Compatibility],
    resolve: Callable[[ClientConfigEntity], Mapping[str, str]],
    enforced: Callable[[ClientConfigEntity], Enforced],
) -> ClientView:
    entity = ClientConfigEntity.of_client(client.principal.partition(":")[2], client.client_id)
    information = client_information(client.software_name, client.software_version)
    supported = registered.get(entity, {}).get(information)
    kinds = client.kinds | kinds_of_configs(supported or ())
    effective, values = resolve(entity), enforced(entity)
    applying = () if not kinds and supported is None else sorted(key for key in effective if concerns(key, kinds))
    return ClientView(
        client=client,
        registered=supported,
        effective=effective,
        kinds=kinds,
        compliance={
            key: compliance(key, is_supported=key in (supported or ()), enforced=values, protocols=client.protocols)
            for key in applying
        },
        enforced=values,
    )


def _join_unnamed(seen: tuple[SeenClient, ...]) -> tuple[SeenClient, ...]:
    """Return the clients, with unnamed connections joined to the named client of the same application."""
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


async def client_documents(
    client_registry: ClientRegistry,
    service: ClientConfigSource,
    enforcement: EnforcementService,
    *,
    connected_only: bool = False,
) -> list[dict[str, Any]]:
    """Return the clients as JSON objects, built in time slices."""
    seen = (client for client in client_registry.clients() if client.connections or not connected_only)
    views = view_clients(seen, service.registered, service.resolve, enforcement.of_application)
    return await TimeSlice().listed(view.document() for view in views)


def clients_document(clients: list[dict[str, Any]], *, at_ms: int) -> dict[str, Any]:
    """Return the document of ``GET /clients.json``."""
    return {"version": 0, "at_ms": at_ms, "clients": clients}

"""Quotas of users, clients and IP addresses (KIP-546) in ``klamm configs``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.admin import ClientQuotaEntity, ClientQuotaFilter, ClientQuotaFilterComponent, ClientQuotaOp
from klamm.cli.configs.changes import quota_number
from klamm.cli.connection import RequestError
from klamm.configs.values import java_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.admin import AdminClient
    from klamm.cli.configs.changes import Changes
    from klamm.cli.configs.entities import Target

CLIENT_QUOTAS: Final = frozenset(
    {"producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"}
)
IP_QUOTAS: Final = frozenset({"connection_creation_rate"})
ENTITY_TYPES: Final = {"users": "user", "clients": "client-id", "ips": "ip"}


def find(admin: AdminClient, target: Target) -> dict[ClientQuotaEntity, dict[str, float]]:
    """Return the quotas of the entities of exactly the given types, sorted by name."""
    components = []
    for kind in target.types:
        name = target.name_of(kind)
        if name is None:
            components.append(ClientQuotaFilterComponent.of_entity_type(ENTITY_TYPES[kind]))
        elif name:
            components.append(ClientQuotaFilterComponent.of_entity(ENTITY_TYPES[kind], name))
        else:
            components.append(ClientQuotaFilterComponent.of_default_entity(ENTITY_TYPES[kind]))
    quotas = admin.describe_client_quotas(ClientQuotaFilter(tuple(components), strict=True)).result()
    in_order = sorted(quotas, key=lambda entity: [(kind, name is not None, name or "") for kind, name in entity.parts])
    return {entity: dict(sorted(quotas[entity].items())) for entity in in_order}


def alter(admin: AdminClient, target: Target, changes: Changes, *, validate_only: bool) -> None:
    """Send the changes of one entity.

    Raises:
        RequestError: A value is not a number, or a quota to delete is not set. Nothing is sent.
    """
    operations = [ClientQuotaOp(key, _number(key, value)) for key, value in changes.added.items()]
    if changes.deleted:
        present = {key for quotas in find(admin, target).values() for key in quotas}
        if wrong := [key for key in changes.deleted if key not in present]:
            raise RequestError(f"Invalid config(s): {','.join(wrong)}")
        operations += (ClientQuotaOp(key, None) for key in changes.deleted)
    entity = ClientQuotaEntity.of({ENTITY_TYPES[kind]: target.name_of(kind) or None for kind in target.types})
    admin.alter_client_quotas({entity: operations}, validate_only=validate_only).all().result()


def line(spelled_entity: str, quotas: Mapping[str, float]) -> str:
    """Return the quotas of an entity in the format of Kafka's tool."""
    return f"Quota configs for {spelled_entity} are " + ", ".join(f"{k}={java_text(v)}" for k, v in quotas.items())


def _number(key: str, text: str) -> float:
    number = quota_number(text)
    if number is None:
        raise RequestError(f"Cannot parse quota configuration value for {key}: {text}")
    return number

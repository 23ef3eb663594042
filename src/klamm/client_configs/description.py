"""Operator's view of client configs: entities with their own configs and the client versions registered for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from klamm.client_configs.entities import ClientConfigEntity, EntityType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from klamm.client_configs.description import EntityFilter

Compatibility: TypeAlias = "Mapping[str, tuple[str, ...]]"
"""Compatibility of clients: supported keys by client information (software name and version)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedEntity:
    """One entity in a DescribeClientConfigs response."""

    entity: ClientConfigEntity
    values: tuple[tuple[str, str], ...]
    """The entity's own configs as (key, value), sorted by key. Nothing is merged in from other entities."""
    compatibility: tuple[tuple[str, tuple[str, ...]], ...]
    """Pairs of client information and supported keys, sorted by client information."""

    def compatibility_of(self, kind: EntityType) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Return the compatibility to report with one component: the client id if there is one, else the user."""
        owner = EntityType.CLIENT_ID if self.entity.has_client_id else EntityType.USER
        return self.compatibility if kind is owner else ()


def describe(
    entity_filter: EntityFilter,
    configs: Mapping[ClientConfigEntity, Mapping[str, str]],
    registered: Mapping[ClientConfigEntity, Compatibility],
) -> tuple[DescribedEntity, ...]:
    """Return the entities that match the filter and have configs or registrations, in a fixed order.

    A user's compatibility is the union over all client ids that registered under this user.
    """
    by_user: dict[ClientConfigEntity, list[Compatibility]] = {}
    for entity, compatibility in registered.items():
        by_user.setdefault(ClientConfigEntity.of_user(entity.user), []).append(compatibility)
    known = {entity for entity, values in configs.items() if values} | set(registered) | set(by_user)
    return tuple(
        DescribedEntity(
            entity=entity,
            values=tuple(sorted(configs.get(entity, {}).items())),
            compatibility=merge_compatibility(
                [registered.get(entity, {})] if entity.has_client_id else by_user.get(entity, [])
            ),
        )
        for entity in sorted(known, key=lambda entity: entity.sort_key)
        if entity_filter.accepts(entity)
    )


def merge_compatibility(parts: Iterable[Compatibility]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the union of the keys per software version over several sources, ordered by client information."""
    merged: dict[str, dict[str, None]] = {}
    for part in parts:
        for information, supported in part.items():
            merged.setdefault(information, {}).update(dict.fromkeys(supported))
    return tuple((information, tuple(keys)) for information, keys in sorted(merged.items()))

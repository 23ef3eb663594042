"""What an operator sees: entities with their own configs and with the client versions registered under them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from klamm.client_configs.entities import ClientConfigEntity, EntityType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from klamm.client_configs.filters import EntityFilter

Compatibility: TypeAlias = "Mapping[str, tuple[str, ...]]"
"""Client information -> keys that this software takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedEntity:
    """One entry of the answer."""

    entity: ClientConfigEntity
    values: tuple[tuple[str, str], ...]
    """Key and value of the entity's own configs, by key; nothing merged in."""
    compatibility: tuple[tuple[str, tuple[str, ...]], ...]
    """Client information and keys, by client information."""

    def compatibility_of(self, kind: EntityType) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Return what belongs on one component: the client id's when there is one, else the user's."""
        owner = EntityType.CLIENT_ID if self.entity.has_client_id else EntityType.USER
        return self.compatibility if kind is owner else ()


def describe(
    entity_filter: EntityFilter,
    configs: Mapping[ClientConfigEntity, Mapping[str, str]],
    registered: Mapping[ClientConfigEntity, Compatibility],
) -> tuple[DescribedEntity, ...]:
    """Return the entities that the filter accepts and that have configs or registrations, in a fixed order.

    A user is described with the union over the client ids that registered under it.
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
    """Unite what several sources know of each software version, ordered by its name."""
    merged: dict[str, dict[str, None]] = {}
    for part in parts:
        for information, supported in part.items():
            merged.setdefault(information, {}).update(dict.fromkeys(supported))
    return tuple((information, tuple(keys)) for information, keys in sorted(merged.items()))

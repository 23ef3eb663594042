"""Operator's view of client configs: filters of DescribeClientConfigs, and the entities that match them.

An entity is described by its own configs and the client versions that are registered for it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, TypeAlias

from klamm.client_configs.entities import ClientConfigEntity, EntityType
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import InvalidRequestError, UnsupportedVersionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Compatibility: TypeAlias = "Mapping[str, tuple[str, ...]]"
"""Compatibility of clients: supported keys by client information (software name and version)."""


class MatchType(IntEnum):
    """Wire values of ``match_type`` in DescribeClientConfigsRequest."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterComponent:
    """Condition on one component of an entity."""

    entity_type: EntityType
    match_type: MatchType
    match: str | None = None
    """Name for an exact match; None for the other match types."""

    @classmethod
    def of_entity(cls, entity_type: EntityType, name: str) -> FilterComponent:
        """Return a condition that matches the entity of this name."""
        return cls(entity_type=entity_type, match_type=MatchType.EXACT, match=name)

    @classmethod
    def of_default_entity(cls, entity_type: EntityType) -> FilterComponent:
        """Return a condition that matches the default entity of the type."""
        return cls(entity_type=entity_type, match_type=MatchType.DEFAULT)

    @classmethod
    def of_entity_type(cls, entity_type: EntityType) -> FilterComponent:
        """Return a condition that matches every entity of the type, named or default."""
        return cls(entity_type=entity_type, match_type=MatchType.ANY)

    def accepts(self, name: str | None) -> bool:
        """Return whether a component of this name matches. None means the default entity."""
        if self.match_type is MatchType.ANY:
            return True
        if self.match_type is MatchType.DEFAULT:
            return name is None
        return name is not None and name == self.match


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityFilter:
    """Filter of entities. All conditions must match."""

    components: tuple[FilterComponent, ...]
    strict: bool
    """Whether to exclude entities that have a type without a condition."""

    def accepts(self, entity: ClientConfigEntity) -> bool:
        """Return whether the entity matches."""
        names = dict(entity.components)
        if self.strict and len(names) != len(self.components):
            return False
        return all(
            component.entity_type in names and component.accepts(names[component.entity_type])
            for component in self.components
        )


def parse_filter(components: Sequence[tuple[str, int, str | None]], *, strict: bool) -> EntityFilter:
    """Parse the filter of an operator's request.

    Args:
        components: Entity type, match type and match as received.
        strict: Whether to exclude entities with further types.

    Raises:
        UnsupportedVersionError: KIP-649 does not define the entity type.
        InvalidRequestError: There is no user component, a type is empty or appears twice, a match type is unknown, or a
            match does not fit its match type.
    """
    parsed: dict[EntityType, FilterComponent] = {}
    for entity_type, match_type, match in components:
        component = parse_component(entity_type, match_type, match)
        if component.entity_type in parsed:
            raise InvalidRequestError(f"Duplicate entity type {entity_type} in the filter")
        parsed[component.entity_type] = component
    if EntityType.USER not in parsed:
        raise InvalidRequestError("A filter for client configs must have a user component")
    return EntityFilter(components=tuple(parsed.values()), strict=strict)


def parse_component(entity_type: str, match_type: int, match: str | None) -> FilterComponent:
    """Parse one component of a filter.

    Raises:
        UnsupportedVersionError: KIP-649 does not define the entity type.
        InvalidRequestError: The type is empty, the match type is unknown, or the match does not fit it.
    """
    if not entity_type:
        raise InvalidRequestError("Empty entity type in the filter")
    try:
        kind = EntityType(entity_type)
    except ValueError as error:
        raise UnsupportedVersionError(
            f"Entity type {entity_type!r} is not supported: expected user or client-id"
        ) from error
    try:
        how = MatchType(match_type)
    except ValueError as error:
        raise InvalidRequestError(f"Unknown match type {match_type}: expected 0, 1 or 2") from error
    if how is MatchType.EXACT and match is None:
        raise InvalidRequestError(f"Match type 0 (exact) of {entity_type} requires a name")
    if how is not MatchType.EXACT and match is not None:
        raise InvalidRequestError(f"Match type {match_type} of {entity_type} takes no name, got {match!r}")
    return FilterComponent(entity_type=kind, match_type=how, match=match)


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


def merge_compatibility(merged: dict[str, dict[str, None]], part: Compatibility) -> None:
    """Add the keys that a source supports to those of others, by client information."""
    for information, supported in part.items():
        merged.setdefault(information, {}).update(dict.fromkeys(supported))


def in_order(merged: Mapping[str, Iterable[str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return merged keys ordered by client information."""
    return tuple((information, tuple(keys)) for information, keys in sorted(merged.items()))

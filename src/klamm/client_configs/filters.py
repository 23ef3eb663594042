"""Which entities a DescribeClientConfigs request means when an operator asks (``resolve_entity`` false)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from klamm.client_configs.entities import ClientConfigEntity, EntityType
from klamm.protocol.errors import InvalidRequestError, UnsupportedVersionError

if TYPE_CHECKING:
    from collections.abc import Sequence


class MatchType(IntEnum):
    """Wire values of ``match_type`` in DescribeClientConfigsRequest."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterComponent:
    """What one component of an entity has to be."""

    entity_type: EntityType
    match_type: MatchType
    match: str | None = None
    """The name for an exact match, None for the others."""

    @classmethod
    def of_entity(cls, entity_type: EntityType, name: str) -> FilterComponent:
        """Match the entity of this name."""
        return cls(entity_type=entity_type, match_type=MatchType.EXACT, match=name)

    @classmethod
    def of_default_entity(cls, entity_type: EntityType) -> FilterComponent:
        """Match the default entity of the type."""
        return cls(entity_type=entity_type, match_type=MatchType.DEFAULT)

    @classmethod
    def of_entity_type(cls, entity_type: EntityType) -> FilterComponent:
        """Match every entity that has the type, named or default."""
        return cls(entity_type=entity_type, match_type=MatchType.ANY)

    def accepts(self, name: str | None) -> bool:
        """Tell whether a component of this name (None: the default) is meant."""
        if self.match_type is MatchType.ANY:
            return True
        if self.match_type is MatchType.DEFAULT:
            return name is None
        return name is not None and name == self.match


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityFilter:
    """All components have to be met."""

    components: tuple[FilterComponent, ...]
    strict: bool
    """True leaves out entities with a type that no component names."""

    def accepts(self, entity: ClientConfigEntity) -> bool:
        """Tell whether the entity is meant."""
        names = dict(entity.components)
        if self.strict and len(names) != len(self.components):
            return False
        return all(
            component.entity_type in names and component.accepts(names[component.entity_type])
            for component in self.components
        )


def parse_filter(components: Sequence[tuple[str, int, str | None]], *, strict: bool) -> EntityFilter:
    """Read the components of an operator's request.

    Args:
        components: Entity type, match type and match as they came.
        strict: Whether entities with further types are left out.

    Raises:
        UnsupportedVersionError: An entity type that KIP-649 does not know.
        InvalidRequestError: No user component, a doubled or empty type, an unknown match type, or a match that
            is missing or too much for its match type.
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
    """Read one component.

    Raises:
        UnsupportedVersionError: An entity type that KIP-649 does not know.
        InvalidRequestError: An empty type, an unknown match type, or a match that does not fit it.
    """
    if not entity_type:
        raise InvalidRequestError("Empty entity type in the filter")
    try:
        kind = EntityType(entity_type)
    except ValueError as error:
        raise UnsupportedVersionError(f"Entity type {entity_type!r} is not supported: user or client-id") from error
    try:
        how = MatchType(match_type)
    except ValueError as error:
        raise InvalidRequestError(f"Unknown match type {match_type}: expected 0, 1 or 2") from error
    if how is MatchType.EXACT and match is None:
        raise InvalidRequestError(f"An exact match of {entity_type} needs a name")
    if how is not MatchType.EXACT and match is not None:
        raise InvalidRequestError(f"Match type {match_type} of {entity_type} takes no name, got {match!r}")
    return FilterComponent(entity_type=kind, match_type=how, match=match)

"""To whom client configs belong: a user, or a client id of a user; each by name or the default of its kind."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from klamm.protocol.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence


class EntityType(StrEnum):
    """Values of ``entity_type`` on the wire (Kafka's ``ClientQuotaEntity``)."""

    USER = "user"
    CLIENT_ID = "client-id"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfigEntity:
    """A user, or a client id of a user."""

    user: str | None
    """None is the default user."""
    client_id: str | None = None
    """None is the default client id, or nothing at all when ``has_client_id`` is false."""
    has_client_id: bool = False

    @classmethod
    def of_user(cls, user: str | None) -> ClientConfigEntity:
        """Return ``<user>``."""
        return cls(user=user)

    @classmethod
    def of_client(cls, user: str | None, client_id: str | None) -> ClientConfigEntity:
        """Return ``<user, client-id>``."""
        return cls(user=user, client_id=client_id, has_client_id=True)

    @property
    def components(self) -> tuple[tuple[EntityType, str | None], ...]:
        """Type and name of each component, user first; None is the default of its type."""
        if self.has_client_id:
            return ((EntityType.USER, self.user), (EntityType.CLIENT_ID, self.client_id))
        return ((EntityType.USER, self.user),)

    @property
    def sort_key(self) -> tuple[bool, str, bool, bool, str]:
        """Orders by user, then client id: defaults before names, users before their clients."""
        return (
            self.user is not None,
            self.user or "",
            self.has_client_id,
            self.client_id is not None,
            self.client_id or "",
        )

    def __str__(self) -> str:
        """Return the components as a phrase, for messages and the history."""
        return ", ".join(
            f"the default {kind.value}" if name is None else f"{kind.value} '{name}'" for kind, name in self.components
        )


def alterable_entity(components: Sequence[tuple[str, str | None]]) -> ClientConfigEntity:
    """Read the entity of an AlterClientConfigs entry.

    Args:
        components: Type and name as they came; None is the default of its type.

    Raises:
        InvalidRequestError: No component, no user, an unknown or doubled type, an empty name.
    """
    entity = parse_entity(components)
    for kind, name in entity.components:
        if name == "":
            raise InvalidRequestError(f"Empty {kind.value} name: null addresses the default {kind.value}")
    return entity


def parse_entity(components: Sequence[tuple[str, str | None]]) -> ClientConfigEntity:
    """Read an entity that a broker tells: an application without a client id registers under an empty name.

    Args:
        components: Type and name as they came; None is the default of its type.

    Raises:
        InvalidRequestError: No component, no user, an unknown or doubled type.
    """
    names: dict[EntityType, str | None] = {}
    for entity_type, name in components:
        kind = _known_type(entity_type)
        if kind in names:
            raise InvalidRequestError(f"Duplicate entity type {entity_type}")
        names[kind] = name
    if EntityType.USER not in names:
        raise InvalidRequestError("A client config entity must have a user component")
    if EntityType.CLIENT_ID in names:
        return ClientConfigEntity.of_client(names[EntityType.USER], names[EntityType.CLIENT_ID])
    return ClientConfigEntity.of_user(names[EntityType.USER])


def _known_type(entity_type: str) -> EntityType:
    try:
        return EntityType(entity_type)
    except ValueError as error:
        raise InvalidRequestError(f"Invalid entity type {entity_type!r}: expected user or client-id") from error

"""Entities of client configs: a user, or a client id of a user, each by name or as the default of its type."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence


class EntityType(StrEnum):
    """Wire values of ``entity_type`` (Kafka's ``ClientQuotaEntity``)."""

    USER = "user"
    CLIENT_ID = "client-id"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfigEntity:
    """A user, or a client id of a user."""

    user: str | None
    """User name. None means the default user."""
    client_id: str | None = None
    """Client id. None means the default client id, or no client id if ``has_client_id`` is false."""
    has_client_id: bool = False

    @classmethod
    def of_user(cls, user: str | None) -> ClientConfigEntity:
        """Return the entity ``<user>``."""
        return cls(user=user)

    @classmethod
    def of_client(cls, user: str | None, client_id: str | None) -> ClientConfigEntity:
        """Return the entity ``<user, client-id>``."""
        return cls(user=user, client_id=client_id, has_client_id=True)

    @property
    def components(self) -> tuple[tuple[EntityType, str | None], ...]:
        """Type and name of each component, user first. The name None means the default of its type."""
        if self.has_client_id:
            return ((EntityType.USER, self.user), (EntityType.CLIENT_ID, self.client_id))
        return ((EntityType.USER, self.user),)

    @property
    def sort_key(self) -> tuple[bool, str, bool, bool, str]:
        """Sort key: by user, then client id. Defaults precede names, and users precede their clients."""
        return (
            self.user is not None,
            self.user or "",
            self.has_client_id,
            self.client_id is not None,
            self.client_id or "",
        )

    def __str__(self) -> str:
        """Return the components as a phrase for messages and the history of changes."""
        return ", ".join(
            f"the default {kind.value}" if name is None else f"{kind.value} '{name}'" for kind, name in self.components
        )


def alterable_entity(components: Sequence[tuple[str, str | None]]) -> ClientConfigEntity:
    """Parse the entity of an AlterClientConfigs entry.

    Args:
        components: Type and name as received. The name None means the default of its type.

    Raises:
        InvalidRequestError: There is no component or no user, a type is unknown or appears twice, or a name is empty.
    """
    entity = parse_entity(components)
    for kind, name in entity.components:
        if name == "":
            raise InvalidRequestError(f"Empty {kind.value} name: use null for the default {kind.value}")
    return entity


def parse_entity(components: Sequence[tuple[str, str | None]]) -> ClientConfigEntity:
    """Parse an entity that a broker reports. An application without a client id is registered under an empty name.

    Args:
        components: Type and name as received. The name None means the default of its type.

    Raises:
        InvalidRequestError: There is no component or no user, or a type is unknown or appears twice.
    """
    names: dict[EntityType, str | None] = {}
    for entity_type, name in components:
        kind = _entity_type(entity_type)
        if kind in names:
            raise InvalidRequestError(f"Duplicate entity type {entity_type}")
        names[kind] = name
    if EntityType.USER not in names:
        raise InvalidRequestError("A client config entity must have a user component")
    if EntityType.CLIENT_ID in names:
        return ClientConfigEntity.of_client(names[EntityType.USER], names[EntityType.CLIENT_ID])
    return ClientConfigEntity.of_user(names[EntityType.USER])


def _entity_type(entity_type: str) -> EntityType:
    try:
        return EntityType(entity_type)
    except ValueError as error:
        raise InvalidRequestError(f"Invalid entity type {entity_type!r}: expected user or client-id") from error

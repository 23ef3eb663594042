"""What applies to an application that asks for itself (``resolve_entity`` true), decided key by key on the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.client_configs.entities import ClientConfigEntity, EntityType
from klamm.client_configs.filters import FilterComponent, MatchType, parse_component
from klamm.client_configs.rollout import values_for
from klamm.protocol.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def resolve(configs: Mapping[ClientConfigEntity, Mapping[str, str]], application: ClientConfigEntity) -> dict[str, str]:
    """Merge, from strongest to weakest: ``<user, client-id>``, ``<user>``, the default user.

    A hierarchy that shallow is KIP-649's choice; the eight levels of client quotas (KIP-55) are its rejected
    alternative, and no other default entity takes part. In each layer a staged roll-out wins over the value beside it.
    """
    layers = (
        ClientConfigEntity.of_user(None),
        ClientConfigEntity.of_user(application.user),
        application,
    )
    merged: dict[str, str] = {}
    for layer in layers:
        merged.update(values_for(configs.get(layer, {}), application))
    return merged


def asking_entity(
    components: Sequence[tuple[str, int, str | None]], *, principal_name: str, header_client_id: str | None
) -> ClientConfigEntity:
    """Return the ``<user, client-id>`` that asks: the user is who logged in, never what the request claims.

    Args:
        components: Entity type, match type and match as they came.
        principal_name: Name of the connection's principal.
        header_client_id: Client id of the request header, used when no component names one.

    Raises:
        InvalidRequestError: Another user, a match that is not exact, a doubled type.
        UnsupportedVersionError: An entity type that KIP-649 does not know.
    """
    parsed: dict[EntityType, FilterComponent] = {}
    for entity_type, match_type, match in components:
        component = parse_component(entity_type, match_type, match)
        if component.entity_type in parsed:
            raise InvalidRequestError(f"Duplicate entity type {entity_type}")
        if component.match_type is not MatchType.EXACT:
            raise InvalidRequestError(
                f"An application names its own {entity_type}: match type {match_type} is not exact"
            )
        parsed[component.entity_type] = component
    user = parsed.get(EntityType.USER)
    if user is not None and user.match != principal_name:
        raise InvalidRequestError(f"User {principal_name} cannot ask for the configs of user {user.match}")
    client = parsed.get(EntityType.CLIENT_ID)
    client_id = header_client_id or "" if client is None else client.match
    return ClientConfigEntity.of_client(principal_name, client_id)

"""Resolution of the configs of an application that requests its own (``resolve_entity`` true), key by key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.client_configs.definitions import ENFORCEMENT
from klamm.client_configs.description import FilterComponent, MatchType, parse_component
from klamm.client_configs.entities import ClientConfigEntity, EntityType
from klamm.client_configs.rollout import values_for
from klamm.protocol.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def resolve(configs: Mapping[ClientConfigEntity, Mapping[str, str]], application: ClientConfigEntity) -> dict[str, str]:
    """Merge the configs of ``<user, client-id>``, ``<user>`` and the default user, from strongest to weakest.

    KIP-649 chose this shallow hierarchy and rejected the eight levels of client quotas (KIP-55). No other default
    entity takes part. Within each entity, a staged roll-out that applies to the client overrides the plain value.
    """
    merged = merge_layers(configs, application)
    merged.pop(ENFORCEMENT, None)
    return merged


def merge_layers(
    configs: Mapping[ClientConfigEntity, Mapping[str, str]], application: ClientConfigEntity
) -> dict[str, str]:
    """Merge the configs that apply to an application, with the switch of enforcement that clients do not receive."""
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
    """Return the requesting ``<user, client-id>``.

    The user is the authenticated principal, never a name from the request.

    Args:
        components: Entity type, match type and match as received.
        principal_name: Name of the connection's principal.
        header_client_id: Client id of the request header, used if no component names one.

    Raises:
        InvalidRequestError: The request names another user, uses a match other than exact, or repeats a type.
        UnsupportedVersionError: KIP-649 does not define an entity type.
    """
    parsed: dict[EntityType, FilterComponent] = {}
    for entity_type, match_type, match in components:
        component = parse_component(entity_type, match_type, match)
        if component.entity_type in parsed:
            raise InvalidRequestError(f"Duplicate entity type {entity_type}")
        if component.match_type is not MatchType.EXACT:
            raise InvalidRequestError(
                f"Match type {match_type} of {entity_type}: only an exact match (0) is allowed with resolve_entity"
            )
        parsed[component.entity_type] = component
    user = parsed.get(EntityType.USER)
    if user is not None and user.match != principal_name:
        raise InvalidRequestError(f"User {principal_name} cannot request the configs of user {user.match}")
    client = parsed.get(EntityType.CLIENT_ID)
    client_id = header_client_id or "" if client is None else client.match
    return ClientConfigEntity.of_client(principal_name, client_id)

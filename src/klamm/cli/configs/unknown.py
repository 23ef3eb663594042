"""Warnings about users and client ids for which no client ever registered, usually because the name is misspelt."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from klamm.admin import EntityFilter, EntityType, FilterComponent
from klamm.properties import did_you_mean
from klamm.protocol.errors import KafkaApiError
from klamm.security.principals import ANONYMOUS, user_name

if TYPE_CHECKING:
    from klamm.admin import AdminClient, ClientConfigEntity


def warning(admin: AdminClient, entity: ClientConfigEntity) -> str | None:
    """Return a warning if no client of the entity has ever registered, else None.

    This is never an error, because configs may be set before the first client starts. There is no warning for the
    default user and the default client id, which apply to every client, nor if the principal may not describe client
    configs.
    """
    if entity.user is None:
        return None
    try:
        clients = _registered(admin, FilterComponent.of_entity(EntityType.USER, entity.user))
        if not clients:
            known = {user for user, _ in _registered(admin, FilterComponent.of_entity_type(EntityType.USER))}
            known |= _other_users(admin)
            hint = "" if entity.user in known else did_you_mean(entity.user, known)
            return f"no client of user '{entity.user}' has ever registered for dynamic configs{hint}"
    except KafkaApiError:
        return None
    ids = {client_id for _, client_id in clients}
    if entity.client_id is None or entity.client_id in ids:
        return None
    hint = did_you_mean(entity.client_id, ids)
    return f"user '{entity.user}' has no registered client with the client id '{entity.client_id}'{hint}"


def _registered(admin: AdminClient, user: FilterComponent) -> set[tuple[str, str]]:
    """Return user and client id of every registered client."""
    components = (user, FilterComponent.of_entity_type(EntityType.CLIENT_ID))
    found = admin.describe_client_configs(EntityFilter(components=components, strict=True)).result()
    return {
        (each.entity.user, each.entity.client_id or "")
        for each in found
        if each.compatibility and each.entity.user is not None
    }


def _other_users(admin: AdminClient) -> set[str]:
    """Return users known without a registration: those with a SCRAM credential, and User:ANONYMOUS."""
    users = {user_name(ANONYMOUS)}
    with suppress(KafkaApiError):
        users |= set(admin.list_user_scram_credentials().result())
    return users

"""Dynamic client configs of users and of their client ids (KIP-649) in ``klamm configs``."""

from __future__ import annotations

import shlex
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from klamm.admin import ClientConfigEntity, ClientConfigOp, EntityFilter, EntityType, FilterComponent
from klamm.cli.connection import RequestError
from klamm.client_configs.rollout import Rollout, parse_rollout, rollout_key
from klamm.kafka_client.errors import CLUSTER_ERRORS
from klamm.lazy_dataclass import dataclass
from klamm.properties import did_you_mean
from klamm.rollout.entities import configs_of
from klamm.security.principals import ANONYMOUS, user_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.admin import AdminClient, ClientConfigsDescription
    from klamm.cli.configs.changes import Changes
    from klamm.cli.configs.entities import Target

_TYPES: Final = {"users": EntityType.USER, "clients": EntityType.CLIENT_ID}


def find(admin: AdminClient, target: Target) -> tuple[ClientConfigsDescription, ...]:
    """Return the entities of exactly the given types, with the client versions registered for them."""
    components = []
    for kind, entity_type in _TYPES.items():
        if kind not in target.types:
            continue
        name = target.name_of(kind)
        if name is None:
            components.append(FilterComponent.of_entity_type(entity_type))
        elif name:
            components.append(FilterComponent.of_entity(entity_type, name))
        else:
            components.append(FilterComponent.of_default_entity(entity_type))
    return admin.describe_client_configs(EntityFilter(components=tuple(components), strict=True)).result()


def alter(
    admin: AdminClient, target: Target, changes: Changes, *, percent: float | None, validate_only: bool
) -> list[str]:
    """Send the changes of one entity.

    Returns:
        With a percentage, one line per config that shows the values in force for the clients after the change.

    Raises:
        RequestError: A key to delete is not set, or there is no roll-out to undo. Nothing is sent.
    """
    entity = entity_of(target)
    present = configs_of(admin, entity) if changes.deleted or percent is not None else {}
    if wrong := [key for key in changes.deleted if key not in present and rollout_key(key) not in present]:
        raise RequestError(f"Invalid config(s): {','.join(wrong)}")
    stages = [] if percent is None else [stage(entity, present, pair, percent) for pair in changes.added.items()]
    operations = [
        *(each.operation for each in stages),
        *(ClientConfigOp(key, value) for key, value in changes.added.items() if percent is None),
        *(ClientConfigOp(key, None) for key in changes.deleted),
    ]
    admin.alter_client_configs({entity: operations}, validate_only=validate_only).all().result()
    return [each.effect for each in stages]


def entity_of(target: Target) -> ClientConfigEntity:
    """Return the entity that owns the configs; an empty name means the default entity of its type."""
    user, client = target.name_of("users"), target.name_of("clients")
    if "clients" in target.types:
        return ClientConfigEntity.of_client(user or None, client or None)
    return ClientConfigEntity.of_user(user or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step of the staged roll-out of one config."""

    operation: ClientConfigOp
    effect: str
    """The values in force for the clients after the step, as text for people."""


def stage(entity: ClientConfigEntity, present: Mapping[str, str], pair: tuple[str, str], percent: float) -> Stage:
    """Return the step that sets a value for a percentage of the clients; 0 percent restores the previous value.

    Args:
        entity: Name of the user, for messages.
        present: Present configs of the user, including roll-outs.
        pair: Key and value to set.
        percent: Percentage of the clients, 0 to 100.

    Raises:
        RequestError: The percentage is 0 and the config has no roll-out.
    """
    key, value = pair
    name = rollout_key(key)
    under_way = parse_rollout(name, present[name]) if name in present else None
    plain = present.get(key)
    if percent == 0:
        if under_way is None:
            raise RequestError(_nothing_to_take_back(entity, key, plain))
        return Stage(operation=ClientConfigOp(name, None), effect=f"  {_plainly(entity, key, plain)}")
    if under_way is not None and under_way.is_complete and under_way.value != value:
        plain = under_way.value  # the broker gives this value to the clients outside the new roll-out
    rollout = Rollout(hundredths=round(percent * 100), value=value)
    operation = ClientConfigOp(name, str(rollout))
    if rollout.is_complete:
        before = "removes it" if plain is None else f"restores {key}={plain}"
        effect = (
            f"  {_plainly(entity, key, value)}; --percent 0 {before},"
            f" --add-config {shlex.quote(f'{key}={value}')} without --percent makes it final"
        )
    else:
        others = f"{key} is not set for {entity}" if plain is None else f"{key}={plain}"
        effect = f"  {key}={value} for {rollout.percent} % of the clients of {entity}; the others: {others}"
    return Stage(operation=operation, effect=effect)


def _plainly(entity: ClientConfigEntity, key: str, value: str | None) -> str:
    return f"{key} is not set for {entity}" if value is None else f"{key}={value} for every client of {entity}"


def _nothing_to_take_back(entity: ClientConfigEntity, key: str, plain: str | None) -> str:
    reason = f"--percent 0: {entity} has no roll-out of {key}, so there is no earlier value to restore"
    if plain is None:
        return f"{reason}, and no {key} is set"
    return (
        f"{reason}; {key}={plain} is set for every client. Type --delete-config {shlex.quote(key)} to remove"
        f" it, or --add-config {shlex.quote(key)}=VALUE without --percent to set the earlier value"
    )


def check(target: Target) -> None:
    """Check that the selected entity can own dynamic client configs.

    Raises:
        RequestError: A client id is given without a user.
    """
    if "users" not in target.types:
        raise RequestError(
            "A user must be specified with --user or --user-defaults: dynamic configs belong to a user, "
            "or to a client id of a user"
        )


def lines(spelled_entity: str, described: ClientConfigsDescription) -> list[str]:
    """Return one line with the configs of an entity, and lines with the client versions registered for it."""
    configs = ", ".join(f"{key}={value}" for key, value in described.configs.items())
    return [
        f"Dynamic configs for {spelled_entity} are {configs}".rstrip(),
        *(
            f"  registered: {version.client_information} supports [{', '.join(version.supported_configs)}]"
            for version in described.compatibility
        ),
    ]


def document(described: ClientConfigsDescription) -> dict[str, Any]:
    """Return the configs and client versions of an entity for JSON or YAML output."""
    return {
        "configs": dict(described.configs),
        "registered": [
            {"client": version.client_information, "supported_configs": list(version.supported_configs)}
            for version in described.compatibility
        ],
    }


def unregistered_warning(admin: AdminClient, entity: ClientConfigEntity) -> str | None:
    """Return a warning if no client of the entity has ever registered, else None.

    This is never an error, because configs may be set before the first client starts. There is no warning for the
    default user and the default client id, which apply to every client, nor if the cluster does not return the client
    configs, because the change itself was made.
    """
    if entity.user is None:
        return None
    try:
        clients = _registered(admin, FilterComponent.of_entity(EntityType.USER, entity.user))
        if not clients:
            users = {user for user, _ in _registered(admin, FilterComponent.of_entity_type(EntityType.USER))}
            users |= _other_users(admin)
            hint = "" if entity.user in users else did_you_mean(entity.user, users)
            return f"no client of user '{entity.user}' has ever registered for dynamic configs{hint}"
    except CLUSTER_ERRORS:
        return None
    ids = {client_id for _, client_id in clients}
    if entity.client_id is None or entity.client_id in ids:
        return None
    hint = did_you_mean(entity.client_id, ids)
    return f"user '{entity.user}' has no registered client with the client id '{entity.client_id}'{hint}"


def _registered(admin: AdminClient, user: FilterComponent) -> set[tuple[str, str]]:
    """Return user and client id of every registered client."""
    components = (user, FilterComponent.of_entity_type(EntityType.CLIENT_ID))
    descriptions = admin.describe_client_configs(EntityFilter(components=components, strict=True)).result()
    return {
        (each.entity.user, each.entity.client_id or "")
        for each in descriptions
        if each.compatibility and each.entity.user is not None
    }


def _other_users(admin: AdminClient) -> set[str]:
    """Return users known without a registration: those with a SCRAM credential, and User:ANONYMOUS."""
    users = {user_name(ANONYMOUS)}
    with suppress(*CLUSTER_ERRORS):
        users |= set(admin.list_user_scram_credentials().result())
    return users

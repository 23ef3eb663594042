"""Users and their clients: the configs that running clients take over (KIP-649)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from klamm.admin import ClientConfigEntity, ClientConfigOp, EntityFilter, EntityType, FilterComponent
from klamm.cli.connecting import RefusedError
from klamm.cli.output import write
from klamm.client_configs.definitions import DEFINITIONS
from klamm.client_configs.rollout import Rollout, rollout_key

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from klamm.admin import AdminClient, ClientConfigsDescription
    from klamm.cli.configs.changes import Changes
    from klamm.cli.configs.entities import Target

_TYPES: Final = {"users": EntityType.USER, "clients": EntityType.CLIENT_ID}
ALL_PERCENT: Final = 100
_SHOWN: Final = {EntityType.USER: "user-principal", EntityType.CLIENT_ID: "client-id"}
QUOTAS: Final = frozenset(
    {"producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"}
)
SCRAM: Final = frozenset({"SCRAM-SHA-256", "SCRAM-SHA-512"})


def describe(admin: AdminClient, target: Target, options: argparse.Namespace) -> None:
    """Show the entities that have exactly the types asked for, one line each, with the client versions under them."""
    if "users" not in target.types:
        write(options.output, [], list)  # these configs never belong to a client id alone
        return
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
    found = admin.describe_client_configs(EntityFilter(components=tuple(components), strict=True)).result()
    write(options.output, [_document(one) for one in found], lambda: [line for each in found for line in _lines(each)])


def alter(admin: AdminClient, target: Target, changes: Changes, options: argparse.Namespace) -> None:
    """Send the changes of one entity.

    Raises:
        RefusedError: No user, an unknown key, or a key to be deleted that is not set; nothing was sent.
    """
    check(target, changes)
    user, client = target.name_of("users"), target.name_of("clients")
    if "clients" in target.types:
        entity = ClientConfigEntity.of_client(user or None, client or None)
    else:
        entity = ClientConfigEntity.of_user(user or None)
    if changes.deleted:
        present = _configs(admin, entity)
        if wrong := [key for key in changes.deleted if key not in present and rollout_key(key) not in present]:
            raise RefusedError(f"Invalid config(s): {','.join(wrong)}")
    operations = [
        *staged(changes.added, options.percent),
        *(ClientConfigOp(key, None) for key in changes.deleted),
    ]
    admin.alter_client_configs({entity: operations}, validate_only=options.validate_only).all().result()


def staged(added: Mapping[str, str], percent: float | None) -> list[ClientConfigOp]:
    """Return the operations that set these values for some percent of the clients.

    Nothing, or 100 percent, sets them for all and ends a roll-out; 0 percent takes a roll-out back.
    """
    if percent is None or percent >= ALL_PERCENT:
        return [ClientConfigOp(key, value) for key, value in added.items()]
    if percent == 0:
        return [ClientConfigOp(rollout_key(key), None) for key in added]
    hundredths = round(percent * 100)
    return [
        ClientConfigOp(rollout_key(key), str(Rollout(hundredths=hundredths, value=value)))
        for key, value in added.items()
    ]


def check(target: Target, changes: Changes) -> None:
    """Check what can be checked before anything is sent.

    Raises:
        RefusedError: A key that is none of these configs, a list operation, or a client id without a user.
    """
    keys = (*changes.added, *changes.deleted)
    if refused := [key for key in keys if key in QUOTAS | SCRAM]:
        raise RefusedError(f"Quotas and SCRAM credentials are not served by klamm configs: {','.join(refused)}")
    verb = "added" if any(key not in DEFINITIONS for key in changes.added) else "deleted"
    if unknown := [key for key in keys if key not in DEFINITIONS]:
        raise RefusedError(
            f"Only dynamic client configs ({', '.join(sorted(DEFINITIONS))}) can be {verb} for '{target.types[0]}'. "
            f"Unexpected config names: {','.join(unknown)}"
        )
    if changes.appended or changes.subtracted:
        raise RefusedError("--append-config and --subtract-config are for lists: no config of users and clients is one")
    if "users" not in target.types:
        raise RefusedError(
            "A user must be specified with --user or --user-defaults: dynamic configs belong to a user, "
            "or to a client id of a user"
        )


def _configs(admin: AdminClient, entity: ClientConfigEntity) -> dict[str, str]:
    components = tuple(
        FilterComponent.of_default_entity(kind) if name is None else FilterComponent.of_entity(kind, name)
        for kind, name in entity.components
    )
    found = admin.describe_client_configs(EntityFilter(components=components, strict=True)).result()
    return {key: value for each in found for key, value in each.configs.items()}


def _lines(described: ClientConfigsDescription) -> list[str]:
    entity = ", ".join(
        f"the default {_SHOWN[kind]}" if name is None else f"{_SHOWN[kind]} '{name}'"
        for kind, name in described.entity.components
    )
    configs = ", ".join(f"{key}={value}" for key, value in described.configs.items())
    return [
        f"Dynamic configs for {entity} are {configs}".rstrip(),
        *(
            f"  registered: {version.client_information} supports [{', '.join(version.supported_configs)}]"
            for version in described.compatibility
        ),
    ]


def _document(described: ClientConfigsDescription) -> dict[str, Any]:
    names = {kind.value: name for kind, name in described.entity.components}
    return {
        "entity": names,
        "configs": dict(described.configs),
        "registered": [
            {"client": version.client_information, "supported_configs": list(version.supported_configs)}
            for version in described.compatibility
        ],
    }

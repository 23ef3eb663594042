"""Users and their clients: the configs that running clients take over (KIP-649)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from klamm.admin import ClientConfigEntity, ClientConfigOp, EntityFilter, EntityType, FilterComponent
from klamm.cli.connecting import RefusedError
from klamm.client_configs.rollout import Rollout, rollout_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.admin import AdminClient, ClientConfigsDescription
    from klamm.cli.configs.changes import Changes
    from klamm.cli.configs.entities import Target

_TYPES: Final = {"users": EntityType.USER, "clients": EntityType.CLIENT_ID}
ALL_PERCENT: Final = 100


def find(admin: AdminClient, target: Target) -> tuple[ClientConfigsDescription, ...]:
    """Return the entities that have exactly the types asked for, with the client versions that registered there."""
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


def alter(admin: AdminClient, target: Target, changes: Changes, *, percent: float | None, validate_only: bool) -> None:
    """Send the changes of one entity.

    Raises:
        RefusedError: A key to be deleted is not set; nothing was sent.
    """
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
        *staged(changes.added, percent),
        *(ClientConfigOp(key, None) for key in changes.deleted),
    ]
    admin.alter_client_configs({entity: operations}, validate_only=validate_only).all().result()


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


def check(target: Target) -> None:
    """Check that there is somebody whom such configs can belong to.

    Raises:
        RefusedError: A client id without a user.
    """
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


def lines(spelled_entity: str, described: ClientConfigsDescription) -> list[str]:
    """Return an entity's configs in one line, and the client versions that registered under it."""
    configs = ", ".join(f"{key}={value}" for key, value in described.configs.items())
    return [
        f"Dynamic configs for {spelled_entity} are {configs}".rstrip(),
        *(
            f"  registered: {version.client_information} supports [{', '.join(version.supported_configs)}]"
            for version in described.compatibility
        ),
    ]


def document(described: ClientConfigsDescription) -> dict[str, Any]:
    """Return the same for programs."""
    return {
        "configs": dict(described.configs),
        "registered": [
            {"client": version.client_information, "supported_configs": list(version.supported_configs)}
            for version in described.compatibility
        ],
    }

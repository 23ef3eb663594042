"""Changes of configs, quotas and client configs as the prediction of their impact takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from klamm.admin import AdminClient
    from klamm.cli.configs.changes import Changes
    from klamm.impact.changes import Change, EntityParts
    from klamm.protocol.types import ResourceType


def config_changes(admin: AdminClient, kind: ResourceType, name: str, changes: Changes) -> list[Change]:
    """Return the new value of each config of a resource. Elements are added to and removed from its present lists."""
    from klamm.admin import ConfigResource  # noqa: PLC0415
    from klamm.impact.changes import ConfigAltered  # noqa: PLC0415

    values: dict[str, str | None] = {**changes.added, **dict.fromkeys(changes.deleted)}
    if lists := {*changes.appended, *changes.subtracted}:
        resource = ConfigResource(kind, name)
        present = admin.describe_configs({resource: lists}).result()[resource]
        for key in lists:
            elements = [part for part in ((present[key].value or "") if key in present else "").split(",") if part]
            removed = changes.subtracted.get(key, "").split(",")
            added = [part for part in changes.appended.get(key, "").split(",") if part and part not in elements]
            values[key] = ",".join([part for part in elements if part not in removed] + added)
    return [
        ConfigAltered(resource_type=kind, resource_name=name, name=key, value=value) for key, value in values.items()
    ]


def client_changes(entity: EntityParts, quotas: Changes, dynamic: Changes) -> list[Change]:
    """Return the new quotas and dynamic client configs of an entity. Quotas that are no numbers are left out."""
    from klamm.impact.changes import ClientConfigAltered, QuotaAltered  # noqa: PLC0415

    limits = {key: float(value) for key, value in quotas.added.items() if value.replace(".", "", 1).isdigit()}
    values: dict[str, float | None] = {**limits, **dict.fromkeys(quotas.deleted)}
    configs: dict[str, str | None] = {**dynamic.added, **dict.fromkeys(dynamic.deleted)}
    return [
        *(QuotaAltered(entity=entity, name=key, value=value) for key, value in values.items()),
        *(ClientConfigAltered(entity=entity, name=key, value=value) for key, value in configs.items()),
    ]

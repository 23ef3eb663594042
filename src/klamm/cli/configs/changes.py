"""Changes that the flags of ``klamm configs --alter`` request, and the form in which their impact is predicted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.cli.connection import RequestError
from klamm.configs.definitions import base_name, is_secret
from klamm.configs.durations import without_unit
from klamm.lazy_dataclass import dataclass
from klamm.properties import read_properties
from klamm.security.scram import ScramMechanism

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from klamm.admin import AdminClient
    from klamm.impact.changes import Change, EntityParts
    from klamm.protocol.types import ResourceType

_NOT_IN_BRACKETS: Final = r"(?=[^\]]*(?:\[|$))"
_COMMA: Final = re.compile("," + _NOT_IN_BRACKETS)
_EQUALS: Final = re.compile(r"\s*=\s*" + _NOT_IN_BRACKETS)
_PAIR: Final = 2
_NUMBER: Final = re.compile(r"[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[dDfF]?)")
"""The text forms that Java parses as a double, except hexadecimal ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Requested changes to the configs of one entity."""

    added: Mapping[str, str]
    deleted: tuple[str, ...]
    appended: Mapping[str, str]
    subtracted: Mapping[str, str]

    @property
    def is_any(self) -> bool:
        """Return whether at least one change is requested."""
        return bool(self.added or self.deleted or self.appended or self.subtracted)

    @property
    def requested(self) -> Mapping[str, str]:
        """Return the requested values by config, for comparison with those stored."""
        return {**self.added, **self.appended, **self.subtracted}

    def only(self, is_meant: Callable[[str], bool]) -> Changes:
        """Return only the changes of the given keys."""

        def some(pairs: Mapping[str, str]) -> dict[str, str]:
            return {key: value for key, value in pairs.items() if is_meant(key)}

        return Changes(
            added=some(self.added),
            deleted=tuple(filter(is_meant, self.deleted)),
            appended=some(self.appended),
            subtracted=some(self.subtracted),
        )

    def document(self, *, of_brokers: bool) -> list[dict[str, str | None]]:
        """Return the changes for JSON or YAML output, without values that contain a password.

        Args:
            of_brokers: Whether the changed entity is a broker: some configs of brokers are passwords.
        """

        def shown(name: str, value: str) -> str | None:
            is_password = is_secret(name) if of_brokers else ScramMechanism.from_name(name) != ScramMechanism.UNKNOWN
            return None if is_password else value

        pairs: list[tuple[str, str, str | None]] = [
            *(("set", name, shown(name, value)) for name, value in self.added.items()),
            *(("delete", name, None) for name in self.deleted),
            *(("append", name, shown(name, value)) for name, value in self.appended.items()),
            *(("subtract", name, shown(name, value)) for name, value in self.subtracted.items()),
        ]
        return [{"name": name, "operation": operation, "value": value} for operation, name, value in pairs]


def read_changes(options: argparse.Namespace) -> Changes:
    """Parse the changes that the flags of ``--alter`` request.

    Raises:
        RequestError: An entry is not of the form ``k=v``.
        SettingsError: The file of ``--add-config-file`` cannot be read.
    """
    if options.add_config_file is not None:
        file = read_properties(Path(options.add_config_file))
        added = {name: without_unit(name, value) for name, value in file.items()}
    else:
        added = parse_pairs(options.add_config)
    deleted = [key.strip() for text in options.delete_config or () for key in text.split(",")]
    return Changes(
        added=added,
        deleted=tuple(deleted),
        appended=parse_pairs(options.append_config),
        subtracted=parse_pairs(options.subtract_config),
    )


def parse_pairs(text: str | None) -> dict[str, str]:
    """Parse ``k1=v1,k2=[a,b]``; brackets protect the commas of a value and are removed from it, as are units.

    Raises:
        RequestError: An entry is not of this form, or a key has a character that no config name contains.
    """
    if text is None:
        return {}
    parts = _COMMA.split(text)
    while parts and not parts[-1]:
        parts.pop()
    pairs = [_EQUALS.split(part) for part in parts]
    if any(len(pair) != _PAIR for pair in pairs):
        raise RequestError(
            'Invalid entity config: all configs to be added must be in the format "key=val" or '
            '"key=[val1,val2]" to group values which contain commas.'
        )
    values = {key.strip(): value.replace("[", "").replace("]", "").strip() for key, value in pairs}
    return {name: without_unit(name, value) for name, value in values.items()}


def config_changes(admin: AdminClient, kind: ResourceType, name: str, changes: Changes) -> list[Change]:
    """Return the new value of each config of a resource. Elements are added to and removed from its present lists."""
    from klamm.impact.changes import ConfigAltered  # noqa: PLC0415

    values: dict[str, str | None] = {**changes.added, **dict.fromkeys(changes.deleted)}
    if changes.appended or changes.subtracted:
        values |= _extended_lists(admin, kind, name, changes)
    return [
        ConfigAltered(resource_type=kind, resource_name=name, name=key, value=value) for key, value in values.items()
    ]


def _extended_lists(admin: AdminClient, kind: ResourceType, name: str, changes: Changes) -> dict[str, str | None]:
    """Return the new value of each list that elements are added to or removed from, if it changes.

    A list that the resource does not set starts from Kafka's built-in default, or from klamm's value in force.
    """
    from klamm.admin import ConfigResource  # noqa: PLC0415
    from klamm.gateway.apis.altered_configs import config_decision, is_klamm_cluster  # noqa: PLC0415
    from klamm.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest  # noqa: PLC0415
    from klamm.protocol.types import ConfigOperation  # noqa: PLC0415

    resource = ConfigResource(kind, name)
    operations = {ConfigOperation.APPEND: changes.appended, ConfigOperation.SUBTRACT: changes.subtracted}
    lists = {base for pairs in operations.values() for key in pairs for base in (key, base_name(key))}
    part = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=operation, value=value)
            for operation, pairs in operations.items()
            for key, value in pairs.items()
        ],
    )
    decision = config_decision(
        part,
        admin.describe_configs({resource: lists}, include_synonyms=True).result()[resource],
        is_klamm=is_klamm_cluster(admin.describe_cluster().result()),
    )
    return {change.name: change.value for change in decision.changes}


def quota_number(text: str) -> float | None:
    """Return a quota as Java reads it, None if it is not a number."""
    return float(text.strip().rstrip("dDfF")) if _NUMBER.fullmatch(text.strip()) else None


def client_changes(
    entity: EntityParts,
    quotas: Changes,
    dynamic: Changes,
    *,
    present: Mapping[str, str],
    percent: float | None = None,
) -> list[Change]:
    """Return the new quotas and dynamic client configs of an entity. Quotas that are no numbers are left out.

    The removal of a config ends its roll-out, too. 0 percent only removes the roll-outs; what is in force then depends
    on other values.

    Args:
        entity: The entity.
        quotas: Changes to its quotas.
        dynamic: Changes to its dynamic client configs.
        present: Its dynamic client configs before the change, including roll-outs.
        percent: Percentage of the clients that get new values. None means all, without a roll-out.
    """
    from klamm.client_configs.rollout import rollout_key  # noqa: PLC0415
    from klamm.impact.changes import ClientConfigAltered, QuotaAltered  # noqa: PLC0415

    limits = {key: number for key, value in quotas.added.items() if (number := quota_number(value)) is not None}
    values: dict[str, float | None] = {**limits, **dict.fromkeys(quotas.deleted)}
    added = dict.fromkeys(map(rollout_key, dynamic.added)) if percent == 0 else dynamic.added
    ended = [key for key in map(rollout_key, dynamic.deleted) if key in present]
    configs: dict[str, str | None] = {**added, **dict.fromkeys([*dynamic.deleted, *ended])}
    return [
        *(QuotaAltered(entity=entity, name=key, value=value) for key, value in values.items()),
        *(
            ClientConfigAltered(entity=entity, name=key, value=value, value_before=present.get(key))
            for key, value in configs.items()
        ),
    ]

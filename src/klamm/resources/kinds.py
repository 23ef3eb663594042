"""Table of the kinds of resources, and of the sections and keys of files that declare them.

The reader of files, ``klamm schema``, ``klamm export`` and the tables of docs/gitops.md all use it. Its shapes are in
the data file ``shapes.json``; enumerations of Kafka are filled in here.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from klamm.configs.definitions import (
    ConfigDefinition,
    ConfigTable,
    broker_configs,
    client_metrics_configs,
    find_broker_config,
    group_configs,
    topic_configs,
)
from klamm.configs.durations import DURATION_UNITS, SIZE_UNITS
from klamm.configs.quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from klamm.policy.rule import ACTIONS
from klamm.protocol.types import ResourceType
from klamm.resources.model import Kind
from klamm.resources.shapes import resolved
from klamm.security.acls import AclOperation, AclPermission, AclResourceType, PatternType
from klamm.security.scram import ScramMechanism

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from enum import IntEnum

    from klamm.resources.shapes import Shape


class ConfigKind(NamedTuple):
    """Kind whose keys are configs of DescribeConfigs and IncrementalAlterConfigs."""

    resource_type: ResourceType
    table: Callable[[], ConfigTable]
    """Configs of Kafka 4.4."""


CONFIG_KINDS: Final[Mapping[Kind, ConfigKind]] = {
    Kind.TOPIC: ConfigKind(ResourceType.TOPIC, topic_configs),
    Kind.BROKER: ConfigKind(ResourceType.BROKER, broker_configs),
    Kind.GROUP: ConfigKind(ResourceType.GROUP, group_configs),
    Kind.CLIENT_METRICS: ConfigKind(ResourceType.CLIENT_METRICS, client_metrics_configs),
}
STATE: Final = "state"
BROKER_DEFAULT_NUMBER: Final = -1
"""Partitions or replication factor that the broker chooses for a new topic, as in Kafka's CreateTopics."""
ALIASES: Final[Mapping[str, str]] = {"config": "configs", "replicas": "replication_factor"}
"""Strimzi's names of keys, and klamm's."""
PATTERN_TYPES: Final = {
    "literal": PatternType.LITERAL,
    "prefix": PatternType.PREFIXED,
    "prefixed": PatternType.PREFIXED,
}
SCRAM_TYPES: Final = {member.mechanism_name.lower(): member for member in ScramMechanism if member}
"""SCRAM mechanisms by the ``type`` of an ``authentication``. Other types are those of users with a certificate."""


def camel_case(name: str) -> str:
    """Return a name such as ``TRANSACTIONAL_ID`` as Strimzi writes it: ``transactionalId``."""
    first, *others = name.lower().split("_")
    return first + "".join(map(str.capitalize, others))


_QUOTAS: Final = (
    PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE, CONNECTION_CREATION_RATE,
)  # fmt: skip
QUOTA_NAMES: Final[Mapping[str, str]] = {camel_case(name): name for name in _QUOTAS}
"""Strimzi's names of quotas, and Kafka's."""


def _members(members: type[IntEnum], *, is_capital: bool = False) -> Shape:
    """Return the shape of the names of an enumeration: any case, with or without underscores."""
    names = [camel_case(member.name) for member in members if member > 1]  # 0 and 1: unknown, and any
    names = [name[0].upper() + name[1:] if is_capital else name for name in names]
    patterns = ("".join(f"[{c.upper()}{c}][-_]?" for c in name.lower()) for name in names)
    any_case = {"type": "string", "pattern": f"^({'|'.join(patterns)})$"}
    return {"description": f"one of {', '.join(names)}", "anyOf": [{"type": "string", "enum": names}, any_case]}


def with_unit(units: Mapping[str, int]) -> Shape:
    """Return the shape of numbers with one of some units."""
    return {"type": "string", "pattern": f"^[0-9]+ ?({'|'.join(units)})$"}


_TABLE: Final[Mapping[str, Any]] = json.loads(Path(__file__).with_name("shapes.json").read_text(encoding="utf-8"))
_DEFINITIONS: Final[Shape] = {
    **_TABLE["definitions"],
    "permission": _members(AclPermission),
    "resourceType": _members(AclResourceType),
    "operation": _members(AclOperation, is_capital=True),
    "action": {"enum": list(ACTIONS)},
    "duration": with_unit(DURATION_UNITS),
    "size": with_unit(SIZE_UNITS),
}


def named_shape(*path: str) -> dict[str, Any]:
    """Return a shape of the data file."""
    shape: Any = _TABLE
    for key in path:
        shape = shape[key]
    result: dict[str, Any] = resolved(shape, _DEFINITIONS)
    return result


KIND_OF: Final[Mapping[str, Kind]] = {name: Kind(section["kind"]) for name, section in _TABLE["sections"].items()}
"""Kinds by the section of a file. A user has quotas and ACLs as well."""
SECTION_OF: Final[Mapping[Kind, str]] = {kind: section for section, kind in KIND_OF.items()}
MARKS: Final[Mapping[str, Shape]] = named_shape("marks")
"""Keys that every resource may have beside its own."""
RESOURCES: Final[Mapping[str, Shape]] = MappingProxyType(
    {
        section: resolved({"properties": {**_TABLE["sections"][section]["keys"], **MARKS}}, _DEFINITIONS)
        for section in KIND_OF
    }
)
"""Shapes of one resource by section."""


def file_shape(resources: Mapping[str, Shape], *, may_set_cluster: bool) -> dict[str, Any]:
    """Return the shape of a file whose sections have resources of these shapes."""
    sections = {
        section: {
            "type": "object",
            "description": "a mapping",
            "propertyNames": _TABLE["sections"][section].get("names", {}),
            "additionalProperties": {"anyOf": [resource, {"type": "null"}]},
        }
        for section, resource in resources.items()
    }
    cluster = _TABLE["file"] if may_set_cluster else {}
    shape: dict[str, Any] = resolved(
        {"properties": {**sections, "defaults": {"properties": resources}, **cluster}}, _DEFINITIONS
    )
    return shape


def definition_of(kind: Kind, key: str) -> ConfigDefinition | None:
    """Return klamm's definition of a config; None if no table has it."""
    if kind is Kind.BROKER:
        return find_broker_config(key)
    return CONFIG_KINDS[kind].table().get_definition(key) if kind in CONFIG_KINDS else None

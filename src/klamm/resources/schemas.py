"""JSON Schemas of the files of resources and of the rules file of policies, for editors and CI.

A schema checks the shape of a file: keys, types and choices. Limits of values that depend on each other are left to
``klamm plan --offline`` and ``klamm policy test``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from klamm.client_configs.definitions import SETTABLE
from klamm.client_configs.rollout import rollout_key
from klamm.configs.definitions import broker_configs, client_metrics_configs, group_configs, topic_configs
from klamm.configs.describe import documentation
from klamm.configs.durations import units_of
from klamm.impact.findings import ImpactLevel
from klamm.policy.answers import PARTITIONS, REPLICATION_FACTOR
from klamm.policy.rule import ACTIONS
from klamm.policy.rule_file import MAX_DELAY_MS
from klamm.protocol.types import ConfigType, ResourceType
from klamm.resources.specs import MARKS, QUOTA_NAMES, SCRAM_TYPES, SECTIONS, TLS_TYPES
from klamm.security.acls import AclOperation
from klamm.security.scram import MIN_ITERATIONS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.configs.definitions import ConfigTable

_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
_TEXT: Final[Mapping[str, Any]] = {"type": "string", "minLength": 1}
_TEXTS: Final[Mapping[str, Any]] = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]}
_SCALAR: Final[Mapping[str, Any]] = {"type": ["string", "number", "boolean"]}
_INTEGERS: Final = (ConfigType.SHORT, ConfigType.INT, ConfigType.LONG)
_ACL_TYPES: Final = ("topic", "group", "cluster", "transactionalId", "delegationToken", "user")


def resources_schema() -> dict[str, Any]:
    """Return the JSON Schema of a file of resources, and of ``klamm.yaml``."""
    sections = {
        name: {"type": "object", "additionalProperties": {"anyOf": [_resource(name), {"type": "null"}]}}
        for name in SECTIONS
    }
    defaults = _object({name: _resource(name) for name in SECTIONS})
    return {
        "$schema": _DRAFT,
        "title": "klamm: resources of a Kafka cluster",
        **_object(
            {**sections, "defaults": defaults, "cluster": _TEXT, "bases": {"type": "array", "items": _TEXT}},
            is_closed=True,
        ),
    }


def rules_schema() -> dict[str, Any]:
    """Return the JSON Schema of the rules file of policies."""
    return {
        "$schema": _DRAFT,
        "title": "klamm: rules of policies",
        **_object({"rules": {"type": "array", "items": _rule()}}, required=("rules",)),
    }


def _object(properties: Mapping[str, Any], *, required: Sequence[str] = (), is_closed: bool = True) -> dict[str, Any]:
    schema = {"type": "object", "properties": dict(properties), "additionalProperties": not is_closed}
    return {**schema, "required": list(required)} if required else schema


def _choice(*values: str) -> dict[str, Any]:
    return {"enum": list(values)}


def _resource(section: str) -> dict[str, Any]:
    own = {
        "topics": {
            PARTITIONS: _count(),
            REPLICATION_FACTOR: _count(),
            "replicas": _count(),
            **_with_alias(_configs(topic_configs(), ResourceType.TOPIC)),
        },
        "brokers": _with_alias(_configs(broker_configs(), ResourceType.BROKER, has_secrets=True)),
        "users": {
            "authentication": {"anyOf": [_authentication(), {"type": "array", "items": _authentication()}]},
            "authorization": _object({"type": _choice("simple"), "acls": _acls()}),
            "quotas": _quotas(),
        },
        "quotas": {"quotas": _quotas()},
        "acls": {"acls": _acls()},
        "groups": _with_alias(_configs(group_configs(), ResourceType.GROUP)),
        "client_metrics": _with_alias(_configs(client_metrics_configs(), ResourceType.CLIENT_METRICS)),
        "client_configs": _with_alias(
            _object({name: _SCALAR for key in SETTABLE for name in (key, rollout_key(key))}, is_closed=True)
        ),
    }[section]
    marks = {
        "state": _choice("present", "absent"),
        "prune": {"type": "boolean"},
        "ignore": {"type": "array", "items": _TEXT},
    }
    return _object({**own, **{mark: marks[mark] for mark in MARKS}})


def _with_alias(configs: dict[str, Any]) -> dict[str, Any]:
    return {"configs": configs, "config": configs}


def _count() -> dict[str, Any]:
    return {"type": "integer", "minimum": -1, "not": {"const": 0}}


def _configs(table: ConfigTable, resource_type: ResourceType, *, has_secrets: bool = False) -> dict[str, Any]:
    """Return the schema of configs. Other names than Kafka 4.4's are allowed: the cluster may have more."""
    others: dict[str, Any] = {"anyOf": [_SCALAR, {"type": "array", "items": _SCALAR}]}
    if has_secrets:
        others["anyOf"].append(_secret())
    known = {
        name: {"description": documentation(resource_type, name) or "", **_value(name, definition.config_type)}
        for name, definition in table.items()
        if not definition.is_internal and not definition.is_sensitive
    }
    return {"type": "object", "properties": known, "additionalProperties": others}


def _value(name: str, config_type: ConfigType) -> dict[str, Any]:
    if config_type in _INTEGERS:
        unit = f"(?: ?(?:{'|'.join(units_of(name))}))?" if units_of(name) else ""
        return {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": f"^\\s*[-+]?[0-9]+{unit}\\s*$"}]}
    if config_type is ConfigType.BOOLEAN:
        return {"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": "^\\s*(?i:true|false)\\s*$"}]}
    if config_type is ConfigType.DOUBLE:
        return {"type": ["number", "string"]}
    if config_type is ConfigType.LIST:
        return {"anyOf": [_SCALAR, {"type": "array", "items": _SCALAR}]}
    return dict(_SCALAR)


def _secret() -> dict[str, Any]:
    reference = _object({"name": _TEXT, "key": _TEXT}, required=("name", "key"), is_closed=False)
    sources = [
        _object({"env": _TEXT}, required=("env",)),
        _object({"file": _TEXT}, required=("file",)),
        _object({"secretKeyRef": reference}, required=("secretKeyRef",)),
    ]
    return {"anyOf": [*sources[:2], _object({"valueFrom": {"anyOf": sources}}, required=("valueFrom",))]}


def _authentication() -> dict[str, Any]:
    return _object(
        {
            "type": _choice(*SCRAM_TYPES, *TLS_TYPES),
            "password": _secret(),
            "iterations": {"type": "integer", "minimum": MIN_ITERATIONS},
        },
        required=("type",),
    )


def _acls() -> dict[str, Any]:
    operations = _choice(*(_pascal(operation.name) for operation in AclOperation if operation > AclOperation.ANY))
    resource = _object(
        {
            "type": _choice(*_ACL_TYPES),
            "name": _TEXT,
            "patternType": _choice("literal", "prefix"),
        },
        required=("type",),
    )
    rule = _object(
        {
            "type": _choice("allow", "deny"),
            "resource": resource,
            "operations": {"type": "array", "items": operations, "minItems": 1},
            "operation": operations,
            "host": _TEXT,
        },
        required=("resource",),
    )
    return {"type": "array", "items": rule}


def _pascal(name: str) -> str:
    return "".join(map(str.capitalize, name.split("_")))


def _quotas() -> dict[str, Any]:
    number = {"type": ["number", "string"], "exclusiveMinimum": 0}
    return _object({name: number for pair in QUOTA_NAMES.items() for name in pair})


def _rule() -> dict[str, Any]:
    whole = _object({"min": {"type": "integer"}, "max": {"type": "integer"}})
    configs = {"type": "object", "additionalProperties": _config_rule(), "minProperties": 1}
    topic_rules = {name: _config_rule(name) for name, found in topic_configs().items() if not found.is_internal}
    conditions: dict[str, Any] = {
        "naming": _TEXT,
        "partitions": whole,
        "replication_factor": whole,
        "spare_replicas": whole,
        "configs": {**configs, "properties": topic_rules},
        "broker_configs": configs,
        "only_configs": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]},
        "omission": _choice("allowed", "forbidden"),
        "deletion": _choice("allowed", "forbidden"),
        "acks": _choice("any", "all"),
        "idempotence": _choice("allowed", "required"),
        "writes": _choice("allowed", "forbidden"),
        "group_naming": _TEXT,
        "client_id_naming": _TEXT,
        "data_loss": _choice("allowed", "forbidden"),
        "max_deleted": _amount("max_deleted.bytes"),
        "strands_groups": _choice("allowed", "forbidden"),
        "max_impact": _choice(*(level.name.lower() for level in reversed(ImpactLevel))),
        "forbidden_apis": {"anyOf": [_SCALAR, {"type": "array", "items": _SCALAR, "minItems": 1}]},
    }
    others = {
        "name": _TEXT,
        "topics": _TEXT,
        "principals": _TEXTS,
        "except_principals": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]},
        "actions": {"anyOf": [_choice(*ACTIONS), {"type": "array", "items": _choice(*ACTIONS), "minItems": 1}]},
        "effect": _choice("refuse", "override", "throttle"),
        "delay_ms": {"type": "integer", "minimum": 1, "maximum": MAX_DELAY_MS},
        "remedy": _TEXT,
    }
    schema = _object({**others, **conditions}, required=("name",))
    return {**schema, "anyOf": [{"required": [condition]} for condition in conditions]}


def _amount(name: str = "") -> dict[str, Any]:
    """Return the schema of a number of a config, with its units; without a name, those of times and sizes."""
    units = sorted(units_of(name) if name else {**units_of(".ms"), **units_of(".bytes")})
    pattern = f"^[0-9]+ ?({'|'.join(units)})$"
    return {"anyOf": [{"type": "number"}, *([{"type": "string", "pattern": pattern}] if units else [])]}


def _config_rule(name: str = "") -> dict[str, Any]:
    number = _amount(name)
    values = {"anyOf": [_SCALAR, {"type": "array", "items": _SCALAR, "minItems": 1}]}
    return _object(
        {
            "required": {"type": "boolean"},
            "forbidden": {"type": "boolean"},
            "min": number,
            "max": number,
            "one_of": values,
            "value": values,
        }
    )

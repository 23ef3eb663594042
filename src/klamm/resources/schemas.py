"""JSON Schemas of the files of resources and of the rules file of policies, for editors and CI.

A schema checks the shape of a file: keys, types and choices. Limits of values that depend on each other are left to
``klamm plan --offline`` and ``klamm policy test``.
"""

from __future__ import annotations

from typing import Any, Final

from klamm.client_configs.definitions import SETTABLE
from klamm.client_configs.rollout import rollout_key
from klamm.configs.definitions import topic_configs
from klamm.configs.describe import documentation
from klamm.configs.durations import units_of
from klamm.policy.rule_checks import CONDITIONS
from klamm.protocol.types import ConfigType
from klamm.resources.kinds import ALIASES, CONFIG_KINDS, KIND_OF, RESOURCES, file_shape, named_shape, with_unit
from klamm.resources.model import Kind
from klamm.resources.shapes import Shape, optional_in_overlays

_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
_SCALAR: Final = named_shape("definitions", "scalar")


def resources_schema() -> dict[str, Any]:
    """Return the JSON Schema of a file of resources, and of ``klamm.yaml``. Manifests of Strimzi are not described."""
    resources = {section: optional_in_overlays(_with_configs(section, shape)) for section, shape in RESOURCES.items()}
    return {
        "$schema": _DRAFT,
        "title": "klamm: resources of a Kafka cluster",
        "if": {"required": ["apiVersion"]},
        "then": {"required": ["kind", "metadata"]},
        "else": file_shape({name: {"$ref": f"#/$defs/{name}"} for name in resources}, may_set_cluster=True),
        "$defs": resources,
    }


def rules_schema() -> dict[str, Any]:
    """Return the JSON Schema of the rules file of policies."""
    rule = named_shape("rule")
    config = rule["properties"]["broker_configs"]["additionalProperties"]
    topic_rules = {}
    for name in topic_configs():
        amount = {"anyOf": [{"type": "number"}, *([with_unit(units)] if (units := units_of(name)) else [])]}
        topic_rules[name] = {**config, "properties": {**config["properties"], "min": amount, "max": amount}}
    rule["properties"]["configs"]["properties"] = topic_rules
    rule["anyOf"] = [{"required": [condition]} for condition in CONDITIONS]
    rules = {"rules": {"type": "array", "items": rule}}
    shape = {"type": "object", "properties": rules, "required": ["rules"], "additionalProperties": False}
    return {"$schema": _DRAFT, "title": "klamm: rules of policies", **shape}


def _with_configs(section: str, shape: Shape) -> Shape:
    """Return the shape of a resource with the configs that Kafka 4.4 has, and with Strimzi's names of keys."""
    properties = dict(shape["properties"])
    kind = KIND_OF[section]
    if kind in CONFIG_KINDS:
        resource_type = CONFIG_KINDS[kind].resource_type
        configs: dict[str, Any] = {
            name: {
                **_value(name, definition.config_type),
                "title": documentation(resource_type, name) or name,
                **({} if definition.default is None else {"default": definition.default}),
            }
            for name, definition in CONFIG_KINDS[kind].table().items()
            if not definition.is_internal and not definition.is_sensitive
        }
        properties["configs"] = {**properties["configs"], "properties": configs}
    elif kind is Kind.CLIENT_CONFIGS:
        properties["configs"] = {
            **properties["configs"],
            "properties": dict.fromkeys((name for key in SETTABLE for name in (key, rollout_key(key))), _SCALAR),
            "additionalProperties": False,
        }
    place = f"#/$defs/{section}/properties"
    aliases = {alias: {"$ref": f"{place}/{name}"} for alias, name in ALIASES.items() if name in properties}
    return {**shape, "properties": {**properties, **aliases}}


def _value(name: str, config_type: ConfigType) -> dict[str, Any]:
    """Return the shape of the values of a config. Numbers and flags may be texts, as in properties files."""
    match config_type:
        case ConfigType.SHORT | ConfigType.INT | ConfigType.LONG:
            unit = f"(?: ?(?:{'|'.join(units_of(name))}))?" if units_of(name) else ""
            types = "integer", f"^\\s*[-+]?[0-9]+{unit}\\s*$"
        case ConfigType.BOOLEAN:
            types = "boolean", r"^\s*([Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee])\s*$"
        case ConfigType.DOUBLE:
            types = "number", ""
        case ConfigType.LIST:
            return {"anyOf": [_SCALAR, named_shape("definitions", "list")]}
        case _:
            return _SCALAR
    return {"anyOf": [{"type": types[0]}, {"type": "string", "pattern": types[1]}]}

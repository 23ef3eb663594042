"""Existing resources as a file declares them, so that a plan of the file is empty."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from klamm.resources.equality import acl_of
from klamm.resources.kinds import SCRAM_TYPES, SECTION_OF, camel_case
from klamm.resources.model import NUMBERS, Kind
from klamm.security.acls import AclPermission, AclResourceType, PatternType
from klamm.security.principals import user_name, user_principal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from klamm.resources.model import Existing, ResourceKey
    from klamm.security.acls import Acl

_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)")
_SCRAM_NAMES: Final = {mechanism.mechanism_name: name for name, mechanism in SCRAM_TYPES.items()}


def document(resources: Mapping[ResourceKey, Existing]) -> dict[str, Any]:
    """Return resources as a file declares them, with the values that are set on the resources themselves.

    SCRAM credentials have no password, and secrets of brokers are left out: no cluster shows them.
    """
    sections: dict[str, dict[str, Any]] = {}
    for key, existing in sorted(resources.items()):
        spec = _entry(key, existing)
        if spec:
            sections.setdefault(SECTION_OF[key.kind], {})[_name(key)] = spec
    return sections or {"topics": {}}


def _name(key: ResourceKey) -> str:
    """Return the name in a file. A user whose name begins with ``User:`` is written as a principal."""
    is_principal = key.kind is Kind.SCRAM and user_name(key.name) != key.name
    return user_principal(key.name) if is_principal else key.name


def as_text(content: object, output: str, *, is_unicode: bool = True) -> str:
    """Return the file: JSON if requested, which is YAML as well, otherwise YAML.

    Args:
        content: What ``document`` returns.
        output: ``json``, or anything else for YAML.
        is_unicode: Whether the file can have every character. Otherwise they are escaped.
    """
    if output == "json":
        return json.dumps(content, indent=2, ensure_ascii=not is_unicode) + "\n"
    import yaml  # noqa: PLC0415  # --help needs none of it

    text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=is_unicode, default_flow_style=False)
    return text


def _entry(key: ResourceKey, existing: Existing) -> dict[str, Any]:
    values = {name: value.value for name, value in existing.own.items() if value.value is not None}
    match key.kind:
        case Kind.QUOTA:
            return {"quotas": {name: _number(text) for name, text in values.items()}}
        case Kind.ACLS:
            return {"acls": _rules(acl_of(key.name, text) for text in values)}
        case Kind.SCRAM:
            entries = [
                {"type": _SCRAM_NAMES[name], "iterations": int(text)}
                for name, text in values.items()
                if name in _SCRAM_NAMES
            ]
            return {"authentication": entries[0] if len(entries) == 1 else entries}
    numbers = {name: existing.values[name].value or "" for name in sorted(NUMBERS) if name in existing.values}
    whole: dict[str, Any] = {name: int(text) for name, text in numbers.items() if text.isdecimal()}
    return whole | ({"configs": {name: _plain(text) for name, text in values.items()}} if values else {})


def _rules(acls: Iterable[Acl]) -> list[dict[str, Any]]:
    """Return ACLs in Strimzi's form, with all operations on one resource together."""
    rules: dict[tuple[Any, ...], dict[str, Any]] = {}
    for acl in acls:
        resource: dict[str, str] = {"type": camel_case(acl.resource_type.name)}
        if acl.resource_type is not AclResourceType.CLUSTER:
            resource["name"] = acl.resource_name
        if acl.pattern_type is PatternType.PREFIXED:
            resource["patternType"] = "prefix"
        rule: dict[str, Any] = {"type": "deny"} if acl.permission is AclPermission.DENY else {}
        rule["resource"] = resource
        rule |= {"host": acl.host} if acl.host != "*" else {}
        place = (acl.permission, acl.host, acl.resource_type, acl.pattern_type, acl.resource_name)
        operation = camel_case(acl.operation.name)
        rules.setdefault(place, {**rule, "operations": []})["operations"].append(operation[0].upper() + operation[1:])
    return list(rules.values())


def _plain(value: str) -> str | int | bool:
    """Return a value as a person would write it in YAML, if it is read back as the same text."""
    if value in ("true", "false"):
        return value == "true"
    return int(value) if _NUMBER.fullmatch(value) and value != "-0" else value


def _number(text: str) -> int | float:
    return int(text) if _NUMBER.fullmatch(text) else float(text)

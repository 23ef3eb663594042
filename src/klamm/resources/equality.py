"""Equality of values as Kafka has it: numbers by value, sets in any order, special values by their meaning.

Also the text form of an ACL: its key in plans and files.
"""

from __future__ import annotations

from typing import Final

from klamm.client_configs.definitions import ACKS
from klamm.client_configs.rollout import PREFIX, parse_rollout
from klamm.configs.values import parse_value
from klamm.protocol.errors import InvalidConfigError, InvalidRequestError
from klamm.protocol.types import ConfigType
from klamm.resources.kinds import definition_of
from klamm.resources.model import ANY_ITERATIONS, Kind
from klamm.security.acls import Acl, AclOperation, AclPermission, AclResourceType, PatternType

_BROKER_SETS: Final = frozenset({"log.cleanup.policy"})
"""Broker configs whose list has no order. The order of others matters, for example that of cipher suites."""
_TYPES: Final = {int(member): member for member in ConfigType if member is not ConfigType.UNKNOWN}


def is_same(kind: Kind, key: str, current: str | None, wanted: str, *, config_type: int = 0) -> bool:
    """Return whether two values of a key mean the same.

    Args:
        kind: Kind of the resource.
        key: Key, such as the name of a config.
        current: Value in the cluster. None if there is none.
        wanted: Declared value.
        config_type: Wire value of ``ConfigType`` as the cluster reports it, for configs that klamm's tables lack.
    """
    if current is None or current == wanted:
        return current == wanted
    if kind in (Kind.QUOTA, Kind.SCRAM):
        return wanted == ANY_ITERATIONS or _number(current) == _number(wanted)
    if kind is Kind.CLIENT_CONFIGS:
        return _client_value(key, current) == _client_value(key, wanted)
    definition = definition_of(kind, key)
    if definition is not None:
        return definition.is_same(current, wanted, is_ordered=kind is Kind.BROKER and key not in _BROKER_SETS)
    return _is_same_text(key, current, wanted, _TYPES.get(config_type, ConfigType.STRING))


def _is_same_text(key: str, current: str, wanted: str, config_type: ConfigType) -> bool:
    try:
        return parse_value(key, current, config_type) == parse_value(key, wanted, config_type)
    except InvalidConfigError:
        return False  # sent unchanged: the broker's error names the mistake


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _client_value(key: str, text: str) -> tuple[object, ...]:
    if key.startswith(PREFIX):
        try:
            rollout = parse_rollout(key, text)
        except InvalidRequestError:
            return (text,)
        return (rollout.hundredths, *_client_value(key.removeprefix(PREFIX), rollout.value))
    value = text.strip()
    if key == ACKS:
        return ("all" if value == "-1" else value,)
    return (_number(value),)


_FROM = " from "


def acl_text(acl: Acl) -> str:
    """Return ``ALLOW READ on TOPIC:LITERAL:orders from *``, which names all of an ACL but the principal."""
    resource = f"{acl.resource_type.name}:{acl.pattern_type.name}:{acl.resource_name}"
    return f"{acl.permission.name} {acl.operation.name} on {resource}{_FROM}{acl.host}"


def is_allowing(text: str) -> bool:
    """Return whether the ACL of a text that ``acl_text`` returns allows something. Others deny it."""
    return text.startswith(f"{AclPermission.ALLOW.name} ")


def acl_of(principal: str, text: str) -> Acl:
    """Return the ACL of a principal from the text that ``acl_text`` returns."""
    permission, operation, _, rest = text.split(" ", 3)
    resource, _, host = rest.rpartition(_FROM)
    resource_type, pattern_type, name = resource.split(":", 2)
    return Acl(
        resource_type=AclResourceType[resource_type],
        resource_name=name,
        pattern_type=PatternType[pattern_type],
        principal=principal,
        host=host,
        operation=AclOperation[operation],
        permission=AclPermission[permission],
    )

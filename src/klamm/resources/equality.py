"""Equality of values as Kafka has it: numbers by value, sets in any order, special values by their meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.client_configs.definitions import ACKS
from klamm.client_configs.rollout import PREFIX, parse_rollout
from klamm.configs.definitions import (
    client_metrics_configs,
    find_broker_config,
    group_configs,
    topic_configs,
)
from klamm.configs.values import parse_value
from klamm.protocol.errors import InvalidConfigError, InvalidRequestError
from klamm.protocol.types import ConfigType
from klamm.resources.model import ANY_ITERATIONS, Kind

if TYPE_CHECKING:
    from klamm.configs.definitions import ConfigDefinition

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


def definition_of(kind: Kind, key: str) -> ConfigDefinition | None:
    """Return klamm's definition of a config; None if no table has it."""
    match kind:
        case Kind.TOPIC:
            return topic_configs().get_definition(key)
        case Kind.BROKER:
            return find_broker_config(key)
        case Kind.GROUP:
            return group_configs().get_definition(key)
        case Kind.CLIENT_METRICS:
            return client_metrics_configs().get_definition(key)
        case _:
            return None


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

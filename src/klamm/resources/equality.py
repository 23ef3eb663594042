"""Equality of values as Kafka has it: numbers by value, sets in any order, special values by their meaning."""

from __future__ import annotations

from typing import Final

from klamm.client_configs.definitions import ACKS
from klamm.client_configs.rollout import PREFIX, parse_rollout
from klamm.configs.values import parse_value
from klamm.protocol.errors import InvalidConfigError, InvalidRequestError
from klamm.protocol.types import ConfigType
from klamm.resources.kinds import definition_of
from klamm.resources.model import ANY_ITERATIONS, Kind

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

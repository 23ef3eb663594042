"""Validators of single config values, built from the notation in Kafka's config documentation."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import TypeAlias, cast

from klamm.configs.values import ConfigValue, invalid_value
from klamm.protocol.errors import InvalidConfigError
from klamm.protocol.types import ConfigType

Check: TypeAlias = Callable[[str, ConfigValue], None]
"""A validator: takes the config's name and its typed value, raises InvalidConfigError."""

_RANGE = re.compile(r"\[(?P<least>-?[\d.]+),\.\.\.(?:,(?P<most>-?[\d.]+))?\]")
_WORDS = re.compile(r"(?P<any_case>\(case insensitive\) )?\[(?P<words>[^\[\]]+)\]")
_GZIP_LEVELS = "[1,...,9] or -1"
_THROTTLED_REPLICAS = "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
_OFFSET_RESET = "[latest, earliest, by_duration:PnDTnHnMn.nS]"
_ONE_THROTTLED_REPLICA = re.compile(r"([0-9]+:[0-9]+)?")
_ISO_DURATION = re.compile(
    r"([+-]?)P(?:([+-]?\d+)D)?(T(?:([+-]?\d+)H)?(?:([+-]?\d+)M)?(?:([+-]?\d+)(?:[.,](\d{0,9}))?S)?)?",
    re.ASCII | re.IGNORECASE,
)


def build_check(notation: str | None, config_type: ConfigType, *, may_be_empty: bool = True) -> Check | None:
    """Return the validator for a notation such as ``[0,...]`` or ``[compact, delete]``; None if it sets no limit.

    Args:
        notation: Notation of the validator. For a list, the empty one means that it takes any distinct elements.
        config_type: Type of the config.
        may_be_empty: Whether a list may have no elements.

    Raises:
        ValueError: The notation is unknown, so the config table is wrong.
    """
    if notation is None:
        return None
    special = _SPECIAL.get(notation)
    if special is not None:
        return special
    if not notation and config_type is ConfigType.LIST:
        return _list_of(None, (), may_be_empty=may_be_empty)
    if (span := _RANGE.fullmatch(notation)) is not None:
        return _between(span["least"], span["most"])
    if (words := _WORDS.fullmatch(notation)) is not None:
        allowed = tuple(words["words"].split(", "))
        one = _one_of_any_case(allowed) if words["any_case"] else _one_of(allowed)
        return _list_of(one, allowed, may_be_empty=may_be_empty) if config_type is ConfigType.LIST else one
    raise ValueError(f"Unknown validator {notation!r}")


def _between(least: str, most: str | None) -> Check:
    low = float(least)
    high = float(most) if most is not None else None

    def check(name: str, value: ConfigValue) -> None:
        number = cast("float", value)
        if number < low:
            raise invalid_value(name, value, f"Value must be at least {least}")
        if high is not None and number > high:
            raise invalid_value(name, value, f"Value must be no more than {most}")

    return check


def _one_of(allowed: tuple[str, ...]) -> Check:
    def check(name: str, value: ConfigValue) -> None:
        if value not in allowed:
            raise invalid_value(name, value, f"String must be one of: {', '.join(allowed)}")

    return check


def _one_of_any_case(allowed: tuple[str, ...]) -> Check:
    def check(name: str, value: ConfigValue) -> None:
        if str(value).upper() not in allowed:
            raise invalid_value(name, value, f"String must be one of (case insensitive): {', '.join(allowed)}")

    return check


def _list_of(one: Check | None, allowed: tuple[str, ...], *, may_be_empty: bool) -> Check:
    """Return the validator of a list, Kafka's ``ValidList``: distinct elements that are not empty."""

    def check(name: str, value: ConfigValue) -> None:
        elements = cast("tuple[str, ...]", value)
        if not elements and not may_be_empty:
            examples = f"[{', '.join(allowed)}]" if allowed else "any non-empty value"
            raise InvalidConfigError(f"Configuration '{name}' must not be empty. Valid values include: {examples}")
        if len(set(elements)) != len(elements):
            raise InvalidConfigError(f"Configuration '{name}' values must not be duplicated.")
        for element in elements:
            if not element:
                raise InvalidConfigError(f"Configuration '{name}' values must not be empty.")
            if one is not None:
                one(name, element)

    return check


def _not_empty(name: str, value: ConfigValue) -> None:
    if not value:
        raise invalid_value(name, value, "String must be non-empty")


def _anything(name: str, value: ConfigValue) -> None:
    """Accept any value. The notation excludes only null, or the value is checked where the config is used."""


def _gzip_level(name: str, value: ConfigValue) -> None:
    if value not in range(1, 10) and value != -1:
        raise invalid_value(name, value, "Value must be between 1 and 9 or equal to -1")


def _throttled_replicas(name: str, value: ConfigValue) -> None:
    replicas = [element.strip() for element in cast("tuple[str, ...]", value)]
    if all(map(_ONE_THROTTLED_REPLICA.fullmatch, replicas)) or "".join(replicas) == "*":
        return
    raise invalid_value(
        name,
        value,
        f"{name} must be the literal '*' or a list of replicas in the following format: {_THROTTLED_REPLICAS}",
    )


def _offset_reset(name: str, value: ConfigValue) -> None:
    text = str(value)
    if text in {"latest", "earliest"}:
        return
    kind, _, duration = text.partition(":")
    if kind == "by_duration" and (period := parse_iso_duration(duration)) is not None and period >= timedelta(0):
        return
    raise invalid_value(
        name,
        value,
        f"Invalid value `{text}` for configuration {name}. The value must be either 'earliest', 'latest' "
        "or of the format 'by_duration:<PnDTnHnMn.nS>'.",
    )


def parse_iso_duration(text: str) -> timedelta | None:
    """Parse an ISO-8601 duration of days to seconds like ``java.time.Duration.parse``; return None if it is not one."""
    match = _ISO_DURATION.fullmatch(text)
    if match is None:
        return None
    sign, days, clock, hours, minutes, seconds, fraction = match.groups()
    parts = (days, hours, minutes, seconds)
    # "P" and "PT" alone, or a T at the end, are not valid durations.
    if not any(parts) or (clock is not None and not any(parts[1:])):
        return None
    try:
        period = timedelta(
            days=int(days or 0),
            hours=int(hours or 0),
            minutes=int(minutes or 0),
            seconds=float(f"{seconds or 0}.{fraction or 0}"),
        )
    except (OverflowError, ValueError):  # ValueError: more digits than int() takes.
        return None
    return -period if sign == "-" else period


_SPECIAL: dict[str, Check] = {
    _GZIP_LEVELS: _gzip_level,
    _THROTTLED_REPLICAS: _throttled_replicas,
    _OFFSET_RESET: _offset_reset,
    "non-empty string": _not_empty,
    "non-null string": _anything,
    "non-empty list": _anything,
}

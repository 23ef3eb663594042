"""Config values: parsing and formatting by the rules of Kafka's ``ConfigDef`` and of Java's number types.

A typed value is a bool, int, float or str, or a tuple of str for a list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from numbers import Number
from pathlib import PurePath
from typing import TypeAlias

from klamm.protocol.errors import InvalidConfigError
from klamm.protocol.types import ConfigType

ConfigValue: TypeAlias = bool | int | float | str | tuple[str, ...]

JAVA_BLANKS = "".join(map(chr, range(0x21)))
"""Characters that Java's ``String.trim`` removes: all up to and including the space."""

_BITS = {ConfigType.SHORT: 15, ConfigType.INT: 31, ConfigType.LONG: 63}
_INTEGER = re.compile(r"[+-]?\d+")
_JAVA_SPACES = " \t\n\v\f\r"
"""Characters of ``\\s`` in a regular expression of Java."""
# Possessive, because clients choose the text: backtracking takes seconds for 32,767 digits.
_DECIMAL = re.compile(r"[+-]?(?:\d++\.?\d*+|\.\d++)(?:[eE][+-]?\d++)?+(?=[fFdD]?$)", re.ASCII)
_HEXADECIMAL = re.compile(r"[+-]?0[xX][0-9a-fA-F]*+\.?[0-9a-fA-F]*+[pP][+-]?\d++(?=[fFdD]?$)", re.ASCII)
_NOT_FINITE = {"NaN": "nan", "+NaN": "nan", "-NaN": "nan", "Infinity": "inf", "+Infinity": "inf", "-Infinity": "-inf"}

# Range in which Java formats a double without an exponent.
_MIN_PLAIN = 1e-3
_MIN_SCIENTIFIC = 1e7


def invalid_value(name: str, value: object, reason: str) -> InvalidConfigError:
    """Return the error of Kafka's ``ConfigException(name, value, message)``. The caller raises it."""
    return InvalidConfigError(f"Invalid value {java_text(value)} for configuration {name}: {reason}")


def parse_value(name: str, text: str, config_type: ConfigType) -> ConfigValue:
    """Parse a value as the given type.

    Surrounding blanks are stripped first; error messages show the text unstripped.

    Raises:
        InvalidConfigError: The text is not a value of this type.
    """
    trimmed = text.strip(JAVA_BLANKS)
    if config_type in _BITS:
        number = _integer(trimmed, config_type)
        if number is None:
            raise invalid_value(name, text, f"Not a number of type {config_type.name}")
        return number
    match config_type:
        case ConfigType.BOOLEAN:
            lowered = trimmed.lower()
            if lowered not in {"true", "false"}:
                raise invalid_value(name, text, "Expected value to be either true or false")
            return lowered == "true"
        case ConfigType.DOUBLE:
            return _parse_double(name, text, trimmed)
        case ConfigType.LIST:
            return split_list(trimmed)
        case _:
            return trimmed


def split_list(trimmed: str) -> tuple[str, ...]:
    """Split a comma-separated list like Kafka: without blanks, with empty elements; "" has no elements."""
    return tuple(element.strip(_JAVA_SPACES) for element in trimmed.split(",")) if trimmed else ()


def parse_java_int(text: str) -> int | None:
    """Parse an integer like Java's ``Integer.parseInt``, with sign and leading zeros; return None if it is not one."""
    return _integer(text, ConfigType.INT)


def format_value(value: ConfigValue) -> str:
    """Format a typed value as Kafka describes it."""
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return ",".join(value)
    return java_text(value)


def java_text(value: object) -> str:
    """Format a value like Java's ``String.valueOf``, as Kafka's error messages do."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _java_double(value)
    if isinstance(value, tuple):
        return f"[{', '.join(value)}]"
    return "null" if value is None else str(value)


def config_text(name: str, value: object) -> str:
    """Return the text of a config that a program sets: a string, number, boolean or path, or the elements of a list.

    Numbers may be of any real type, such as Decimal or those of NumPy.

    Raises:
        TypeError: The value is none of these, such as None or bytes.
    """
    if isinstance(value, (str, Number, PurePath)) and not isinstance(value, complex):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray, memoryview, Mapping)):
        return ",".join([config_text(name, element) for element in value])
    raise TypeError(
        f"Invalid value for {name}: expected a string, a number, a boolean or a list of these, got"
        f" {type(value).__name__}"
    )


def _integer(text: str, config_type: ConfigType) -> int | None:
    # The length limit protects int() from megabytes of digits. No real value has so many leading zeros.
    if len(text) > 1000 or _INTEGER.fullmatch(text) is None:  # noqa: PLR2004
        return None
    number, limit = int(text), 1 << _BITS[config_type]
    return number if -limit <= number < limit else None


def _parse_double(name: str, text: str, trimmed: str) -> float:
    if trimmed in _NOT_FINITE:
        return float(_NOT_FINITE[trimmed])
    try:
        if (decimal := _DECIMAL.match(trimmed)) is not None:
            return float(decimal.group())
        if (hexadecimal := _HEXADECIMAL.match(trimmed)) is not None:
            return float.fromhex(hexadecimal.group())
    except (ValueError, OverflowError):
        pass
    raise invalid_value(name, text, f"Not a number of type {ConfigType.DOUBLE.name}")


def _java_double(value: float) -> str:
    if value != value:  # noqa: PLR0124 -- NaN alone differs from itself
        return "NaN"
    if value in {float("inf"), float("-inf")}:
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or _MIN_PLAIN <= abs(value) < _MIN_SCIENTIFIC:
        # repr() returns the shortest text that parses back to this double, with a decimal point. It uses an exponent
        # only below 1e-4.
        return repr(value)
    digits, _, exponent = f"{value!r}".partition("e")
    if not exponent:
        sign = "-" if value < 0 else ""
        whole, _, fraction = digits.removeprefix("-").partition(".")
        if whole.strip("0"):
            significant = (whole + fraction).rstrip("0") or "0"
            power = len(whole) - 1
        else:
            significant = fraction.lstrip("0")
            power = -(len(fraction) - len(significant) + 1)
        return f"{sign}{significant[0]}.{significant[1:] or '0'}E{power}"
    return f"{digits if '.' in digits else digits + '.0'}E{int(exponent)}"

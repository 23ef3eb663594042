"""Parsing and formatting of config values by Kafka's and Java's rules."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.configs.values import ConfigValue, format_value, java_text, parse_java_int, parse_value
from klamm.protocol.errors import InvalidConfigError
from klamm.protocol.types import ConfigType


@pytest.mark.parametrize(
    ("text", "config_type", "value"),
    [
        (" 77 ", ConfigType.LONG, 77),
        ("+5", ConfigType.INT, 5),
        ("0010", ConfigType.INT, 10),
        ("-2147483648", ConfigType.INT, -(2**31)),
        ("\uff19\uff19", ConfigType.LONG, 99),
        ("TRUE", ConfigType.BOOLEAN, True),
        (" false\t", ConfigType.BOOLEAN, False),
        (".25", ConfigType.DOUBLE, 0.25),
        ("1", ConfigType.DOUBLE, 1.0),
        (".5d", ConfigType.DOUBLE, 0.5),
        ("0x1p-2", ConfigType.DOUBLE, 0.25),
        (" compact , delete ", ConfigType.LIST, ("compact", "delete")),
        ("", ConfigType.LIST, ()),
        ("a,", ConfigType.LIST, ("a", "")),
        (" zstd ", ConfigType.STRING, "zstd"),
    ],
)
def test_values_are_trimmed_and_read_as_their_type(text: str, config_type: ConfigType, value: ConfigValue) -> None:
    """K339-34: what Kafka accepts is accepted, and is shown parsed."""
    assert parse_value("x", text, config_type) == value


@pytest.mark.parametrize(
    ("text", "config_type", "reason"),
    [
        ("abc", ConfigType.LONG, "Not a number of type LONG"),
        ("", ConfigType.LONG, "Not a number of type LONG"),
        ("1e3", ConfigType.LONG, "Not a number of type LONG"),
        ("1_000", ConfigType.LONG, "Not a number of type LONG"),
        ("\u00a05", ConfigType.LONG, "Not a number of type LONG"),
        ("2147483648", ConfigType.INT, "Not a number of type INT"),
        ("40000", ConfigType.SHORT, "Not a number of type SHORT"),
        ("9" * 2000, ConfigType.LONG, "Not a number of type LONG"),
        ("yes", ConfigType.BOOLEAN, "Expected value to be either true or false"),
        ("abc", ConfigType.DOUBLE, "Not a number of type DOUBLE"),
        ("1_0.5", ConfigType.DOUBLE, "Not a number of type DOUBLE"),
        ("nan", ConfigType.DOUBLE, "Not a number of type DOUBLE"),
    ],
)
def test_value_of_wrong_type_has_kafkas_error_message(text: str, config_type: ConfigType, reason: str) -> None:
    """K339-34: the message names the value, the key and the type."""
    with pytest.raises(InvalidConfigError) as rejected:
        parse_value("some.key", text, config_type)
    assert rejected.value.error_message == f"Invalid value {text} for configuration some.key: {reason}"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.25, "0.25"),
        (1.0, "1.0"),
        (0.0, "0.0"),
        (0.001, "0.001"),
        (0.0001, "1.0E-4"),
        (0.00099, "9.9E-4"),
        (1e-10, "1.0E-10"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (-12345678.9, "-1.23456789E7"),
        (1e16, "1.0E16"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
    ],
)
def test_doubles_are_written_as_java_writes_them(number: float, text: str) -> None:
    assert format_value(number) == text


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_formatted_double_parses_to_the_same_value(number: float) -> None:
    assert parse_value("x", format_value(number), ConfigType.DOUBLE) == number


@settings(deadline=None)
@given(st.integers(min_value=-(2**63), max_value=2**63 - 1))
def test_formatted_long_parses_to_the_same_value(number: int) -> None:
    assert parse_value("x", format_value(number), ConfigType.LONG) == number


@settings(deadline=None)
@given(st.text(), st.sampled_from(list(ConfigType)))
def test_any_text_parses_or_raises_invalid_config(text: str, config_type: ConfigType) -> None:
    try:
        value = parse_value("x", text, config_type)
    except InvalidConfigError:
        return
    assert isinstance(format_value(value), str)


def test_error_messages_show_lists_and_null_as_java_does() -> None:
    assert java_text(("0:1", "*")) == "[0:1, *]"
    assert java_text(None) == "null"
    assert java_text(True) == "true"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", 1),
        ("+1", 1),
        ("01", 1),
        ("-1", -1),
        ("x", None),
        ("", None),
        (" 1", None),
        ("9" * 11, None),
        pytest.param("9" * 5000, None, id="5000 digits"),
    ],
)
def test_names_of_brokers_are_read_as_java_ints(text: str, number: int | None) -> None:
    assert parse_java_int(text) == number


@pytest.mark.parametrize(
    ("text", "config_type"),
    [
        (f"{'1' * 32_766}x", ConfigType.DOUBLE),
        (f"1e{'1' * 32_765}", ConfigType.DOUBLE),
        (f"0x{'1' * 32_765}", ConfigType.DOUBLE),
        (f"0x.p{'1' * 32_763}", ConfigType.DOUBLE),
        (f"a{' ' * 32_765}b", ConfigType.LIST),
    ],
    ids=("decimal", "exponent", "hexadecimal", "binary exponent", "blanks"),
)
def test_longest_value_is_parsed_in_no_time(text: str, config_type: ConfigType) -> None:
    """Whoever may set a config of one topic could stop the broker: patterns that backtrack took up to 20 seconds."""
    began = time.thread_time()
    with suppress(InvalidConfigError):
        parse_value("x", text, config_type)
    assert time.thread_time() - began < 0.2

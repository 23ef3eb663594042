"""The table of client configs and their allowed values."""

from __future__ import annotations

import pytest

from klamm.client_configs.definitions import DEFINITIONS, BrokerLimits, check_value
from klamm.protocol.errors import InvalidRequestError

LIMITS = BrokerLimits(min_session_timeout_ms=6_000, max_session_timeout_ms=1_800_000)


def test_keys_are_those_of_the_kip() -> None:
    """K649-55: Keys: acks, session.timeout.ms, heartbeat.interval.ms."""
    assert set(DEFINITIONS) == {"acks", "session.timeout.ms", "heartbeat.interval.ms"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("acks", value) for value in ("all", "-1", "0", "1")),
        *(("session.timeout.ms", value) for value in ("6000", "1800000", "+6000", "006000", "00000006000")),
        *(("heartbeat.interval.ms", value) for value in ("1", "2147483647")),
    ],
)
def test_valid_values_are_accepted(name: str, value: str) -> None:
    """K649-56: Values are strings, checked like the static config: acks in {all,-1,0,1}; session.timeout.ms int in
    [6000, 1800000]; heartbeat.interval.ms int >= 1.
    """
    assert check_value(name, value, LIMITS) == value


def test_blanks_around_a_value_are_dropped() -> None:
    """As Java's clients do, which keep a no-break space."""
    assert check_value("acks", " all\t", LIMITS) == "all"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("acks", value) for value in ("2", "-2", "ALL", "", "01", "+1", "\u00a01")),
        *(("session.timeout.ms", value) for value in ("5999", "1800001", "abc", "", "6_000", "1e4", "٦٠٠٠")),
        *(("heartbeat.interval.ms", value) for value in ("0", "-1", "2147483648", "1.5")),
    ],
)
def test_invalid_values_are_rejected(name: str, value: str) -> None:
    """K649-56: Values are strings, checked like the static config: acks in {all,-1,0,1}; session.timeout.ms int in
    [6000, 1800000]; heartbeat.interval.ms int >= 1.
    """
    with pytest.raises(InvalidRequestError, match=f"Invalid value .*for configuration {name}: expected"):
        check_value(name, value, LIMITS)


def test_more_zeros_than_python_reads_are_rejected() -> None:
    with pytest.raises(InvalidRequestError, match="Invalid value 000"):
        check_value("session.timeout.ms", "0" * 5_000 + "6000", LIMITS)


def test_broker_limits_bound_the_session_timeout() -> None:
    """K649-56: Values are strings, checked like the static config: acks in {all,-1,0,1}; session.timeout.ms int in
    [6000, 1800000]; heartbeat.interval.ms int >= 1.
    """
    narrow = BrokerLimits(min_session_timeout_ms=10_000, max_session_timeout_ms=20_000)
    with pytest.raises(InvalidRequestError, match="from 10000 to 20000"):
        check_value("session.timeout.ms", "6000", narrow)


@pytest.mark.parametrize("name", ["foo", "producer_byte_rate", "supported.configs", "supported.config", ""])
def test_unknown_config_key_is_rejected(name: str) -> None:
    """K649-46: Registering never changes the entity's configs; ``supported.configs``/``supported.config`` is not a
    config key.

    K649-54: Unknown config key -> 42 "Invalid configuration key k".
    """
    with pytest.raises(InvalidRequestError, match=f"Invalid configuration key {name}"):
        check_value(name, "1", LIMITS)

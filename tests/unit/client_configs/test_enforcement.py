from __future__ import annotations

import pytest

from klamm.client_configs.definitions import ENFORCEMENT, BrokerLimits
from klamm.client_configs.enforcement import (
    NOTHING_ENFORCED,
    Compliance,
    Enforced,
    TimingLimits,
    compliance,
    enforced_values,
    held_acks,
    held_timings,
    is_enforced_anywhere,
)
from klamm.client_configs.entities import ClientConfigEntity
from klamm.client_configs.kinds import GroupProtocol
from klamm.client_configs.resolution import resolve

EVERYONE = ClientConfigEntity.of_user(None)
ALICE = ClientConfigEntity.of_user("alice")
APP = ClientConfigEntity.of_client("alice", "app")
CLASSIC, CONSUMER = frozenset({GroupProtocol.CLASSIC}), frozenset({GroupProtocol.CONSUMER})


@pytest.mark.parametrize(
    ("switches", "broker", "is_on"),
    [
        ({}, False, False),
        ({}, True, True),
        ({ALICE: "on"}, False, True),
        ({APP: "off"}, True, False),
        ({EVERYONE: "on", APP: "off"}, False, False),
        ({EVERYONE: "off", ALICE: "off", APP: "on"}, False, True),
    ],
)
def test_enforcement_of_the_most_specific_entity_wins(
    switches: dict[ClientConfigEntity, str], broker: bool, is_on: bool
) -> None:
    """K649-92."""
    configs = {entity: {ENFORCEMENT: value} for entity, value in switches.items()}
    configs.setdefault(EVERYONE, {})["acks"] = "all"
    enforced = enforced_values(configs, APP, is_on=broker, limits=BrokerLimits())
    assert enforced == (Enforced(is_on=True, acks=-1) if is_on else NOTHING_ENFORCED)
    assert is_enforced_anywhere(configs.values(), is_on=broker) is (is_on or bool(switches))


def test_enforcement_switch_is_not_sent_to_clients() -> None:
    """K649-92."""
    configs = {ALICE: {ENFORCEMENT: "on", "acks": "1"}, APP: {"rollout.enforcement": "100:off"}}
    assert resolve(configs, APP) == {"acks": "1"}
    assert enforced_values(configs, APP, is_on=False, limits=BrokerLimits()) == NOTHING_ENFORCED
    assert is_enforced_anywhere([configs[APP]], is_on=False), "a roll-out may switch it on"


@pytest.mark.parametrize(("value", "expected"), [("7000", 10_000), ("20000", 20_000), ("90000", 60_000)])
def test_enforced_session_timeout_is_clamped_to_broker_limits(value: str, expected: int) -> None:
    limits = BrokerLimits(min_session_timeout_ms=10_000, max_session_timeout_ms=60_000)
    configs = {APP: {"session.timeout.ms": value, "heartbeat.interval.ms": "500"}}
    enforced = enforced_values(configs, APP, is_on=True, limits=limits)
    assert enforced == Enforced(is_on=True, session_timeout_ms=expected, heartbeat_interval_ms=500)


@pytest.mark.parametrize(
    ("requested", "enforced", "held"),
    [
        (1, None, 1),
        (1, -1, -1),
        (0, 1, 1),
        (0, -1, -1),
        (-1, 1, -1),
        (1, 0, 1),
        (-1, 0, -1),
        (7, -1, 7),
    ],
)
def test_enforced_acks_are_never_lowered(requested: int, enforced: int | None, held: int) -> None:
    """K649-93."""
    assert held_acks(requested, Enforced(is_on=True, acks=enforced)) == held


@pytest.mark.parametrize(
    ("key", "is_supported", "is_on", "protocols", "expected"),
    [
        ("acks", True, True, frozenset(), Compliance.FOLLOWS),
        ("acks", True, False, frozenset(), Compliance.FOLLOWS),
        ("acks", False, False, frozenset(), Compliance.OFF),
        ("acks", False, True, frozenset(), Compliance.ENFORCED),
        ("session.timeout.ms", False, True, frozenset(), Compliance.CANNOT),
        ("session.timeout.ms", False, True, CLASSIC, Compliance.ENFORCED),
        ("session.timeout.ms", False, True, CONSUMER, Compliance.ENFORCED),
        ("heartbeat.interval.ms", False, True, CLASSIC, Compliance.CANNOT),
        ("heartbeat.interval.ms", False, True, CONSUMER, Compliance.ENFORCED),
        ("linger.ms", False, True, CONSUMER, Compliance.CANNOT),
    ],
)
def test_each_key_is_followed_or_enforced(
    key: str, is_supported: bool, is_on: bool, protocols: frozenset[GroupProtocol], expected: Compliance
) -> None:
    actual = compliance(key, is_supported=is_supported, enforced=Enforced(is_on=is_on), protocols=protocols)
    assert actual is expected


@pytest.mark.parametrize(
    ("session_ms", "interval_ms", "held"),
    [
        (None, None, (45_000, 50_000)),
        (50_000, None, (50_000, 49_999)),
        (None, 7000, (45_000, 7000)),
        (6000, 1, (45_000, 5000)),
        (90_000, 90_000, (60_000, 15_000)),
    ],
)
def test_enforced_group_timings_stay_within_broker_limits(
    session_ms: int | None, interval_ms: int | None, held: tuple[int, int]
) -> None:
    """K649-95: what is not enforced stays that of the group, but for an interval that must be below the timeout."""
    enforced = Enforced(is_on=True, session_timeout_ms=session_ms, heartbeat_interval_ms=interval_ms)
    assert held_timings(45_000, 50_000, enforced, TimingLimits()) == held

from __future__ import annotations

import pytest

from klamm.broker.groups.settings import GroupCoordinatorSettings
from tests.support.groups import CONSUMER_DEFAULTS

KAFKA_DEFAULTS: dict[str, object] = {
    **CONSUMER_DEFAULTS,
    "group.min.session.timeout.ms": "6000",
    "group.max.session.timeout.ms": "1800000",
    "offset.metadata.max.bytes": 4096,
    "offsets.retention.minutes": 10080,
    "offsets.retention.check.interval.ms": 600000,
    "group.initial.rebalance.delay.ms": 3000,
    "group.max.size": 2147483647,
}


def test_defaults_match_kafka() -> None:
    assert GroupCoordinatorSettings.from_config(KAFKA_DEFAULTS.__getitem__) == GroupCoordinatorSettings()


def test_offsets_retention_minutes_are_converted_to_milliseconds() -> None:
    settings = GroupCoordinatorSettings.from_config({**KAFKA_DEFAULTS, "offsets.retention.minutes": 2}.__getitem__)

    assert settings.offsets_retention_ms == 120_000


@pytest.mark.parametrize(
    ("policy", "allows_upgrade", "allows_downgrade"),
    [("Bidirectional", True, True), ("UPGRADE", True, False), ("downgrade", False, True), ("disabled", False, False)],
)
def test_migration_policy_is_case_insensitive(policy: str, *, allows_upgrade: bool, allows_downgrade: bool) -> None:
    config = {**KAFKA_DEFAULTS, "group.consumer.migration.policy": policy}

    limits = GroupCoordinatorSettings.from_config(config.__getitem__).consumer_limits

    assert (limits.allows_upgrade, limits.allows_downgrade) == (allows_upgrade, allows_downgrade)


def test_consumer_groups_are_served_only_with_their_protocol() -> None:
    config = {**KAFKA_DEFAULTS, "group.coordinator.rebalance.protocols": "classic"}

    assert not GroupCoordinatorSettings.from_config(config.__getitem__).serves_consumer_groups


@pytest.mark.parametrize(
    ("value", "assignors"),
    [
        ("range", ("range",)),
        ("range, uniform", ("range", "uniform")),
        ("org.apache.kafka.coordinator.group.assignor.RangeAssignor,com.example.Mine", ("range",)),
        ("com.example.Mine", ("uniform", "range")),
    ],
)
def test_unknown_assignors_are_skipped(value: str, assignors: tuple[str, ...]) -> None:
    config = {**KAFKA_DEFAULTS, "group.consumer.assignors": value}

    assert GroupCoordinatorSettings.from_config(config.__getitem__).consumer_limits.assignors == assignors

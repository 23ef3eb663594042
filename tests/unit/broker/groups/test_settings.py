from __future__ import annotations

from klamm.broker.groups.settings import GroupCoordinatorSettings

KAFKA_DEFAULTS = {
    "group.min.session.timeout.ms": "6000",
    "group.max.session.timeout.ms": "1800000",
    "offset.metadata.max.bytes": 4096,
    "offsets.retention.minutes": 10080,
    "offsets.retention.check.interval.ms": 600000,
    "group.initial.rebalance.delay.ms": 3000,
    "group.max.size": 2147483647,
}


def test_the_defaults_are_kafkas_whether_read_as_numbers_or_texts() -> None:
    assert GroupCoordinatorSettings.from_config(KAFKA_DEFAULTS.__getitem__) == GroupCoordinatorSettings()


def test_minutes_become_milliseconds() -> None:
    settings = GroupCoordinatorSettings.from_config({**KAFKA_DEFAULTS, "offsets.retention.minutes": 2}.__getitem__)

    assert settings.offsets_retention_ms == 120_000

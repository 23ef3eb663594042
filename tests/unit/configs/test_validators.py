"""Validators built from the notation of Kafka's documentation."""

from __future__ import annotations

import pytest

from klamm.configs.definitions import broker_configs, group_configs, topic_configs
from klamm.configs.validators import build_check, parse_iso_duration
from klamm.protocol.errors import InvalidConfigError
from klamm.protocol.types import ConfigType


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        (
            "compression.gzip.level",
            "0",
            "Invalid value 0 for configuration {name}: Value must be between 1 and 9 or equal to -1",
        ),
        (
            "compression.lz4.level",
            "18",
            "Invalid value 18 for configuration compression.lz4.level: Value must be no more than 17",
        ),
        (
            "min.cleanable.dirty.ratio",
            "1.5",
            "Invalid value 1.5 for configuration {name}: Value must be no more than 1",
        ),
        (
            "min.cleanable.dirty.ratio",
            "-.5",
            "Invalid value -0.5 for configuration {name}: Value must be at least 0",
        ),
        (
            "segment.bytes",
            "1048575",
            "Invalid value 1048575 for configuration {name}: Value must be at least 1048576",
        ),
        ("retention.ms", "-2", "Invalid value -2 for configuration {name}: Value must be at least -1"),
        (
            "message.timestamp.type",
            "createtime",
            "Invalid value createtime for configuration {name}: String must be one of: CreateTime, LogAppendTime",
        ),
        (
            "cleanup.policy",
            "compact,",
            "Configuration '{name}' values must not be empty.",
        ),
        (
            "leader.replication.throttled.replicas",
            "0:1,junk",
            "Invalid value [0:1, junk] for configuration {name}: "
            "{name} must be the literal '*' or a list of replicas in the following format: "
            "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
        ),
    ],
)
def test_out_of_range_topic_config_has_kafkas_error_message(name: str, text: str, reason: str) -> None:
    """K339-34: A value the key's validator rejects fails the resource; code 40."""
    with pytest.raises(InvalidConfigError) as rejected:
        topic_configs()[name].parse(text)
    assert rejected.value.error_message == reason.format(name=name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("compression.gzip.level", "-1"),
        ("min.cleanable.dirty.ratio", "NaN"),
        ("follower.replication.throttled.replicas", "0:1,"),
        ("follower.replication.throttled.replicas", "*,"),
        ("follower.replication.throttled.replicas", ""),
        ("cleanup.policy", ""),
        ("retention.ms", "-1"),
    ],
)
def test_boundary_values_are_accepted_like_kafka(name: str, text: str) -> None:
    topic_configs()[name].parse(text)


@pytest.mark.parametrize(
    "text", ["latest", "earliest", "by_duration:PT1H", "by_duration:P1DT2H3M4.5S", "by_duration:pt0s"]
)
def test_offset_reset_of_share_groups_takes_a_duration(text: str) -> None:
    group_configs()["share.auto.offset.reset"].parse(text)


@pytest.mark.parametrize(
    "text", ["Latest", "by_duration:", "by_duration:x", "by_duration:PT", "by_duration:P1DT", "by_duration:-PT1H"]
)
def test_invalid_share_auto_offset_reset_is_rejected(text: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"by_duration:<PnDTnHnMn\.nS>"):
        group_configs()["share.auto.offset.reset"].parse(text)


@pytest.mark.parametrize("duration", ["P{}D", "PT{}H", "PT{}M", "PT{}S"])
@pytest.mark.parametrize("digits", [100, 5000])
def test_duration_with_more_digits_than_int_takes_is_rejected(duration: str, digits: int) -> None:
    assert parse_iso_duration(duration.format("9" * digits)) is None


def test_case_insensitive_config_accepts_any_case() -> None:
    migration = broker_configs()["group.consumer.migration.policy"]
    assert migration.parse("upgrade") == "upgrade"
    with pytest.raises(InvalidConfigError, match="case insensitive"):
        migration.parse("sideways")


def test_unknown_validator_notation_raises_value_error() -> None:
    with pytest.raises(ValueError, match="Unknown validator"):
        build_check("somehow", ConfigType.STRING)

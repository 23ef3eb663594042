"""The admin's values."""

from __future__ import annotations

from typing import Any

import pytest

from klamm import admin
from klamm.admin import AlterConfigOp, ConfigEntry, ConfigSource, NewPartitions, NewTopic, OffsetAndMetadata, OpType
from klamm.admin.types import ConfigSynonym, inherited_value


def test_operations_have_their_wire_ids() -> None:
    """K339-04: Op ids: 0 SET, 1 DELETE, 2 APPEND, 3 SUBTRACT.

    K339-28: AlterConfigOp = (ConfigEntry, OpType), OpType.id(), OpType.forId(unknown) gives null/None.
    """
    assert [(op.name, op.id) for op in OpType] == [("SET", 0), ("DELETE", 1), ("APPEND", 2), ("SUBTRACT", 3)]


def test_for_id_returns_operation_or_none() -> None:
    """K339-28: AlterConfigOp = (ConfigEntry, OpType), OpType.id(), OpType.forId(unknown) gives null/None."""
    assert [OpType.for_id(number) for number in range(4)] == [OpType.SET, OpType.DELETE, OpType.APPEND, OpType.SUBTRACT]
    assert OpType.for_id(4) is None
    assert OpType.for_id(-1) is None


def test_operation_by_its_name_is_rejected() -> None:
    name: Any = "SET"
    with pytest.raises(TypeError, match=r"op_type must be an OpType such as OpType\.SET, not 'SET'"):
        AlterConfigOp(ConfigEntry("retention.ms", "1000"), name)


def test_remove_is_an_alias_of_delete() -> None:
    """K339-04: Op ids: 0 SET, 1 DELETE, 2 APPEND, 3 SUBTRACT."""
    assert OpType["REMOVE"] is OpType.DELETE


def test_changes_are_equal_by_value() -> None:
    """K339-28: AlterConfigOp = (ConfigEntry, OpType), OpType.id(), OpType.forId(unknown) gives null/None."""
    first = AlterConfigOp(ConfigEntry("retention.ms", "1"), OpType.SET)
    assert first == AlterConfigOp(ConfigEntry("retention.ms", "1"), OpType.SET)
    assert len({first, AlterConfigOp(ConfigEntry("retention.ms", "1"), OpType.SET)}) == 1
    assert first != AlterConfigOp(ConfigEntry("retention.ms", "1"), OpType.DELETE)


def test_unrecognized_config_source_is_unknown() -> None:
    assert ConfigSource(99) is ConfigSource.UNKNOWN


def test_is_default_follows_config_source() -> None:
    assert ConfigEntry("a", "1", source=ConfigSource.DEFAULT_CONFIG).is_default
    assert not ConfigEntry("a", "1", source=ConfigSource.STATIC_BROKER_CONFIG).is_default


@pytest.mark.parametrize(
    ("name", "synonym", "value", "inherited"),
    [
        ("log.retention.ms", "log.retention.hours", "72", "259200000"),
        ("log.retention.ms", "log.retention.minutes", " 5 ", "300000"),
        ("log.retention.ms", "log.retention.hours", "-1", "-1"),
        ("log.roll.ms", "log.roll.hours", "1", "3600000"),
        ("log.roll.jitter.ms", "log.roll.jitter.hours", "0", "0"),
        ("log.flush.interval.ms", "log.flush.scheduler.interval.ms", "7", "7"),
        ("log.retention.hours", "log.retention.hours", "72", "72"),
        ("retention.ms", "log.retention.hours", "72", "259200000"),
        ("compression.type", "compression.type", "zstd", "zstd"),
    ],
)
def test_inherited_value_is_in_the_unit_of_the_config(name: str, synonym: str, value: str, inherited: str) -> None:
    own, static = ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigSource.STATIC_BROKER_CONFIG
    synonyms = (ConfigSynonym(name, "9", own), ConfigSynonym(synonym, value, static))
    entry = ConfigEntry(name, "9", source=own, synonyms=synonyms)
    assert inherited_value(entry, own) == ConfigSynonym(synonym, inherited, static)


def test_java_positional_arguments_are_accepted() -> None:
    assert NewTopic("a", 3, 1) == NewTopic(name="a", num_partitions=3, replication_factor=1)
    assert NewPartitions(6) == NewPartitions(total_count=6)
    assert OffsetAndMetadata(5) == OffsetAndMetadata(offset=5)


def test_broker_errors_are_exported_by_admin() -> None:
    assert issubclass(admin.UnsupportedVersionError, admin.KafkaApiError)
    assert admin.UnsupportedVersionError.error_code is admin.ErrorCode.UNSUPPORTED_VERSION

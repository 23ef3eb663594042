"""The admin's values."""

from __future__ import annotations

from klamm import admin
from klamm.admin import AlterConfigOp, ConfigEntry, ConfigSource, NewPartitions, NewTopic, OffsetAndMetadata, OpType


def test_operations_have_their_wire_ids() -> None:
    """K339-04: Op ids: 0 SET, 1 DELETE, 2 APPEND, 3 SUBTRACT.

    K339-28: AlterConfigOp = (ConfigEntry, OpType), OpType.id(), OpType.forId(unknown) gives null/None.
    """
    assert [(op.name, op.id) for op in OpType] == [("SET", 0), ("DELETE", 1), ("APPEND", 2), ("SUBTRACT", 3)]


def test_an_operation_is_found_by_its_id() -> None:
    """K339-28: AlterConfigOp = (ConfigEntry, OpType), OpType.id(), OpType.forId(unknown) gives null/None."""
    assert [OpType.for_id(number) for number in range(4)] == [OpType.SET, OpType.DELETE, OpType.APPEND, OpType.SUBTRACT]
    assert OpType.for_id(4) is None
    assert OpType.for_id(-1) is None


def test_remove_is_another_name_of_delete() -> None:
    """K339-04: Op ids: 0 SET, 1 DELETE, 2 APPEND, 3 SUBTRACT."""
    assert OpType["REMOVE"] is OpType.DELETE


def test_changes_are_equal_by_value() -> None:
    """K339-28: AlterConfigOp = (ConfigEntry, OpType), OpType.id(), OpType.forId(unknown) gives null/None."""
    one = AlterConfigOp(ConfigEntry("retention.ms", "1"), OpType.SET)
    assert one == AlterConfigOp(ConfigEntry("retention.ms", "1"), OpType.SET)
    assert len({one, AlterConfigOp(ConfigEntry("retention.ms", "1"), OpType.SET)}) == 1
    assert one != AlterConfigOp(ConfigEntry("retention.ms", "1"), OpType.DELETE)


def test_a_source_of_the_future_is_unknown() -> None:
    assert ConfigSource(99) is ConfigSource.UNKNOWN


def test_a_default_is_what_nobody_set() -> None:
    assert ConfigEntry("a", "1", source=ConfigSource.DEFAULT_CONFIG).is_default
    assert not ConfigEntry("a", "1", source=ConfigSource.STATIC_BROKER_CONFIG).is_default


def test_what_java_takes_by_position_may_stand_so_here() -> None:
    assert NewTopic("a", 3, 1) == NewTopic(name="a", num_partitions=3, replication_factor=1)
    assert NewPartitions(6) == NewPartitions(total_count=6)
    assert OffsetAndMetadata(5) == OffsetAndMetadata(offset=5)


def test_what_a_broker_answers_can_be_caught_by_names_of_the_admin() -> None:
    assert issubclass(admin.UnsupportedVersionError, admin.KafkaApiError)
    assert admin.UnsupportedVersionError.error_code is admin.ErrorCode.UNSUPPORTED_VERSION

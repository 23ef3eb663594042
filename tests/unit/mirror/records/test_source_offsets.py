from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.mirror.records.source_offsets import (
    EpochFloor,
    ShardPlan,
    SourcePartition,
    StoredPromotion,
    key_bytes,
    parse_key,
    parse_leader_epoch,
    parse_own_key,
    parse_promotion,
    parse_promotion_key,
    parse_shard_plan,
    parse_topic_id,
    parse_value,
    promotion_key,
    promotion_value,
    resume_offset,
    shard_of,
    shard_plan_key,
    shard_plan_value,
    topic_id_key,
    topic_id_value,
    value_bytes,
)
from tests.support.damaged_records import EXAMPLES, damaged


def test_source_offset_matches_mirrormaker_bytes() -> None:
    assert key_bytes(SourcePartition("A", "orders", 3)) == (
        b'["MirrorSourceConnector",{"cluster":"A","partition":3,"topic":"orders"}]'
    )
    assert value_bytes(999) == b'{"offset":999}'


def test_source_offset_of_a_named_connector_matches_connects_bytes() -> None:
    """In a Connect cluster, the operator names the connector."""
    where, name = SourcePartition("A", "orders", 3), "A->B.MirrorSourceConnector"
    key = b'["A->B.MirrorSourceConnector",{"cluster":"A","partition":3,"topic":"orders"}]'
    assert key_bytes(where, name) == key
    assert parse_key(key, name) == where
    assert parse_key(key) is None
    assert parse_key(key_bytes(where), name) is None


def test_copying_resumes_after_last_mirrored_offset() -> None:
    """K894-38: Restart resumes after the last committed source offset (stored offset+1); no loss; duplicates only if
    not exactly-once.
    """
    assert parse_value(b'{"offset":999}') == 999
    assert resume_offset(999) == 1000


def test_negative_source_offset_resumes_at_zero() -> None:
    assert parse_value(value_bytes(-1)) == -1
    assert resume_offset(-1) == 0


def test_keys_are_parsed_with_any_whitespace_and_order() -> None:
    key = b'[ "MirrorSourceConnector", {"topic": "t", "partition": 0, "cluster": "A"} ]'
    assert parse_key(key) == SourcePartition("A", "t", 0)


@pytest.mark.parametrize(
    "key",
    [
        b'["MirrorCheckpointConnector",{"cluster":"A","partition":3,"topic":"orders"}]',
        b'["MirrorHeartbeatConnector",{"sourceClusterAlias":"A","targetClusterAlias":"B"}]',
        b"not json",
        b"\xff",
        b"",
        None,
    ],
)
def test_keys_of_other_connectors_are_ignored(key: bytes | None) -> None:
    assert parse_key(key) is None


@pytest.mark.parametrize("value", [None, b"", b"{}", b"[]", b"\xff", b'{"offset":"1"}'])
def test_tombstones_and_invalid_values_are_no_source_offset(value: bytes | None) -> None:
    assert parse_value(value) is None


@given(st.builds(SourcePartition, st.text(), st.text(), st.integers(0, 2**31 - 1)))
def test_keys_round_trip(partition: SourcePartition) -> None:
    key = key_bytes(partition)
    assert parse_key(key) == partition


def test_topic_ids_and_shard_plan_use_own_connector_name() -> None:
    """Connect tells connectors apart by the first element of the key (``OffsetUtils.processPartitionKey``)."""
    where = SourcePartition("A", "orders", 3)
    assert topic_id_key(where) == b'["klamm-mirror",{"cluster":"A","partition":3,"topic":"orders"}]'
    assert shard_plan_key("A") == b'["klamm-mirror",{"cluster":"A"}]'
    assert parse_key(topic_id_key(where)) is None
    assert parse_own_key(topic_id_key(where)) == where
    assert parse_own_key(shard_plan_key("A")) == "A"
    assert parse_own_key(key_bytes(where)) is None


def test_topic_ids_and_shard_plans_round_trip() -> None:
    topic_id = UUID(int=2**100 + 7)
    assert parse_topic_id(topic_id_value(topic_id)) == topic_id
    for plan in (ShardPlan(4), ShardPlan(4, (2, 8))):
        assert parse_shard_plan(shard_plan_value(plan)) == plan


@pytest.mark.parametrize(
    "value", [None, b"", b"{}", b"\xff", b'{"topic_id":"x"}', b'{"shards":"4"}', b'{"shards":4,"before":"x"}']
)
def test_invalid_values_are_no_topic_id_or_shard_plan(value: bytes | None) -> None:
    assert parse_topic_id(value) is None
    assert parse_shard_plan(value) is None


def test_partitions_of_topic_rotate_over_shards() -> None:
    """The shard of a partition must never change: other numbers here need other transactional ids."""
    assert [shard_of("orders", partition, 4) for partition in range(5)] == [0, 1, 2, 3, 0]


@settings(max_examples=EXAMPLES)
@given(st.data())
def test_corrupt_records_count_as_missing(data: st.DataObject) -> None:
    where = SourcePartition("A", "orders", 3)
    key = data.draw(damaged(key_bytes(where)) | damaged(topic_id_key(where)))
    parsed = parse_key(key) or parse_own_key(key)
    if isinstance(parsed, SourcePartition):
        assert 0 <= parsed.partition < 2**31
        parsed.topic.encode()  # a surrogate would raise
    offset = parse_value(value := data.draw(damaged(value_bytes(999, 7))))
    assert offset is None or 0 <= resume_offset(offset) < 2**63
    assert -1 <= parse_leader_epoch(value) < 2**31
    parse_topic_id(data.draw(damaged(topic_id_value(UUID(int=7)))))
    parse_promotion(data.draw(damaged(promotion_value(StoredPromotion(UUID(int=7), is_finished=True)))))
    parse_promotion_key(data.draw(damaged(promotion_key("A", "orders"))), "A")
    plan = parse_shard_plan(data.draw(damaged(shard_plan_value(ShardPlan(3, (1, 2))))))
    assert plan is None or min((plan.shards, *plan.before)) > 0


def test_leader_epochs_of_a_topic_that_was_taken_back_are_read_back() -> None:
    floors = {0: (EpochFloor(7, 5, 1), EpochFloor(9, 12, -1)), 3: (EpochFloor(0, 5, 0),)}
    promotion = StoredPromotion(UUID(int=7), is_finished=False, floors=floors)
    assert parse_promotion(promotion_value(promotion)) == promotion
    assert parse_promotion(promotion_value(promotion).replace(b"0:7:5:1", b"0:7")) is None

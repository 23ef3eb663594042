"""Reading and writing of the offsets topic; the target is a list of records."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import Mock
from uuid import UUID

import pytest

from klamm.kafka_client import internal_topic
from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.cluster import TopicState
from klamm.kafka_client.errors import ConnectionLostError
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.copy.source_offset_store import SourceOffsetStore
from klamm.mirror.records import requested_states, source_offsets
from klamm.mirror.records.requested_states import RequestedState, RequestedStates
from klamm.mirror.records.source_offsets import ShardPlan, SourceOffset, SourcePartition
from klamm.protocol.partitioner import partition_for_key
from klamm.protocol.records import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TOPIC = "mm2-offsets.A.internal"
ORDERS = SourcePartition("A", "orders", 0)
ORDERS_OTHERWISE = b'["MirrorSourceConnector",{"topic":"orders","cluster":"A","partition":0}]'
"""The key of another writer's JSON."""


class Target:
    """The topic's partitions; a fetch brings two records."""

    def __init__(self, partitions: int) -> None:
        self.logs: list[list[tuple[bytes | None, bytes | None]]] = [[] for _ in range(partitions)]
        self.store = SourceOffsetStore(
            ConnectionSettings(bootstrap_servers=("h:1",), client_id="c"),
            BufferPool(max_free_bytes=0),
            topic=TOPIC,
            source_alias="A",
            flow="A->B",
        )
        self.has(partitions)

    def has(self, partitions: int) -> None:
        numbers = tuple(range(partitions))
        self.store.cluster.topics[TOPIC] = TopicState(topic_id=UUID(int=1), leaders={}, partitions=numbers)

    def list_offsets(self, where: Iterable[tuple[str, int]], timestamp: int) -> dict[tuple[str, int], int]:
        return {key: len(self.logs[key[1]]) if timestamp == -1 else 0 for key in where}

    def read_records(
        self, _: object, topic: str, partition: int, fetch_offset: int, **_timeouts: object
    ) -> tuple[list[Record], int]:
        assert topic == TOPIC
        some = self.logs[partition][fetch_offset : fetch_offset + 2]
        records = [
            Record(key=key, value=value, timestamp=0, offset=at) for at, (key, value) in enumerate(some, fetch_offset)
        ]
        return records, fetch_offset + len(some)


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Target:
    made = Target(3)
    monkeypatch.setattr(internal_topic, "read_records", made.read_records)
    monkeypatch.setattr(made.store.cluster, "refresh", lambda _: None)
    monkeypatch.setattr(made.store.cluster, "list_offsets", made.list_offsets)
    return made


def test_newest_record_of_each_key_in_log_order_is_used(target: Target) -> None:
    key = source_offsets.key_bytes(ORDERS)
    target.logs[0] = [
        (ORDERS_OTHERWISE, b'{"offset":1}'),
        (key, b'{"offset":2}'),
        (ORDERS_OTHERWISE, b'{"offset":3}'),
        (b"nobody's", b"nothing"),
        (None, b"nothing"),
    ]
    assert target.store.read().offsets == {("orders", 0): 3}
    target.logs[0].append((key, b'{"offset":4}'))
    assert target.store.read().offsets == {("orders", 0): 4}
    target.logs[0].append((ORDERS_OTHERWISE, None))
    assert target.store.read().offsets == {}


def test_topic_ids_and_shard_plan_are_read_with_source_offsets(target: Target) -> None:
    elsewhere = SourcePartition("B", "orders", 0)
    for number, (source, topic_id, shards) in enumerate([(ORDERS, UUID(int=7), 4), (elsewhere, UUID(int=8), 2)]):
        target.logs[number] = [
            (source_offsets.key_bytes(source), b'{"offset":5}'),
            (source_offsets.topic_id_key(source), source_offsets.topic_id_value(topic_id)),
            (source_offsets.shard_plan_key(source.cluster), source_offsets.shard_plan_value(ShardPlan(shards))),
        ]
    stored = target.store.read()
    assert stored.offsets == {("orders", 0): 5}
    assert stored.topic_ids == {("orders", 0): UUID(int=7)}
    assert stored.shard_plan == ShardPlan(4)


def test_requested_states_are_those_of_the_flow(target: Target) -> None:
    paused, stopped = (RequestedStates(flow=RequestedState(state)) for state in ("PAUSED", "STOPPED"))
    target.logs[0] = [
        (requested_states.key_bytes("A", flow), requested_states.value_bytes(states))
        for flow, states in {"A->B": paused, "A->C": stopped}.items()
    ]
    assert target.store.read().requested == paused


def test_repeated_key_is_parsed_once(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that holds records of a partition holds its position: there are many until they are compacted."""
    # given
    target.logs[0] = [(source_offsets.key_bytes(ORDERS), source_offsets.value_bytes(number)) for number in range(1000)]
    parse = Mock(wraps=source_offsets.parse_key)
    monkeypatch.setattr(source_offsets, "parse_key", parse)
    # when
    stored = target.store.read()
    # then
    assert stored.offsets == {("orders", 0): 999}
    assert parse.call_count == 1


def test_source_offsets_use_default_partitioner_after_topic_grew(target: Target) -> None:
    for partitions in (3, 25):
        target.has(partitions)
        for number in range(20):
            key = source_offsets.key_bytes(SourcePartition("A", "orders", number))
            expected = partition_for_key(key, partitions)
            assert target.store.partition_of(PartitionId("orders", number, "A.orders")) == expected
            records = target.store.records({("orders", number): SourceOffset(5)})
            assert _content(records[expected]) == [(key, b'{"offset":4}')]
            assert list(records) == [expected]


def _content(records: Sequence[Record]) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in records]


def test_unchanged_source_offsets_are_not_written(target: Target) -> None:
    target.store.cluster.topics.clear()
    assert target.store.records({}) == {}
    with pytest.raises(ConnectionLostError):
        target.store.records({("orders", 0): SourceOffset(5)})

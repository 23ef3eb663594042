"""Reading and writing of the offsets topic; the target is a list of records."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast
from unittest.mock import Mock
from uuid import UUID

import pytest

from klamm.kafka_client import internal_topic
from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.cluster import TopicState
from klamm.kafka_client.errors import ConnectionLostError
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.copy.source_offset_store import SourceOffsetStore, SourceOffsetWriter
from klamm.mirror.records import requested_states, source_offsets
from klamm.mirror.records.requested_states import RequestedState, RequestedStates
from klamm.mirror.records.source_offsets import ShardPlan, SourceOffset, SourcePartition, StoredPromotion
from klamm.protocol.errors import UnsupportedVersionError
from klamm.protocol.partitioner import partition_for_key
from klamm.protocol.records import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from klamm.mirror.copy.offset_sync_writer import SyncWriter

TOPIC = "mm2-offsets.A.internal"
ORDERS = SourcePartition("A", "orders", 0)
ORDERS_OTHERWISE = b'["MirrorSourceConnector",{"topic":"orders","cluster":"A","partition":0}]'
"""The key of another writer's JSON."""


class Target:
    """The topic's partitions; a fetch brings two records."""

    def __init__(self, partitions: int, **more: str) -> None:
        self.logs: list[list[tuple[bytes | None, bytes | None]]] = [[] for _ in range(partitions)]
        self.store = SourceOffsetStore(
            ConnectionSettings(bootstrap_servers=("h:1",), client_id="c"),
            BufferPool(max_free_bytes=0),
            topic=TOPIC,
            source_alias="A",
            flow="A->B",
            **more,
        )
        self.has(partitions)

    def has(self, partitions: int) -> None:
        numbers = tuple(range(partitions))
        self.store.cluster.topics[TOPIC] = TopicState(topic_id=UUID(int=1), leaders={}, partitions=numbers)

    def list_offsets(self, where: Iterable[tuple[str, int]], timestamp: int, **_: bool) -> dict[tuple[str, int], int]:
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


def test_source_offsets_of_a_named_connector_are_continued(target: Target) -> None:
    """Of a Connect cluster, which does not find those of another name when it goes on."""
    name = "A->B.MirrorSourceConnector"
    key = source_offsets.key_bytes(ORDERS, name)
    named = Target(3, connector=name)
    target.logs[0] = [(key, b'{"offset":7}'), (source_offsets.key_bytes(ORDERS), b'{"offset":3}')]
    named.store.cluster = target.store.cluster
    assert named.store.read().offsets == {("orders", 0): 7}
    (records,) = named.store.records({("orders", 0): SourceOffset(9)}).values()
    assert [(record.key, record.value) for record in records] == [(key, b'{"offset":8}')]


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


def test_promotions_are_those_of_the_source_cluster(target: Target) -> None:
    values = [
        source_offsets.promotion_value(StoredPromotion(UUID(int=7), is_finished)) for is_finished in (False, True)
    ]
    target.logs[0] = [
        (source_offsets.promotion_key("A", "orders"), values[0]),
        (source_offsets.promotion_key("B", "orders"), values[1]),
        (source_offsets.promotion_key("A", "users"), values[1]),
        (source_offsets.promotion_key("A", "bad"), b'{"topic_id":"7","finished":true}'),
    ]

    stored = target.store.read()

    assert stored.promotions == {
        "orders": StoredPromotion(UUID(int=7), is_finished=False),
        "users": StoredPromotion(UUID(int=7), is_finished=True),
    }
    assert (stored.offsets, stored.topic_ids, stored.shard_plan) == ({}, {}, None)


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


MOVED = {("orders", 0): SourceOffset(7)}
_PATIENCE_S = 10.0


class Store:
    """Stands for ``SourceOffsetStore``: takes positions when it is let, or fails."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.error: Exception | None = None
        self.written: list[Mapping[tuple[str, int], SourceOffset]] = []

    def write(self, moved: Mapping[tuple[str, int], SourceOffset]) -> None:
        assert self.may_go_on.wait(_PATIENCE_S)
        if self.error is not None:
            raise self.error
        self.written.append(moved)


class Syncs:
    """Stands for ``SyncWriter``."""

    def __init__(self) -> None:
        self.due: list[str] = []
        self.error: Exception | None = None
        self.sent: list[str] = []
        self.settled: list[Exception | None] = []

    def take(self) -> list[str]:
        taken, self.due = self.due, []
        return taken

    def send(self, records: list[str]) -> None:
        if self.error is not None:
            raise self.error
        self.sent += records

    def settle(self, error: Exception | None) -> None:
        self.settled.append(error)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def syncs() -> Syncs:
    return Syncs()


def writer_of(store: Store, syncs: Syncs, *, may_write: Callable[[], bool] = lambda: True) -> SourceOffsetWriter:
    return SourceOffsetWriter(
        cast("SourceOffsetStore", store), cast("SyncWriter", syncs), flow="A->B", may_write=may_write
    )


@pytest.fixture
def writer(store: Store, syncs: Syncs) -> Iterator[SourceOffsetWriter]:
    made = writer_of(store, syncs)
    yield made
    store.may_go_on.set()
    made.close()


def test_slow_store_does_not_block_copier(writer: SourceOffsetWriter, store: Store) -> None:
    # given
    store.may_go_on.clear()
    # when
    writer.begin(MOVED)
    # then
    assert writer.is_busy
    assert writer.collect() == {}
    store.may_go_on.set()
    assert writer.collect(wait=True) == MOVED
    assert not writer.is_busy
    assert writer.collect(wait=True) == {}, "they are told once"
    assert store.written == [MOVED]


def test_writer_without_due_records_writes_nothing(writer: SourceOffsetWriter, syncs: Syncs) -> None:
    writer.begin({})
    assert not writer.is_busy
    assert syncs.settled == []


def test_syncs_are_written_without_source_offsets(writer: SourceOffsetWriter, store: Store, syncs: Syncs) -> None:
    syncs.due = ["a", "b"]
    writer.begin({})
    assert writer.collect(wait=True) == {}
    assert (syncs.sent, syncs.settled, store.written) == (["a", "b"], [None], [])


@pytest.mark.parametrize("error", [ConnectionLostError("nobody answers"), UnsupportedVersionError("no Produce")])
def test_failed_write_is_logged_and_other_write_succeeds(
    writer: SourceOffsetWriter, store: Store, syncs: Syncs, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    # given
    syncs.due, syncs.error = ["a"], error
    # when
    writer.begin(MOVED)
    assert writer.collect(wait=True) == MOVED
    # then
    assert syncs.settled == [error]
    # given
    store.error, syncs.due, syncs.error = error, ["b"], None
    # when
    writer.begin(MOVED)
    assert writer.collect(wait=True) == {}
    # then
    assert [record.getMessage() for record in caplog.records] == [
        f"A->B: source offsets could not be committed: {error}"
    ]
    assert (syncs.sent, syncs.settled) == (["b"], [error, None])


def test_repeated_failure_is_logged_once(
    writer: SourceOffsetWriter, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    for error in (ConnectionLostError("away"), ConnectionLostError("away"), None, ConnectionLostError("away")):
        store.error = error
        writer.begin(MOVED)
        writer.collect(wait=True)
    assert [record.getMessage() for record in caplog.records] == [
        "A->B: source offsets could not be committed: away"
    ] * 2


def test_close_waits_for_write_in_progress(store: Store, syncs: Syncs) -> None:
    writer = writer_of(store, syncs)
    syncs.due = ["a"]
    writer.begin(MOVED)
    writer.close()
    assert (syncs.settled, store.written) == ([None], [MOVED])


def test_claim_lost_while_syncs_are_written_prevents_the_write(store: Store, syncs: Syncs) -> None:
    """The task that copies the partitions now may already have written later source offsets."""
    writer = writer_of(store, syncs, may_write=lambda: not syncs.sent)
    syncs.due = ["a"]
    writer.begin(MOVED)
    assert writer.collect(wait=True) == {}
    assert (syncs.sent, store.written) == (["a"], [])
    writer.close()


def test_unexpected_error_is_raised(writer: SourceOffsetWriter, store: Store) -> None:
    store.error = ZeroDivisionError()
    writer.begin(MOVED)
    with pytest.raises(ZeroDivisionError):
        writer.collect(wait=True)

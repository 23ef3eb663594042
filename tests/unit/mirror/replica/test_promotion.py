"""Promotion of partitions that klamm leads, with a source, replicas and a controller in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from uuid import UUID

import pytest

from klamm.admin import ActiveProducer, TopicPartition
from klamm.mirror.replica.leader_partition import LeaderPartition, Leadership
from klamm.mirror.replica.promotion import Promotion, ReadProducers
from klamm.protocol.errors import ErrorCode
from klamm.protocol.records import ControlType, Record, decode_marker, encode_batch, encode_marker, iter_batches
from klamm.protocol.records.batch import patch_header
from tests.support.replicas import FakeMember, KafkaFollower, SourceLog, StoredBatch, copy_once, image_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from klamm.kraft.image import ClusterImage
    from klamm.kraft.member import IsrChange, IsrState
    from klamm.protocol.errors import KafkaApiError
    from klamm.protocol.records import RecordBatch

P = ParamSpec("P")
T = TypeVar("T")

KLAMM = 9
REPLICAS = (1, 2, 3)
TOPIC_ID = UUID(int=7)
NOW = 100.0
REMOTE, SOURCE = TopicPartition("remote", 0), TopicPartition("source", 0)


class Source(SourceLog):
    """A source that a transactional producer writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.on_described: Callable[[], None] = lambda: None

    def add(self, data: bytes | bytearray) -> None:
        """Append a batch."""
        stored = bytearray(data)
        patch_header(stored, base_offset=self.end, partition_leader_epoch=self.leader_epoch)
        (batch,) = iter_batches(bytes(stored))
        self.batches.append(StoredBatch(self.end, batch.last_offset + 1, self.leader_epoch, bytes(stored)))
        self.end = batch.last_offset + 1

    def send(self, producer_id: int) -> None:
        """Write a record in a transaction."""
        self.add(
            encode_batch(
                [Record(None, b"v", (), 1, 0)],
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=0,
                is_transactional=True,
            )
        )

    def commit(self, producer_id: int) -> None:
        """End a transaction."""
        self.add(
            encode_marker(
                ControlType.COMMIT, producer_id=producer_id, producer_epoch=0, coordinator_epoch=1, timestamp=1
            )
        )

    def ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(partitions, self.end)

    def producers(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Sequence[ActiveProducer]]:
        starts: dict[int, int | None] = {}
        for stored in self.batches:
            (batch,) = iter_batches(stored.data)
            if batch.producer_id >= 0:
                starts[batch.producer_id] = (
                    None if batch.is_control else starts.get(batch.producer_id) or batch.base_offset
                )
        states = tuple(
            ActiveProducer(producer_id=each, producer_epoch=0, last_timestamp_ms=1, transaction_start_offset=start)
            for each, start in starts.items()
        )
        self.on_described()
        return dict.fromkeys(partitions, states)

    def batches_between(self, offset: int, end: int) -> Iterable[RecordBatch]:
        for stored in self.batches:
            if offset < stored.next_offset and stored.base_offset < end:
                yield from iter_batches(stored.data)


class Logs:
    """Reader of a ``Source``."""

    def __init__(self, source: Source) -> None:
        self.ends, self.producers = source.ends, source.producers
        self._source = source

    def batches(self, _partition: TopicPartition, offset: int, end: int) -> Iterable[RecordBatch]:
        return self._source.batches_between(offset, end)


class Member(FakeMember):
    """Its controller can reject AlterPartition."""

    rejects = False

    def _alter(self, topic_id: UUID, index: int, change: IsrChange) -> IsrState | KafkaApiError:
        return super()._alter(topic_id, index, replace(change, partition_epoch=-5) if self.rejects else change)


class Broker:
    """A broker with blocks of a hundred producer ids, and a producer for each."""

    def __init__(self, first: int = 0) -> None:
        self.next = first

    def next_producer_id(self) -> int:
        self.next += 100
        return self.next - 100


class Node:
    """Node without threads: replicas fetch while it waits."""

    def __init__(self) -> None:
        image = image_of(REMOTE.topic, TOPIC_ID, KLAMM, REPLICAS)
        topic = image.topics[TOPIC_ID]
        spread = replace(topic.partitions[0], adding=REPLICAS, removing=(KLAMM,))
        self.member = Member(replace(image, topics={TOPIC_ID: replace(topic, partitions={0: spread})}), KLAMM)
        self.member.subscribe(self._apply)
        self.source = Source()
        self.leader = LeaderPartition(REMOTE.topic, TOPIC_ID, 0)
        self.followers = [KafkaFollower(each) for each in REPLICAS]
        self.stopped: set[int] = set()
        self.live = frozenset(REPLICAS)
        self._apply(self.member.image)

    def _apply(self, image: ClusterImage) -> None:
        partition = image.topics[TOPIC_ID].partitions[0]
        if partition.leader == KLAMM:
            self.leader.lead(
                Leadership(
                    leader_epoch=partition.leader_epoch,
                    partition_epoch=partition.partition_epoch,
                    replicas=frozenset(REPLICAS),
                    live=self.live,
                ),
                NOW,
            )
        else:
            self.leader.resign(is_replaced=partition.leader >= 0)

    def partition(self, topic: str, _index: int, /) -> LeaderPartition | None:
        return self.leader if topic == REMOTE.topic else None

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        assert timeout_s > 0
        self.replicate()
        return condition()

    def replicate(self) -> None:
        """Let the replicas fetch, and the leader read the source and raise its epoch where it must."""
        self.leader.begin(self.source.log_start, self.source.end)
        for _ in range(len(self.source.batches) + 8):
            for follower in self.followers:
                if follower.node_id not in self.stopped:
                    follower.fetch(self.leader, NOW)
            copy_once(self.source, self.leader, NOW)
            leadership = self.leader.leadership
            if leadership is not None and self.leader.wanted_epoch > leadership.leader_epoch:
                self.member.fence(True)
                self.member.fence(False)

    def promotion(self, target: Sequence[Broker] = ()) -> Promotion:
        return Promotion(self, KLAMM, Logs(self.source), [Broker()], target)

    def markers(self) -> list[tuple[int, int]]:
        """Return producer id and epoch of the batches behind the source's, which all replicas must have."""
        (logs,) = {tuple(each.data for each in follower.batches) for follower in self.followers}
        own = [batch for data in logs for batch in iter_batches(data)][len(self.source.batches) :]
        for batch in own:
            record = decode_marker(batch)
            assert record is not None
            assert record.control_type is ControlType.ABORT
        return [(batch.producer_id, batch.partition_leader_epoch) for batch in own]


def test_promoted_partition_is_led_by_a_broker_with_all_replicas_in_sync() -> None:
    node = Node()
    node.source.produce(3)
    node.replicate()

    (report,) = node.promotion().promote({REMOTE: SOURCE})

    partition = node.member.observer.image.topics[TOPIC_ID].partitions[0]
    assert (partition.replicas, partition.isr, partition.leader) == (REPLICAS, REPLICAS, 1)
    assert (report.topic, report.promoted, report.aborted, report.warnings) == ("remote", (0,), 0, ())
    assert report.sealed_at
    assert report.in_sync_s is not None
    assert report.handed_over_s is not None


def test_open_transactions_are_aborted_behind_the_end_with_an_epoch_of_klamms_own() -> None:
    node = Node()
    for producer_id in (5, 6, 7):
        node.source.send(producer_id)
    node.source.commit(6)
    node.replicate()

    (report,) = node.promotion().promote({REMOTE: SOURCE})

    assert node.markers() == [(5, 1), (7, 1)]
    assert report.aborted == 2
    assert report.promoted == (0,)


def test_transactions_changed_after_describe_producers_are_replayed() -> None:
    node = Node()
    node.source.send(5)
    node.replicate()

    def go_on() -> None:
        node.source.commit(5)
        node.source.send(8)

    node.source.on_described = go_on

    (report,) = node.promotion().promote({REMOTE: SOURCE})

    assert [producer_id for producer_id, _ in node.markers()] == [8]
    assert report.aborted == 1


def test_producer_ids_of_the_target_are_above_those_of_the_source() -> None:
    node = Node()
    node.source.send(4_321)
    node.replicate()
    brokers = [Broker(0), Broker(700)]

    (report,) = node.promotion(brokers).promote({REMOTE: SOURCE})

    assert report.producer_ids_from == 5_000
    assert all(broker.next > 5_000 for broker in brokers)


def test_partition_with_a_replica_out_of_sync_is_mirrored_again() -> None:
    node = Node()
    node.source.produce(3)
    node.replicate()
    node.stopped = {2}
    node.source.produce(3)

    (report,) = node.promotion().promote({REMOTE: SOURCE})

    assert report.promoted == ()
    assert report.warnings == (
        "remote-0 is not promoted: the replicas do not reach the end: replicas 2 do not have offset 6",
    )
    assert not node.leader.is_sealed
    node.stopped = set()
    assert node.promotion().promote({REMOTE: SOURCE})[0].promoted == (0,)


def test_partition_with_a_dead_replica_is_not_promoted() -> None:
    node = Node()
    node.live = frozenset({1, 3})
    node._apply(node.member.observer.image)

    (report,) = node.promotion().promote({REMOTE: SOURCE})

    assert report.warnings == ("remote-0 is not promoted: replicas 2 are not live",)


@pytest.mark.parametrize("has_open_transaction", [False, True])
def test_rejected_partition_stays_sealed_only_with_markers(has_open_transaction: bool) -> None:
    node = Node()
    node.member.rejects = True
    node.source.produce(3)
    if has_open_transaction:
        node.source.send(5)
    node.replicate()

    (report,) = node.promotion().promote({REMOTE: SOURCE})

    assert report.promoted == ()
    assert ErrorCode.INVALID_UPDATE_VERSION.name in report.warnings[0]
    assert node.leader.is_sealed is has_open_transaction


def test_promotion_is_repeated_without_a_second_marker() -> None:
    node = Node()
    node.member.rejects = True
    node.source.send(5)
    node.replicate()
    node.promotion().promote({REMOTE: SOURCE})
    node.source.commit(5)  # the source goes on
    node.member.rejects = False

    (report,) = node.promotion().promote({REMOTE: SOURCE})

    assert report.promoted == (0,)
    assert {follower.end for follower in node.followers} == {2}


def test_unknown_partition_is_reported() -> None:
    (report,) = Node().promotion().promote({TopicPartition("other", 0): SOURCE})

    assert report.warnings == ("other-0 is not promoted: klamm does not lead it",)


def test_control_batch_ends_a_transaction_that_the_leader_reported() -> None:
    producers = ReadProducers()
    producers.add([ActiveProducer(producer_id=5, producer_epoch=2, last_timestamp_ms=1, transaction_start_offset=3)])
    assert producers.open == {5: 2}
    marker = encode_marker(ControlType.ABORT, producer_id=5, producer_epoch=2, coordinator_epoch=0, timestamp=1)
    producers.replay(next(iter_batches(marker)))

    assert producers.open == {}
    assert producers.max_producer_id == 5

"""Promotion: klamm hands partitions that it leads over to the brokers of the target.

Steps, for all given partitions at once:

==========  ===========================================================================================================
Step        What happens
==========  ===========================================================================================================
check       klamm must lead the partition, with a reassignment to live brokers in progress.
raise       The target's producer ids are raised above those of the source.
reach       All replicas must reach the end that the source has now.
seal        The log ends where it was read, and the replicas fetch the rest.
end         Open transactions get abort markers behind the end.
hand over   AlterPartition with all replicas as in-sync replicas. The controller completes the reassignment and elects
            one of them: NEW_LEADER_ELECTED is the success.
==========  ===========================================================================================================

A partition that fails before the step "end" is mirrored again. After it there is no way back: the replicas have batches
that the source does not have. The partition stays sealed, and the promotion can be repeated.

Which transactions are open at the sealed end follows from two sources. DescribeProducers names those that were open
shortly before it. The batches between both points show which of them ended and which began.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, ParamSpec, Protocol, TypeVar

from klamm.admin import OffsetSpec, TopicPartition
from klamm.kraft.image import NO_LEADER
from klamm.kraft.member import IsrChange
from klamm.mirror.replica.producer_ids import end_of_block, raise_producer_ids
from klamm.mirror.replica.window import read_chunk
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.records import ControlType, encode_marker, iter_batches
from klamm.protocol.records.batch import patch_header

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from uuid import UUID

    from klamm.admin import ActiveProducer, AdminClient
    from klamm.mirror.replica.leader_partition import LeaderPartition
    from klamm.mirror.replica.node import ClusterMembership
    from klamm.mirror.replica.producer_ids import ProducerIdBroker
    from klamm.protocol.records import RecordBatch

P = ParamSpec("P")
T = TypeVar("T")

REACH_S: Final = 60.0
"""Seconds in which the replicas must reach the end of the source before anything is sealed."""
SYNC_S: Final = 10.0
"""Seconds in which the replicas must fetch the rest of a sealed partition. Producers wait for it."""
_READ_BYTES: Final = 1 << 20
_COORDINATOR_EPOCH: Final = 0
"""Coordinator epoch in klamm's markers: the target's coordinators do not know the transactions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotedTopic:
    """Report of one topic."""

    topic: str
    """Remote topic."""
    promoted: tuple[int, ...]
    """Partitions that the brokers of the target lead now."""
    sealed_at: float | None
    """Time at which the topic was sealed, in seconds since the epoch. None: it was not."""
    in_sync_s: float | None
    """Seconds from the seal until the replicas had everything that klamm had read. None: they do not."""
    handed_over_s: float | None
    """Seconds from the seal until brokers led the partitions. None: no partition was handed over."""
    aborted: int
    """Number of transactions that were open on the source, and were aborted on the target."""
    producer_ids_from: int
    """Lowest producer id that the target gives to new producers. -1: they were not raised."""
    warnings: tuple[str, ...]
    """Reasons why partitions were not promoted."""


@dataclass(slots=True)
class ReadProducers:
    """Producers of a source partition up to an offset."""

    open: dict[int, int] = field(default_factory=dict)
    """Producer epoch of each producer id with an open transaction."""
    max_producer_id: int = -1

    def add(self, producers: Iterable[ActiveProducer]) -> None:
        """Take over the state that the leader reports."""
        for producer in producers:
            self.max_producer_id = max(self.max_producer_id, producer.producer_id)
            if producer.transaction_start_offset is not None:
                self.open[producer.producer_id] = producer.producer_epoch

    def replay(self, batch: RecordBatch) -> None:
        """Take over a batch, in the order of the log. The state may contain it already."""
        if batch.producer_id < 0:
            return
        self.max_producer_id = max(self.max_producer_id, batch.producer_id)
        if batch.is_control:
            self.open.pop(batch.producer_id, None)
        elif batch.is_transactional:
            self.open[batch.producer_id] = batch.producer_epoch

    def abort_markers(self, offset: int, leader_epoch: int, timestamp_ms: int) -> bytes:
        """Return the control batches that abort the open transactions, from an offset on."""
        data = bytearray()
        for at, (producer_id, producer_epoch) in enumerate(sorted(self.open.items())):
            marker = encode_marker(
                ControlType.ABORT,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                coordinator_epoch=_COORDINATOR_EPOCH,
                timestamp=timestamp_ms,
            )
            patch_header(marker, base_offset=offset + at, partition_leader_epoch=leader_epoch)
            data += marker
        return bytes(data)


class SourceLogs(Protocol):
    """Reader of source partitions."""

    def ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the high watermarks."""
        ...

    def producers(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Sequence[ActiveProducer]]:
        """Return the producers that the leaders know."""
        ...

    def batches(self, partition: TopicPartition, offset: int, end: int) -> Iterable[RecordBatch]:
        """Return the batches from an offset up to an end."""
        ...


class AdminSourceLogs:
    """Source partitions behind an admin client."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the high watermarks."""
        listed = self._admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST)).all().result()
        return {partition: each.offset for partition, each in listed.items()}

    def producers(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Sequence[ActiveProducer]]:
        """Return the producers that the leaders know (DescribeProducers)."""
        return self._admin.describe_producers(partitions).all().result()

    def batches(self, partition: TopicPartition, offset: int, end: int) -> Iterable[RecordBatch]:
        """Return the batches from an offset up to an end.

        Raises:
            EOFError: The source has no batches before the end any more.
        """
        while offset < end:
            fetched = self._admin.fetch_batches(
                {partition: offset}, max_bytes=_READ_BYTES, partition_max_bytes=_READ_BYTES
            )
            before = offset
            for batch in iter_batches(fetched.all().result()[partition], allow_partial_tail=True):
                if batch.base_offset < end:
                    yield batch
                offset = max(offset, batch.last_offset + 1)
            if offset == before:
                raise EOFError(f"{partition.topic}-{partition.partition} has no batch at offset {offset}")


@dataclass(slots=True, eq=False)
class _Promoting:
    """A partition in promotion."""

    remote: TopicPartition
    source: TopicPartition
    leader: LeaderPartition
    producers: ReadProducers = field(default_factory=ReadProducers)
    read_from: int = -1
    """End of the source before its producers were read."""
    end: int = -1
    """End that the replicas must reach before the seal."""
    sealed_at: float = 0.0
    in_sync_s: float | None = None
    handed_over_s: float | None = None
    may_be_handed_over: bool = False
    """Whether the controller was requested to hand the partition over, and has not rejected it."""
    aborted: int = 0
    failure: str = ""

    @property
    def key(self) -> tuple[UUID, int]:
        """Topic id and partition."""
        return self.leader.topic_id, self.remote.partition

    @property
    def has_reached(self) -> bool:
        """Return whether all live replicas have what the source had."""
        return self.leader.tail is not None and self.leader.high_watermark >= self.end

    @property
    def is_in_sync(self) -> bool:
        """Return whether all replicas are live and have everything."""
        leadership = self.leader.leadership
        return leadership is not None and self.leader.in_sync() == leadership.replicas


class PromotingNode(Protocol):
    """Broker without storage (``ReplicaNode``)."""

    @property
    def member(self) -> ClusterMembership | None:
        """Membership in the target."""
        ...

    def partition(self, topic: str, index: int, /) -> LeaderPartition | None:
        """Return a partition of which the target's metadata are known."""
        ...

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function on the event loop and return its result."""
        ...

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until a condition of partitions is met."""
        ...


class Promotion:
    """Promotion of partitions that a node leads. Runs in the caller's thread, and blocks.

    Args:
        node: Node that leads the partitions.
        node_id: Its node id.
        source: Reader of the source.
        source_brokers: Brokers of the source that assign producer ids; none if klamm may not write there. Then ids
            count that the source's leaders know, and those of expired producers do not.
        target_brokers: All live brokers of the target without klamm.
    """

    def __init__(
        self,
        node: PromotingNode,
        node_id: int,
        source: SourceLogs,
        source_brokers: Sequence[ProducerIdBroker],
        target_brokers: Sequence[ProducerIdBroker],
        *,
        reach_s: float = REACH_S,
        sync_s: float = SYNC_S,
    ) -> None:
        self._node = node
        self._node_id = node_id
        self._source = source
        self._source_brokers = source_brokers
        self._target_brokers = target_brokers
        self._reach_s = reach_s
        self._sync_s = sync_s
        self._producer_ids_from = -1

    def promote(self, partitions: Mapping[TopicPartition, TopicPartition]) -> tuple[PromotedTopic, ...]:
        """Promote partitions.

        Args:
            partitions: Source partition of each remote partition.

        Returns:
            The report of each remote topic. Partitions that could not be promoted are in its warnings.

        Raises:
            KafkaApiError: A cluster rejects a request. Partitions without markers are mirrored again.
            ConnectionError: A cluster cannot be reached.
            TimeoutError: It does not respond.
            MembershipError: klamm is no longer a broker of the target.
        """
        failures: dict[TopicPartition, str] = {}
        all_of = [each for pair in partitions.items() if (each := self._check(*pair, failures)) is not None]
        try:
            self._read_producers(all_of)
            self._wait(all_of, lambda each: each.has_reached, self._reach_s, "the replicas do not reach the end")
            self._seal(_left(all_of))
            self._read_to_the_seal(_left(all_of))
            self._raise_producer_ids(_left(all_of))
            self._abort(_left(all_of))
            self._hand_over(_left(all_of))
        finally:
            self._node.call(self._unseal, all_of)
        return self._report(all_of, failures)

    def _unseal(self, all_of: Iterable[_Promoting]) -> None:
        for each in all_of:
            if each.leader.is_sealed and not (each.may_be_handed_over or each.leader.has_own_batches):
                each.leader.unseal()

    # --- steps --------------------------------------------------------------------------------------------------------

    @property
    def _member(self) -> ClusterMembership:
        member = self._node.member
        if member is None:
            raise ConnectionError("klamm is not a broker of the target")
        return member

    def _check(
        self, remote: TopicPartition, source: TopicPartition, failures: dict[TopicPartition, str]
    ) -> _Promoting | None:
        leader = self._node.partition(remote.topic, remote.partition)
        image = self._member.observer.image
        partition = None if leader is None else image.partition(leader.topic_id, remote.partition)
        if leader is None or partition is None or leader.leadership is None:
            failures[remote] = "klamm does not lead it"
        elif leader.halted:
            failures[remote] = leader.halted
        elif self._node_id not in partition.removing:
            failures[remote] = "no reassignment to the brokers is in progress"
        elif absent := leader.leadership.replicas - leader.leadership.live:
            failures[remote] = f"replicas {', '.join(map(str, sorted(absent)))} are not live"
        else:
            return _Promoting(remote, source, leader)
        return None

    def _read_producers(self, all_of: Sequence[_Promoting]) -> None:
        """Read the open transactions, and raise the producer ids while nothing waits."""
        partitions = [each.source for each in all_of]
        if not partitions:
            return
        before = self._source.ends(partitions)
        producers = self._source.producers(partitions)
        after = self._source.ends(partitions)
        for each in all_of:
            each.read_from, each.end = before[each.source], after[each.source]
            if each.leader.is_sealed:  # by an earlier promotion
                each.end = min(each.end, each.leader.log_end)
            each.producers.add(producers[each.source])
        self._raise_producer_ids(all_of)

    def _raise_producer_ids(self, all_of: Sequence[_Promoting]) -> None:
        if not all_of:
            return
        ids = [each.producers.max_producer_id for each in all_of]
        ids += [] if self._producer_ids_from >= 0 else [broker.next_producer_id() for broker in self._source_brokers]
        at_least = end_of_block(max(ids))
        if at_least > self._producer_ids_from:
            lowest = raise_producer_ids(self._member.allocate_producer_ids, self._target_brokers, at_least)
            self._producer_ids_from = lowest

    def _seal(self, all_of: Sequence[_Promoting]) -> None:
        def seal() -> None:
            for each in all_of:
                each.sealed_at = time.time()
                if each.leader.tail is None:
                    each.failure = "its replicas start again"
                else:
                    each.leader.seal()

        self._node.call(seal)
        self._wait(all_of, lambda each: each.is_in_sync, self._sync_s, "the replicas are out of sync")
        for each in _left(all_of):
            each.in_sync_s = time.time() - each.sealed_at

    def _read_to_the_seal(self, all_of: Sequence[_Promoting]) -> None:
        for each in (each for each in all_of if not each.leader.has_own_batches):
            try:
                for batch in self._source.batches(each.source, each.read_from, each.leader.log_end):
                    each.producers.replay(batch)
            except EOFError as error:
                each.failure = str(error)

    def _abort(self, all_of: Sequence[_Promoting]) -> None:
        """Append the markers, unless an earlier promotion has done so."""
        ended = [each for each in all_of if each.producers.open and not each.leader.has_own_batches]

        def append() -> None:
            for each in ended:
                leader = each.leader
                data = each.producers.abort_markers(leader.log_end, leader.next_own_epoch, int(time.time() * 1000))
                chunk, _ = read_chunk(memoryview(data), leader.log_end)
                if chunk is not None:
                    leader.append(chunk, time.monotonic())
                    each.aborted = len(each.producers.open)

        self._node.call(append)
        self._wait(ended, lambda each: each.is_in_sync, self._sync_s, "the replicas do not fetch the abort markers")

    def _hand_over(self, all_of: Sequence[_Promoting]) -> None:
        member = self._member
        image = member.observer.image
        changes: dict[tuple[UUID, int], IsrChange] = {}
        for each in all_of:
            partition = image.partition(*each.key)
            if partition is None or partition.leader != self._node_id:
                each.failure = "klamm does not lead it at present"
                continue
            changes[each.key] = IsrChange(
                leader_epoch=partition.leader_epoch,
                partition_epoch=partition.partition_epoch,
                isr={node: image.brokers[node].broker_epoch for node in partition.replicas},
            )
        requested = _left(all_of)
        if not requested:
            return
        for each in requested:
            each.may_be_handed_over = True
        outcomes = member.alter_partitions(changes)
        for each in requested:
            outcome = outcomes.get(each.key)
            if not (isinstance(outcome, KafkaApiError) and outcome.error_code is ErrorCode.NEW_LEADER_ELECTED):
                each.may_be_handed_over = False
                each.failure = f"the controller does not complete the reassignment: {outcome}"
        self._wait(requested, self._is_led_by_a_broker, self._sync_s, "no broker leads it yet")
        for each in _left(requested):
            each.handed_over_s = time.time() - each.sealed_at

    def _is_led_by_a_broker(self, each: _Promoting) -> bool:
        partition = self._member.observer.image.partition(*each.key)
        return partition is not None and partition.leader not in (self._node_id, NO_LEADER)

    def _wait(
        self, all_of: Sequence[_Promoting], is_done: Callable[[_Promoting], bool], timeout_s: float, failure: str
    ) -> None:
        """Wait until a condition holds for all partitions, and mark the others as failed."""
        waiting = _left(all_of)
        self._node.wait_for(lambda: all(is_done(each) or each.leader.halted for each in waiting), timeout_s)
        for each in waiting:
            if not self._node.call(is_done, each):
                each.failure = each.leader.halted or f"{failure}: {self._missing(each.leader)}"

    def _missing(self, leader: LeaderPartition) -> str:
        leadership = leader.leadership
        if leadership is None:
            return "klamm does not lead it"
        missing = leadership.replicas - leader.in_sync()
        return f"replicas {', '.join(map(str, sorted(missing)))} do not have offset {leader.log_end}"

    # --- report -------------------------------------------------------------------------------------------------------

    def _report(
        self, all_of: Iterable[_Promoting], failures: Mapping[TopicPartition, str]
    ) -> tuple[PromotedTopic, ...]:
        by_topic = defaultdict[str, list[_Promoting]](list)
        warnings = defaultdict[str, list[str]](list)
        for remote, reason in failures.items():
            warnings[remote.topic].append(f"{remote.topic}-{remote.partition} is not promoted: {reason}")
        for each in all_of:
            by_topic[each.remote.topic].append(each)
            if each.failure:
                name = f"{each.remote.topic}-{each.remote.partition}"
                warnings[each.remote.topic].append(f"{name} is not promoted: {each.failure}")
        return tuple(
            PromotedTopic(
                topic=topic,
                promoted=tuple(sorted(each.remote.partition for each in by_topic[topic] if not each.failure)),
                sealed_at=min((each.sealed_at for each in by_topic[topic] if each.sealed_at), default=None),
                in_sync_s=max((each.in_sync_s for each in by_topic[topic] if each.in_sync_s is not None), default=None),
                handed_over_s=max(
                    (each.handed_over_s for each in by_topic[topic] if each.handed_over_s is not None), default=None
                ),
                aborted=sum(each.aborted for each in by_topic[topic]),
                producer_ids_from=self._producer_ids_from,
                warnings=tuple(warnings[topic]),
            )
            for topic in sorted(by_topic.keys() | warnings.keys())
        )


def _left(all_of: Iterable[_Promoting]) -> list[_Promoting]:
    return [each for each in all_of if not each.failure]

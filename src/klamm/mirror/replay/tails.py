"""Last records of many partitions, read a few megabytes at a time and compared with the source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.kafka_client.data.batches import FetchedBatch, Treatment, walk
from klamm.kafka_client.data.fetch import FetchLimits, WantedRecords
from klamm.kafka_client.data.records import fetch_once
from klamm.kafka_client.errors import ConnectionLostError
from klamm.protocol.errors import CorruptBatchError, ErrorCode, error_name
from klamm.protocol.records import BATCH_OVERHEAD, TimestampType, decode_records
from klamm.protocol.records.layout import MAGIC

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from klamm.kafka_client.data.cluster import Cluster
    from klamm.kafka_client.data.fetch import FetchedPartition
    from klamm.protocol.types import PartitionTuple

_TIMEOUT_S: Final = 10.0
_TAIL_OFFSETS: Final = 500
"""Number of offsets before the log end that are compared with the source."""
_MAX_PARTITIONS: Final = 200
"""Most partitions in one fetch."""
_MAX_BYTES: Final = 8 * 1024 * 1024
_PARTITION_MAX_BYTES: Final = 4 * 1024 * 1024
_SPARE_BYTES: Final = 64 * 1024

Batches = dict["PartitionTuple", "list[FetchedBatch]"]


def tail_of(offsets: range) -> range:
    """Return the last 500 offsets of a log.

    Args:
        offsets: Offsets from the log start to the log end.
    """
    return range(max(offsets.start, offsets.stop - _TAIL_OFFSETS), offsets.stop)


class TailReader:
    """Reader of some offsets of many partitions. Used once; all calls block.

    Reading a partition ends early where compaction removed its last records, or where an open transaction hides them.
    """

    def __init__(
        self,
        cluster: Cluster,
        wanted: Mapping[PartitionTuple, range],
        *,
        read_committed: bool = False,
        partition_max_bytes: int = _PARTITION_MAX_BYTES,
    ) -> None:
        """Create a reader that has read nothing.

        Args:
            cluster: Cluster with up-to-date metadata of the topics.
            wanted: Offsets to read, by partition. Batches may begin earlier and end later.
            read_committed: Whether records of aborted and open transactions are left out.
            partition_max_bytes: Most bytes of one partition in a response, unless a batch is larger.
        """
        self._cluster = cluster
        self._left = {partition: offsets for partition, offsets in wanted.items() if offsets}
        self._read_committed = read_committed
        self._limits = FetchLimits(_MAX_BYTES, partition_max_bytes, min_bytes=0, max_wait_ms=0)
        self.errors: dict[PartitionTuple, str] = {}
        """Reasons why partitions could not be read to their end."""

    def read(self) -> Iterator[Batches]:
        """Yield the batches of each response by partition, in the order of their offsets."""
        while self._left:
            for leader, partitions in self._cluster.by_leader(self._left).items():
                if leader is None:
                    for topic, number in partitions:
                        self._fail([(topic, number)], f"{topic}-{number} has no leader at present")
                    continue
                for first in range(0, len(partitions), _MAX_PARTITIONS):
                    some = partitions[first : first + _MAX_PARTITIONS]
                    try:
                        fetched = self._fetch(leader, some)
                    except ConnectionLostError as error:
                        self._fail(some, str(error))
                        continue
                    if fetched:
                        yield fetched
                    else:
                        self._end(some)

    def _fetch(self, leader: int, partitions: Sequence[PartitionTuple]) -> Batches:
        """Fetch once, and return the batches of partitions that have any."""
        wanted = [
            WantedRecords(topic, self._cluster.topic_id(topic), number, self._left[topic, number].start)
            for topic, number in partitions
        ]
        answers = fetch_once(
            self._cluster, leader, wanted, self._limits, read_committed=self._read_committed, timeout_s=_TIMEOUT_S
        )
        fetched: Batches = {}
        missing = dict.fromkeys(partitions)
        for answer in answers:
            missing.pop((answer.topic, answer.partition), None)
            if batches := self._take(answer):
                fetched[answer.topic, answer.partition] = batches
        for topic, number in missing:
            self._fail([(topic, number)], f"the end of {topic}-{number}: the response has no entry for it")
        return fetched

    def _take(self, answer: FetchedPartition) -> list[FetchedBatch]:
        partition = (answer.topic, answer.partition)
        offsets = self._left[partition]
        if answer.error_code != ErrorCode.NONE:
            self._fail([partition], f"the end of {partition[0]}-{partition[1]}: {error_name(answer.error_code)}")
            return []
        try:
            # The next response may reuse the memory of this one.
            batches = list(walk(memoryview(bytes(answer.records)), offsets.start, answer.aborted))
        except CorruptBatchError as error:
            self._fail([partition], f"the end of {partition[0]}-{partition[1]}: {error}")
            return []
        if batches:
            self._left[partition] = range(batches[-1].next_offset, offsets.stop)
            if not self._left[partition]:
                del self._left[partition]
        return batches

    def _end(self, partitions: Iterable[PartitionTuple]) -> None:
        for partition in partitions:
            self._left.pop(partition, None)

    def _fail(self, partitions: Sequence[PartitionTuple], reason: str) -> None:
        self._end(partitions)
        self.errors |= dict.fromkeys(partitions, reason)


def foreign_offset(batches: Iterable[FetchedBatch], offsets: range, producer_id: int) -> int | None:
    """Return the first of some offsets that another producer wrote. None: there is none.

    Args:
        batches: Batches of a target partition.
        offsets: Offsets to check.
        producer_id: Producer id of the flow's partition.
    """
    for fetched in batches:
        if fetched.batch.producer_id != producer_id and fetched.batch.last_offset >= offsets.start:
            return max(fetched.batch.base_offset, offsets.start)
    return None


def differing_offset(ours: Sequence[FetchedBatch], theirs: Sequence[FetchedBatch], offsets: range) -> int | None:
    """Return the first of some offsets whose records differ on both clusters. None: all are equal.

    Offsets with a record on one side only do not count: compaction and retention work on each side alone. Batches with
    the same bytes are not decoded.

    Args:
        ours: Batches of the target partition.
        theirs: Batches of the source partition, without those of aborted transactions.
        offsets: Offsets to compare.
    """
    by_offset = {fetched.batch.base_offset: fetched for fetched in theirs}
    rest = [fetched for fetched in ours if not _is_copy(fetched, by_offset.get(fetched.batch.base_offset))]
    if not rest:
        return None
    first, end = rest[0].batch.base_offset, rest[-1].next_offset
    compared = range(max(offsets.start, first), min(offsets.stop, end))
    there = _contents(theirs, compared)
    here = _contents(rest, compared)
    return next((offset for offset in sorted(here.keys() & there.keys()) if here[offset] != there[offset]), None)


def _is_copy(ours: FetchedBatch, theirs: FetchedBatch | None) -> bool:
    """Return whether two batches with the same base offset hold the same records."""
    if ours.treatment is Treatment.DROP:
        return True
    if theirs is None or theirs.treatment is Treatment.DROP:
        return False
    here, there = ours.batch, theirs.batch
    return (
        here.magic == there.magic == MAGIC
        and here.timestamp_type is there.timestamp_type is TimestampType.CREATE_TIME
        and here.codec == there.codec
        and here.record_count == there.record_count
        and here.base_timestamp == there.base_timestamp
        and bytes(here.buffer[BATCH_OVERHEAD:]) == bytes(there.buffer[BATCH_OVERHEAD:])
    )


def _contents(batches: Iterable[FetchedBatch], offsets: range) -> dict[int, tuple[object, ...]]:
    return {
        record.offset: (record.timestamp, record.key, record.value, record.headers)
        for fetched in batches
        if fetched.treatment is not Treatment.DROP
        and fetched.batch.base_offset < offsets.stop
        and fetched.next_offset > offsets.start
        for record in decode_records(fetched.batch)
        if record.offset in offsets
    }


class CheckedPartition(NamedTuple):
    """Target partition whose last records are compared with the source."""

    source: PartitionTuple
    source_start: int
    """Log start offset of the source partition."""
    target_offsets: range
    """Offsets of the target partition, from its log start to its log end."""
    producer_id: int
    """Producer id of the flow's partition."""


class TailCheck:
    """Comparison of the last records of target partitions with the source. Used once.

    Args:
        source: Source cluster.
        target: Target cluster.
    """

    def __init__(self, source: Cluster, target: Cluster) -> None:
        self._source, self._target = source, target
        self.unread: dict[PartitionTuple, str] = {}
        """Reasons why partitions could not be compared, by target partition."""
        self.foreign: dict[PartitionTuple, int] = {}
        """First offset that another producer wrote, by target partition."""
        self.differing: dict[PartitionTuple, int] = {}
        """First offset with another record than the source, by target partition."""
        self.source_epochs: dict[PartitionTuple, int] = {}
        """Leader epoch of the source batch in which a target partition ends, by target partition."""

    def run(self, checked: Mapping[PartitionTuple, CheckedPartition]) -> None:
        """Check partitions, a few megabytes at a time.

        Args:
            checked: What to check, by target partition.
        """
        tails = {partition: tail_of(each.target_offsets) for partition, each in checked.items()}
        at = {partition: offsets.start for partition, offsets in tails.items()}
        reader = TailReader(self._target, tails)
        for target_batches in reader.read():
            compared: dict[PartitionTuple, range] = {}
            for partition, batches in target_batches.items():
                offsets = range(at[partition], tails[partition].stop)
                at[partition] = batches[-1].next_offset
                each = checked[partition]
                if partition in self.foreign or partition in self.differing:
                    continue
                if (foreign := foreign_offset(batches, offsets, each.producer_id)) is not None:
                    self.foreign[partition] = foreign
                else:
                    compared[partition] = range(max(offsets.start, each.source_start), at[partition])
            self._compare(checked, target_batches, compared)
        self.unread |= reader.errors

    def _compare(
        self,
        checked: Mapping[PartitionTuple, CheckedPartition],
        target_batches: Batches,
        compared: Mapping[PartitionTuple, range],
    ) -> None:
        largest = max((sum(len(each.batch.buffer) for each in target_batches[key]) for key in compared), default=0)
        reader = TailReader(
            self._source,
            {checked[partition].source: offsets for partition, offsets in compared.items()},
            read_committed=True,
            partition_max_bytes=min(_PARTITION_MAX_BYTES, 2 * largest + _SPARE_BYTES),
        )
        source_batches: Batches = {}
        for more in reader.read():
            for partition, batches in more.items():
                source_batches.setdefault(partition, []).extend(batches)
        for partition, offsets in compared.items():
            source = checked[partition].source
            if source in reader.errors:
                self.unread[partition] = reader.errors[source]
                continue
            try:
                differing = differing_offset(target_batches[partition], source_batches.get(source, []), offsets)
            except CorruptBatchError as error:
                self.unread[partition] = f"the end of {partition[0]}-{partition[1]} cannot be compared: {error}"
                continue
            if differing is not None:
                self.differing[partition] = differing
            for fetched in source_batches.get(source, []):
                if fetched.batch.base_offset < checked[partition].target_offsets.stop <= fetched.next_offset:
                    self.source_epochs[partition] = fetched.batch.partition_leader_epoch

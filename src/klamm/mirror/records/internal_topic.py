"""Reader and writer of the mirror's internal topics, in batches that the brokers accept.

Source offsets, offset syncs and checkpoints are usually few. The first write of a task, or one for a topic with a
single partition, can have thousands of records, and a broker accepts no batch above ``max.message.bytes`` of the topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.data import cluster as clusters
from klamm.kafka_client.data.cluster import Cluster
from klamm.kafka_client.data.records import RecordsRefusedError, read_records, write_batches
from klamm.kafka_client.errors import ConnectionLostError
from klamm.protocol.errors import ErrorCode
from klamm.protocol.records import encode_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from klamm.kafka_client.connection.transport import ConnectionSettings
    from klamm.protocol.records import Record
    from klamm.protocol.types import PartitionTuple

_BATCH_BYTES: Final = 256 * 1024
"""First size limit of a batch in bytes: a quarter of the default ``max.message.bytes``."""
_BATCH_RECORDS: Final = 1_000
"""Most records encoded at once, so that seldom more are encoded than fit into a batch."""
_READ_TIMEOUT_S: Final = 15.0
_MAX_WAIT_MS: Final = 50
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class _Batch(NamedTuple):
    """Batch of the first pending records of a partition."""

    record_count: int
    data: bytearray


class OwnRecords:
    """Records to write to a topic, by partition, each partition's in order. Used once, by one thread.

    A batch is kept unchanged until a broker acknowledges it or rejects it as too large. With sequence numbers, a batch
    that is sent repeatedly is therefore appended once.
    """

    def __init__(
        self,
        records: Mapping[int, Sequence[Record]],
        encode: Callable[[int, Sequence[Record]], bytearray] = lambda _partition, records: encode_batch(records),
        on_taken: Callable[[int, int], None] = lambda _partition, _count: None,
    ) -> None:
        """Create the records to write.

        Args:
            records: Records by partition. Their offsets are ignored.
            encode: Encodes a batch of a partition. The offsets of its records start at 0.
            on_taken: Called with a partition and the number of records that were acknowledged just now.
        """
        self._left = {partition: list(some) for partition, some in records.items() if some}
        self._encode = encode
        self._on_taken = on_taken
        self._most_bytes = _BATCH_BYTES
        self._batches: dict[int, _Batch] = {}
        """Next batch of each partition."""

    @property
    def partitions(self) -> frozenset[int]:
        """Partitions with pending records."""
        return frozenset(self._left)

    def write(self, cluster: Cluster, topic: str, *, timeout_s: float, transactional_id: str | None = None) -> None:
        """Write all records and wait until they are acknowledged. After an error, another call resumes with the rest.

        Args:
            cluster: Cluster with the topic.
            topic: Internal topic.
            timeout_s: Timeout in seconds for each batch of a partition.
            transactional_id: Transactional id of the open transaction. None: no transaction.

        Raises:
            ConnectionLostError: Not all were acknowledged. ``RecordsRefusedError`` carries the error codes of
                rejections.
        """

        def send(partitions: Sequence[int]) -> None:
            batches = {partition: self._next(partition) for partition in partitions}
            data = {partition: batch.data for partition, batch in batches.items()}
            try:
                write_batches(cluster, topic, data, timeout_s=timeout_s, transactional_id=transactional_id)
            except RecordsRefusedError as error:
                if not error.codes & _TOO_LARGE:
                    raise
                if len(partitions) > 1:  # the error does not say which of them
                    for partition in partitions:
                        send([partition])
                elif not self._make_smaller(partitions[0]):
                    raise
            else:
                for partition, batch in batches.items():
                    self._taken(partition, batch)

        while self._left:
            send(list(self._left))

    def _next(self, partition: int) -> _Batch:
        """Return the next batch of a partition, the same one until it is acknowledged or rejected."""
        if (batch := self._batches.get(partition)) is None:
            batch = self._first(partition, _BATCH_RECORDS)
            while len(batch.data) > self._most_bytes and batch.record_count > 1:
                batch = self._first(partition, max(1, batch.record_count * self._most_bytes // len(batch.data)))
            self._batches[partition] = batch
        return batch

    def _first(self, partition: int, count: int) -> _Batch:
        some = [record._replace(offset=at) for at, record in enumerate(self._left[partition][:count])]
        return _Batch(len(some), self._encode(partition, some))

    def _make_smaller(self, partition: int) -> bool:
        """Halve the size limit of later batches. Return False if the rejected batch had a single record."""
        batch = self._batches.pop(partition)
        self._most_bytes = len(batch.data) // 2
        return batch.record_count > 1

    def _taken(self, partition: int, batch: _Batch) -> None:
        del self._batches[partition], self._left[partition][: batch.record_count]
        if not self._left[partition]:
            del self._left[partition]
        self._on_taken(partition, batch.record_count)


def write_records(cluster: Cluster, topic: str, records: Mapping[int, Sequence[Record]], *, timeout_s: float) -> None:
    """Write records by partition, in as many batches as needed. Blocks.

    Raises:
        ConnectionLostError: Not all were acknowledged. Repeating the call is safe in a compacted topic.
    """
    OwnRecords(records).write(cluster, topic, timeout_s=timeout_s)


class Newest(NamedTuple):
    """Contents of a compacted topic."""

    records: dict[bytes, Record]
    """Newest record of each key in log order, including tombstones."""
    hidden: str
    """Partition in which an open transaction hides later records. Empty: everything was read."""


def read_newest(cluster: Cluster, topic: str, *, attempts: int) -> Newest:
    """Read the committed records of a topic to its end. Blocks.

    Args:
        cluster: Cluster with up-to-date metadata of the topic.
        topic: Existing topic.
        attempts: Number of fetches per partition, 20 per second, after which an open transaction counts as hiding
            records. After the first such partition, the others get one fetch each.

    Raises:
        ConnectionLostError: The topic cannot be read to its end now.
    """
    where = [(topic, number) for number in cluster.topics[topic].partitions]
    first, ends = (cluster.list_offsets(where, timestamp) for timestamp in (clusters.EARLIEST, clusters.LATEST))
    if len(first) < len(where) or len(ends) < len(where):
        raise ConnectionLostError(f"Partitions of {topic} have no leader now")
    newest: dict[bytes, Record] = {}
    hidden = ""
    for key in where:
        if not _read_partition(cluster, key, range(first[key], ends[key]), 1 if hidden else attempts, newest):
            hidden = hidden or f"{topic}-{key[1]}"
    return Newest(newest, hidden)


def _read_partition(
    cluster: Cluster, key: PartitionTuple, offsets: range, attempts: int, newest: dict[bytes, Record]
) -> bool:
    """Read the given offsets of a partition. Return False if an open transaction hides some of them."""
    at, left = offsets.start, attempts
    while at < offsets.stop:
        records, next_offset = read_records(cluster, *key, at, timeout_s=_READ_TIMEOUT_S, max_wait_ms=_MAX_WAIT_MS)
        for record in records:
            newest.pop(raw_key := bytes(record.key or b""), None)
            newest[raw_key] = record
        left = attempts if next_offset > at else left - 1
        if left == 0:
            return False
        at = next_offset
    return True


_PARTITION: Final = 0
_TIMEOUT_S: Final = 15.0
_FREE_BYTES: Final = 4 * 1024 * 1024


class TopicGoneError(Exception):
    """An internal topic of the mirror does not exist, or was recreated after it was read."""


class LogBounds(NamedTuple):
    """First offset and end offset of a partition."""

    first: int
    end: int

    @property
    def is_empty(self) -> bool:
        """Return whether the partition has no records, because none was written or all were deleted."""
        return self.first == self.end


class ControlConnection:
    """Reader and writer of single-partition topics of one cluster. Confined to one thread; calls block.

    The driver uses it for heartbeats, checkpoints and offset syncs: a few records per second. Tasks copy the mirrored
    records over their own connections.
    """

    def __init__(self, settings: ConnectionSettings) -> None:
        self._cluster = Cluster(settings, BufferPool(max_free_bytes=_FREE_BYTES))

    def write(self, topic: str, records: Sequence[Record]) -> None:
        """Write records to partition 0 and wait until they are acknowledged.

        Raises:
            ConnectionLostError: Not all were acknowledged. Repeating the call is safe.
        """
        write_records(self._cluster, topic, {_PARTITION: records}, timeout_s=_TIMEOUT_S)

    def end_offsets(self, partitions: Sequence[PartitionTuple]) -> dict[PartitionTuple, int]:
        """Return the log end offsets of partitions. Partitions without a responding leader are missing.

        Raises:
            ConnectionLostError: No broker answers.
        """
        if not partitions:
            return {}
        self._cluster.refresh(sorted({topic for topic, _ in partitions}))
        return self._cluster.list_offsets(list(partitions), clusters.LATEST)

    def log_bounds(self, partitions: Sequence[PartitionTuple]) -> dict[PartitionTuple, LogBounds]:
        """Return the first and end offsets of partitions. Partitions without a responding leader are missing.

        Raises:
            ConnectionLostError: No broker answers.
        """
        if not partitions:
            return {}
        self._cluster.refresh(sorted({topic for topic, _ in partitions}))
        first = self._cluster.list_offsets(list(partitions), clusters.EARLIEST)
        end = self._cluster.list_offsets(list(first), clusters.LATEST)
        return {where: LogBounds(first[where], end[where]) for where in end}

    def read(self, topic: str, from_offset: int) -> tuple[list[Record], int]:
        """Read partition 0 to its current end.

        Returns:
            The available records from ``from_offset`` on, and the next offset to read.

        Raises:
            TopicGoneError: The topic does not exist, or ends before ``from_offset`` because it was recreated.
            ConnectionLostError: The topic cannot be read to its end now.
        """
        self._cluster.refresh([topic])
        if topic not in self._cluster.topics:
            raise TopicGoneError(f"{topic} does not exist")
        at, end = max(from_offset, self._offset(topic, clusters.EARLIEST)), self._offset(topic, clusters.LATEST)
        if from_offset > end:
            raise TopicGoneError(f"{topic} ends at {end}, but {from_offset} was read before")
        found: list[Record] = []
        while at < end:
            # Read committed records only: MirrorMaker 2 may write checkpoints in transactions.
            records, next_offset = read_records(
                self._cluster, topic, _PARTITION, at, timeout_s=_TIMEOUT_S, max_wait_ms=0
            )
            found += [record for record in records if record.offset >= from_offset]
            if next_offset == at:
                break  # an open transaction of another producer hides the rest for now
            at = next_offset
        return found, at

    def _offset(self, topic: str, timestamp: int) -> int:
        offsets = self._cluster.list_offsets([(topic, _PARTITION)], timestamp)
        if (topic, _PARTITION) not in offsets:
            raise ConnectionLostError(f"{topic} has no leader now")
        return offsets[topic, _PARTITION]

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()

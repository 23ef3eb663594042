"""Reader and writer of the internal topics of the mirror and the gateway. All calls block.

Source offsets, checkpoints and changes of client configs are usually few records. The first write of a task, or one for
a topic with a single partition, can have thousands, and a broker accepts no batch above ``max.message.bytes`` of the
topic. So the writer divides records into batches that the broker accepts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.kafka_client.data.records import RecordsRejectedError, read_records, write_batches
from klamm.kafka_client.errors import ConnectionLostError
from klamm.protocol.errors import ErrorCode, InvalidConfigError
from klamm.protocol.records import encode_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from klamm.kafka_client.data.cluster import Cluster
    from klamm.protocol.records import Record
    from klamm.protocol.types import PartitionTuple

RETENTION: Final = ("cleanup.policy", "retention.bytes", "retention.ms")
"""Configs by which a topic loses records."""
_BATCH_BYTES: Final = 256 * 1024
"""First size limit of a batch in bytes: a quarter of the default ``max.message.bytes``."""
_BATCH_RECORDS: Final = 1_000
"""Maximum number of records encoded at once, so that seldom more are encoded than fit into a batch."""
_READ_TIMEOUT_S: Final = 15.0
_MAX_WAIT_MS: Final = 50
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class _Batch(NamedTuple):
    """Batch of the first pending records of a partition."""

    record_count: int
    data: bytearray


class PartitionWriter:
    """Writer of records to the partitions of a topic, each partition's in order. Used once, by one thread.

    A batch is kept unchanged until a broker acknowledges it or rejects it as too large. With sequence numbers, a batch
    that is sent repeatedly is therefore appended once.
    """

    def __init__(
        self,
        records: Mapping[int, Sequence[Record]],
        encode: Callable[[int, Sequence[Record]], bytearray] = lambda _partition, records: encode_batch(records),
        on_taken: Callable[[int, int], None] = lambda _partition, _count: None,
    ) -> None:
        """Create a writer for the given records.

        Args:
            records: Records by partition. Their offsets are ignored.
            encode: Function that encodes a batch of a partition. The offsets of its records start at 0.
            on_taken: Function called after each acknowledged batch with its partition and number of records.
        """
        self._left = {partition: list(some) for partition, some in records.items() if some}
        self._encode = encode
        self._on_taken = on_taken
        self._max_bytes = _BATCH_BYTES
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
            ConnectionLostError: Not all were acknowledged. ``RecordsRejectedError`` carries the error codes of
                rejections.
        """

        def send(partitions: Sequence[int]) -> None:
            batches = {partition: self._next(partition) for partition in partitions}
            data = {partition: batch.data for partition, batch in batches.items()}
            try:
                write_batches(cluster, topic, data, timeout_s=timeout_s, transactional_id=transactional_id)
            except RecordsRejectedError as error:
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
            while len(batch.data) > self._max_bytes and batch.record_count > 1:
                batch = self._first(partition, max(1, batch.record_count * self._max_bytes // len(batch.data)))
            self._batches[partition] = batch
        return batch

    def _first(self, partition: int, count: int) -> _Batch:
        some = [record._replace(offset=at) for at, record in enumerate(self._left[partition][:count])]
        return _Batch(len(some), self._encode(partition, some))

    def _make_smaller(self, partition: int) -> bool:
        """Halve the size limit of later batches. Return False if the rejected batch had a single record."""
        batch = self._batches.pop(partition)
        self._max_bytes = len(batch.data) // 2
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
    PartitionWriter(records).write(cluster, topic, timeout_s=timeout_s)


def check_retention(topic: str, present: Mapping[str, str | None], wanted: Mapping[str, str]) -> None:
    """Check that an existing topic keeps its records (Connect's TopicAdmin.verifyTopicCleanupPolicyOnlyCompact).

    Args:
        topic: Internal topic.
        present: Values in force of its configs. A missing one is not checked.
        wanted: Configs of the topic. Only those of its retention are checked.

    Raises:
        InvalidConfigError: The cleanup policy or a retention is another one.
    """
    for key in RETENTION:
        if key in wanted and key in present and present[key] != wanted[key]:
            raise InvalidConfigError(
                f"{key} of {topic} is {present[key]}, which removes records that are still needed."
                f" Set it to {wanted[key]}"
            )


def read_partition(
    cluster: Cluster,
    partition: PartitionTuple,
    offsets: range,
    *,
    timeout_s: float = _READ_TIMEOUT_S,
    max_wait_ms: int = 0,
    attempts: int = 1,
) -> Iterator[tuple[list[Record], int]]:
    """Read the committed records of some offsets of a partition, fetch by fetch.

    Reading ends early if an open transaction hides the rest. Then the last offset is less than ``offsets.stop``.

    Args:
        cluster: Cluster with up-to-date metadata of the topic.
        partition: Topic and partition number.
        offsets: Offsets to read. Later ones may be included.
        timeout_s: Limit for each response in seconds.
        max_wait_ms: Time in milliseconds that the broker may wait for a first record.
        attempts: Number of fetches in a row without progress after which an open transaction counts as hiding records.

    Yields:
        The records of a fetch, and the next offset to read.

    Raises:
        ConnectionLostError: The partition cannot be read at present.
    """
    at, left = offsets.start, attempts
    while at < offsets.stop and left:
        records, next_offset = read_records(cluster, *partition, at, timeout_s=timeout_s, max_wait_ms=max_wait_ms)
        left = attempts if next_offset > at else left - 1
        if next_offset > at:
            yield [record for record in records if record.offset >= at], next_offset
        at = next_offset


def log_bounds(cluster: Cluster, topic: str) -> dict[PartitionTuple, range]:
    """Return the offsets of each partition of a topic, from the first one to the log end.

    Args:
        cluster: Cluster with up-to-date metadata of the topic.
        topic: Existing topic.

    Raises:
        ConnectionLostError: A partition has no leader, or it does not respond.
    """
    partitions = [(topic, number) for number in cluster.topics[topic].partitions]
    bounds = cluster.log_bounds(partitions)
    if len(bounds) < len(partitions):
        raise ConnectionLostError(f"Partitions of {topic} have no leader now")
    return {partition: bounds[partition] for partition in partitions}


class Newest(NamedTuple):
    """Contents of a compacted topic."""

    records: dict[bytes, Record]
    """Newest record of each key in log order, including tombstones."""
    hidden: str
    """Partition in which an open transaction hides later records. Empty: everything was read."""


def read_newest(cluster: Cluster, topic: str, *, attempts: int) -> Newest:
    """Read the committed records of a topic to its end.

    Args:
        cluster: Cluster with up-to-date metadata of the topic.
        topic: Existing topic.
        attempts: Number of fetches per partition, 20 per second, after which an open transaction counts as hiding
            records. After the first such partition, the others get one fetch each.

    Raises:
        ConnectionLostError: The topic cannot be read to its end now.
    """
    newest: dict[bytes, Record] = {}
    hidden = ""
    for partition, offsets in log_bounds(cluster, topic).items():
        at, left = offsets.start, 1 if hidden else attempts
        for records, next_offset in read_partition(
            cluster, partition, offsets, max_wait_ms=_MAX_WAIT_MS, attempts=left
        ):
            at = next_offset
            for record in records:
                newest.pop(key := bytes(record.key or b""), None)
                newest[key] = record
        if at < offsets.stop:
            hidden = hidden or f"{topic}-{partition[1]}"
    return Newest(newest, hidden)

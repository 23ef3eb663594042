"""Reads the mirror's own topics, and writes to them in batches that the brokers take.

Positions, offset syncs and checkpoints are few, but for the first ones of a task and where one partition holds them
all: thousands of records then, and a broker takes no more than ``max.message.bytes`` of the topic in one batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.client import cluster as clusters
from klamm.client.connection import ConnectionLostError
from klamm.client.records import RecordsRefusedError, read_records, write_batches
from klamm.protocol.errors import ErrorCode
from klamm.protocol.records import encode_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from klamm.client.cluster import Cluster
    from klamm.protocol.records import Record
    from klamm.protocol.types import PartitionTuple

_BATCH_BYTES: Final = 256 * 1024
"""A quarter of what topics take unless somebody has set ``max.message.bytes``."""
_BATCH_RECORDS: Final = 1_000
"""So that seldom more is encoded than goes into a batch."""
_READ_TIMEOUT_S: Final = 15.0
_MAX_WAIT_MS: Final = 50
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class _Batch(NamedTuple):
    """The first records that wait for a partition."""

    record_count: int
    data: bytearray


class OwnRecords:
    """Records that are to be written, by partition of a topic, each partition's in order. For one use and one thread.

    A batch stays what it is until a broker says that it has it, or that it is too large: sequence numbers make sure
    then that it is taken once, however often it is sent.
    """

    def __init__(
        self,
        records: Mapping[int, Sequence[Record]],
        encode: Callable[[int, Sequence[Record]], bytearray] = lambda _partition, records: encode_batch(records),
        on_taken: Callable[[int, int], None] = lambda _partition, _count: None,
    ) -> None:
        """Make them.

        Args:
            records: by partition; their offsets do not matter.
            encode: makes a batch for a partition, of records whose offsets begin at 0.
            on_taken: called with a partition, and how many of its records are on the target beside those before.
        """
        self._left = {partition: list(some) for partition, some in records.items() if some}
        self._encode = encode
        self._on_taken = on_taken
        self._most_bytes = _BATCH_BYTES
        self._batches: dict[int, _Batch] = {}
        """What is sent next."""

    @property
    def partitions(self) -> frozenset[int]:
        """Those that have to take records yet."""
        return frozenset(self._left)

    def write(self, cluster: Cluster, topic: str, *, timeout_s: float, transactional_id: str | None = None) -> None:
        """Write all of them and wait until they are acknowledged. After an error it goes on where it ended.

        Args:
            cluster: where the topic is.
            topic: one of the mirror's own.
            timeout_s: for each batch of a partition.
            transactional_id: of the open transaction that they belong to.

        Raises:
            ConnectionLostError: not all were acknowledged; those that were refused say why (``RecordsRefusedError``).
        """

        def send(partitions: Sequence[int]) -> None:
            batches = {partition: self._next(partition) for partition in partitions}
            data = {partition: batch.data for partition, batch in batches.items()}
            try:
                write_batches(cluster, topic, data, timeout_s=timeout_s, transactional_id=transactional_id)
            except RecordsRefusedError as error:
                if not error.codes & _TOO_LARGE:
                    raise
                if len(partitions) > 1:  # nobody tells which of them
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
        """Return the batch that is to be sent next, the same one until something became of it."""
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
        """Make smaller batches from now on; False: what was refused was a single record."""
        batch = self._batches.pop(partition)
        self._most_bytes = len(batch.data) // 2
        return batch.record_count > 1

    def _taken(self, partition: int, batch: _Batch) -> None:
        del self._batches[partition], self._left[partition][: batch.record_count]
        if not self._left[partition]:
            del self._left[partition]
        self._on_taken(partition, batch.record_count)


def write_records(cluster: Cluster, topic: str, records: Mapping[int, Sequence[Record]], *, timeout_s: float) -> None:
    """Write records by partition, in as many batches as it takes; blocks.

    Raises:
        ConnectionLostError: not all were acknowledged; writing the same again does no harm in a compacted topic.
    """
    OwnRecords(records).write(cluster, topic, timeout_s=timeout_s)


class Newest(NamedTuple):
    """What a compacted topic holds."""

    records: dict[bytes, Record]
    """The newest of each key in the order of the log, also those without a value: they say that there is nothing."""
    hidden: str
    """A partition where an open transaction hides what follows; empty: everything was read."""


def read_newest(cluster: Cluster, topic: str, *, attempts: int) -> Newest:
    """Read the committed records of a topic to its end; blocks.

    Args:
        cluster: its metadata of the topic are fresh.
        topic: that exists.
        attempts: how often a partition is asked, 20 times a second, before an open transaction is said to hide records;
            after the first such partition the others are not waited for.

    Raises:
        ConnectionLostError: not all of it can be read now.
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
    """Read offsets of a partition; False: something hides the rest."""
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

"""Reader and writer of the mirror's internal topics with one partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.data import cluster as clusters
from klamm.kafka_client.data.cluster import Cluster
from klamm.kafka_client.errors import ConnectionLostError
from klamm.kafka_client.internal_topic import read_partition, write_records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.kafka_client.connection.transport import ConnectionSettings
    from klamm.protocol.records import Record
    from klamm.protocol.types import PartitionTuple

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

    @property
    def cluster(self) -> Cluster:
        """Cluster with the metadata of the topics of earlier calls."""
        return self._cluster

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

    def offset_at(self, topic: str, timestamp_ms: int) -> int | None:
        """Return the offset of the first record of partition 0 that is not older than a time. -1: all are older.

        None: there is no such topic, or its leader does not respond.

        Raises:
            ConnectionLostError: No broker answers.
        """
        self._cluster.refresh([topic])
        return self._cluster.list_offsets([(topic, _PARTITION)], timestamp_ms).get((topic, _PARTITION))

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
        available: list[Record] = []
        # Read committed records only: MirrorMaker 2 may write checkpoints in transactions. An open transaction of
        # another producer hides the rest for now.
        fetches = read_partition(self._cluster, (topic, _PARTITION), range(at, end), timeout_s=_TIMEOUT_S)
        for records, next_offset in fetches:
            available += records
            at = next_offset
        return available, at

    def _offset(self, topic: str, timestamp: int) -> int:
        offsets = self._cluster.list_offsets([(topic, _PARTITION)], timestamp)
        if (topic, _PARTITION) not in offsets:
            raise ConnectionLostError(f"{topic} has no leader now")
        return offsets[topic, _PARTITION]

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()

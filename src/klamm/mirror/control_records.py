"""The few records that the driver itself reads and writes: heartbeats, checkpoints, offset syncs.

Records of users never go this way: tasks copy them. A connection of this kind sends some records in a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.mirror.wire import cluster as clusters
from klamm.mirror.wire.batches import Treatment, walk
from klamm.mirror.wire.buffers import BufferPool
from klamm.mirror.wire.cluster import Cluster
from klamm.mirror.wire.connection import ConnectionLostError
from klamm.mirror.wire.fetch_frames import (
    LAST_VERSION,
    TOPIC_IDS_FROM,
    FetchedPartition,
    FetchLimits,
    WantedRecords,
    fetch_request,
    fetched_partitions,
)
from klamm.mirror.wire.small_topics import write_records
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.records import decode_records

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from klamm.mirror.wire.transport import ConnectionSettings
    from klamm.protocol.records import Record

_PARTITION: Final = 0
_TIMEOUT_S: Final = 15.0
_LIMITS: Final = FetchLimits(max_bytes=4 * 1024 * 1024, partition_max_bytes=1024 * 1024, min_bytes=0, max_wait_ms=0)
_FREE_BYTES: Final = 4 * 1024 * 1024


class TopicGoneError(Exception):
    """A topic of the mirror's own does not exist, or begins anew after what was read of it."""


class ControlConnection:
    """Reads and writes topics of one partition on one cluster. Thread-confined; calls block."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._cluster = Cluster(settings, BufferPool(max_free_bytes=_FREE_BYTES))

    def write(self, topic: str, records: Sequence[Record]) -> None:
        """Write records to partition 0 and wait until they are acknowledged.

        Raises:
            ConnectionLostError: not all were; writing the same again does no harm.
        """
        numbered = [record._replace(offset=at) for at, record in enumerate(records)]
        write_records(self._cluster, topic, {_PARTITION: numbered}, timeout_s=_TIMEOUT_S)

    def end_offsets(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return the log end offsets of partitions; those that do not exist or have no leader are missing.

        Raises:
            ConnectionLostError: a leader is away.
        """
        if not partitions:
            return {}
        self._cluster.refresh(sorted({topic for topic, _ in partitions}))
        return self._cluster.list_offsets(list(partitions), clusters.LATEST)

    def read(self, topic: str, from_offset: int) -> tuple[list[Record], int]:
        """Read partition 0 to its present end.

        Returns:
            The records from ``from_offset`` on that are still there, and the offset to go on with.

        Raises:
            TopicGoneError: the topic does not exist, or ends before ``from_offset``: it was made anew.
            ConnectionLostError: not all of it can be read now.
        """
        self._cluster.refresh([topic])
        if topic not in self._cluster.topics:
            raise TopicGoneError(f"{topic} does not exist")
        at, end = max(from_offset, self._offset(topic, clusters.EARLIEST)), self._offset(topic, clusters.LATEST)
        if from_offset > end:
            raise TopicGoneError(f"{topic} ends at {end}, but {from_offset} was read before")
        found: list[Record] = []
        while at < end:
            before = at
            for records, next_offset in self._fetch(topic, at):
                found += [record for record in records if record.offset >= from_offset]
                at = next_offset
            if at == before:
                break  # an open transaction of somebody hides the rest for now
        return found, at

    def _offset(self, topic: str, timestamp: int) -> int:
        offsets = self._cluster.list_offsets([(topic, _PARTITION)], timestamp)
        if (topic, _PARTITION) not in offsets:
            raise ConnectionLostError(f"{topic} has no leader now")
        return offsets[topic, _PARTITION]

    def _fetch(self, topic: str, fetch_offset: int) -> Iterator[tuple[Sequence[Record], int]]:
        leader = self._cluster.leader(topic, _PARTITION)
        if leader is None:
            raise ConnectionLostError(f"{topic} has no leader now")
        connection = self._cluster.connection(leader)
        version = connection.version_of(FetchRequest, at_most=LAST_VERSION)
        wanted = WantedRecords(topic, self._cluster.topic_id(topic), _PARTITION, fetch_offset)
        # MirrorMaker 2 may write checkpoints in transactions (exactly.once.source.support=enabled).
        request = fetch_request([wanted], _LIMITS, read_committed=True)
        response = connection.call(request, FetchResponse, version=version, timeout_s=_TIMEOUT_S)
        names = {wanted.topic_id: topic}
        with_ids = version >= TOPIC_IDS_FROM
        for answer in fetched_partitions(response, names, with_topic_ids=with_ids, read_committed=True):
            yield from self._batches(answer, fetch_offset)

    @staticmethod
    def _batches(answer: FetchedPartition, fetch_offset: int) -> Iterator[tuple[Sequence[Record], int]]:
        if answer.error_code != ErrorCode.NONE:
            raise ConnectionLostError(f"{answer.topic}: {ErrorCode(answer.error_code).name}")
        for fetched in walk(answer.records, fetch_offset, answer.aborted):
            dropped = fetched.treatment is Treatment.DROP
            yield () if dropped else decode_records(fetched.batch), fetched.next_offset

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()

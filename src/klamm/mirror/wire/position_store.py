"""Reading and writing positions in ``mm2-offsets.<source>.internal`` on the target."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from klamm.mirror import positions
from klamm.mirror.positions import SourcePartition
from klamm.mirror.wire import cluster as clusters
from klamm.mirror.wire.batches import Treatment, walk
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
from klamm.protocol.records import Record, decode_records

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.mirror.wire.buffers import BufferPool
    from klamm.mirror.wire.transport import ConnectionSettings

_TIMEOUT_S: Final = 15.0
_LIMITS: Final = FetchLimits(max_bytes=4 * 1024 * 1024, partition_max_bytes=1024 * 1024, min_bytes=0, max_wait_ms=0)


class PositionStore:
    """Positions of one source on one target. Thread-confined; has connections of its own, calls block."""

    def __init__(self, settings: ConnectionSettings, pool: BufferPool, *, topic: str, source_alias: str) -> None:
        self._cluster = clusters.Cluster(settings, pool)
        self._topic = topic
        self._source_alias = source_alias

    def read(self) -> dict[tuple[str, int], int]:
        """Return the last mirrored offset by source topic and partition, reading the whole topic to its end.

        Raises:
            ConnectionLostError: not all of it can be read now.
        """
        self._cluster.refresh([self._topic])
        numbers = self._partitions()
        where = [(self._topic, number) for number in numbers]
        at = self._cluster.list_offsets(where, clusters.EARLIEST)
        ends = self._cluster.list_offsets(where, clusters.LATEST)
        if len(at) < len(numbers) or len(ends) < len(numbers):
            raise ConnectionLostError(f"Partitions of {self._topic} have no leader now")
        found: dict[tuple[str, int], int] = {}
        while open_partitions := [key for key in where if at[key] < ends[key]]:
            for key in open_partitions:
                at[key] = self._read_some(key[1], at[key], found)
        return found

    def _partitions(self) -> range:
        state = self._cluster.topics.get(self._topic)
        if state is None:
            raise ConnectionLostError(f"{self._topic} does not exist yet on the target")
        return range(max(state.leaders, default=-1) + 1)

    def _read_some(self, partition: int, fetch_offset: int, found: dict[tuple[str, int], int]) -> int:
        """Read one answer of one partition; returns the next offset."""
        leader = self._cluster.leader(self._topic, partition)
        if leader is None:
            raise ConnectionLostError(f"Partition {partition} of {self._topic} has no leader now")
        connection = self._cluster.connection(leader)
        version = connection.version_of(FetchRequest, at_most=LAST_VERSION)
        wanted = WantedRecords(self._topic, self._cluster.topic_id(self._topic), partition, fetch_offset)
        request = fetch_request([wanted], _LIMITS, read_committed=True)
        response = connection.call(request, FetchResponse, version=version, timeout_s=_TIMEOUT_S)
        names = {wanted.topic_id: self._topic}
        for answer in fetched_partitions(
            response, names, with_topic_ids=version >= TOPIC_IDS_FROM, read_committed=True
        ):
            if answer.error_code != ErrorCode.NONE:
                raise ConnectionLostError(f"Partition {partition} of {self._topic}: error code {answer.error_code}")
            if not len(answer.records):
                raise ConnectionLostError(f"An open transaction hides positions in partition {partition}")
            return self._keep(answer, fetch_offset, found)
        raise ConnectionLostError(f"Partition {partition} of {self._topic} was not answered")

    def _keep(self, answer: FetchedPartition, fetch_offset: int, found: dict[tuple[str, int], int]) -> int:
        for fetched in walk(answer.records, fetch_offset, answer.aborted):
            fetch_offset = fetched.next_offset
            if fetched.treatment is Treatment.DROP:
                continue
            for record in decode_records(fetched.batch):
                key = positions.parse_key(record.key)
                if key is not None and key.cluster == self._source_alias:
                    self._keep_one((key.topic, key.partition), positions.parse_value(record.value), found)
        return fetch_offset

    @staticmethod
    def _keep_one(key: tuple[str, int], value: int | None, found: dict[tuple[str, int], int]) -> None:
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value

    def write(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Write positions and wait until they are acknowledged.

        Args:
            offsets: last mirrored offset by source topic and partition.

        Raises:
            ConnectionLostError: not all were acknowledged; writing the same again does no harm.
        """
        if self._topic not in self._cluster.topics:
            self._cluster.refresh([self._topic])
        write_records(self._cluster, self._topic, self._by_partition(offsets), timeout_s=_TIMEOUT_S)

    def _by_partition(self, offsets: Mapping[tuple[str, int], int]) -> dict[int, list[Record]]:
        count = len(self._partitions())
        now_ms = int(time.time() * 1000)
        out: dict[int, list[Record]] = {}
        for (topic, partition), offset in offsets.items():
            key = positions.key_bytes(SourcePartition(self._source_alias, topic, partition))
            records = out.setdefault(positions.partition_for_key(key, count), [])
            value = positions.value_bytes(offset)
            records.append(Record(key=key, value=value, timestamp=now_ms, offset=len(records)))
        return out

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()

"""Readers of the ends of topics: the newest record of each key, and the newest timestamp of each topic.

Old records are read last. If the time budget ends first, they are not read at all.

ListOffsets for the largest timestamp would return the newest timestamps with one request. But it also counts
transaction markers, so that a topic would seem as new as its latest commit. ``newest_timestamps`` therefore reads the
last batches of each partition.
"""

from __future__ import annotations

import time
from dataclasses import field
from typing import TYPE_CHECKING, Final

from klamm.kafka_client.data import cluster as clusters
from klamm.kafka_client.data.fetch import FetchLimits, WantedRecords
from klamm.kafka_client.data.records import fetch_once
from klamm.kafka_client.errors import ConnectionLostError
from klamm.kafka_client.internal_topic import log_bounds, read_partition
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import ErrorCode
from klamm.protocol.records import iter_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from klamm.kafka_client.data.cluster import Cluster
    from klamm.kafka_client.data.fetch import FetchedPartition
    from klamm.protocol.records import Record
    from klamm.protocol.types import PartitionTuple

_FIRST_STEP: Final = 2_000
"""Number of offsets in the first step back from the log end. Each further step is twice as long."""
_TIMEOUT_S: Final = 5.0


@dataclass(slots=True)
class Tail:
    """Result of ``read_tail``."""

    newest: dict[bytes, Record] = field(default_factory=dict)
    """Newest record by key. Tombstones are included: they mean that the key was deleted."""
    is_complete: bool = True
    """Whether the beginning of the topic was reached, or ``enough`` returned True."""


def read_tail(
    cluster: Cluster,
    topic: str,
    *,
    budget_s: float,
    enough: Callable[[Mapping[bytes, Record]], bool] = lambda _: False,
    clock: Callable[[], float] = time.monotonic,
) -> Tail | None:
    """Read the committed records of a topic backwards from the ends of its partitions.

    Args:
        cluster: Client of the cluster. The topic's metadata are refreshed.
        topic: Name of the topic.
        budget_s: Time after which no further step starts, in seconds. The first step is always completed.
        enough: Function called after each step with the newest records so far. True ends the reading, and the
            result counts as complete.
        clock: Monotonic time in seconds.

    Returns:
        The newest records, or None if the topic does not exist or cannot be described.

    Raises:
        ConnectionLostError: The topic cannot be read now, or the right to read it is missing.
    """
    cluster.refresh([topic])
    if topic not in cluster.topics:
        return None
    bounds = log_bounds(cluster, topic)
    tail = Tail()
    deadline = clock() + budget_s
    step = _FIRST_STEP
    left = {partition: offsets.stop for partition, offsets in bounds.items() if offsets}
    while left:
        for partition, before in list(left.items()):
            first = bounds[partition].start
            start = max(first, before - step)
            fetches = read_partition(cluster, partition, range(start, before), timeout_s=_TIMEOUT_S)
            _keep(tail, [record for records, _ in fetches for record in records if record.offset < before])
            left[partition] = start
            if start == first:
                del left[partition]
        if enough(tail.newest):
            break
        if left and clock() > deadline:
            tail.is_complete = False
            break
        step *= 2
    return tail


def _keep(tail: Tail, records: list[Record]) -> None:
    """Add records older than those read before. Records of one key are all in one partition, so newer ones win."""
    newest: dict[bytes, Record] = {record.key: record for record in records if record.key is not None}
    for key, record in newest.items():
        tail.newest.setdefault(key, record)


_MIB: Final = 1024 * 1024
_LIMITS: Final = FetchLimits(max_bytes=16 * _MIB, partition_max_bytes=128 * 1024, min_bytes=1, max_wait_ms=0)
_TOGETHER: Final = 100
"""Number of partitions per Fetch request."""
_FIRST_TIMESTAMP_STEP: Final = 2
"""Offsets before the log end at which the first read starts: the last record, and a marker after it."""
_LONGER: Final = 16
_LAST_STEP: Final = 10_000


def newest_timestamps(
    cluster: Cluster,
    ends: Mapping[PartitionTuple, int],
    *,
    budget_s: float,
) -> tuple[dict[str, int], bool]:
    """Return, by topic, the largest timestamp in the last batches of its partitions.

    A partition whose last batches contain only markers is read again from 16 times further back, up to a limit.

    Args:
        cluster: Client with current metadata of these topics.
        ends: Log end offset of each partition.
        budget_s: Time after which no further request is sent, in seconds.

    Returns:
        Milliseconds since the epoch by topic, and whether every partition was read. Topics without records are left
        out.

    Raises:
        ConnectionLostError: A partition's leader, or the replica that it names, is unavailable.
    """
    deadline = time.monotonic() + budget_s
    first = cluster.list_offsets(list(ends), clusters.EARLIEST)
    steps = {where: _FIRST_TIMESTAMP_STEP for where, end in ends.items() if end > first.get(where, end)}
    timestamps: dict[str, int] = {}
    while steps:
        for leader, some in list(_requests(cluster, steps)):
            if time.monotonic() > deadline:
                return timestamps, False
            starts = {where: max(first[where], ends[where] - steps[where]) for where in some}
            for answer in _fetch(cluster, leader, starts):
                where = (answer.topic, answer.partition)
                timestamp = _newest(answer)
                if timestamp is not None:
                    timestamps[answer.topic] = max(timestamp, timestamps.get(answer.topic, timestamp))
                if _is_over(answer, timestamp, steps[where], is_first=starts[where] == first[where]):
                    del steps[where]
                elif answer.records:
                    steps[where] *= _LONGER
        # A broker returns at least one batch, however large, only for the first partition of a request. So reverse the
        # order.
        steps = dict(reversed(steps.items()))
    return timestamps, True


def _is_over(answer: FetchedPartition, timestamp: int | None, step: int, *, is_first: bool) -> bool:
    """Return whether a partition needs no further read. If only markers were read, it is read from further back."""
    only_markers_are_left = bool(answer.records) and (is_first or step > _LAST_STEP)
    return timestamp is not None or answer.error_code != ErrorCode.NONE or only_markers_are_left


def _requests(
    cluster: Cluster, partitions: Mapping[PartitionTuple, int]
) -> Iterator[tuple[int, Sequence[PartitionTuple]]]:
    for leader, some in cluster.by_leader(partitions).items():
        if leader is None:
            raise ConnectionLostError(f"{some[0][0]}-{some[0][1]} has no leader at present")
        for at in range(0, len(some), _TOGETHER):
            yield leader, some[at : at + _TOGETHER]


def _fetch(cluster: Cluster, leader: int, starts: Mapping[PartitionTuple, int]) -> Iterator[FetchedPartition]:
    wanted = [WantedRecords(topic, cluster.topic_id(topic), partition, at) for (topic, partition), at in starts.items()]
    return fetch_once(cluster, leader, wanted, _LIMITS, read_committed=False, timeout_s=_TIMEOUT_S)


def _newest(answer: FetchedPartition) -> int | None:
    """Return the largest timestamp of the records. None: there are only markers, or the first batch was cut off."""
    if answer.error_code != ErrorCode.NONE:
        return None
    times = [
        batch.max_timestamp
        for batch in iter_batches(answer.records, allow_partial_tail=True)
        if not batch.is_control and batch.record_count
    ]
    return max(times, default=None)

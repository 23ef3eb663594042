"""Reader of the newest record per key of a compacted topic, from its end backwards.

Old records are read last. If the time budget ends first, they are not read at all.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from klamm.kafka_client.data import cluster as clusters
from klamm.kafka_client.data.records import read_records
from klamm.kafka_client.errors import ConnectionLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from klamm.kafka_client.data.cluster import Cluster
    from klamm.protocol.records import Record

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
    state = cluster.topics.get(topic)
    if state is None:
        return None
    where = [(topic, number) for number in state.partitions]
    first, end = (cluster.list_offsets(where, timestamp) for timestamp in (clusters.EARLIEST, clusters.LATEST))
    if len(first) < len(where) or len(end) < len(where):
        raise ConnectionLostError(f"Partitions of {topic} have no leader now")
    tail = Tail()
    deadline = clock() + budget_s
    step = _FIRST_STEP
    left = {number: end[topic, number] for _, number in where if end[topic, number] > first[topic, number]}
    while left:
        for number, before in list(left.items()):
            start = max(first[topic, number], before - step)
            _keep(tail, _between(cluster, topic, number, start, before))
            left[number] = start
            if start == first[topic, number]:
                del left[number]
        if enough(tail.newest):
            break
        if left and clock() > deadline:
            tail.is_complete = False
            break
        step *= 2
    return tail


def _between(cluster: Cluster, topic: str, partition: int, start: int, end: int) -> list[Record]:
    found: list[Record] = []
    at = start
    while at < end:
        records, next_offset = read_records(cluster, topic, partition, at, timeout_s=_TIMEOUT_S, max_wait_ms=0)
        found += [record for record in records if at <= record.offset < end]
        if next_offset == at:
            break  # an open transaction hides the following records for now
        at = next_offset
    return found


def _keep(tail: Tail, records: list[Record]) -> None:
    """Add records older than those read before. Records of one key are all in one partition, so newer ones win."""
    newest: dict[bytes, Record] = {record.key: record for record in records if record.key is not None}
    for key, record in newest.items():
        tail.newest.setdefault(key, record)

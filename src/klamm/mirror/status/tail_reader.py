"""The newest record of each key of a compacted topic, read from its end: what is old is reached last, or not at all."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from klamm.client import cluster as clusters
from klamm.client.connection import ConnectionLostError
from klamm.client.records import read_records

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from klamm.client.cluster import Cluster
    from klamm.protocol.records import Record

_FIRST_STEP: Final = 2_000
"""Offsets; each step back from the end is twice as long as the one before."""
_TIMEOUT_S: Final = 5.0


@dataclass(slots=True)
class Tail:
    """What was read."""

    newest: dict[bytes, Record] = field(default_factory=dict)
    """By key; also those without a value, which say that there is nothing any more."""
    is_complete: bool = True
    """False: time was up before the beginning of the topic was reached."""


def read_tail(
    cluster: Cluster,
    topic: str,
    *,
    budget_s: float,
    enough: Callable[[Mapping[bytes, Record]], bool] = lambda _: False,
    clock: Callable[[], float] = time.monotonic,
) -> Tail | None:
    """Read committed records from the ends of a topic's partitions backwards.

    Args:
        cluster: where; asked for the topic's metadata.
        topic: which.
        budget_s: for how long to go back; the ends of all partitions are read whatever it takes.
        enough: told after each step what is known; True ends it, and it counts as complete.
        clock: seconds.

    Returns:
        What was read; None: there is no such topic, or it may not be described.

    Raises:
        ConnectionLostError: it can not be read now, or may not be read.
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
            break  # an open transaction hides the rest for now
        at = next_offset
    return found


def _keep(tail: Tail, records: list[Record]) -> None:
    """Take older records than those of the same partition before: each key is in one partition only."""
    newest: dict[bytes, Record] = {record.key: record for record in records if record.key is not None}
    for key, record in newest.items():
        tail.newest.setdefault(key, record)

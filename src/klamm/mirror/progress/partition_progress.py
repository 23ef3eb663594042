"""Progress of a mirrored partition: its one declaration, and the forms in which it leaves a task. No I/O.

A task reports it to the driver as JSON and yields it to Spark as a row. Both forms derive from the fields of
``PartitionProgress``.

Ages of records are reported as MirrorMaker 2 does: last, minimum, maximum and mean of the recent past.
"""

from __future__ import annotations

import math
from dataclasses import asdict, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from klamm.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

STARTING: Final = "starting"
"""Reason of partitions that a task has just received."""
NO_REMOTE_TOPIC: Final = "its remote topic does not exist"
"""Reason of partitions that klamm would lead: it was deleted, or is not created yet."""
WINDOW_MS: Final = 30_000
"""Length of a window in milliseconds.

A figure covers the last one to two windows, like Kafka's metrics with two samples.
"""


class Ages(NamedTuple):
    """Summary of record ages in milliseconds."""

    last: float
    least: float
    most: float
    mean: float


class _Window:
    __slots__ = ("began_ms", "count", "least", "most", "total")

    def __init__(self, began_ms: float) -> None:
        self.began_ms = began_ms
        self.count = 0
        self.total = 0.0
        self.least = float("inf")
        self.most = float("-inf")

    def add(self, least: float, most: float, count: int) -> None:
        self.count += count
        self.total += (least + most) / 2 * count
        self.least = min(self.least, least)
        self.most = max(self.most, most)


class RecentAges:
    """Recent record ages of one partition. Confined to one thread."""

    __slots__ = ("_before", "_last", "_now", "count")

    def __init__(self) -> None:
        self.count = 0
        """Number of batches observed."""
        self._before: _Window | None = None
        self._now: _Window | None = None
        self._last = 0.0

    def observe(self, now_ms: float, *, first_timestamp: int, max_timestamp: int, count: int) -> None:
        """Observe a batch.

        Args:
            now_ms: Current time in milliseconds since the epoch.
            first_timestamp: Timestamp of the first record of the batch.
            max_timestamp: Newest timestamp of the batch. Negative: the records have no timestamps, the batch is
                ignored.
            count: Number of records. Those between the two timestamps count with the mean of both.
        """
        if max_timestamp < 0:
            return
        self.count += 1
        newest = now_ms - max_timestamp
        oldest = now_ms - min(first_timestamp, max_timestamp) if first_timestamp >= 0 else newest
        self._turn(now_ms).add(newest, oldest, count)
        self._last = newest

    def summary(self, now_ms: float) -> Ages | None:
        """Return the summary. None: no batch was observed recently."""
        if self._now is None:
            return None
        now, before = self._turn(now_ms), self._before
        if before is None or not before.count:
            return Ages(self._last, now.least, now.most, now.total / now.count) if now.count else None
        return Ages(
            self._last,
            min(before.least, now.least),
            max(before.most, now.most),
            (before.total + now.total) / (before.count + now.count),
        )

    @property
    def holds_until_ms(self) -> float:
        """Wall clock in milliseconds until which the summary stays the same without new batches. Infinity: always."""
        now, before = self._now, self._before
        if now is None or not (now.count or (before is not None and before.count)):
            return math.inf
        return now.began_ms + WINDOW_MS

    def _turn(self, now_ms: float) -> _Window:
        """Return the current window. All windows before the previous one are dropped."""
        window = self._now
        if window is None or not 0 <= now_ms - window.began_ms < WINDOW_MS:
            is_next = window is not None and WINDOW_MS <= now_ms - window.began_ms < 2 * WINDOW_MS
            self._before = window if is_next else None
            window = self._now = _Window(now_ms)
        return window


_AGES: Final = f"struct<{', '.join(f'{name} double' for name in Ages._fields)}>"
_SPARK_TYPES: Final = {"str": "string", "int": "long", "CopyState": "string", "Ages | None": _AGES}
"""Types of Spark by the annotation of a field."""
_SPARK: Final = "spark"
"""Key in the metadata of a field whose type in Spark is another one."""


class CopyState(StrEnum):
    """State of the copying of a partition.

    =========  =========  ==========================================================================================
    From       To         On
    =========  =========  ==========================================================================================
    (start)    COPYING    The start offset is known.
    COPYING    WAITING    A cluster is unavailable, the partition has no leader, or a fetch or a batch failed with a
                          retriable error. ``reason`` says which; nothing is tried before ``retry_at``.
    WAITING    COPYING    A fetch succeeds or the target acknowledges a batch, and no failed batch is left to resend.
    any        PAUSED     The topic or the flow was paused by an operator; back to the state before when it is resumed.
    any        STOPPED    Continuing would lose or duplicate records: source records were purged or truncated, a batch
                          is damaged (the batches before it are copied first), the target always rejects records,
                          the topic was recreated on the source, or the remote topic holds records of unknown origin.
    STOPPED    (start)    Only with a new copier, after ``klamm mirror restart`` or a restart of the mirror.
    any        PROMOTED   klamm has handed the partition over to the brokers of the target (``klamm mirror promote``).
    =========  =========  ==========================================================================================

    Partitions that could not be started yet are reported as WAITING, with ``next_offset`` -1.
    """

    COPYING = "COPYING"
    WAITING = "WAITING"
    """Something is unavailable. The copier retries until it is back."""
    PAUSED = "PAUSED"
    """An operator paused the topic or its flow: no record is fetched."""
    STOPPED = "STOPPED"
    """Continuing would lose or duplicate records. An operator has to act."""
    PROMOTED = "PROMOTED"
    """Brokers of the target lead the remote partition, and nothing is mirrored. ``reason`` says since when."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProgress:
    """Progress of one partition, as a task reports it to the driver."""

    flow: str
    """Name of the flow, ``A->B``."""
    topic: str
    partition: int = field(metadata={_SPARK: "int"})
    remote_topic: str
    next_offset: int
    """Source offset before which all records are on the target (exactly once: committed). -1: not started."""
    end_offset: int
    """End offset of the source partition. -1: not known yet."""
    records: int
    """Number of records copied by this copier. ``bytes`` counts the same records."""
    bytes: int
    last_timestamp: int
    """Newest record timestamp copied, in milliseconds since the epoch. -1: none."""
    state: CopyState
    reason: str
    record_age: Ages | None = None
    """Age of recent records when they were fetched."""
    replication_latency: Ages | None = None
    """Age of recent records when the target acknowledged them."""

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> PartitionProgress:
        """Return the progress that ``to_json`` described. Ages may be missing."""
        ages = {name: Ages(*row[name]) for name in ("record_age", "replication_latency") if row.get(name) is not None}
        return cls(**{**row, "record_age": None, "replication_latency": None, **ages, "state": CopyState(row["state"])})

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)


def spark_schema() -> str:
    """Return the fields of ``PartitionProgress`` as a schema of Spark, in their order."""
    types = {each.name: each.metadata.get(_SPARK) or _SPARK_TYPES[str(each.type)] for each in fields(PartitionProgress)}
    return ", ".join(f"{name} {kind}" for name, kind in types.items())

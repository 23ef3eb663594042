"""Ages of records in the mirror: last, minimum, maximum and mean of the recent past, as MirrorMaker 2 reports them."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

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
        """Wall clock in milliseconds until which the summary stays the same without new batches. Infinity: for good."""
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

"""How old records are on their way: last, least, most and mean of the recent past, as MirrorMaker 2 reports them."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

WINDOW_MS: Final = 30_000
"""A figure looks back over one to two windows, as Kafka's metrics with their two samples do."""


class Ages(NamedTuple):
    """A summary, in milliseconds."""

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
    """Ages of the batches of one partition. Thread-confined."""

    __slots__ = ("_before", "_last", "_now", "count")

    def __init__(self) -> None:
        self.count = 0
        """How many batches were observed."""
        self._before: _Window | None = None
        self._now: _Window | None = None
        self._last = 0.0

    def observe(self, now_ms: float, *, first_timestamp: int, max_timestamp: int, count: int) -> None:
        """Count a batch.

        Args:
            now_ms: the time, milliseconds since the epoch.
            first_timestamp: of the batch's first record.
            max_timestamp: of its newest record; negative when its records have none, then nothing is counted.
            count: how many records it has; what lies between the two timestamps counts as their mean.
        """
        if max_timestamp < 0:
            return
        self.count += 1
        newest = now_ms - max_timestamp
        oldest = now_ms - min(first_timestamp, max_timestamp) if first_timestamp >= 0 else newest
        self._turn(now_ms).add(newest, oldest, count)
        self._last = newest

    def summary(self, now_ms: float) -> Ages | None:
        """Return the figures; None when nothing was counted of late."""
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
        """Until when a summary of now stays what it is if nothing more is observed; infinity: for good."""
        now, before = self._now, self._before
        if now is None or not (now.count or (before is not None and before.count)):
            return math.inf
        return now.began_ms + WINDOW_MS

    def _turn(self, now_ms: float) -> _Window:
        """Return the window of now; what is older than the one before it is forgotten."""
        window = self._now
        if window is None or not 0 <= now_ms - window.began_ms < WINDOW_MS:
            is_next = window is not None and WINDOW_MS <= now_ms - window.began_ms < 2 * WINDOW_MS
            self._before = window if is_next else None
            window = self._now = _Window(now_ms)
        return window

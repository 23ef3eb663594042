"""Deadlines of calls."""

from __future__ import annotations

import time


class Deadline:
    """Deadline of a unit of work, on the monotonic clock."""

    __slots__ = ("_ends_at", "limit_ms")

    def __init__(self, limit_ms: int) -> None:
        self.limit_ms = limit_ms
        self._ends_at = time.monotonic() + limit_ms / 1000

    def left_s(self) -> float:
        """Remaining seconds, never below 0."""
        return max(0.0, self._ends_at - time.monotonic())

    def left_ms(self) -> int:
        """Remaining milliseconds, never below 0."""
        return int(self.left_s() * 1000)

    def passed(self) -> bool:
        """Return whether the deadline has passed."""
        return self.left_ms() == 0

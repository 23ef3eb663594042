"""Deadline and result of a call."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

Value = TypeVar("Value")


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


class Outcome(Future[Value]):
    """Future that can also be awaited: ``outcome.result(timeout)`` in a thread, ``await outcome`` in a coroutine."""

    def __await__(self) -> Generator[Any, None, Value]:
        """Wait on the running event loop. Cancelling the waiting task does not stop the call."""
        return asyncio.wrap_future(self).__await__()

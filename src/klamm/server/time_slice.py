"""Time slices of long requests: they hold the event loop for a few milliseconds and then let other requests run."""

from __future__ import annotations

import asyncio
import time
from itertools import islice
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

Item = TypeVar("Item")

SLICE_S: Final = 0.005
"""Seconds that one request may hold the event loop. Threads that hold the interpreter lock may prolong this."""
_AT_ONCE: Final = 64
"""Number of cheap items (microseconds each) that are processed between two looks at the clock."""


class TimeSlice:
    """Share of the event loop for one request.

    During a pause other requests may change any state. So a handler must decide and apply within one slice, or check
    after its pauses whether the state it read has changed (``pauses``).

    Args:
        seconds: Length of a slice; None means ``SLICE_S``, ``math.inf`` means no pauses.
    """

    __slots__ = ("_ends_at", "_seconds", "pauses")

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = SLICE_S if seconds is None else seconds
        self._ends_at = time.perf_counter() + self._seconds
        self.pauses = 0
        """Number of pauses so far."""

    async def give_way(self) -> None:
        """Let other requests run when the slice is used up; otherwise return at once."""
        if time.perf_counter() < self._ends_at:
            return
        self.pauses += 1
        await asyncio.sleep(0)
        self._ends_at = time.perf_counter() + self._seconds

    def over(self, items: Iterable[Item]) -> InSlices[Item]:
        """Iterate over items, with a possible pause before each one."""
        return InSlices(self, items)

    async def listed(self, items: Iterable[Item]) -> list[Item]:
        """Return a list of items that take microseconds each; the counterpart of a list comprehension."""
        iterator = iter(items)
        found = list(islice(iterator, _AT_ONCE))
        while found and len(found) % _AT_ONCE == 0:
            before = len(found)
            await self.give_way()
            found += islice(iterator, _AT_ONCE)
            if len(found) == before:
                break
        return found


class InSlices(Generic[Item]):
    """Asynchronous iterator that pauses when its time slice is used up. It need not be closed."""

    __slots__ = ("_items", "_slice")

    def __init__(self, time_slice: TimeSlice, items: Iterable[Item]) -> None:
        self._slice = time_slice
        self._items = iter(items)

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> Item:
        """Return the next item."""
        await self._slice.give_way()
        for item in self._items:
            return item
        raise StopAsyncIteration

"""How long one request may hold the event loop: a long one is worked off in slices, and others are served between."""

from __future__ import annotations

import asyncio
import time
from itertools import islice
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

Item = TypeVar("Item")

SLICE_S: Final = 0.005
"""What the longest request costs others at most; as long as the interpreter leaves the event loop to a thread."""
_AT_ONCE: Final = 64
"""How many of what costs microseconds are done before looking at the clock."""


class TimeSlice:
    """The share that one request has of the event loop.

    Between two slices anything may be changed by others: what is decided is applied within one slice.

    Args:
        seconds: How long a slice is, ``SLICE_S`` if it is not told; without end (``math.inf``) nobody else is served.
    """

    __slots__ = ("_ends_at", "_seconds", "pauses")

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = SLICE_S if seconds is None else seconds
        self._ends_at = time.perf_counter() + self._seconds
        self.pauses = 0
        """How often others had their turn."""

    async def give_way(self) -> None:
        """Serve others when this request has held the event loop for a slice; otherwise return at once."""
        if time.perf_counter() < self._ends_at:
            return
        self.pauses += 1
        await asyncio.sleep(0)
        self._ends_at = time.perf_counter() + self._seconds

    def over(self, items: Iterable[Item]) -> InSlices[Item]:
        """Iterate, and give way before each item."""
        return InSlices(self, items)

    async def listed(self, items: Iterable[Item]) -> list[Item]:
        """Return all items, which cost some microseconds each; the counterpart of a list comprehension."""
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
    """An iteration that does not hold the event loop for longer than a slice; it needs no closing."""

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

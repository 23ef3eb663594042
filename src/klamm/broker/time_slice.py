"""How long one request may hold the event loop: a long one is worked off in slices, and others are served between."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

Item = TypeVar("Item")

SLICE_S: Final = 0.005
"""What the longest request costs others at most; as long as the interpreter leaves the event loop to a thread."""


class TimeSlice:
    """The share that one request has of the event loop.

    Between two slices anything may be changed by others: what is decided is applied within one slice.
    """

    __slots__ = ("_ends_at", "pauses")

    def __init__(self) -> None:
        self._ends_at = time.perf_counter() + SLICE_S
        self.pauses = 0
        """How often others had their turn."""

    async def give_way(self) -> None:
        """Serve others when this request has held the event loop for a slice; otherwise return at once."""
        if time.perf_counter() < self._ends_at:
            return
        self.pauses += 1
        await asyncio.sleep(0)
        self._ends_at = time.perf_counter() + SLICE_S

    def over(self, items: Iterable[Item]) -> InSlices[Item]:
        """Iterate, and give way before each item."""
        return InSlices(self, items)


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

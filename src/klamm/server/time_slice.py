"""Time slices of long requests: they hold the event loop for a few milliseconds and then let other requests run."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

Item = TypeVar("Item")
Result = TypeVar("Result")

SLICE_S: Final = 0.005
"""Seconds that one request may hold the event loop. Threads that hold the interpreter lock may prolong this."""
_AT_ONCE: Final = 64
"""Number of cheap items (microseconds each) that are processed between two looks at the clock."""


def run_at_once(steps: Generator[None, None, Result]) -> Result:
    """Return the result of a generator that yields between its steps, without pauses (see ``TimeSlice.run``)."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


class TimeSlice:
    """Share of the event loop for one request.

    During a pause other requests may change any state. So a handler must decide and apply within one slice, or check
    after its pauses whether the state it read has changed (``pauses``).

    Args:
        seconds: Length of a slice; None means ``SLICE_S``, ``math.inf`` means no pauses.
    """

    __slots__ = ("_seconds", "ends_at", "pauses")

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = SLICE_S if seconds is None else seconds
        self.ends_at = time.perf_counter() + self._seconds
        """End of the slice, by ``time.perf_counter``."""
        self.pauses = 0
        """Number of pauses so far."""

    async def give_way(self) -> None:
        """Let other requests run when the slice is used up; otherwise return at once."""
        if time.perf_counter() < self.ends_at:
            return
        self.pauses += 1
        await asyncio.sleep(0)
        self.restart()

    def restart(self) -> None:
        """Begin a new slice, after a pause or another wait during which others were served."""
        self.ends_at = time.perf_counter() + self._seconds

    def over(self, items: Iterable[Item]) -> InSlices[Item]:
        """Iterate over items, with a possible pause before each one."""
        return InSlices(self, iter(items))

    async def run(self, steps: Generator[None, None, Result]) -> Result:
        """Return the result of a generator that yields between its steps, with possible pauses there.

        For work that must be done at once when it is short (``run_at_once``).
        """
        while True:
            try:
                for _ in range(_AT_ONCE):
                    next(steps)
            except StopIteration as end:
                result: Result = end.value
                return result
            await self.give_way()

    async def listed(self, items: Iterable[Item]) -> list[Item]:
        """Build a list, with a possible pause after every few items. For items that take microseconds each."""
        iterator = iter(items)
        found = list(islice(iterator, _AT_ONCE))
        while found and len(found) % _AT_ONCE == 0:
            before = len(found)
            await self.give_way()
            found += islice(iterator, _AT_ONCE)
            if len(found) == before:
                break
        return found

    async def free(self, *lists: list[Any]) -> None:
        """Empty lists, with a possible pause after every few items. To free 100,000 objects at once takes 30 ms."""
        for items in lists:
            while len(items) > _AT_ONCE:
                del items[-_AT_ONCE:]
                await self.give_way()
            items.clear()


@dataclass(frozen=True, slots=True)
class InSlices(Generic[Item]):
    """Asynchronous iterator that pauses when its time slice is used up. It need not be closed."""

    time_slice: TimeSlice
    items: Iterator[Item]

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> Item:
        """Return the next item."""
        if time.perf_counter() >= self.time_slice.ends_at:
            await self.time_slice.give_way()
        for item in self.items:
            return item
        raise StopAsyncIteration

"""Fair use of the event loop: time slices of long requests, and turns of connections with many queued requests."""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeVar

from klamm.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator

Item = TypeVar("Item")
Result = TypeVar("Result")
Decision = TypeVar("Decision")

SLICE_S: Final = 0.005
"""Seconds that one request may hold the event loop. Threads that hold the interpreter lock may prolong this."""
_AT_ONCE: Final = 64
"""Number of cheap items (microseconds each) that are processed between two looks at the clock."""


def run_at_once(steps: Coroutine[None, None, Result]) -> Result:
    """Return the result of a coroutine that never waits, without a task. Its time slice is ``math.inf``."""
    try:
        steps.send(None)
    except StopIteration as end:
        result: Result = end.value
        return result
    steps.close()
    raise RuntimeError("The coroutine waits")


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

    async def listed(self, items: Iterable[Item]) -> list[Item]:
        """Build a list, with a possible pause after every few items. For items that take microseconds each."""
        iterator = iter(items)
        result = list(islice(iterator, _AT_ONCE))
        while result and len(result) % _AT_ONCE == 0:
            before = len(result)
            await self.give_way()
            result += islice(iterator, _AT_ONCE)
            if len(result) == before:
                break
        return result

    async def sorted(self, items: Iterable[Item], key: Callable[[Item], Any]) -> list[Item]:
        """Build a sorted list, with a possible pause after every few items."""
        iterator = iter(items)
        runs: list[list[Item]] = []
        while run := sorted(islice(iterator, _AT_ONCE), key=key):
            runs.append(run)
            await self.give_way()
        return await self.listed(heapq.merge(*runs, key=key))

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


ROUND_S: Final = 0.02
"""Approximate seconds of one round over all connections with queued requests: the longest wait of a client."""


class Turns:
    """Scheduler of the turns of connections with queued requests. Used on the event loop only.

    A client may send thousands of small requests at once. Each is answered without a pause, so without turns the broker
    would serve the first connection to its end before it serves another.

    A connection's turn starts when a frame arrives after a wait, or when ``next`` returns. During its turn the
    connection serves queued requests without a pause. A request is never interrupted by this; the time is checked
    between requests.

    =======================  =======================================================================================
    Connections that wait    Length of a turn
    =======================  =======================================================================================
    0 to 3                   ``SLICE_S`` (5 ms)
    n > 3                    ``ROUND_S / (n + 1)``, so one round over all of them takes about ``ROUND_S`` (20 ms)
    =======================  =======================================================================================

    After its turn the connection yields to the event loop once. The loop runs all other ready connections before it
    returns to this one.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting = 0

    def ends_at(self) -> float:
        """Return the end of a turn that starts now, by ``time.perf_counter``. The more wait, the shorter it is."""
        return time.perf_counter() + min(SLICE_S, ROUND_S / (self._waiting + 1))

    def wait(self) -> None:
        """Count a connection that waits for its next turn, until ``take``."""
        self._waiting += 1

    def take(self) -> float:
        """Start the turn of a connection that waits; return its end."""
        self._waiting -= 1
        return self.ends_at()

    async def next(self) -> float:
        """Let all other connections have their turn; return the end of the new turn."""
        self.wait()
        try:
            await asyncio.sleep(0)
        except BaseException:
            self.take()
            raise
        return self.take()


class ChangeCounter(Protocol):
    """Revision of a state: a number that every change of the state increases."""

    @property
    def changes(self) -> int:
        """Number of changes so far."""
        ...


async def decide_in_slices(
    decide: Callable[[TimeSlice], Awaitable[Decision]], revision: ChangeCounter, time_slice: TimeSlice
) -> Decision:
    """Decide on a long request, with pauses for other requests. The caller must apply the decision at once.

    If another request changed the state during a pause, decide again without a pause.

    Args:
        decide: Function that decides, with pauses by the time slice that it gets.
        revision: ChangeCounter of the state that the decision depends on.
        time_slice: Time slice of the request.
    """
    before = revision.changes
    decision = await decide(time_slice)
    return decision if revision.changes == before else await decide(TimeSlice(math.inf))

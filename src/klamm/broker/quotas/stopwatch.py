"""How long a request keeps the broker busy: not how long it waits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from klamm.configs.quotas import QuotaLimit

T = TypeVar("T")


class Stopwatch:
    """Adds up what is spent on one request of a client that has a limit for that."""

    __slots__ = ("limit", "seconds")

    def __init__(self, limit: QuotaLimit) -> None:
        self.limit = limit
        self.seconds = 0.0
        """Spent since it was read out last."""

    def read_out(self) -> float:
        """Return the seconds so far, and begin at 0 again."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    def call(self, step: Callable[..., T], *args: Any) -> T:
        """Measure a call, in whatever thread: nothing else of the request runs meanwhile."""
        began = time.perf_counter()
        try:
            return step(*args)
        finally:
            self.seconds += time.perf_counter() - began


def timed(work: Awaitable[T], stopwatch: Stopwatch | None) -> Awaitable[T]:
    """Return what is to be awaited instead of ``work``; without a stopwatch that is the work itself."""
    return work if stopwatch is None else _Timed(work, stopwatch)


class _Timed(Generic[T]):
    """A coroutine of which only the steps are measured that it runs by itself, not what it waits for."""

    __slots__ = ("_stopwatch", "_work")

    def __init__(self, work: Awaitable[T], stopwatch: Stopwatch) -> None:
        self._work = work
        self._stopwatch = stopwatch

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._work.__await__()
        sent: Any = None
        thrown: BaseException | None = None
        while True:
            began = time.perf_counter()
            try:
                waited_for = steps.send(sent) if thrown is None else steps.throw(thrown)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]  # StopIteration does not tell its type
            finally:
                thrown = None  # an error that knows this frame would keep itself otherwise
                self._stopwatch.seconds += time.perf_counter() - began
            try:
                sent = yield waited_for
            except BaseException as error:  # noqa: BLE001  # a cancellation is passed on like all else
                thrown = error

"""Measurement of the time a request keeps the broker busy. Time spent waiting is not counted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from klamm.configs.quotas import QuotaLimit

T = TypeVar("T")


class Stopwatch:
    """Busy time of one request of a client with a ``request_percentage`` quota."""

    __slots__ = ("limit", "seconds")

    def __init__(self, limit: QuotaLimit) -> None:
        self.limit = limit
        self.seconds = 0.0
        """Seconds since the last ``read_out``."""

    def read_out(self) -> float:
        """Return the seconds so far and restart at 0."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    def call(self, step: Callable[..., T], *args: Any) -> T:
        """Call a function and measure it.

        Any thread may do this, because no other part of the request runs meanwhile.
        """
        began = time.perf_counter()
        try:
            return step(*args)
        finally:
            self.seconds += time.perf_counter() - began


def timed(work: Awaitable[T], stopwatch: Stopwatch | None) -> Awaitable[T]:
    """Return an awaitable that measures ``work``; without a stopwatch, ``work`` itself."""
    return work if stopwatch is None else _Timed(work, stopwatch)


class _Timed(Generic[T]):
    """Awaitable that measures the steps a coroutine runs, but not the time it waits between them."""

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
                return done.value  # type: ignore[no-any-return]  # StopIteration is not generic
            finally:
                thrown = None  # avoids a reference cycle: the error's traceback refers to this frame
                self._stopwatch.seconds += time.perf_counter() - began
            try:
                sent = yield waited_for
            except BaseException as error:  # noqa: BLE001  # a cancellation is passed on like all else
                thrown = error

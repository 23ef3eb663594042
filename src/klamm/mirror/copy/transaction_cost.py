"""Measurement of the time that starting and committing a transaction takes."""

from __future__ import annotations

import contextlib
import statistics
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LAST_ONES: Final = 5


class TransactionOverhead:
    """Overhead of recent transactions in seconds. No record of the shard is sent during this time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._of_this_one = 0.0
        self._of_the_last = deque[float](maxlen=_LAST_ONES)
        self.seconds = 0.0
        """Median overhead of the last five transactions, in seconds. A mean would let one slow broker response lengthen
        the next transactions and delay their records.
        """

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Add the duration of the block to the overhead of the current transaction."""
        began = self._clock()
        try:
            yield
        finally:
            self._of_this_one += self._clock() - began

    def next_one(self) -> None:
        """Finish the measurement of the current transaction."""
        self._of_the_last.append(self._of_this_one)
        self.seconds = statistics.median_low(self._of_the_last)
        self._of_this_one = 0.0

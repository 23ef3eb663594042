"""What a transaction costs before it takes records and after it has taken them."""

from __future__ import annotations

import contextlib
import statistics
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LAST_ONES: Final = 5


class Overhead:
    """How long beginning and ending a transaction takes; nothing of the shard moves meanwhile."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._of_this_one = 0.0
        self._of_the_last = deque[float](maxlen=_LAST_ONES)
        self.seconds = 0.0
        """Of the last few, the one in the middle. By a mean a single one for which a broker took long made those after
        it longer, too, and records wait that had come in time."""

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count what the block takes to the transaction at hand."""
        began = self._clock()
        try:
            yield
        finally:
            self._of_this_one += self._clock() - began

    def next_one(self) -> None:
        """The transaction at hand is over."""
        self._of_the_last.append(self._of_this_one)
        self.seconds = statistics.median_low(self._of_the_last)
        self._of_this_one = 0.0

"""What a transaction costs before it takes records and after it has taken them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SMOOTHING: Final = 4


class Overhead:
    """How long beginning and ending a transaction takes; nothing of the shard moves meanwhile."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._of_this_one = 0.0
        self.seconds = 0.0
        """Smoothed over the last few."""

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
        self.seconds += (self._of_this_one - self.seconds) / _SMOOTHING
        self._of_this_one = 0.0

"""Samples of the last 15 minutes, for the plots of a page. They are taken only while the page is served."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WINDOW_S: Final = 900.0
"""Seconds that the samples cover, and that a plot shows."""
SAMPLE_EVERY_S: Final = 5.0
_KEPT: Final = int(WINDOW_S / SAMPLE_EVERY_S) + 1


class Sample(NamedTuple):
    """Values of one moment. Each plot of a page shows one of them."""

    at_s: float
    """Seconds since the epoch."""
    values: tuple[float | None, ...]
    """None: unknown at that moment."""


class Samples:
    """Samples of the last 15 minutes by name, such as that of a flow. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_name: dict[str, deque[Sample]] = {}

    def add(self, at_s: float, values: Mapping[str, tuple[float | None, ...]]) -> None:
        """Add one sample per name, and drop the oldest one of a full ring."""
        with self._lock:
            for name, some in values.items():
                self._by_name.setdefault(name, deque(maxlen=_KEPT)).append(Sample(at_s, some))

    def by_name(self) -> Mapping[str, Sequence[Sample]]:
        """Return the samples of each name, the oldest one first."""
        with self._lock:
            return {name: tuple(samples) for name, samples in self._by_name.items()}

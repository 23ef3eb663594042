"""Tuning of Python's garbage collector, so that it never holds the event loop for long.

A full collection visits every object. With 10,000 topics this takes a tenth of a second, and a request that creates
some hundred thousand objects triggers several of them. After each collection that includes older objects, all survivors
are frozen: the collector then skips them. They are either long-lived (topics, configs, code) or belong to such a
request, which frees them by reference counting. From time to time all objects are unfrozen for one full collection.
"""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_NEW: Final = 0
_FULL: Final = 2
_THRESHOLDS: Final = (5_000, 5, 20)
"""Thresholds of the generations: seven times Python's default for new objects, so most objects of a request are free by
then. One collection visits 30,000 objects, which takes some milliseconds.
"""
EVERYTHING_EVERY_S: Final = 900.0
"""Seconds after which all objects are collected. Frozen objects that became garbage stay in memory for so long."""
EVERYTHING_AFTER: Final = 200
"""Number of freezes after which all objects are collected as well. Each freezes at most 30,000 objects that may become
garbage.
"""


class GarbageSettings:
    """Garbage collector settings: freeze surviving objects, and collect all objects from time to time."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._looked_at_everything = now_s()
        self._times_set_aside = 0

    def apply(self) -> None:
        """Freeze all existing objects and enable the collector. Call this once, after all state is loaded.

        Nothing is collected first: of what a start creates, some hundred objects are garbage, and finding them takes
        15 ms of the start.
        """
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)
        gc.callbacks.append(self.on_collection)
        gc.enable()

    def on_collection(self, phase: str, info: dict[str, Any]) -> None:
        """Freeze the survivors after a collection; unfreeze all objects before a due full one. Called by Python."""
        if info["generation"] == _NEW:
            return
        if phase == "stop":
            gc.freeze()
            self._times_set_aside += 1
        elif info["generation"] == _FULL and self._is_time():
            self._looked_at_everything = self._now_s()
            self._times_set_aside = 0
            gc.unfreeze()

    def _is_time(self) -> bool:
        is_much = self._times_set_aside >= EVERYTHING_AFTER
        return is_much or self._now_s() - self._looked_at_everything >= EVERYTHING_EVERY_S

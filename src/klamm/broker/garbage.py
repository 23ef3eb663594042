"""Python's garbage collection, tuned so that it never holds the event loop for long.

A full collection looks at every object there is; with 10,000 topics that takes a tenth of a second, and a request that
makes some hundred thousand objects sets off several. What has survived two looks, one while it is new and one later, is
topics, configs and code, or belongs to such a request, which needs no collection to be over: it is set aside.
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
"""Seven times as many new objects as Python waits for by itself: most of a request is over when it looks. 30,000 of
them, some milliseconds, is all that a look comes to then."""
EVERYTHING_EVERY_S: Final = 900.0
"""How long garbage may lie that had been set aside before it became garbage."""
EVERYTHING_AFTER: Final = 200
"""After how many collections that set something aside everything is looked at all the same: each sets 30,000 objects
aside at most, which may have become garbage."""


class GarbageSettings:
    """Sets what has survived aside, and looks at everything now and then."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._looked_at_everything = now_s()
        self._times_set_aside = 0

    def apply(self) -> None:
        """Begin; called once all state is loaded."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)
        gc.callbacks.append(self.on_collection)

    def on_collection(self, phase: str, info: dict[str, Any]) -> None:
        """Set aside what has survived two collections, or take it back before a full one; called by Python."""
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

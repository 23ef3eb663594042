"""Python's garbage collection, tuned so that it never holds the event loop for long.

A full collection looks at every object there is; with 10,000 topics that takes a tenth of a second, and a request that
makes some thousand objects sets off several. What has survived one is topics, configs and code: it is set aside.
"""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_FULL: Final = 2
_THRESHOLDS: Final = (5_000, 10, 10)
"""Seven times as many new objects as Python waits for by itself: most of a request is over when it looks."""
EVERYTHING_EVERY_S: Final = 900.0
"""How long garbage may lie that had survived a full collection before it became garbage."""


class GarbageSettings:
    """Sets what has survived a full collection aside, and looks at everything now and then."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._looked_at_everything = now_s()

    def apply(self) -> None:
        """Begin; called once all state is loaded."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)
        gc.callbacks.append(self.on_collection)

    def on_collection(self, phase: str, info: dict[str, Any]) -> None:
        """Set aside what has survived a full collection, or take it back before one; called by Python."""
        if info["generation"] != _FULL:
            return
        if phase == "stop":
            gc.freeze()
        elif self._now_s() - self._looked_at_everything >= EVERYTHING_EVERY_S:
            self._looked_at_everything = self._now_s()
            gc.unfreeze()

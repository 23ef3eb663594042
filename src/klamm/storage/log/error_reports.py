"""Log lines about what the disk refuses again and again."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

_REPEAT_S: Final = 600.0


class ErrorReports:
    """Errors by what has failed: the first one is logged at once, those that follow at most every ten minutes.

    Args:
        now_s: A clock that only goes forward, in seconds.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._silent_until: dict[str, float] = {}

    def report(self, name: str, failed: str, error: Exception) -> None:
        """Log that something failed, unless that was logged lately.

        Args:
            name: The subject of the sentence, as ``topic-partition``.
            failed: The rest of the sentence: ``cannot be flushed``.
            error: The reason.
        """
        now_s = self._now_s()
        sentence = f"{name} {failed}"
        if now_s >= self._silent_until.get(sentence, now_s):
            self._silent_until[sentence] = now_s + _REPEAT_S
            logger.error("%s, and is tried again: %s", sentence, error)

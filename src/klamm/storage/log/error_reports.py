"""Rate limit for log lines about errors that occur again and again."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

_REPEAT_S: Final = 600.0


class ErrorReports:
    """Logged errors by text: the first one is logged at once, repetitions at most every ten minutes.

    Args:
        now_s: Monotonic clock, in seconds.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._silent_until: dict[str, float] = {}

    def report(self, name: str, failed: str, error: Exception) -> None:
        """Log an error, unless the same one was logged in the last ten minutes.

        Args:
            name: Subject of the sentence, such as ``topic-partition``.
            failed: Rest of the sentence, such as ``cannot be flushed``.
            error: Reason.
        """
        now_s = self._now_s()
        sentence = f"{name} {failed}"
        if now_s >= self._silent_until.get(sentence, now_s):
            self._silent_until[sentence] = now_s + _REPEAT_S
            logger.error("%s, will be retried: %s", sentence, error)

"""Repeated attempts: the pause before the next one, and failures of which each reason is logged once."""

from __future__ import annotations

import re
from typing import Final

_NUMBERS: Final = re.compile(r"\d+")
_MAX_REASONS: Final = 100
"""Maximum number of reasons to remember. An unavailable cluster has a handful."""
_MAX_DOUBLINGS: Final = 30
"""Number of doublings after which a backoff grows no further. It has reached its maximum long before."""


def backoff_s(failures: int, first_s: float, max_s: float) -> float:
    """Return the pause before an attempt, in seconds: it doubles with each failure, without jitter.

    Args:
        failures: Number of failures in a row before the latest one, at least 0.
        first_s: Pause after the first failure, in seconds.
        max_s: Longest pause, in seconds.
    """
    return min(first_s * 2.0 ** min(failures, _MAX_DOUBLINGS), max_s)


class Backoff:
    """Pauses between attempts that fail, until one succeeds.

    Args:
        first_s: Pause after the first failure, in seconds.
        max_s: Longest pause, in seconds.
    """

    def __init__(self, first_s: float, max_s: float) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self.failures = 0
        """Number of failures since the last success."""

    def next_s(self) -> float:
        """Count a failure and return the pause after it, in seconds."""
        pause_s = backoff_s(self.failures, self._first_s, self._max_s)
        self.failures += 1
        return pause_s

    def reset(self) -> None:
        """Begin again with the first pause, because an attempt has succeeded."""
        self.failures = 0


class LoggedReasons:
    """Reasons that were logged since a failure began. Each is logged once until the failure is over.

    While a cluster is unavailable, the errors of its calls alternate: refused, closed, timed out after 59,993 or
    59,998 ms. Comparing a reason with the last one only would flood the log. So each is compared with all logged
    reasons, and digits are ignored.
    """

    def __init__(self) -> None:
        self._logged: set[str] = set()

    @property
    def has_any(self) -> bool:
        """Return whether a reason was logged since the last success: the failure lasts."""
        return bool(self._logged)

    def is_new(self, reason: str) -> bool:
        """Return whether a reason was not logged yet, and remember it as logged."""
        key = _NUMBERS.sub("#", reason)
        if key in self._logged or len(self._logged) >= _MAX_REASONS:
            return False
        self._logged.add(key)
        return True

    def clear(self) -> bool:
        """Forget all reasons, because the failure is over. Return whether there were any."""
        had_any = bool(self._logged)
        self._logged.clear()
        return had_any

"""Log deduplication for failures that repeat."""

from __future__ import annotations

import re
from typing import Final

_NUMBERS: Final = re.compile(r"\d+")
_MOST: Final = 100
"""Most reasons to remember. An unavailable cluster has a handful."""


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
        if key in self._logged or len(self._logged) >= _MOST:
            return False
        self._logged.add(key)
        return True

    def clear(self) -> bool:
        """Forget all reasons, because the failure is over. Return whether there were any."""
        had_any = bool(self._logged)
        self._logged.clear()
        return had_any

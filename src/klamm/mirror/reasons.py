"""Reasons for which something fails again and again, as they are logged."""

from __future__ import annotations

import re
from typing import Final

_NUMBERS: Final = re.compile(r"\d+")
_MOST: Final = 100
"""Reasons to remember: a cluster that is away has a handful."""


class LoggedReasons:
    """The reasons logged since a failure began, so that each is logged once until it is over.

    While a cluster is away, its calls fail in turns: refused, closed, timed out after 59,993 or 59,998 ms. Comparing a
    reason with the last one only would fill the log, so all of them count, and numbers do not.
    """

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def is_new(self, reason: str) -> bool:
        """Return whether a reason was not logged yet, and count it as logged."""
        key = _NUMBERS.sub("#", reason)
        if key in self._logged or len(self._logged) >= _MOST:
            return False
        self._logged.add(key)
        return True

    def clear(self) -> bool:
        """Forget all, as the failure is over; return whether there was one."""
        had_any = bool(self._logged)
        self._logged.clear()
        return had_any

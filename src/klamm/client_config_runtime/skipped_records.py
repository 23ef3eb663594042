"""Stored records of client configs and registrations that cannot be used."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

logger = logging.getLogger(__name__)

_MAX_SKIPPED: Final = 1000
_MAX_REASON: Final = 500
"""Limit for a kept reason in characters. It quotes values of any length."""


class SkippedRecords:
    """Stored records that cannot be used, wholly or in part. Each is logged once. Used on the event loop only.

    Args:
        place: Where the records are stored, for messages.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._reasons: dict[int, str] = {}
        """Reasons by the hash of the record, which may be long."""
        self._logged: dict[int, str] = {}

    @property
    def reasons(self) -> Sequence[str]:
        """Reason of each skipped record, at most 1,000."""
        return [f"{self._place}: {reason}" for reason in self._reasons.values()]

    def begin(self) -> None:
        """Start over, before all records are read again."""
        self._logged, self._reasons = self._reasons, {}

    def put(self, record: Hashable, reason: str) -> None:
        """Record why a record is skipped; with an empty reason, that it is usable now."""
        key, reason = hash(record), reason[:_MAX_REASON]
        if not reason:
            self._reasons.pop(key, None)
        elif key in self._reasons or len(self._reasons) < _MAX_SKIPPED:
            if reason not in (self._reasons.get(key), self._logged.get(key)):
                logger.warning("%s: a record was skipped: %s", self._place, reason)
            self._reasons[key] = reason

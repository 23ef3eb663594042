"""Timestamps of records as calendar times."""

from __future__ import annotations

from datetime import UTC, datetime


def calendar_time(timestamp_ms: int) -> datetime | None:
    """Return a timestamp in UTC, or None outside the years 1 to 9999. Producers may choose any, such as microseconds.

    Args:
        timestamp_ms: Milliseconds since the epoch.
    """
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return None

"""Wall clock and timestamps in Kafka's unit."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def wall_clock_ms() -> int:
    """Return the wall clock time, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def calendar_time(timestamp_ms: int) -> datetime | None:
    """Return a timestamp in UTC, or None outside the years 1 to 9999. Producers may choose any, such as microseconds.

    Args:
        timestamp_ms: Milliseconds since the epoch.
    """
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return None

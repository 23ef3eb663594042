"""Timestamps in flags and results, in ISO 8601."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import Final

TO_HELP: Final = "ISO 8601, e.g. 2026-11-21T09:30:00Z; UTC without a zone"
"""Help text of flags that take a timestamp."""


def moment_ms(text: str) -> int:
    """Parse a timestamp and return milliseconds since the epoch. A timestamp without a zone is in UTC.

    Raises:
        argparse.ArgumentTypeError: The text is not a timestamp.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text}: expected a time as in ISO 8601, e.g. 2026-11-21T09:30:00Z"
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def shown_moment(at_ms: int) -> str:
    """Format milliseconds since the epoch as ``2026-11-21T09:30:00.000Z``."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

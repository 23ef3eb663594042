"""Durations in words, for readers of configs in milliseconds."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ((86_400_000, "day", "days"), (3_600_000, "h", "h"), (60_000, "min", "min"), (1_000, "s", "s"))
_MAX_SHOWN_MS: Final = 1_000 * 365 * 86_400_000
"""Longest duration shown in words. A longer one practically means "never", and its number of days is not helpful."""


def in_words(milliseconds: int) -> str | None:
    """Return a duration in at most two units, such as ``7 days`` or ``1 h 30 min``.

    Returns:
        None for less than a second, more than a thousand years, or a duration that two units cannot express exactly.
    """
    if not _UNITS[-1][0] <= milliseconds <= _MAX_SHOWN_MS:
        return None
    parts: list[str] = []
    left = milliseconds
    for size, one, many in _UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count:,} {one if count == 1 else many}")
    return " ".join(parts) if not left and len(parts) <= 2 else None  # noqa: PLR2004  # units


def duration_of(name: str, value: str) -> str | None:
    """Return a config's value in words, or None if it is not in milliseconds or the words add nothing."""
    is_number = value.isascii() and value.isdigit() and len(value) < len(str(2**63))
    return in_words(int(value)) if name.endswith(".ms") and is_number else None


def with_duration(name: str, value: str) -> str:
    """Return a config's value, followed by its duration in words if it is in milliseconds."""
    words = duration_of(name, value)
    return value if words is None else f"{value} ({words})"

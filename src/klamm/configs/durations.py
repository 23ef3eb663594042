"""Durations in words, for people who read a config in milliseconds."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ((86_400_000, "day", "days"), (3_600_000, "h", "h"), (60_000, "min", "min"), (1_000, "s", "s"))
_MAX_SHOWN_MS: Final = 1_000 * 365 * 86_400_000
"""A longer duration stands for "never"; its number of days would say less."""


def in_words(milliseconds: int) -> str | None:
    """Return a duration in at most two units, as ``7 days`` or ``1 h 30 min``.

    Returns:
        None below a second, beyond a thousand years, and where two units would not be exact.
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
    """Return the value of a config in words, None when the config is not in milliseconds or the words say no more."""
    is_number = value.isascii() and value.isdigit() and len(value) < len(str(2**63))
    return in_words(int(value)) if name.endswith(".ms") and is_number else None


def with_duration(name: str, value: str) -> str:
    """Return the value of a config, followed by its duration in words where it is in milliseconds."""
    words = duration_of(name, value)
    return value if words is None else f"{value} ({words})"

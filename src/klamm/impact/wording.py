"""Figures in the words of findings."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_SIZE_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")
_STEP: Final = 1024
_DURATIONS: Final = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second"))


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, such as ``1 partition`` or ``2,000 partitions``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def size(count: float) -> str:
    """Return a number of bytes, such as ``1.5 GiB``."""
    unit = 0
    while count >= _STEP and unit < len(_SIZE_UNITS) - 1:
        count, unit = count / _STEP, unit + 1
    return counted(int(count), "byte") if unit == 0 else f"{count:,.1f} {_SIZE_UNITS[unit]}"


def duration(milliseconds: int) -> str:
    """Return a duration rounded down to its largest unit, such as ``7 days``."""
    for unit, name in _DURATIONS:
        if milliseconds >= unit:
            return counted(milliseconds // unit, name)
    return f"{milliseconds} ms"


def moment(milliseconds: int) -> str:
    """Return a time in UTC to the second."""
    return datetime.fromtimestamp(milliseconds / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def percent(part: float, whole: float) -> float:
    """Return a share in percent, to one decimal place; 0 if there is no whole."""
    return round(100 * part / whole, 1) if whole else 0.0

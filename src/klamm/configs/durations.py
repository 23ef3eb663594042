"""Durations and sizes with units, for readers and writers of configs in milliseconds and bytes."""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = ((86_400_000, "day", "days"), (3_600_000, "h", "h"), (60_000, "min", "min"), (1_000, "s", "s"))
_BINARY_SIZES: Final = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_INT64_MAX: Final = 2**63 - 1
_NUMBER: Final = re.compile("[0-9]{1,19}")
RETENTION: Final = ("retention.ms", "retention.bytes", "log.retention.ms", "log.retention.bytes")
"""Configs of the retention of topics and brokers. -1 means unlimited."""
_MAX_SHOWN_MS: Final = 1_000 * 365 * 86_400_000
"""Longest duration shown in words. A longer one practically means "never", and its number of days is not helpful."""
_WITH_UNIT: Final = re.compile(r"([0-9]{1,19}) ?([A-Za-z]+)")
DURATION_UNITS: Final = {
    "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000,
}  # fmt: skip
"""Milliseconds by unit."""
SIZE_UNITS: Final = {
    "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
"""Bytes by unit."""


def units_of(name: str) -> dict[str, int]:
    """Return the units in which a value of a config may be written; empty for neither milliseconds nor bytes."""
    if name.endswith((".ms", "_ms")):
        return DURATION_UNITS
    return SIZE_UNITS if ".bytes" in name else {}


def parse_amount(name: str, text: str) -> int | None:
    """Return a value with a unit, such as ``7d`` or ``1GiB``, in the unit of the config; None if it is not one."""
    match = _WITH_UNIT.fullmatch(text)
    unit = None if match is None else units_of(name).get(match[2])
    return None if match is None or unit is None else int(match[1]) * unit


def without_unit(name: str, text: str) -> str:
    """Return the value that Kafka accepts for a config: the number, if the text is one with a unit."""
    amount = parse_amount(name, text)
    return text if amount is None else str(amount)


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


def value_in_words(name: str, value: str) -> str | None:
    """Return a config's value as a duration, a size or ``unlimited``; None if the value is clearer as it is.

    A size is shown only if it is a whole number of a binary unit.
    """
    if value == str(_INT64_MAX) or (value == "-1" and name in RETENTION):
        return "unlimited"
    if units_of(name) is not SIZE_UNITS or not _NUMBER.fullmatch(value):
        return duration_of(name, value)
    size = int(value)
    return next((f"{size // unit:,} {sign}" for sign, unit in _BINARY_SIZES if size >= unit and not size % unit), None)


def with_duration(name: str, value: str) -> str:
    """Return a config's value, followed by its duration in words if it is in milliseconds."""
    words = duration_of(name, value)
    return value if words is None else f"{value} ({words})"

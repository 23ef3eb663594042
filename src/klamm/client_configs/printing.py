"""Names and values that others choose, as they may stand in a line for people."""

from __future__ import annotations

from typing import Final

MAX_SHOWN: Final = 64
"""Characters of a name: one that is longer makes a table nobody can read."""


def escaped(text: str) -> str:
    r"""Return a text without what would move a terminal's cursor or begin a line: ``\x1b`` and ``\n`` instead.

    A backslash stays as it is, so that a pattern reads as it was written. JSON and YAML have texts as they are.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def printable(name: str) -> str:
    """Return a name escaped, and cut where it is too long. JSON and Parquet keep names as they are."""
    plain = escaped(name[:MAX_SHOWN])
    return plain if len(name) <= MAX_SHOWN else f"{plain}..."


def counted(count: int, noun: str) -> str:
    """Return a number of things in words, as ``1 partition`` or ``2,000 partitions``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"

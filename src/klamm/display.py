"""Safe display of names and values that clients choose, in output for people."""

from __future__ import annotations

from typing import Final

MAX_SHOWN: Final = 64
"""Limit for a displayed name in characters. A longer name would make a table unreadable."""


def escaped(text: str) -> str:
    r"""Escape characters that would move a terminal's cursor or start a new line, such as ``\x1b`` and ``\n``.

    A backslash stays unchanged, so that a pattern is displayed as it was written. JSON and YAML output is not escaped.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def printable(name: str) -> str:
    """Return a name escaped, and truncated if it is too long. JSON and Parquet output keeps names unchanged."""
    plain = escaped(name[:MAX_SHOWN])
    return plain if len(name) <= MAX_SHOWN else f"{plain}..."


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, such as ``1 partition`` or ``2,000 partitions``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"

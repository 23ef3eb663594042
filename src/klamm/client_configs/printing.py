"""Names that applications choose for themselves, as they may stand in a line for people."""

from __future__ import annotations

from typing import Final

MAX_SHOWN: Final = 64
"""Characters of a name: one that is longer makes a table nobody can read."""


def printable(name: str) -> str:
    """Return a name without what would move a terminal's cursor or begin a line, cut where it is too long.

    JSON and Parquet keep names as they are.
    """
    plain = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in name[:MAX_SHOWN])
    return plain if len(name) <= MAX_SHOWN else f"{plain}..."

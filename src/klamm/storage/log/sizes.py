"""How much partitions take that nobody has asked for: their files are looked at, and not opened."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def segment_bytes(directories: Sequence[Path]) -> list[int]:
    """Return the bytes of all segments in each directory, indexes not counted; 0 when it is gone."""
    return [_of(directory) for directory in directories]


def _of(directory: Path) -> int:
    try:
        with os.scandir(directory) as entries:
            return sum(entry.stat().st_size for entry in entries if entry.name.endswith(".log"))
    except FileNotFoundError:  # deleted, or compacted, at this moment
        return 0

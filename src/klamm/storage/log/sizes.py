"""Sizes of partitions whose logs are not open, read from the directory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def segment_bytes(directories: Sequence[Path]) -> list[int]:
    """Return the size of all segments in each directory in bytes, without indexes; 0 for a missing directory."""
    return [_of(directory) for directory in directories]


def _of(directory: Path) -> int:
    try:
        with os.scandir(directory) as entries:
            return sum(entry.stat().st_size for entry in entries if entry.name.endswith(".log"))
    except FileNotFoundError:  # deleted or compacted at this moment
        return 0

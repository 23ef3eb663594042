"""Cutting a topic into pieces that tasks read side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_RECORDS_PER_TASK: Final = 500_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Records of one partition, from ``start`` up to and without ``end``."""

    partition: int
    start: int
    end: int


def split(
    bounds: Mapping[int, tuple[int, int]], *, records_per_task: int = DEFAULT_RECORDS_PER_TASK
) -> tuple[OffsetRange, ...]:
    """Cut each partition into ranges of at most ``records_per_task`` offsets, nearly equal in size.

    Args:
        bounds: First and end offset by partition.
        records_per_task: At least 1.
    """
    return tuple(
        OffsetRange(
            partition=partition,
            start=first + (end - first) * piece // pieces,
            end=first + (end - first) * (piece + 1) // pieces,
        )
        for partition, (first, end) in sorted(bounds.items())
        for pieces in [-(-(end - first) // records_per_task)]
        for piece in range(pieces)
    )

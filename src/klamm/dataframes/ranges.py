"""Cutting partitions into pieces that tasks read side by side, and limiting what one round of a stream takes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.protocol.types import PartitionTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Records of one partition, from ``start`` up to and without ``end``."""

    topic: str
    partition: int
    start: int
    end: int


def split(
    bounds: Mapping[PartitionTuple, tuple[int, int]], *, records_per_range: int | None = None
) -> tuple[OffsetRange, ...]:
    """Cut each partition into ranges of at most ``records_per_range`` offsets, nearly equal in size.

    Args:
        bounds: First and end offset by partition.
        records_per_range: At least 1; None: one range per partition.
    """
    return tuple(
        OffsetRange(
            topic=topic,
            partition=partition,
            start=first + (end - first) * piece // pieces,
            end=first + (end - first) * (piece + 1) // pieces,
        )
        for (topic, partition), (first, end) in sorted(bounds.items())
        if end > first
        for pieces in [1 if records_per_range is None else -(-(end - first) // records_per_range)]
        for piece in range(pieces)
    )


def limited(
    start: Mapping[PartitionTuple, int], end: Mapping[PartitionTuple, int], most: int
) -> dict[PartitionTuple, int]:
    """Return how far to read so that about ``most`` records come, each partition by its share of what waits.

    Every partition with anything new goes on by one record at least, so none is left behind for ever.
    """
    waiting = {where: max(0, to - start.get(where, to)) for where, to in end.items()}
    total = sum(waiting.values())
    if total <= most:
        return dict(end)
    return {
        where: min(to, start.get(where, to) + max(1, waiting[where] * most // total)) if waiting[where] else to
        for where, to in end.items()
    }

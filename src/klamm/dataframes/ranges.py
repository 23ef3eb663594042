"""Splitting of partitions into offset ranges for parallel tasks, and limits for one micro-batch of a stream. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.protocol.types import PartitionTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Records of one partition from ``start`` (inclusive) to ``end`` (exclusive)."""

    topic: str
    partition: int
    start: int
    end: int


def split(
    bounds: Mapping[PartitionTuple, tuple[int, int]], *, records_per_range: int | None = None
) -> tuple[OffsetRange, ...]:
    """Split each partition into ranges of at most ``records_per_range`` offsets and nearly equal size.

    Args:
        bounds: First offset and end offset by partition.
        records_per_range: At least 1; None means one range per partition.
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
    """Return end offsets so that about ``most`` records are read, each partition in proportion to its backlog.

    Every partition with new records advances by at least one, so none is starved.
    """
    waiting = {where: max(0, to - start.get(where, to)) for where, to in end.items()}
    total = sum(waiting.values())
    if total <= most:
        return dict(end)
    return {
        where: min(to, start.get(where, to) + max(1, waiting[where] * most // total)) if waiting[where] else to
        for where, to in end.items()
    }

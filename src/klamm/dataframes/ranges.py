"""Splitting of partitions into offset ranges for parallel tasks, and limits for one micro-batch of a stream. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
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
    bounds: Mapping[PartitionTuple, tuple[int, int]],
    *,
    records_per_range: int | None = None,
    min_ranges: int | None = None,
) -> tuple[OffsetRange, ...]:
    """Split each partition into ranges of nearly equal size.

    Args:
        bounds: First offset and end offset by partition.
        records_per_range: Maximum number of offsets of a range, at least 1; None means one range per partition.
        min_ranges: Approximate number of ranges if there would be fewer. The largest ranges are split, as Spark's
            ``KafkaOffsetRangeCalculator`` does. None means any number.
    """
    ranges = [
        piece
        for (topic, partition), (first, end) in sorted(bounds.items())
        if end > first
        for piece in _pieces(
            OffsetRange(topic=topic, partition=partition, start=first, end=end),
            1 if records_per_range is None else -(-(end - first) // records_per_range),
        )
    ]
    if min_ranges is None or len(ranges) >= min_ranges:
        return tuple(ranges)
    total = sum(map(_size, ranges))
    large = [each for each in ranges if _share(each, total, min_ranges) > 1]
    total, wanted = sum(map(_size, large)), max(1, min_ranges - (len(ranges) - len(large)))
    return tuple(
        piece
        for each in ranges
        for piece in _pieces(each, _share(each, total, wanted) if each in large else 1)
        if _size(piece)
    )


def _size(piece: OffsetRange) -> int:
    return piece.end - piece.start


def _share(piece: OffsetRange, total: int, count: int) -> int:
    """Return the rounded share of a range in a number of ranges, at least 1."""
    return max(1, (2 * _size(piece) * count + total) // (2 * total))


def _pieces(whole: OffsetRange, count: int) -> list[OffsetRange]:
    borders = [whole.start + _size(whole) * number // count for number in range(count + 1)]
    return [replace(whole, start=start, end=end) for start, end in pairwise(borders)]


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

"""Lookup of the segment and file position of an offset."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.storage.log.segment import LogSegment

_MAX_HINTS: Final = 64


class Positions:
    """Positions of offsets in a log's segments, with a cache for consumers that read sequentially.

    Used on the event loop only.
    """

    def __init__(self, segments: Sequence[LogSegment]) -> None:
        """Use ``segments``, the log's own list, which the log keeps changing."""
        self._segments = segments
        self._hints: dict[int, tuple[LogSegment, int]] = {}

    def remember(self, offset: int, segment: LogSegment, position: int) -> None:
        """Remember the position of a batch that a consumer will read next, so that no index lookup is needed."""
        hints = self._hints
        if len(hints) >= _MAX_HINTS and offset not in hints:
            del hints[next(iter(hints))]
        hints[offset] = segment, position

    def forget(self) -> None:
        """Discard all remembered positions."""
        self._hints.clear()

    def locate(self, offset: int) -> tuple[LogSegment, int] | None:
        """Return the segment and position of the first batch whose last offset is at least ``offset``.

        None if compaction has left no batch from there on.
        """
        hint = self._hints.get(offset)
        if hint is not None and hint[1] < hint[0].size:
            return hint
        index = max(self.segment_index(offset), 0)
        for segment in self._segments[index:]:
            position = segment.position_of(offset)
            if position is not None:
                return segment, position
        return None

    def segment_index(self, offset: int) -> int:
        """Return the index of the segment whose range contains ``offset``; -1 if it is before the first segment."""
        return bisect_right(self._segments, offset, key=lambda segment: segment.base_offset) - 1

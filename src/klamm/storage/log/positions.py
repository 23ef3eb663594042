"""Where in which segment an offset lies."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.storage.log.segment import LogSegment

_MAX_HINTS: Final = 64


class Positions:
    """Finds offsets in a log's segments, and remembers where consumers that read on will read. Loop-confined."""

    def __init__(self, segments: Sequence[LogSegment]) -> None:
        """Look into ``segments``, the log's own list, which the log goes on changing."""
        self._segments = segments
        self._hints: dict[int, tuple[LogSegment, int]] = {}

    def remember(self, offset: int, segment: LogSegment, position: int) -> None:
        """Remember where a batch lies that a consumer will ask for, so that it needs no index."""
        hints = self._hints
        if len(hints) >= _MAX_HINTS and offset not in hints:
            del hints[next(iter(hints))]
        hints[offset] = segment, position

    def forget(self) -> None:
        """Do not trust remembered positions any more."""
        self._hints.clear()

    def locate(self, offset: int) -> tuple[LogSegment, int] | None:
        """Return segment and position of the first batch whose last offset is at least ``offset``.

        None when compaction has left nothing from there on.
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
        """Return the place of the segment that holds or would hold ``offset``; -1 when it is before the first."""
        return bisect_right(self._segments, offset, key=lambda segment: segment.base_offset) - 1

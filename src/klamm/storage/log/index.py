"""The offset index and the time index of a segment, in Kafka's file format (OffsetIndex, TimeIndex).

An index only gives a position at which a search starts. A missing or doubtful one is rebuilt from the segment. New
entries are buffered and written together, because a recovery adds the entries that a crash lost.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from klamm.storage.log.files import LogFile

_PENDING_LIMIT: Final = 64


class IndexEntry(NamedTuple):
    """An entry of either index: an ascending key and its value."""

    key: int
    value: int


class _Index:
    """Entries of two numbers, ascending by the first. Used on the event loop only."""

    _FORMAT: struct.Struct

    def __init__(self, file: LogFile) -> None:
        self.file = file
        self._written = file.size() // self._FORMAT.size
        self._pending: list[IndexEntry] = []
        self._last: IndexEntry | None = None

    def __len__(self) -> int:
        return self._written + len(self._pending)

    @property
    def last(self) -> IndexEntry | None:
        """The entry with the largest key; None if the index is empty."""
        if self._last is None and len(self):
            self._last = self.entry(len(self) - 1)
        return self._last

    def entry(self, index: int) -> IndexEntry:
        """Return the entry at a given place."""
        if index >= self._written:
            return self._pending[index - self._written]
        size = self._FORMAT.size
        return IndexEntry(*self._FORMAT.unpack(self.file.read(size, index * size)))

    def append(self, key: int, value: int) -> None:
        """Add an entry at the end. If the write fails, the next append retries it."""
        self._last = IndexEntry(key, value)
        self._pending.append(self._last)
        if len(self._pending) >= _PENDING_LIMIT:
            with suppress(OSError):
                self.flush()

    def flush(self) -> None:
        """Write the buffered entries to the file."""
        if not self._pending:
            return
        data = b"".join(self._FORMAT.pack(*entry) for entry in self._pending)
        self.file.write([data], len(data), self._written * self._FORMAT.size)
        self._written += len(self._pending)
        self._pending.clear()

    def keep(self, count: int) -> None:
        """Keep the first ``count`` entries, and remove an incomplete last entry."""
        del self._pending[max(count - self._written, 0) :]
        self._last = None
        if count < self._written or self.file.size() != self._written * self._FORMAT.size:
            self._written = min(count, self._written)
            self.file.truncate(self._written * self._FORMAT.size)

    def keep_keys_up_to(self, key: int) -> None:
        """Keep the entries whose key is at most ``key``."""
        self.keep(bisect_right(range(len(self)), key, key=lambda index: self.entry(index).key))

    def keep_values_up_to(self, value: int) -> None:
        """Keep the entries whose value is at most ``value``."""
        self.keep(bisect_right(range(len(self)), value, key=lambda index: self.entry(index).value))

    def floor(self, key: int) -> IndexEntry | None:
        """Return the last entry whose key is at most ``key``."""
        count = bisect_right(range(len(self)), key, key=lambda index: self.entry(index).key)
        return self.entry(count - 1) if count else None


class OffsetIndex(_Index):
    """Offset index: relative last offset of a batch -> position in the segment, 8 bytes per entry."""

    _FORMAT = struct.Struct(">ii")

    def entry_below(self, position: int) -> IndexEntry | None:
        """Return the entry with the largest position that is at most ``position``."""
        count = bisect_right(range(len(self)), position, key=lambda index: self.entry(index).value)
        return self.entry(count - 1) if count else None


class TimeIndex(_Index):
    """Time index: largest timestamp so far -> relative last offset of its batch, 12 bytes per entry."""

    _FORMAT = struct.Struct(">qi")

"""The indexes of a segment, in Kafka's file formats (OffsetIndex, TimeIndex, TransactionIndex).

The offset index and the time index only give a position at which a search starts. A missing or doubtful one is rebuilt
from the segment. New entries are buffered and written together, because a recovery adds the entries that a crash lost.

The index of aborted transactions is needed for correct responses. It lists the transactions whose ABORT marker is in
the segment, in the order of the markers. Most segments have none, and then no file. It is made durable with its
segment, and a recovery rebuilds the entries after the recovery point.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.storage.log.files import FsyncError, fsync_path

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        self._is_cut = False
        """Whether the file may be longer than the index. The next flush truncates it."""
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
        """Write the buffered entries to the file, and truncate it if entries were removed."""
        if self._pending:
            data = b"".join(self._FORMAT.pack(*entry) for entry in self._pending)
            self.file.write([data], len(data), self._written * self._FORMAT.size)
            self._written += len(self._pending)
            self._pending.clear()
        if self._is_cut:
            if self.file.size() > self._written * self._FORMAT.size:
                self.file.truncate(self._written * self._FORMAT.size)
            self._is_cut = False

    def keep(self, count: int) -> None:
        """Keep the first ``count`` entries, and remove an incomplete last entry.

        The file is truncated later, because that takes milliseconds, and most starts write the same entries again.
        """
        del self._pending[max(count - self._written, 0) :]
        self._last = None
        self._written = min(count, self._written)
        self._is_cut |= self.file.size() != self._written * self._FORMAT.size

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


ABORTED_SUFFIX: Final = ".txnindex"
_ABORTED: Final = struct.Struct(">hqqqq")
_ABORTED_VERSION: Final = 0


class AbortedTxn(NamedTuple):
    """An aborted transaction in one partition."""

    producer_id: int
    first_offset: int
    """Offset of its first record."""
    last_offset: int
    """Offset of its marker."""
    last_stable_offset: int
    """Last stable offset after the marker: the first offset of the oldest open transaction, else the offset after the
    marker.
    """


class AbortedIndex:
    """The aborted transactions of one segment, read from the file at first use. Used on the event loop only."""

    def __init__(self, file: LogFile) -> None:
        self.file = file
        self._entries: list[AbortedTxn] | None = None
        self._written = self._durable = 0
        self._is_cut = False
        """Whether entries were removed that a power cut could bring back, because the file is not fsynced yet."""

    @property
    def entries(self) -> list[AbortedTxn]:
        """All entries, in the order of the markers. Callers must not change the list."""
        if self._entries is None:
            whole = self.file.size() // _ABORTED.size * _ABORTED.size
            data = self.file.read(whole, 0) if whole else b""
            self._entries = [AbortedTxn(*fields[1:]) for fields in _ABORTED.iter_unpack(data)]
            self._written = self._durable = len(self._entries)
        return self._entries

    def is_sound(self, up_to: int, *, is_closed: bool) -> bool:
        """Return whether the entries of markers below ``up_to`` can be trusted.

        Args:
            up_to: Offset up to which entries are checked.
            is_closed: Whether the whole segment is below ``up_to``, so that the file must end with a whole entry.
        """
        if is_closed and self.file.size() % _ABORTED.size:
            return False
        newest = -1
        for entry, version in zip(self.entries, self._versions(), strict=False):
            if (
                version != _ABORTED_VERSION
                or not 0 <= entry.first_offset < entry.last_offset
                or entry.last_offset <= newest
            ):
                return False
            newest = entry.last_offset
            if newest >= up_to:
                return not is_closed
        return True

    def _versions(self) -> Iterator[int]:
        size = len(self.entries) * _ABORTED.size
        data = self.file.read(size, 0) if size else b""
        return (fields[0] for fields in _ABORTED.iter_unpack(data))

    def append(self, entry: AbortedTxn) -> None:
        """Add a transaction whose marker is after all others. If the write fails, ``flush`` retries it."""
        self.entries.append(entry)
        with suppress(OSError):
            self.flush()

    def flush(self) -> None:
        """Write new entries to the file.

        Raises:
            OSError: The write failed.
        """
        if self._entries is not None and self._written < len(self._entries):
            data = b"".join(_ABORTED.pack(_ABORTED_VERSION, *entry) for entry in self._entries[self._written :])
            self.file.write([data], len(data), self._written * _ABORTED.size)
            self._written = len(self._entries)

    def sync(self) -> None:
        """Make new entries durable. Blocks until the disk has them; usually there are none.

        Raises:
            OSError: The write or the fsync failed.
        """
        if self.needs_sync:
            self.flush()
            try:
                fsync_path(self.file.path)
                if not self._durable:
                    fsync_path(self.file.path.parent)  # the file may be new
            except FsyncError:
                self._written = self._durable  # the kernel may have dropped the data, so it is written again
                raise
            self._durable, self._is_cut = len(self.entries), False

    @property
    def needs_sync(self) -> bool:
        """Return whether the file in memory or page cache may differ from the disk."""
        return self._is_cut or (self._entries is not None and self._durable < len(self._entries))

    def clear(self) -> None:
        """Remove all entries, because the file is damaged."""
        self._entries, self._written, self._durable = [], 0, 0
        if self.file.size():
            self.file.truncate(0)
            self._is_cut = True

    def keep_below(self, offset: int) -> None:
        """Remove the entries whose marker is at or after ``offset``, and an incomplete last entry."""
        entries = self.entries
        kept = next((index for index, entry in enumerate(entries) if entry.last_offset >= offset), len(entries))
        del self.entries[kept:]
        self._written, self._durable = min(self._written, kept), min(self._durable, kept)
        if self.file.size() > self._written * _ABORTED.size:
            self.file.truncate(self._written * _ABORTED.size)
            self._is_cut = True

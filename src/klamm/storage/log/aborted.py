"""The index of aborted transactions of a segment, in Kafka's file format (TransactionIndex, AbortedTxn).

It lists the transactions whose ABORT marker is in the segment, in the order of the markers. Most segments have none,
and then no file. The other indexes only speed up searches, but this one is needed for correct responses: it is made
durable with its segment, and a recovery rebuilds the entries behind the recovery point.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.storage.log.files import FsyncError, fsync_path
from klamm.storage.log.producers import NO_OFFSET

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from klamm.storage.log.files import LogFile
    from klamm.storage.log.segment import LogSegment

SUFFIX: Final = ".txnindex"
_ENTRY: Final = struct.Struct(">hqqqq")
_VERSION: Final = 0


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
            whole = self.file.size() // _ENTRY.size * _ENTRY.size
            data = self.file.read(whole, 0) if whole else b""
            self._entries = [AbortedTxn(*fields[1:]) for fields in _ENTRY.iter_unpack(data)]
            self._written = self._durable = len(self._entries)
        return self._entries

    def is_sound(self, up_to: int, *, is_closed: bool) -> bool:
        """Return whether the entries of markers below ``up_to`` can be trusted.

        Args:
            up_to: Offset up to which entries are checked.
            is_closed: Whether the whole segment is below ``up_to``, so that the file must end with a whole entry.
        """
        if is_closed and self.file.size() % _ENTRY.size:
            return False
        newest = -1
        for entry, version in zip(self.entries, self._versions(), strict=False):
            if version != _VERSION or not 0 <= entry.first_offset < entry.last_offset or entry.last_offset <= newest:
                return False
            newest = entry.last_offset
            if newest >= up_to:
                return not is_closed
        return True

    def _versions(self) -> Iterator[int]:
        size = len(self.entries) * _ENTRY.size
        data = self.file.read(size, 0) if size else b""
        return (fields[0] for fields in _ENTRY.iter_unpack(data))

    def append(self, entry: AbortedTxn) -> None:
        """Add a transaction whose marker is behind all others. If the write fails, ``flush`` retries it."""
        self.entries.append(entry)
        with suppress(OSError):
            self.flush()

    def flush(self) -> None:
        """Write new entries to the file.

        Raises:
            OSError: The write failed.
        """
        if self._entries is not None and self._written < len(self._entries):
            data = b"".join(_ENTRY.pack(_VERSION, *entry) for entry in self._entries[self._written :])
            self.file.write([data], len(data), self._written * _ENTRY.size)
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
        """Remove the entries whose marker is at or behind ``offset``, and an incomplete last entry."""
        entries = self.entries
        kept = next((index for index, entry in enumerate(entries) if entry.last_offset >= offset), len(entries))
        del self.entries[kept:]
        self._written, self._durable = min(self._written, kept), min(self._durable, kept)
        if self.file.size() > self._written * _ENTRY.size:
            self.file.truncate(self._written * _ENTRY.size)
            self._is_cut = True


def overlapping(segments: Iterable[LogSegment], start: int, end: int) -> list[AbortedTxn]:
    """Return the aborted transactions with records in ``start`` to ``end``, in the order of their markers.

    Args:
        segments: Segments from the one that contains ``start``.
        start: First offset.
        end: Offset after the last one.

    Raises:
        OSError: An index cannot be read.
    """
    found = []
    for segment in segments:
        entries = segment.aborted.entries
        for entry in entries[bisect_left(entries, start, key=lambda entry: entry.last_offset) :]:
            if entry.first_offset < end:
                found.append(entry)
            if entry.last_stable_offset >= end:
                return found
    return found


def entry_for(producer_id: int, first_offset: int, marker_offset: int, first_open: int) -> AbortedTxn:
    """Return the entry of a transaction that a marker has ended.

    Args:
        producer_id: Producer of the transaction.
        first_offset: First offset of the transaction.
        marker_offset: Offset of the marker.
        first_open: First offset of the oldest transaction that is still open, ``NO_OFFSET`` if there is none.
    """
    stable = marker_offset + 1 if first_open == NO_OFFSET else first_open
    return AbortedTxn(producer_id, first_offset, marker_offset, stable)

"""The index of aborted transactions beside a segment, in Kafka's file format (TransactionIndex, AbortedTxn).

Each segment has the transactions whose abort marker lies in it, in the order of the markers; most have none, and then
no file. Unlike the other indexes this one is needed to answer rightly: it is made durable with the segment, and a
recovery builds anew what lies behind the recovery point.
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
    """A transaction that was aborted in one partition."""

    producer_id: int
    first_offset: int
    """Of its first record."""
    last_offset: int
    """Of its marker."""
    last_stable_offset: int
    """When the marker was there: the first record of the oldest transaction still open, else behind the marker."""


class AbortedIndex:
    """The aborted transactions of one segment, read from its file when they are asked for first. Loop-confined."""

    def __init__(self, file: LogFile) -> None:
        self.file = file
        self._entries: list[AbortedTxn] | None = None
        self._written = self._durable = 0
        self._is_cut = False
        """Entries were cut off, and a power cut would bring them back."""

    @property
    def entries(self) -> list[AbortedTxn]:
        """All of them, ascending by marker. Not to be changed."""
        if self._entries is None:
            whole = self.file.size() // _ENTRY.size * _ENTRY.size
            data = self.file.read(whole, 0) if whole else b""
            self._entries = [AbortedTxn(*fields[1:]) for fields in _ENTRY.iter_unpack(data)]
            self._written = self._durable = len(self._entries)
        return self._entries

    def is_sound(self, up_to: int, *, is_closed: bool) -> bool:
        """Return whether the entries whose markers lie below ``up_to`` can be trusted.

        Args:
            up_to: What lies behind this offset is not looked at.
            is_closed: The whole segment lies below ``up_to``, so that the file must end in a whole entry.
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
        """Add a transaction whose marker lies behind all others. A disk that refuses is tried again by ``flush``."""
        self.entries.append(entry)
        with suppress(OSError):
            self.flush()

    def flush(self) -> None:
        """Hand to the file what it lacks.

        Raises:
            OSError: The disk refuses.
        """
        if self._entries is not None and self._written < len(self._entries):
            data = b"".join(_ENTRY.pack(_VERSION, *entry) for entry in self._entries[self._written :])
            self.file.write([data], len(data), self._written * _ENTRY.size)
            self._written = len(self._entries)

    def sync(self) -> None:
        """Make what is new durable, waiting for the disk right here; mostly there is nothing.

        Raises:
            OSError: The disk refuses.
        """
        if self.needs_sync:
            self.flush()
            try:
                fsync_path(self.file.path)
                if not self._durable:
                    fsync_path(self.file.path.parent)  # the file is new
            except FsyncError:
                self._written = self._durable  # the kernel may have dropped the rest: write it again
                raise
            self._durable, self._is_cut = len(self.entries), False

    @property
    def needs_sync(self) -> bool:
        """Whether the file may differ from what the disk has."""
        return self._is_cut or (self._entries is not None and self._durable < len(self._entries))

    def clear(self) -> None:
        """Forget all transactions: the file is damaged."""
        self._entries, self._written, self._durable = [], 0, 0
        if self.file.size():
            self.file.truncate(0)
            self._is_cut = True

    def keep_below(self, offset: int) -> None:
        """Forget transactions whose marker is at or behind ``offset``, and a last entry that is not whole."""
        entries = self.entries
        kept = next((index for index, entry in enumerate(entries) if entry.last_offset >= offset), len(entries))
        del self.entries[kept:]
        self._written, self._durable = min(self._written, kept), min(self._durable, kept)
        if self.file.size() > self._written * _ENTRY.size:
            self.file.truncate(self._written * _ENTRY.size)
            self._is_cut = True


def overlapping(segments: Iterable[LogSegment], start: int, end: int) -> list[AbortedTxn]:
    """Return the aborted transactions with records from ``start`` up to ``end``, given the segments from ``start`` on.

    They come in the order of their markers.

    Raises:
        OSError: The disk refuses.
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
    """Describe a transaction that a marker has just ended; ``first_open`` is ``NO_OFFSET`` when no other is open."""
    stable = marker_offset + 1 if first_open == NO_OFFSET else first_open
    return AbortedTxn(producer_id, first_offset, marker_offset, stable)

"""A log segment: a file of record batches with its indexes, and the lookup of an offset in a log.

The indexes have Kafka's file formats (OffsetIndex, TimeIndex, TransactionIndex).

The offset index and the time index only give a position at which a search starts. A missing or doubtful one is rebuilt
from the segment. New entries are buffered and written together, because a recovery adds the entries that a crash lost.

The index of aborted transactions is needed for correct responses. It lists the transactions whose ABORT marker is in
the segment, in the order of the markers. Most segments have none, and then no file. It is made durable with its
segment, and a recovery rebuilds the entries after the recovery point.
"""

from __future__ import annotations

import logging
import struct
from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.protocol.errors import CorruptBatchError
from klamm.protocol.records import LOG_OVERHEAD, NO_TIMESTAMP, RecordBatch, iter_batches
from klamm.protocol.records.layout import HEADER, MAGIC
from klamm.storage.log.files import FsyncError, LogFile, fsync_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from klamm.storage.log.files import Buffer, FilePool

logger = logging.getLogger(__name__)

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


_WALK_BYTES: Final = 8192
REBUILT_INTERVAL: Final = 4096
"""Bytes between rebuilt index entries. The topic's own interval only matters for the speed of searches."""
MAX_INDEX_INTERVAL: Final = 262_144
"""Largest number of bytes between index entries, whatever the topic's ``index.interval.bytes``.

A read scans the batch headers after an entry on the event loop: 3,000 batches of 80 bytes take about 4 ms.
"""
MAX_RELATIVE_OFFSET: Final = 2**31 - 1
DELETED: Final = ".deleted"
"""Suffix of files that no longer belong to the log."""


class BatchHead(NamedTuple):
    """Position and header fields of a batch, as recovery and searches need them."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    partition_leader_epoch: int
    attributes: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int


class RetiredFile(NamedTuple):
    """A renamed file, and the time of its removal in milliseconds since the epoch."""

    due_ms: int
    file: LogFile


def deleted_path(path: Path) -> Path:
    """Return an unused name for a file that no longer belongs to the log. Responses may still read an earlier one."""
    target = path.with_name(path.name + DELETED)
    number = 0
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.{number}{DELETED}")
    return target


class LogSegment:
    """The batches from ``base_offset`` to the next segment. Used on the event loop only.

    ``max_timestamp`` and ``offset_of_max_timestamp`` (the last offset of its batch) cover the batches known so far;
    both are -1 in an empty segment.
    """

    def __init__(
        self,
        *,
        pool: FilePool,
        directory: Path,
        base_offset: int,
        created_ms: int,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        """Read the timestamps from the indexes.

        Args:
            pool: Pool of file descriptors.
            directory: Partition directory.
            base_offset: First offset, which is in the names of the files.
            created_ms: Time of creation in milliseconds since the epoch; of existing files, that of the last change.
            sizes: Sizes of the existing files by name, if they are known.
        """

        def file(suffix: str) -> LogFile:
            name = f"{base_offset:020d}{suffix}"
            return LogFile(pool, f"{directory}/{name}", size=None if sizes is None else sizes.get(name, 0))

        self.base_offset = base_offset
        self.file = file(".log")
        self.offset_index = OffsetIndex(file(".index"))
        self.time_index = TimeIndex(file(".timeindex"))
        self.aborted = AbortedIndex(file(ABORTED_SUFFIX))
        self.size = self.file.size()
        self.max_timestamp = NO_TIMESTAMP
        self.offset_of_max_timestamp = -1
        self.created_ms = created_ms
        """Time from which ``segment.ms`` counts if the first batch has no timestamp."""
        self.modified_ms = created_ms
        """Time of the last append, in milliseconds since the epoch."""
        self.is_damaged = False
        """Whether the log file contains bytes that are not a batch, so that its largest timestamp is unknown."""
        self._first_timestamp: int | None = None
        self._bytes_since_index = 0
        self._load_timestamps()

    @property
    def first_timestamp(self) -> int | None:
        """Largest timestamp of the first batch, from which ``segment.ms`` counts; None in an empty segment."""
        if self._first_timestamp is None and self.size:
            head = self.head_at(0)
            self._first_timestamp = head.max_timestamp if head is not None else None
        return self._first_timestamp

    @property
    def largest_timestamp(self) -> int:
        """Largest timestamp, as in Kafka; if no batch has a timestamp, the time of the last append."""
        return self.max_timestamp if self.max_timestamp >= 0 else self.modified_ms

    @property
    def files(self) -> tuple[LogFile, ...]:
        """Log, offset index, time index and index of aborted transactions. The last one exists only with entries."""
        return (self.file, self.offset_index.file, self.time_index.file, self.aborted.file)

    def _load_timestamps(self) -> None:
        last = self.time_index.last
        if last is not None:
            self.max_timestamp, self.offset_of_max_timestamp = last.key, self.base_offset + last.value

    # -- writes

    def create(self) -> None:
        """Create the empty log file. Its name keeps the end offset even if all earlier segments are deleted."""
        _ = self.file.descriptor

    def append(
        self, buffers: Sequence[Buffer], *, size: int, last_offset: int, max_timestamp: int, index_interval: int
    ) -> int:
        """Write one batch and return its position.

        Raises:
            OSError: The write failed. The segment is unchanged.
        """
        position = self.size
        self.file.write(buffers, size, position)
        self.size = position + size
        self.account(position, size, last_offset, max_timestamp, index_interval)
        return position

    def account(self, position: int, size: int, last_offset: int, max_timestamp: int, index_interval: int) -> None:
        """Add a batch that is already in the file to the timestamps and indexes."""
        if position == 0:
            self._first_timestamp = max_timestamp
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.offset_of_max_timestamp = last_offset
        if self._bytes_since_index > min(index_interval, MAX_INDEX_INTERVAL):
            self.offset_index.append(last_offset - self.base_offset, position)
            self.index_time()
            self._bytes_since_index = 0
        self._bytes_since_index += size

    def index_time(self) -> None:
        """Add the largest timestamp so far to the time index, unless it is already there."""
        last = self.time_index.last
        if self.max_timestamp > (last.key if last is not None else NO_TIMESTAMP):
            self.time_index.append(self.max_timestamp, self.offset_of_max_timestamp - self.base_offset)

    def seal(self) -> None:
        """Complete and write the indexes of a segment that was closed or is about to be closed."""
        self.index_time()
        self.offset_index.flush()
        self.time_index.flush()
        self.aborted.flush()

    def truncate(self, position: int) -> None:
        """Truncate the log file. The caller has to rebuild the indexes from there."""
        self.file.truncate(position)
        self.size = position

    def trust_up_to(self, offset: int) -> int:
        """Discard index entries of batches that are not wholly below ``offset``, and return where to continue reading.

        Reading continues at the last indexed batch. Call ``account`` for it and for each later batch, to complete the
        timestamps and the indexes. Indexes that do not match the log are discarded completely.

        The entry of the batch at ``offset`` is discarded, too. After a power cut the index may contain this batch and
        the log may not. A caller that continued there would miss the sound batches before it.
        """
        last_trusted = offset - self.base_offset - 1
        self.offset_index.keep_keys_up_to(last_trusted)
        self.time_index.keep_values_up_to(last_trusted)
        if not self._do_indexes_agree():
            logger.warning("The indexes of %s do not match it and are rebuilt", self.file.path)
            self.offset_index.keep(0)
        last = self.offset_index.last
        if last is None:
            self.time_index.keep(0)
        self.max_timestamp, self.offset_of_max_timestamp = NO_TIMESTAMP, -1
        self._first_timestamp = None
        self._bytes_since_index = 0
        self._load_timestamps()
        return last.value if last is not None else 0

    def _do_indexes_agree(self) -> bool:
        """Return whether the last entry of each index matches a batch of the log."""
        last, newest = self.offset_index.last, self.time_index.last
        if last is not None and not self._is_entry(last):
            return False
        if newest is None:
            return True
        offset = self.base_offset + newest.value
        entry = self.offset_index.floor(newest.value)
        if entry is not None and not self._is_entry(entry):
            return False
        try:
            position = self._walk_to(offset, entry.value if entry is not None else None)
        except CorruptBatchError:
            return True  # the log is damaged there, not the index
        head = self.head_at(position) if position is not None else None
        return head is not None and (head.max_timestamp, head.last_offset) == (newest.key, offset)

    def _is_entry(self, entry: IndexEntry) -> bool:
        """Return whether an entry of the offset index matches a batch of the log."""
        head = self.head_at(entry.value) if 0 < entry.value < self.size else None
        return head is not None and head.last_offset == self.base_offset + entry.key

    def complete_indexes(self, interval: int, up_to: int) -> None:
        """Check the indexes against the log, and add missing entries.

        Args:
            interval: Bytes between new index entries.
            up_to: Offset from which on entries are discarded and rebuilt.
        """
        try:
            for head in self.walk(self.trust_up_to(up_to)):
                self.account(head.position, head.size, head.last_offset, head.max_timestamp, interval)
        except CorruptBatchError as error:
            self.is_damaged = True
            logger.error("%s is damaged, its clients receive CORRUPT_MESSAGE there: %s", self.file.path, error)  # noqa: TRY400 -- the message is complete
        with suppress(OSError):  # the disk is full: the next start rebuilds them
            self.seal()

    def retire(self) -> list[LogFile]:
        """Rename the files so that they no longer belong to the log, and return them. A restart removes them.

        Raises:
            OSError: A file cannot be renamed.
        """
        files = []
        for file in self.files:
            try:
                file.rename(deleted_path(file.path))
            except FileNotFoundError:
                continue
            files.append(file)
        return files

    def put_away(self, renamed: Mapping[Path, Path]) -> list[LogFile]:
        """Follow the files to the names that a compaction gave them, and return them.

        Args:
            renamed: New path of each file by its former one. A file that is not listed did not exist.
        """
        files = []
        for file in self.files:
            if file.path in renamed:
                file.moved_to(renamed[file.path])
                files.append(file)
            else:
                file.give_up()  # another file may have its name now
        return files

    def remove(self) -> None:
        """Delete the files."""
        for file in self.files:
            file.remove()

    def close(self) -> None:
        """Close the files. They are opened again at the next use."""
        for file in self.files:
            file.close()

    def give_up(self) -> None:
        """Close the files for good, because other files may now have their names."""
        for file in self.files:
            file.give_up()

    # -- reads

    def walk(self, position: int) -> Iterator[BatchHead]:
        """Iterate over the batch headers from ``position``, at which a batch starts, without reading the records.

        Raises:
            CorruptBatchError: The bytes after the last header are not a batch.
            OSError: The read failed.
        """
        chunk, start, next_offset = b"", position, self.base_offset
        max_offset = self.base_offset + MAX_RELATIVE_OFFSET
        while position < self.size:
            if position + HEADER.size > start + len(chunk):
                chunk, start = self.file.read(_WALK_BYTES, position), position
                if len(chunk) < HEADER.size:
                    raise CorruptBatchError(f"{self.file.path} ends in {len(chunk)} bytes that are not a record batch")
            fields = HEADER.unpack_from(chunk, position - start)
            base_offset, length, epoch, _, _, attributes, delta, _, max_timestamp = fields[:9]
            size = LOG_OVERHEAD + length
            if size < HEADER.size or size > self.size - position:
                raise CorruptBatchError(f"Found record size {size} at position {position} of {self.file.path}")
            if base_offset < next_offset or delta < 0 or base_offset + delta > max_offset:
                raise CorruptBatchError(f"Found offset {base_offset} at position {position} of {self.file.path}")
            next_offset = base_offset + delta + 1
            yield BatchHead(
                position, size, base_offset, base_offset + delta, epoch, attributes, max_timestamp, *fields[9:12]
            )
            position += size

    def head_at(self, position: int) -> BatchHead | None:
        """Return the header of the batch at ``position``; None at the end or if there is no batch."""
        with suppress(CorruptBatchError):
            return next(self.walk(position), None)
        return None

    def position_of(self, offset: int) -> int | None:
        """Return the position of the first batch whose last offset is at least ``offset``; None if there is none.

        An index whose entry does not match a batch is rebuilt.

        Raises:
            CorruptBatchError: The log is damaged between the last index entry and the batch.
            OSError: The read failed.
        """
        entry = self.offset_index.floor(offset - self.base_offset)
        if entry is not None and not self._is_entry(entry):
            logger.warning("The index of %s is damaged and is rebuilt", self.file.path)
            self.complete_indexes(REBUILT_INTERVAL, -1)
            entry = self.offset_index.floor(offset - self.base_offset)
        return self._walk_to(offset, entry.value if entry is not None else None)

    def _walk_to(self, offset: int, start: int | None) -> int | None:
        for head in self.walk(start or 0):
            if head.last_offset >= offset:
                return head.position
        return None

    def check_batch_at(self, position: int, offset: int) -> None:
        """Check that the batch at ``position`` can be sent to a consumer that requested ``offset``.

        Raises:
            CorruptBatchError: There is no such batch.
            OSError: The read failed.
        """
        data = self.file.read(HEADER.size, position)
        if len(data) == HEADER.size:
            base_offset, length, _, magic, _, _, delta = HEADER.unpack(data)[:7]
            size = LOG_OVERHEAD + length
            is_batch = HEADER.size <= size <= self.size - position and magic == MAGIC
            if is_batch and base_offset + delta >= offset:
                return
        raise CorruptBatchError(f"Found no record batch at position {position} of {self.file.path}")

    def whole_batches(self, position: int, max_bytes: int) -> tuple[int, int]:
        """Find the last batch that ends within ``max_bytes`` after ``position``, at which a batch starts.

        Returns:
            The position and the offset after that batch; ``(position, -1)`` if even the first batch is larger.
        """
        limit = position + max_bytes
        entry = self.offset_index.entry_below(limit)
        start = entry.value if entry is not None and entry.value > position and self._is_entry(entry) else position
        whole = self._whole_batches_from(start, limit)
        if whole is None and start > position:
            # The indexed batch ends beyond the limit, so the result ends where the indexed batch starts.
            return start, next(self.walk(start)).base_offset
        return whole if whole is not None else (position, -1)

    def _whole_batches_from(self, start: int, limit: int) -> tuple[int, int] | None:
        whole = None
        for head in self.walk(start):
            end = head.position + head.size
            if end > limit:
                break
            whole = end, head.last_offset + 1
        return whole

    def batch_at(self, position: int) -> RecordBatch | None:
        """Return the whole batch at ``position``; None at the end or if the batch is incomplete."""
        head = self.file.read(LOG_OVERHEAD, position)
        if len(head) < LOG_OVERHEAD:
            return None
        size = LOG_OVERHEAD + int.from_bytes(head[8:], "big", signed=True)
        if not HEADER.size <= size <= self.size - position:
            return None
        return next(iter_batches(self.file.read(size, position), allow_partial_tail=True), None)


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

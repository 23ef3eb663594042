"""One segment: a file of record batches with its two indexes."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.protocol.errors import CorruptBatchError
from klamm.protocol.records import LOG_OVERHEAD, NO_TIMESTAMP, RecordBatch, iter_batches
from klamm.protocol.records.layout import HEADER, MAGIC
from klamm.storage.log.aborted import SUFFIX, AbortedIndex
from klamm.storage.log.files import LogFile
from klamm.storage.log.index import OffsetIndex, TimeIndex

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from klamm.storage.log.files import Buffer, FilePool
    from klamm.storage.log.index import IndexEntry

logger = logging.getLogger(__name__)

_WALK_BYTES: Final = 8192
_REBUILT_INTERVAL: Final = 4096
"""Bytes between index entries that are built again; the topic's own interval does not matter for finding things."""
MAX_RELATIVE_OFFSET: Final = 2**31 - 1
DELETED: Final = ".deleted"
"""What the names of files end with that are no part of the log any more."""


class BatchHead(NamedTuple):
    """Where a batch lies and what recovery and searching need of its header."""

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
    """A file under its last name, and when it is to be removed, in milliseconds since the epoch."""

    due_ms: int
    path: Path


class LogSegment:
    """Batches from ``base_offset`` on. Loop-confined.

    ``max_timestamp`` and ``offset_of_max_timestamp`` (the last offset of its batch) are as far as known: -1 when
    the segment is empty.
    """

    def __init__(self, *, pool: FilePool, directory: Path, base_offset: int, created_ms: int) -> None:
        stem = directory / f"{base_offset:020d}"
        self.base_offset = base_offset
        self.file = LogFile(pool, stem.with_suffix(".log"))
        self.offset_index = OffsetIndex(LogFile(pool, stem.with_suffix(".index")))
        self.time_index = TimeIndex(LogFile(pool, stem.with_suffix(".timeindex")))
        self.aborted = AbortedIndex(LogFile(pool, stem.with_suffix(SUFFIX)))
        self.size = self.file.size()
        self.max_timestamp = NO_TIMESTAMP
        self.offset_of_max_timestamp = -1
        self.created_ms = created_ms
        self.is_damaged = False
        """The log file holds bytes that are no batch, so nobody knows the largest timestamp."""
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
    def files(self) -> tuple[LogFile, ...]:
        """Log, offset index, time index and index of aborted transactions; the last one only exists where needed."""
        return (self.file, self.offset_index.file, self.time_index.file, self.aborted.file)

    def _load_timestamps(self) -> None:
        last = self.time_index.last
        if last is not None:
            self.max_timestamp, self.offset_of_max_timestamp = last.key, self.base_offset + last.value

    # -- writing

    def create(self) -> None:
        """Make the (empty) log file be there: its name keeps the offset when all before it is deleted."""
        _ = self.file.descriptor

    def append(
        self, buffers: Sequence[Buffer], *, size: int, last_offset: int, max_timestamp: int, index_interval: int
    ) -> int:
        """Write one batch; returns its position.

        Raises:
            OSError: The disk refuses; nothing of the batch stays.
        """
        position = self.size
        self.file.write(buffers, size, position)
        self.size = position + size
        self.account(position, size, last_offset, max_timestamp, index_interval)
        return position

    def account(self, position: int, size: int, last_offset: int, max_timestamp: int, index_interval: int) -> None:
        """Take a batch that is in the file into timestamps and indexes."""
        if position == 0:
            self._first_timestamp = max_timestamp
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.offset_of_max_timestamp = last_offset
        if self._bytes_since_index > index_interval:
            self.offset_index.append(last_offset - self.base_offset, position)
            self.index_time()
            self._bytes_since_index = 0
        self._bytes_since_index += size

    def index_time(self) -> None:
        """Add the largest timestamp so far to the time index, if it is new."""
        last = self.time_index.last
        if self.max_timestamp > (last.key if last is not None else NO_TIMESTAMP):
            self.time_index.append(self.max_timestamp, self.offset_of_max_timestamp - self.base_offset)

    def seal(self) -> None:
        """Complete the indexes of a segment that is not written to any more, or is about to be closed."""
        self.index_time()
        self.offset_index.flush()
        self.time_index.flush()
        self.aborted.flush()

    def truncate(self, position: int) -> None:
        """Cut the log file; the indexes have to be rebuilt from there."""
        self.file.truncate(position)
        self.size = position

    def trust_up_to(self, offset: int) -> int:
        """Forget what the indexes say of batches behind ``offset``; return the position from which to walk on.

        The batch there is the last one that the index knows, so that ``account`` of it and of what follows completes
        timestamps and indexes. Indexes that do not agree with the log are dropped as a whole.
        """
        relative = offset - self.base_offset
        self.offset_index.keep_keys_up_to(relative)
        self.time_index.keep_values_up_to(relative)
        if not self._do_indexes_agree():
            logger.warning("The indexes of %s do not agree with it and are built again", self.file.path)
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
        """Return whether the last entry of each index describes a batch of the log."""
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
        """Return whether an entry of the offset index describes a batch of the log."""
        head = self.head_at(entry.value) if 0 < entry.value < self.size else None
        return head is not None and head.last_offset == self.base_offset + entry.key

    def complete_indexes(self, interval: int, up_to: int) -> None:
        """Check the indexes against the log and add what they lack. Needed where they may be lost or damaged.

        Args:
            interval: Bytes between new index entries.
            up_to: Entries behind this offset are dropped and built again.
        """
        try:
            for head in self.walk(self.trust_up_to(up_to)):
                self.account(head.position, head.size, head.last_offset, head.max_timestamp, interval)
        except CorruptBatchError as error:
            self.is_damaged = True
            logger.error("%s is damaged, its clients receive CORRUPT_MESSAGE there: %s", self.file.path, error)  # noqa: TRY400 -- the message has all there is
        with suppress(OSError):  # a full disk: the next start builds them again
            self.seal()

    def retire(self) -> list[Path]:
        """Take the files out of the log: they have other names now, which a restart removes. Returns those.

        Raises:
            OSError: The disk refuses.
        """
        paths = []
        for file in self.files:
            file.close()
            path = file.path.with_name(file.path.name + DELETED)
            try:
                file.rename(path)
            except FileNotFoundError:
                continue
            paths.append(path)
        return paths

    def remove(self) -> None:
        """Delete the files."""
        for file in self.files:
            file.remove()

    def close(self) -> None:
        """Give the descriptors back."""
        for file in self.files:
            file.close()

    def give_up(self) -> None:
        """Close for good: the files were replaced or removed under their names."""
        for file in self.files:
            file.give_up()

    # -- reading

    def walk(self, position: int) -> Iterator[BatchHead]:
        """Walk over the batch headers from ``position`` (where a batch begins) to the end, reading little else.

        Raises:
            CorruptBatchError: Behind the last header there are bytes that are no batch.
            OSError: The disk refuses.
        """
        chunk, start, next_offset = b"", position, self.base_offset
        while position < self.size:
            if position + HEADER.size > start + len(chunk):
                chunk, start = self.file.read(_WALK_BYTES, position), position
                if len(chunk) < HEADER.size:
                    raise CorruptBatchError(f"{self.file.path} ends in {len(chunk)} bytes that are no record batch")
            fields = HEADER.unpack_from(chunk, position - start)
            base_offset, length, epoch, _, _, attributes, delta, _, max_timestamp = fields[:9]
            size = LOG_OVERHEAD + length
            if size < HEADER.size or size > self.size - position:
                raise CorruptBatchError(f"Found record size {size} at position {position} of {self.file.path}")
            if base_offset < next_offset or delta < 0:
                raise CorruptBatchError(f"Found offset {base_offset} at position {position} of {self.file.path}")
            next_offset = base_offset + delta + 1
            yield BatchHead(
                position, size, base_offset, base_offset + delta, epoch, attributes, max_timestamp, *fields[9:12]
            )
            position += size

    def head_at(self, position: int) -> BatchHead | None:
        """Return the header of the batch at ``position``; None at the end or where there is none."""
        with suppress(CorruptBatchError):
            return next(self.walk(position), None)
        return None

    def position_of(self, offset: int) -> int | None:
        """Return where the first batch begins whose last offset is at least ``offset``; None when there is none.

        An index that leads elsewhere than to a batch is built again.

        Raises:
            CorruptBatchError: The log is damaged between the last index entry and the batch.
            OSError: The disk refuses.
        """
        entry = self.offset_index.floor(offset - self.base_offset)
        if entry is not None and not self._is_entry(entry):
            logger.warning("The index of %s is damaged and built again", self.file.path)
            self.complete_indexes(_REBUILT_INTERVAL, -1)
            entry = self.offset_index.floor(offset - self.base_offset)
        return self._walk_to(offset, entry.value if entry is not None else None)

    def _walk_to(self, offset: int, start: int | None) -> int | None:
        for head in self.walk(start or 0):
            if head.last_offset >= offset:
                return head.position
        return None

    def check_batch_at(self, position: int, offset: int) -> None:
        """Check that the batch at ``position`` can be sent to a consumer that asked for ``offset``.

        Raises:
            CorruptBatchError: There is no batch.
            OSError: The disk refuses.
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
        """Find the end of the last batch that ends within ``max_bytes`` behind ``position``, where a batch begins.

        Returns:
            That end and the offset behind it; ``(position, -1)`` when the first batch is larger.
        """
        limit = position + max_bytes
        entry = self.offset_index.entry_below(limit)
        start = entry.value if entry is not None and entry.value > position and self._is_entry(entry) else position
        found = self._whole_batches_from(start, limit)
        if found is None and start > position:
            # The batch at the index entry ends behind the limit; it begins where the one before it ends.
            return start, next(self.walk(start)).base_offset
        return found if found is not None else (position, -1)

    def _whole_batches_from(self, start: int, limit: int) -> tuple[int, int] | None:
        found = None
        for head in self.walk(start):
            end = head.position + head.size
            if end > limit:
                break
            found = end, head.last_offset + 1
        return found

    def batch_at(self, position: int) -> RecordBatch | None:
        """Read the whole batch at ``position``; None at the end or when it is cut."""
        head = self.file.read(LOG_OVERHEAD, position)
        if len(head) < LOG_OVERHEAD:
            return None
        size = LOG_OVERHEAD + int.from_bytes(head[8:], "big", signed=True)
        if not HEADER.size <= size <= self.size - position:
            return None
        return next(iter_batches(self.file.read(size, position), allow_partial_tail=True), None)

"""One segment: a file of record batches with its two indexes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.protocol.records import LOG_OVERHEAD, NO_TIMESTAMP, RecordBatch, iter_batches
from klamm.protocol.records.layout import HEADER
from klamm.storage.log.aborted import SUFFIX, AbortedIndex
from klamm.storage.log.files import LogFile
from klamm.storage.log.index import OffsetIndex, TimeIndex

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from klamm.storage.log.files import Buffer, FilePool

_WALK_BYTES: Final = 8192
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
        self._first_timestamp: int | None = None
        self._bytes_since_index = 0
        self._load_timestamps()

    @property
    def first_timestamp(self) -> int | None:
        """Largest timestamp of the first batch, from which ``segment.ms`` counts; None in an empty segment."""
        if self._first_timestamp is None and self.size:
            head = next(self.walk(0), None)
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
        """Forget what the indexes say of batches behind ``offset``; returns the position from which to walk on.

        The batch there is the last one that the index knows, so that ``account`` of it and of what follows completes
        timestamps and indexes. An index that does not agree with the file is dropped as a whole.
        """
        relative = offset - self.base_offset
        self.offset_index.keep_keys_up_to(relative)
        self.time_index.keep_values_up_to(relative)
        last = self.offset_index.last
        position = last.value if last is not None else 0
        head = next(self.walk(position), None)
        if last is not None and (head is None or head.last_offset != self.base_offset + last.key):
            self.offset_index.keep(0)
            position = 0
        if position == 0:
            self.time_index.keep(0)
        self.max_timestamp, self.offset_of_max_timestamp = NO_TIMESTAMP, -1
        self._first_timestamp = None
        self._bytes_since_index = 0
        self._load_timestamps()
        return position

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
        """Walk over the batch headers from ``position`` (where a batch begins) to the end, reading little else."""
        chunk, start = b"", position
        while self.size - position >= HEADER.size:
            if position + HEADER.size > start + len(chunk):
                chunk, start = self.file.read(_WALK_BYTES, position), position
                if len(chunk) < HEADER.size:
                    return
            fields = HEADER.unpack_from(chunk, position - start)
            base_offset, length, epoch, _, _, attributes, delta, _, max_timestamp = fields[:9]
            size = LOG_OVERHEAD + length
            if size < HEADER.size:
                return
            yield BatchHead(
                position, size, base_offset, base_offset + delta, epoch, attributes, max_timestamp, *fields[9:12]
            )
            position += size

    def position_of(self, offset: int) -> int | None:
        """Return where the first batch begins whose last offset is at least ``offset``; None when there is none."""
        entry = self.offset_index.floor(offset - self.base_offset)
        for head in self.walk(entry.value if entry is not None else 0):
            if head.last_offset >= offset:
                return head.position
        return None

    def whole_batches(self, position: int, max_bytes: int) -> tuple[int, int]:
        """Find the end of the last batch that ends within ``max_bytes`` behind ``position``, where a batch begins.

        Returns:
            That end and the offset behind it; ``(position, -1)`` when the first batch is larger.
        """
        limit = position + max_bytes
        start = max(self.offset_index.position_below(limit), position)
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

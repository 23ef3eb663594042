"""The log of one partition: appends, reads, offsets, durability, transaction markers and aborted transactions.

Batches are stored as the producer sent them, unless ``compression.type`` names another codec or a header has to be
corrected. The broker stamps base offset and leader epoch, and with LogAppendTime the timestamp. An appended batch is in
the page cache, as in Kafka: it survives the end of the process, but not a power cut. ``flush.messages`` and
``flush.ms`` control when it reaches the disk.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from zlib import crc32

from klamm.protocol.errors import OffsetOutOfRangeError, StorageError
from klamm.protocol.records import (
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    ControlType,
    RecordBatch,
    TimestampType,
    encode_marker,
    patched_header,
)
from klamm.protocol.records.layout import BATCH_OVERHEAD, PREFIX
from klamm.storage.log.directories import OFFLINE, EpochStart, write_topic_id
from klamm.storage.log.files import LogRange
from klamm.storage.log.producers import NO_OFFSET, SNAPSHOT
from klamm.storage.log.segment import MAX_RELATIVE_OFFSET, AbortedTxn, LogSegment, Positions, RetiredFile
from klamm.storage.log.validation import check_fits_segment, is_long, only_batch, prepare, stamped_attributes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path
    from uuid import UUID

    from klamm.storage.log.config import LogConfig
    from klamm.storage.log.directories import LeaderEpochs
    from klamm.storage.log.files import FilePool, LogFile
    from klamm.storage.log.producers import ProducerStates

logger = logging.getLogger(__name__)

WAITING_ENDS: Final = 2**31 - 1
"""Size passed to waiters that ends any wait, because the log goes away."""


class AppendResult(NamedTuple):
    """Offsets of an appended batch. A named tuple, because one is created for every batch."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    """-1 with CreateTime; for a duplicate, as in Kafka, the largest timestamp of the stored batch in any case."""
    needs_flush: bool
    """Whether ``flush.messages`` is reached, so that the log must be flushed before the producer gets its response."""


class AppendWaiter(Protocol):
    """A reader that waits for new records, such as a Fetch request."""

    def appended(self, log: PartitionLog, size: int) -> None:
        """Notify the reader of ``size`` new bytes in a log, or of ``WAITING_ENDS`` if the log goes away."""
        ...


_SPREAD: Final = 2_654_435_761
"""Multiplier that spreads neighbouring offsets over all 32-bit numbers."""


class PartitionLog:
    """The log of one partition. Used on the event loop only, except that a thread may fsync the ``fsync_files``.

    The high watermark equals the end offset, because there is only one replica.

    Everything below ``recovery_point`` is on disk. ``checkpointed_point`` is the recovery point in the checkpoint file,
    at which a recovery after a crash starts.
    """

    def __init__(
        self,
        *,
        topic: str,
        partition: int,
        topic_id: UUID,
        directory: Path,
        configs: Callable[[], LogConfig],
        pool: FilePool,
        segments: list[LogSegment],
        end_offset: int,
        log_start_offset: int,
        recovery_point: int,
        compacted_up_to: int,
        producers: ProducerStates,
        epochs: LeaderEpochs,
        now_ms: Callable[[], int],
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.directory = directory
        self._configs = configs
        self.leader_epoch = 0
        self.end_offset = end_offset
        self.log_start_offset = log_start_offset
        self.recovery_point = recovery_point
        self.checkpointed_point = recovery_point
        """Recovery point in the checkpoint file, at which a recovery after a crash starts."""
        self.segments = segments
        self.producers = producers
        self.epochs = epochs
        self.waiters: set[AppendWaiter] = set()
        self.is_deleted = False
        self.compacted_up_to = compacted_up_to
        """Offset up to which compaction has read the log."""
        self.is_uncleanable = False
        """Whether a batch is damaged. Then compaction waits until a config changes or the broker restarts."""
        self.last_flush_ms = now_ms()
        self.doomed: list[LogSegment] = []
        """Segments below the log start offset. Their files are renamed once that offset is checkpointed."""
        self.retired: list[RetiredFile] = []
        """Files of removed segments, which are deleted after ``file.delete.delay.ms``."""
        self.unflushed_bytes = 0
        """Bytes appended since the last flush, which a recovery would have to check."""
        self._pool = pool
        self._now_ms = now_ms
        self.failure: str | None = None
        """Reason why the log is offline; None while it is online."""
        self.flushing = asyncio.Lock()
        """Held by the running flush. A flush that waited for it may find that everything is already on disk."""
        self.has_directory = False
        """Whether the directory exists and contains the topic id durably."""
        self._is_new = False
        """Whether this process has created the directory and its name is not durable yet."""
        self._positions = Positions(segments)
        self._name = f"{topic}-{partition}"
        self._seed = crc32(self._name.encode())

    # -- properties

    @property
    def config(self) -> LogConfig:
        """The topic's current configs."""
        return self._configs()

    @property
    def name(self) -> str:
        """``topic-partition``, Kafka's name of the directory."""
        return self._name

    @property
    def high_watermark(self) -> int:
        """Offset below which consumers can read."""
        return self.end_offset

    @property
    def last_stable_offset(self) -> int:
        """Offset below which ``read_committed`` consumers can read: the first offset of the oldest open transaction."""
        first = self.producers.first_open_offset
        return self.end_offset if first == NO_OFFSET else max(first, self.log_start_offset)

    @property
    def needs_flush(self) -> bool:
        """Return whether ``flush.messages`` is reached."""
        return self.end_offset - self.recovery_point >= self._configs().flush_messages

    @property
    def size(self) -> int:
        """Size of all segments in bytes, without indexes."""
        return sum(segment.size for segment in self.segments)

    @property
    def latest_epoch(self) -> int:
        """Leader epoch of the newest batch; the leader's own epoch if the log is empty."""
        return max(self.epochs.latest, self.leader_epoch)

    def end_offset_for_epoch(self, epoch: int) -> EpochStart:
        """Return the largest known epoch up to ``epoch`` and its end offset; -1 for both if there is none.

        The leader's own epoch starts at the end offset until its first append. So an epoch between the newest one in
        the log and the leader's, in which nothing was appended, ends there as well.
        """
        if epoch == self.leader_epoch:
            return EpochStart(epoch, self.end_offset)
        if self.epochs.latest < epoch < self.leader_epoch:
            return EpochStart(epoch if self.epochs.latest < 0 else self.epochs.latest, self.end_offset)
        return self.epochs.end_offset_of(epoch, self.end_offset)

    # -- appends

    def is_long(self, records: memoryview) -> bool:
        """Return whether ``prepare`` may take more than a few milliseconds."""
        return is_long(records, self._configs())

    def prepare(
        self, records: memoryview, *, config: LogConfig | None = None, decompress_up_to: int | None = None
    ) -> RecordBatch:
        """Validate one batch of a producer, and return it in the form in which it is appended.

        Args:
            records: The batch.
            config: Configs of the topic; with them, any thread may call this. None for the current ones.
            decompress_up_to: See ``validation.prepare``.

        Raises:
            KafkaApiError: The batch is rejected (see ``validation``).
        """
        batch = only_batch(records, self._name)
        return prepare(batch, config or self._configs(), self._name, self._now_ms(), decompress_up_to=decompress_up_to)

    def append(self, records: memoryview, *, is_verified: bool = False, begins_at_zero: bool = False) -> AppendResult:
        """Validate, stamp and append one batch of a producer; see ``prepare`` and ``append_prepared``."""
        batch = self.prepare(records)
        return self.append_prepared(batch, is_verified=is_verified, begins_at_zero=begins_at_zero)

    def append_prepared(
        self, batch: RecordBatch, *, is_verified: bool = False, begins_at_zero: bool = False
    ) -> AppendResult:
        """Check a batch against the state of its producer, stamp it and append it.

        Args:
            batch: Result of ``prepare``.
            is_verified: Whether the transaction coordinator has confirmed that this partition belongs to the
                transaction.
            begins_at_zero: Whether the first batch of an unknown producer must have sequence 0 (KIP-890).

        Raises:
            KafkaApiError: The batch is rejected (see ``producers``). Nothing is written.
            StorageError: The write failed. The log is unchanged.
        """
        self.check_online()
        now_ms = self._now_ms()
        config = self._configs()
        if batch.producer_id > NO_PRODUCER_ID:
            duplicate = self.producers.duplicate_of(batch, begins_at_zero=begins_at_zero)
            if duplicate is not None:
                return AppendResult(
                    base_offset=duplicate.base_offset,
                    last_offset=duplicate.last_offset,
                    log_append_time_ms=duplicate.timestamp,
                    needs_flush=self.needs_flush and duplicate.last_offset >= self.recovery_point,
                )
            self.producers.check_transaction(batch, is_verified=is_verified)
        check_fits_segment(batch, config, self._name)
        base_offset = self.end_offset
        append_time = self.write(batch, now_ms)
        if batch.producer_id > NO_PRODUCER_ID:
            timestamp = batch.max_timestamp if append_time == NO_TIMESTAMP else append_time
            self.producers.appended(batch, base_offset, timestamp, now_ms)
        if self.waiters:
            self.wake(batch.size)
        return AppendResult(
            base_offset=base_offset,
            last_offset=self.end_offset - 1,
            log_append_time_ms=append_time,
            needs_flush=self.needs_flush,
        )

    def write(self, batch: RecordBatch, now_ms: int) -> int:
        """Stamp a checked batch and write it at the end. Return its log append time, or -1.

        Raises:
            StorageError: The write failed. The log is unchanged.
        """
        self.check_online()
        try:
            append_time = self._write(batch, self.end_offset, now_ms, self._configs())
        except OSError as error:
            raise StorageError(f"Cannot write to {self._name}: {error}") from error
        self.end_offset += batch.last_offset_delta + 1
        self.unflushed_bytes += batch.size
        return append_time

    def wake(self, size: int) -> None:
        """Notify all waiting readers of ``size`` new bytes."""
        for waiter in tuple(self.waiters):
            waiter.appended(self, size)

    def _write(self, batch: RecordBatch, base_offset: int, now_ms: int, config: LogConfig) -> int:
        segment = self.segments[-1] if self.segments else self._first_segment()
        max_timestamp, append_time = batch.max_timestamp, NO_TIMESTAMP
        if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME:
            max_timestamp = append_time = now_ms
            prefix = patched_header(
                batch,
                base_offset=base_offset,
                partition_leader_epoch=self.leader_epoch,
                attributes=stamped_attributes(batch),
                max_timestamp=now_ms,
            )
            rest = batch.buffer[BATCH_OVERHEAD:]
        else:
            prefix = PREFIX.pack(base_offset, batch.batch_length, self.leader_epoch)
            rest = batch.buffer[PREFIX.size :]
        last_offset = base_offset + batch.last_offset_delta
        if segment.size and self._should_roll(segment, batch.size, last_offset, max_timestamp, now_ms):
            segment = self.roll()
        if self.leader_epoch > self.epochs.latest:
            self.epochs.assign(self.leader_epoch, base_offset)
        segment.append(
            (prefix, rest),
            size=batch.size,
            last_offset=last_offset,
            max_timestamp=max_timestamp,
            index_interval=config.index_interval_bytes,
        )
        segment.modified_ms = now_ms
        return append_time

    def _should_roll(self, segment: LogSegment, size: int, last_offset: int, timestamp: int, now_ms: int) -> bool:
        config = self.config
        if segment.size + size > config.segment_bytes or last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
            return True
        if len(segment.offset_index) * 8 + 8 > config.segment_index_bytes:
            return True
        first = segment.first_timestamp
        waited = timestamp - first if first is not None and first >= 0 else now_ms - segment.created_ms
        return waited > config.roll_after_ms(self._seed + segment.base_offset * _SPREAD)

    def _first_segment(self) -> LogSegment:
        """Create the first segment, and the directory unless a thread has done that. An empty partition has neither."""
        if not self.has_directory:
            self.create_directory()
            self.has_directory = True
        self._is_new = True
        return self._add_segment(self.end_offset)

    def create_directory(self) -> None:
        """Create the directory with the topic id, which must be durable before the first record is written.

        Any thread may call this.

        Raises:
            OSError: The directory or the file cannot be written.
        """
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_topic_id(self.directory, self.topic_id)

    def segment_at(self, base_offset: int, *, created_ms: int) -> LogSegment:
        """Return a segment object for existing or new files."""
        return LogSegment(pool=self._pool, directory=self.directory, base_offset=base_offset, created_ms=created_ms)

    def _add_segment(self, base_offset: int) -> LogSegment:
        segment = self.segment_at(base_offset, created_ms=self._now_ms())
        segment.create()
        if self.config.preallocate:
            try:
                segment.file.reserve(self.config.segment_bytes)
            except OSError:
                segment.remove()  # records go on in the active segment, and a start would take this for the last one
                raise
        self.segments.append(segment)
        return segment

    def roll(self) -> LogSegment:
        """Close the active segment, and start a new one at the end offset.

        Raises:
            OSError: A file cannot be written. The active segment stays active.
        """
        self.segments[-1].seal()
        self.segments[-1].file.trim(self.segments[-1].size)
        return self._add_segment(self.end_offset)

    # -- reads

    def read(self, offset: int, max_bytes: int, *, min_one_batch: bool = True) -> bytes:
        """Return whole batches, starting with the one that contains ``offset``; empty at the end of the log.

        Args:
            offset: Offset between the log start offset and the end offset.
            max_bytes: Size limit, except for ``min_one_batch``. A negative one counts as 0.
            min_one_batch: Whether to return the first batch even if it is larger than ``max_bytes``.

        Raises:
            OffsetOutOfRangeError: ``offset`` is not in the log.
            StorageError: The read failed.
        """
        log_range = self.find(offset, max_bytes, min_one_batch=min_one_batch)
        return b"" if log_range is None else log_range.read()

    def find(self, offset: int, max_bytes: int, *, min_one_batch: bool = True) -> LogRange | None:
        """Return the file range that ``read`` would return for the same arguments; None if it is empty.

        Raises:
            OffsetOutOfRangeError: ``offset`` is not in the log.
            CorruptBatchError: The log is damaged at this place.
            StorageError: The read failed.
        """
        self.check_online()
        if not self.log_start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRangeError(
                f"Received request for offset {offset} for partition {self._name},"
                f" but we only have log segments from offset {self.log_start_offset} to {self.end_offset}."
            )
        if offset == self.end_offset or (max_bytes < BATCH_OVERHEAD and not min_one_batch):
            return None
        try:
            return self._find(offset, max(max_bytes, 0), min_one_batch)
        except OSError as error:
            raise StorageError(f"Cannot read {self._name}: {error}") from error

    def _find(self, offset: int, max_bytes: int, min_one_batch: bool) -> LogRange | None:
        located = self._positions.locate(offset)
        if located is None:
            return None
        segment, position = located
        segment.check_batch_at(position, offset)
        if segment.size - position <= max_bytes:
            end, end_offset = segment.size, self._end_of(segment)
        else:
            end, end_offset = segment.whole_batches(position, max_bytes)
            if end == position:
                if not min_one_batch:
                    return None
                head = next(segment.walk(position))
                end, end_offset = position + head.size, head.last_offset + 1
        self._positions.remember(end_offset, segment, end)
        return LogRange(segment.file, position, end - position, end_offset)

    def _end_of(self, segment: LogSegment) -> int:
        """Return the base offset of the next segment; for the last segment the end offset."""
        behind = self.segment_index(segment.base_offset) + 1
        return self.segments[behind].base_offset if behind < len(self.segments) else self.end_offset

    def segment_index(self, offset: int) -> int:
        """Return the index of the segment whose range contains ``offset``; -1 if it is before the first segment."""
        return self._positions.segment_index(offset)

    def forget_positions(self) -> None:
        """Discard remembered positions, because segments were replaced or removed."""
        self._positions.forget()

    def retire(self, segment: LogSegment) -> None:
        """Rename the files of one of the ``doomed`` segments, and schedule their removal.

        Raises:
            OSError: A file cannot be renamed. The next checkpoint tries again.
        """
        self.retire_files(segment.retire())
        self.doomed.remove(segment)

    def retire_files(self, files: Sequence[LogFile]) -> None:
        """Schedule the removal of renamed files after ``file.delete.delay.ms``. A restart removes them as well."""
        due_ms = self._now_ms() + self.config.file_delete_delay_ms
        self.retired.extend(RetiredFile(due_ms, file) for file in files)

    def take_retired(self, now_ms: int) -> list[Path]:
        """Close the files whose delay is over, and return their paths for a thread to delete."""
        due = [retired.file for retired in self.retired if retired.due_ms <= now_ms]
        if due:
            self.retired = [retired for retired in self.retired if retired.due_ms > now_ms]
        for file in due:
            file.give_up()  # an open descriptor would keep the space on the disk
        return [file.path for file in due]

    # -- durability and close

    def fsync_files(self) -> tuple[Path, ...]:
        """Return the files that must be fsynced to make everything below the end offset durable.

        Raises:
            OSError: An index of aborted transactions cannot be written.
        """
        if self.recovery_point >= self.end_offset or not self.segments:
            return ()
        first = max(self.segment_index(self.recovery_point), 0)
        dirty = self.segments[first:]
        for segment in dirty:
            segment.aborted.flush()
        aborted = (
            segment.aborted.file.path for segment in dirty if segment.aborted.entries or segment.aborted.needs_sync
        )
        parent = (self.directory.parent,) if self._is_new else ()
        return (*(segment.file.path for segment in dirty), *aborted, self.directory, *parent)

    def take_offline(self, error: OSError, *, cause: str = "fsync failed") -> None:
        """Stop serving the log, above all after a failed fsync: the records after the last successful one may be lost.

        After a failed fsync, the kernel drops the dirty pages and the next fsync succeeds. So the recovery point must
        not advance any more. The next start of the broker reads from disk which records are there, and truncates the
        rest.
        """
        if self.failure is None:
            self.failure = f"{cause}: {error}"
            with suppress(OSError):  # needs no fsync: after a reboot of the machine the page cache is empty anyway
                (self.directory / OFFLINE).touch()
            logger.error(
                "%s is offline, its clients receive KAFKA_STORAGE_ERROR: %s (%s). Repair the disk, then"
                " restart the broker, which checks the log from offset %d",
                self._name,
                cause,
                error,
                self.recovery_point,
            )
            self.end_waiting()

    def check_online(self) -> None:
        """Raise an error if the log is offline.

        Raises:
            StorageError: The log is offline.
        """
        if self.failure is not None:
            raise StorageError(f"{self._name} is offline since {self.failure}")

    def flushed(self, offset: int) -> None:
        """Record that everything below ``offset`` is durable."""
        self._is_new = False
        self.recovery_point = max(self.recovery_point, min(offset, self.end_offset))
        self.last_flush_ms = self._now_ms()
        self.unflushed_bytes = 0

    def seal(self) -> None:
        """Complete the active segment's indexes before the log is closed, and release its preallocated space."""
        if self.segments:
            self.segments[-1].seal()
            self.segments[-1].file.trim(self.segments[-1].size)

    def save_state(self) -> None:
        """Write the indexes and the producer snapshot, so that the next start is quick."""
        if self.segments:
            self.seal()
            self.save_producers()

    def save_producers(self) -> None:
        """Write the producer snapshot. A recovery replays the log only from the snapshot's offset.

        Aborted transactions before that offset would not be found again, so their index is made durable first.

        Raises:
            OSError: A file cannot be written.
        """
        for segment in self.segments[max(self.segment_index(self.recovery_point), 0) :]:
            segment.aborted.sync()
        self.producers.save(self.directory, self.end_offset, recovery_point=self.recovery_point)

    def save_recovery_state(self, since: int) -> tuple[Path, ...]:
        """Write what a recovery from the recovery point needs. Return the files to fsync before it is checkpointed.

        A recovery trusts the indexes, producers and leader epochs below the recovery point, and does not read the log
        there.

        Args:
            since: Recovery point in the checkpoint file.

        Raises:
            OSError: A file cannot be written.
        """
        self.save_producers()
        indexes = []
        for segment in self.segments[max(self.segment_index(since), 0) :]:
            for index in (segment.offset_index, segment.time_index):
                index.flush()
                if len(index):
                    indexes.append(index.file.path)
        snapshot = (self.directory / SNAPSHOT,) if len(self.producers) else ()
        epochs = (self.epochs.path,) if self.epochs.has_started_since(since) else ()
        return (*indexes, *snapshot, *epochs, self.directory)

    def close(self) -> None:
        """Close all files for good, and end all waits."""
        for segment in (*self.segments, *self.doomed):
            segment.give_up()
        for retired in self.retired:
            retired.file.give_up()
        self.end_waiting()

    def end_waiting(self) -> None:
        """Notify all waiting readers that the log goes away."""
        self.wake(WAITING_ENDS)


def append_marker(
    log: PartitionLog,
    control_type: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    now_ms: int,
) -> int:
    """Append the marker that ends a producer's transaction, and return its offset.

    Raises:
        InvalidProducerEpochError: A newer epoch of the producer has written to this partition.
        TransactionCoordinatorFencedError: A newer epoch of the coordinator has written to this partition.
        StorageError: The write failed. The transaction is still open.
    """
    log.producers.check_marker(producer_id, producer_epoch, coordinator_epoch)
    data = encode_marker(
        control_type,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp=now_ms,
    )
    offset = log.end_offset
    log.write(RecordBatch(memoryview(data)), now_ms)
    first = log.producers.ended(
        producer_id, producer_epoch, coordinator_epoch=coordinator_epoch, timestamp=now_ms, now_ms=now_ms
    )
    if first != NO_OFFSET and control_type is ControlType.ABORT:
        log.segments[-1].aborted.append(entry_for(producer_id, first, offset, log.producers.first_open_offset))
    if log.waiters:
        log.wake(WAITING_ENDS if first != NO_OFFSET else len(data))
    return offset


def find_committed(log: PartitionLog, offset: int, max_bytes: int, *, min_one_batch: bool = True) -> LogRange | None:
    """Return the range of ``PartitionLog.find``, limited to offsets below the last stable offset.

    Raises:
        OffsetOutOfRangeError: ``offset`` is not in the log.
        StorageError: The read failed.
    """
    stable = log.last_stable_offset
    if stable <= offset <= log.end_offset:
        return None
    log_range = log.find(offset, max_bytes, min_one_batch=min_one_batch)
    if log_range is None or log_range.end_offset <= stable:
        return log_range
    try:
        position = log.segments[max(log.segment_index(stable), 0)].position_of(stable)
    except OSError as error:
        raise StorageError(f"Cannot read {log.name}: {error}") from error
    return log_range if position is None else log_range.cut(position, stable) or None


def aborted_in(log: PartitionLog, offset: int, log_range: LogRange | None) -> list[AbortedTxn]:
    """Return the aborted transactions that a consumer must filter out of ``log_range``, which starts at ``offset``.

    Raises:
        StorageError: The read failed.
    """
    if log_range is None:
        return []
    try:
        segments = log.segments[max(log.segment_index(offset), 0) :]
        if not any(segment.aborted.entries for segment in segments):
            return []
        return overlapping(segments, offset, log_range.end_offset)
    except OSError as error:
        raise StorageError(f"Cannot read the index of aborted transactions of {log.name}: {error}") from error


def overlapping(segments: Iterable[LogSegment], start: int, end: int) -> list[AbortedTxn]:
    """Return the aborted transactions with records in ``start`` to ``end``, in the order of their markers.

    Args:
        segments: Segments from the one that contains ``start``.
        start: First offset.
        end: Offset after the last one.

    Raises:
        OSError: An index cannot be read.
    """
    aborted = []
    for segment in segments:
        entries = segment.aborted.entries
        for entry in entries[bisect_left(entries, start, key=lambda entry: entry.last_offset) :]:
            if entry.first_offset < end:
                aborted.append(entry)
            if entry.last_stable_offset >= end:
                return aborted
    return aborted


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

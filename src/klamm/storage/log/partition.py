"""The log of one partition: append, read, and what is known of its offsets.

Batches stay as they came; only base offset, leader epoch and, with LogAppendTime, the time are stamped. What
``append`` returned survives the end of the process: the data is in the page cache (as in Kafka), and
``flush.messages`` or ``flush.ms`` make it wait for the disk.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from zlib import crc32

from klamm.protocol.errors import OffsetOutOfRangeError, StorageError
from klamm.protocol.records import NO_PRODUCER_ID, NO_TIMESTAMP, TimestampType, patched_header
from klamm.protocol.records.layout import BATCH_OVERHEAD, PREFIX
from klamm.storage.log.append_result import WAITING_ENDS, AppendResult, AppendWaiter
from klamm.storage.log.checkpoints import OFFLINE, EpochStart, write_topic_id
from klamm.storage.log.files import fsync_path
from klamm.storage.log.positions import Positions
from klamm.storage.log.producers import NO_OFFSET, SNAPSHOT
from klamm.storage.log.ranges import LogRange
from klamm.storage.log.segment import MAX_RELATIVE_OFFSET, LogSegment, RetiredFile
from klamm.storage.log.validation import check_fits_segment, is_long, only_batch, prepare, stamped_attributes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from uuid import UUID

    from klamm.protocol.records import RecordBatch
    from klamm.storage.log.config import LogConfig
    from klamm.storage.log.epochs import LeaderEpochs
    from klamm.storage.log.files import FilePool
    from klamm.storage.log.producers import ProducerStates

logger = logging.getLogger(__name__)

_SPREAD: Final = 2_654_435_761
"""A factor that spreads neighbouring offsets over all numbers."""


class PartitionLog:
    """One partition's segments, in order. Loop-confined, except ``fsync_files``' result, which a thread may fsync.

    The high watermark is the end offset: there is one replica.
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
        """The recovery point that a start after a crash begins with."""
        self.segments = segments
        self.producers = producers
        self.epochs = epochs
        self.waiters: set[AppendWaiter] = set()
        self.is_deleted = False
        self.compacted_up_to = compacted_up_to
        """What lies below this offset has been looked at by a compaction."""
        self.is_uncleanable = False
        """A batch is damaged: no compaction until a config changes or the broker starts again."""
        self.last_flush_ms = now_ms()
        self.retired: list[RetiredFile] = []
        """Files of segments that are gone already, until ``file.delete.delay.ms`` is over."""
        self.unflushed_bytes = 0
        """Appended since the last flush: what a recovery would have to check."""
        self._pool = pool
        self._now_ms = now_ms
        self.failure: str | None = None
        """Why the log is offline; None as long as the disk has not failed."""
        self.flushing = asyncio.Lock()
        """Held by the one flush that runs; those that wait may find that it was theirs as well."""
        self._is_new = False
        """The directory was made by this process, and its name is not durable yet."""
        self._positions = Positions(segments)
        self._name = f"{topic}-{partition}"
        self._seed = crc32(self._name.encode())

    # -- what others ask

    @property
    def config(self) -> LogConfig:
        """The topic's configs in force."""
        return self._configs()

    @property
    def name(self) -> str:
        """``topic-partition``, as Kafka names the directory."""
        return self._name

    @property
    def high_watermark(self) -> int:
        """Consumers read below this offset."""
        return self.end_offset

    @property
    def last_stable_offset(self) -> int:
        """Consumers of committed records read below this offset: where the oldest open transaction begins."""
        first = self.producers.first_open_offset
        return self.end_offset if first == NO_OFFSET else max(first, self.log_start_offset)

    @property
    def needs_flush(self) -> bool:
        """Whether ``flush.messages`` makes the last append wait for the disk."""
        return self.end_offset - self.recovery_point >= self._configs().flush_messages

    @property
    def size(self) -> int:
        """Bytes of all segments, indexes not counted."""
        return sum(segment.size for segment in self.segments)

    @property
    def latest_epoch(self) -> int:
        """Leader epoch of the newest batch; of the leader itself as long as nothing was written."""
        return max(self.epochs.latest, self.leader_epoch)

    def end_offset_for_epoch(self, epoch: int) -> EpochStart:
        """Return the largest known epoch up to ``epoch`` and where it ended; -1 twice when there is none."""
        if epoch == self.leader_epoch:
            return EpochStart(epoch, self.end_offset)
        return self.epochs.end_offset_of(epoch, self.end_offset)

    # -- writing

    def is_long(self, records: memoryview) -> bool:
        """Return whether ``prepare`` may take more than a few milliseconds."""
        return is_long(records, self._configs())

    def prepare(
        self, records: memoryview, *, config: LogConfig | None = None, decompress_up_to: int | None = None
    ) -> RecordBatch:
        """Check one batch of a producer by itself, and return it as it is to be appended.

        Args:
            records: The batch.
            config: The configs of the topic; given them, any thread may call this. None means those in force.
            decompress_up_to: See ``validation.prepare``.

        Raises:
            KafkaApiError: The batch is rejected (see ``validation``).
        """
        batch = only_batch(records, self._name)
        return prepare(batch, config or self._configs(), self._name, self._now_ms(), decompress_up_to=decompress_up_to)

    def append(self, records: memoryview, *, is_verified: bool = False, begins_at_zero: bool = False) -> AppendResult:
        """Check one batch of a producer, stamp it and write it; see ``prepare`` and ``append_prepared``."""
        batch = self.prepare(records)
        return self.append_prepared(batch, is_verified=is_verified, begins_at_zero=begins_at_zero)

    def append_prepared(
        self, batch: RecordBatch, *, is_verified: bool = False, begins_at_zero: bool = False
    ) -> AppendResult:
        """Check a batch against the state of its producer, stamp it and write it.

        Args:
            batch: The result of ``prepare``.
            is_verified: The transaction coordinator knows that this partition belongs to the producer's transaction.
            begins_at_zero: The first batch of a producer that is unknown here must have sequence 0 (KIP-890).

        Raises:
            KafkaApiError: The batch is rejected (see ``producers``), nothing is written.
            StorageError: The disk refuses; the log is as it was.
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
                    log_append_time_ms=-1,
                    needs_flush=self.needs_flush and duplicate.last_offset >= self.recovery_point,
                )
            self.producers.check_transaction(batch, is_verified=is_verified)
        check_fits_segment(batch, config, self._name)
        base_offset = self.end_offset
        append_time = self.write(batch, now_ms)
        if batch.producer_id > NO_PRODUCER_ID:
            self.producers.appended(batch, base_offset, now_ms)
        if self.waiters:
            self.wake(batch.size)
        return AppendResult(
            base_offset=base_offset,
            last_offset=self.end_offset - 1,
            log_append_time_ms=append_time,
            needs_flush=self.needs_flush,
        )

    def write(self, batch: RecordBatch, now_ms: int) -> int:
        """Stamp a batch that was checked and write it at the end; returns its time of appending, or -1.

        Raises:
            StorageError: The disk refuses; the log is as it was.
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
        """Tell everybody who waits that there are ``size`` more bytes to read."""
        for waiter in tuple(self.waiters):
            waiter.appended(size)

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
        """Make the directory: an empty partition needs none."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._is_new = True
        write_topic_id(self.directory, self.topic_id)  # durable before the first record is
        return self._add_segment(self.end_offset)

    def segment_at(self, base_offset: int, *, created_ms: int) -> LogSegment:
        """Look at the files of a segment."""
        return LogSegment(pool=self._pool, directory=self.directory, base_offset=base_offset, created_ms=created_ms)

    def _add_segment(self, base_offset: int) -> LogSegment:
        segment = self.segment_at(base_offset, created_ms=self._now_ms())
        segment.create()
        if self.config.preallocate:
            segment.file.reserve(self.config.segment_bytes)
        self.segments.append(segment)
        return segment

    def roll(self) -> LogSegment:
        """Close the last segment and begin one at the end offset.

        Raises:
            OSError: The disk refuses; the last segment stays the one that is written to.
        """
        self.segments[-1].seal()
        self.segments[-1].file.trim(self.segments[-1].size)
        self.save_producers()
        return self._add_segment(self.end_offset)

    # -- reading

    def read(self, offset: int, max_bytes: int, *, min_one_batch: bool = True) -> bytes:
        """Return whole batches, the first of which holds ``offset``; empty at the end.

        Args:
            offset: From the log start offset up to the end offset.
            max_bytes: Not more than these, but for ``min_one_batch``. Negative counts as 0.
            min_one_batch: Return the first batch even if it alone is larger than ``max_bytes``.

        Raises:
            OffsetOutOfRangeError: ``offset`` is not in the log.
            StorageError: The disk refuses.
        """
        found = self.find(offset, max_bytes, min_one_batch=min_one_batch)
        return b"" if found is None else found.read()

    def find(self, offset: int, max_bytes: int, *, min_one_batch: bool = True) -> LogRange | None:
        """Return where the bytes lie that ``read`` returns for the same arguments; None when there are none.

        Raises:
            OffsetOutOfRangeError: ``offset`` is not in the log.
            CorruptBatchError: The log is damaged there.
            StorageError: The disk refuses.
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
        """Return where the segment behind this one begins; of the last one the end offset."""
        behind = self.segment_index(segment.base_offset) + 1
        return self.segments[behind].base_offset if behind < len(self.segments) else self.end_offset

    def segment_index(self, offset: int) -> int:
        """Return the place of the segment that holds or would hold ``offset``; -1 when it is before the first."""
        return self._positions.segment_index(offset)

    def forget_positions(self) -> None:
        """Do not trust remembered positions any more: segments were replaced or removed."""
        self._positions.forget()

    def retire(self, segments: Sequence[LogSegment]) -> None:
        """Give up the files of segments that are out of ``segments`` already.

        Raises:
            OSError: The disk refuses.
        """
        for segment in segments:
            self.retire_files(segment.retire())

    def retire_files(self, paths: Sequence[Path]) -> None:
        """Remove files, which have names already that a restart removes, after ``file.delete.delay.ms``."""
        due_ms = self._now_ms() + self.config.file_delete_delay_ms
        self.retired.extend(RetiredFile(due_ms, path) for path in paths)

    def take_retired(self, now_ms: int) -> list[Path]:
        """Return the files whose time is over, for a thread to remove."""
        due = [file.path for file in self.retired if file.due_ms <= now_ms]
        if due:
            self.retired = [file for file in self.retired if file.due_ms > now_ms]
        return due

    # -- durability and end

    def fsync_files(self) -> tuple[Path, ...]:
        """Return the files that a thread has to fsync to make everything below the end offset durable.

        Raises:
            OSError: The disk refuses.
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

    def take_offline(self, error: OSError) -> None:
        """Serve the log no more: fsync failed, so nobody knows what the disk holds of the records since the last one.

        The kernel drops such pages and the next fsync succeeds. So the recovery point must not move any more; the next
        start of the broker reads from the disk what is there, and cuts what is not.
        """
        if self.failure is None:
            self.failure = str(error)
            with suppress(OSError):  # it need not be durable: a start of the machine has an empty page cache
                (self.directory / OFFLINE).touch()
            logger.error(
                "%s is offline, its clients receive KAFKA_STORAGE_ERROR: fsync failed (%s). When the disk is sound,"
                " restart the broker: it checks the log from offset %d on",
                self._name,
                error,
                self.recovery_point,
            )
            self.end_waiting()

    def check_online(self) -> None:
        """Refuse to serve a log whose disk has failed.

        Raises:
            StorageError: The log is offline.
        """
        if self.failure is not None:
            raise StorageError(f"{self._name} is offline since fsync failed: {self.failure}")

    def flushed(self, offset: int) -> None:
        """Take note that everything below ``offset`` is durable."""
        self._is_new = False
        self.recovery_point = max(self.recovery_point, min(offset, self.end_offset))
        self.last_flush_ms = self._now_ms()
        self.unflushed_bytes = 0

    def flush_now(self) -> None:
        """Make everything durable, waiting for the disk right here.

        Raises:
            OSError: The disk refuses.
        """
        end_offset = self.end_offset
        for path in self.fsync_files():
            fsync_path(path)
        self.flushed(end_offset)

    def save_state(self) -> None:
        """Complete the indexes and write what is known of producers, for a quick start."""
        if self.segments:
            self.segments[-1].seal()
            self.segments[-1].file.trim(self.segments[-1].size)
            self.save_producers()

    def save_producers(self) -> None:
        """Write what is known of producers; from there on a recovery reads the log, so aborts must be durable before.

        Raises:
            OSError: The disk refuses.
        """
        for segment in self.segments[max(self.segment_index(self.recovery_point), 0) :]:
            segment.aborted.sync()
        self.producers.save(self.directory, self.end_offset)

    def save_recovery_state(self, since: int) -> tuple[Path, ...]:
        """Write what a recovery from the recovery point needs; return the files to fsync before that point is recorded.

        A recovery trusts the indexes and the producers below the recovery point and does not read the log there.

        Args:
            since: The recovery point that is recorded at present.

        Raises:
            OSError: The disk refuses.
        """
        self.save_producers()
        indexes = []
        for segment in self.segments[max(self.segment_index(since), 0) :]:
            for index in (segment.offset_index, segment.time_index):
                index.flush()
                if len(index):
                    indexes.append(index.file.path)
        snapshot = (self.directory / SNAPSHOT,) if len(self.producers) else ()
        return (*indexes, *snapshot, self.directory)

    def close(self) -> None:
        """Give back descriptors for good and let waiters go."""
        for segment in self.segments:
            segment.give_up()
        self.end_waiting()

    def end_waiting(self) -> None:
        """Wake everybody who waits for this log."""
        self.wake(WAITING_ENDS)

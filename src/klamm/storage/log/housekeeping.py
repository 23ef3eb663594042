"""Background maintenance of logs: flushes, retention, expiration of producers, removal of files.

Retention removes old segments by age, by size of the log, or after DeleteRecords. Its order makes a power cut harmless,
also on a disk that reorders renames:

1. The log start offset advances in memory, and the segments below it leave the log (``PartitionLog.doomed``).
2. ``LogManager.checkpoint`` writes the log start offset durably.
3. Only then are the files renamed. The next start removes whatever is left of them, because it is below the log start
   offset.

On a full disk, the first two steps use the space of the ``Ballast``.

The broker's requests pause by ``TimeSlice``, which measures time. Storage cannot import it, so ``with_pauses`` counts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, Protocol, Self, TypeVar

from klamm.protocol.errors import KafkaApiError, OffsetOutOfRangeError
from klamm.storage.log.config import NO_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet
    from uuid import UUID

    from klamm.storage.log.config import HousekeepingSettings
    from klamm.storage.log.directories import CheckpointFiles
    from klamm.storage.log.partition import PartitionLog
    from klamm.storage.log.segment import LogSegment

logger = logging.getLogger(__name__)

Item = TypeVar("Item")

_ITEMS_AT_ONCE: Final = 256


def with_pauses(items: Iterable[Item], *, at_once: int = _ITEMS_AT_ONCE) -> _PausingIterator[Item]:
    """Iterate over items, and let other tasks run before every ``at_once``-th item.

    Args:
        items: The items. Other tasks may change the underlying collection during a pause, so pass a copy.
        at_once: Number of items per turn of the event loop.
    """
    return _PausingIterator(items, at_once)


class _PausingIterator(Generic[Item]):
    """Asynchronous iterator that pauses after a number of items. Unlike a generator, it needs no closing."""

    __slots__ = ("_at_once", "_count", "_items")

    def __init__(self, items: Iterable[Item], at_once: int) -> None:
        self._items = iter(items)
        self._at_once = at_once
        self._count = 0

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> Item:
        """Return the next item, after a pause if one is due."""
        for item in self._items:
            self._count += 1
            if self._count % self._at_once == 0:
                await asyncio.sleep(0)
            return item
        raise StopAsyncIteration


_REPEAT_S: Final = 600.0


class ErrorReports:
    """Logged errors by text: the first one is logged at once, repetitions at most every ten minutes.

    Args:
        now_s: Monotonic clock, in seconds.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._silent_until: dict[str, float] = {}

    def report(self, name: str, failed: str, error: Exception) -> None:
        """Log an error, unless the same one was logged in the last ten minutes. A defect gets its traceback.

        Args:
            name: Subject of the sentence, such as ``topic-partition``.
            failed: Rest of the sentence, such as ``cannot be flushed``.
            error: Reason.
        """
        now_s = self._now_s()
        sentence = f"{name} {failed}"
        if now_s >= self._silent_until.get(sentence, now_s):
            current = {each: until for each, until in self._silent_until.items() if until > now_s}
            self._silent_until = {**current, sentence: now_s + _REPEAT_S}
            is_expected = isinstance(error, OSError | KafkaApiError)
            logger.error("%s, will be retried: %s", sentence, error, exc_info=None if is_expected else error)


class ConfigOwner(Protocol):
    """Owner of the configs of all topics. It applies changes before they are durable."""

    def is_settled(self, topic: str) -> bool:
        """Return whether the effective values of a topic are durable, and no request has applied them in part."""
        ...


class KeptLogs(Protocol):
    """The part of the log manager that housekeeping and the cleaner need.

    The manager owns both, so they cannot import it.
    """

    checkpoint_files: CheckpointFiles

    def loaded(self) -> Iterator[PartitionLog]:
        """Return the open logs."""
        ...

    def is_settled(self, log: PartitionLog) -> bool:
        """Return whether the configs of a log are durable. Nothing is deleted by others."""
        ...

    def partitions(self) -> Sequence[tuple[UUID, int]]:
        """Return all partitions."""
        ...

    def has_directory(self, topic_id: UUID, partition: int) -> bool:
        """Return whether a partition had a directory when the broker started."""
        ...

    def get(self, topic_id: UUID, partition: int) -> PartitionLog | None:
        """Return the log of a partition, opening it if necessary."""
        ...

    async def flush(self, log: PartitionLog) -> None:
        """Make a log durable up to its current end offset."""
        ...

    def take_offline(self, log: PartitionLog, error: OSError) -> None:
        """Report a log that is not served any more."""
        ...

    def offline_partitions(self, topic_id: UUID) -> AbstractSet[int]:
        """Return the partitions of a topic that are offline because of a disk error."""
        ...

    async def checkpoint(self) -> None:
        """Write recovery points and log start offsets durably, and rename the files below the log start offsets."""
        ...

    @property
    def has_outdated_checkpoints(self) -> bool:
        """Return whether the checkpoint files contain offsets of directories that no longer exist."""
        ...

    async def remove_retired(self, now_ms: int) -> None:
        """Remove the files whose delay is over."""
        ...


_TICK_S: Final = 5.0
_MIN_TICK_S: Final = 0.01
_SEGMENTS_AT_ONCE: Final = 32
_MAX_UNFLUSHED_BYTES: Final = 256 * 1024 * 1024
"""Unflushed bytes at which a log is flushed. This bounds the recovery after a crash (in Kafka by one segment)."""


class Housekeeper:
    """The task that maintains all logs, with pauses so that requests do not wait for it. Owned by the log manager."""

    def __init__(
        self, logs: KeptLogs, *, now_ms: Callable[[], int], settings: Callable[[], HousekeepingSettings]
    ) -> None:
        self._logs = logs
        self._now_ms = now_ms
        self._settings = settings
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._changed: list[PartitionLog] = []
        self._all_changed = False
        self._is_tick_wanted = False
        self._waiting: list[asyncio.Future[None]] = []
        self._flush_tick_s = _TICK_S
        self._reports = ErrorReports()

    def start(self) -> None:
        """Start the task."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="log housekeeping")

    def wake(self) -> None:
        """Run ``tick`` now."""
        self._is_tick_wanted = True
        self._woken.set()

    def check_soon(self, logs: Sequence[PartitionLog] | None) -> None:
        """Apply retention to these logs now, because their configs have changed. None means all open logs."""
        if logs is None:
            self._all_changed = self._is_tick_wanted = True
        elif logs:
            self._changed.extend(logs)
            self._is_tick_wanted |= any(log.config.flush_ms != NO_LIMIT for log in logs)
        else:
            return
        self._woken.set()

    def check_again(self) -> None:
        """Check the logs now that were left out because their configs were not durable."""
        if self._changed or self._all_changed:
            self._woken.set()

    async def check_now(self) -> None:
        """Apply retention to all logs with durable configs, and return when that is done. Opens every log with data."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        self.wake()
        await done

    async def close(self) -> None:
        """Stop the task. An fsync that is running in a thread is awaited by the next flush of that log."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        checked = ticked = expired = loop.time()
        while True:
            settings = self._settings()
            interval_s, producer_interval_s = settings.retention_check_interval_s, settings.producer_check_interval_s
            try:
                async with asyncio.timeout(max(min(self._flush_tick_s, interval_s, producer_interval_s), _MIN_TICK_S)):
                    await self._woken.wait()
            except TimeoutError:
                self._is_tick_wanted = True
            self._woken.clear()
            waiting, self._waiting = self._waiting, []
            try:
                if self._is_tick_wanted or loop.time() >= ticked + _TICK_S:
                    self._is_tick_wanted, ticked = False, loop.time()
                    await self.tick()
                if loop.time() >= expired + producer_interval_s:
                    expired = loop.time()
                    await self.expire_producers()
                if waiting or loop.time() >= checked + interval_s:
                    checked = loop.time()
                    await self.check()
                elif self._all_changed or self._changed:
                    await self.check_changed()
            except Exception as error:  # noqa: BLE001 -- without this task, no log would be flushed or deleted any more
                self._reports.report("Housekeeping", "cannot be finished", error)
            for done in waiting:
                if not done.done():
                    done.set_result(None)

    async def tick(self) -> None:
        """Remove files whose delay is over, and flush logs.

        A log is flushed if a segment was closed, if much data is unflushed, or if ``flush.ms`` is over.
        """
        now_ms = self._now_ms()
        await self._logs.remove_retired(now_ms)
        flushed = False
        self._flush_tick_s = _TICK_S
        async for log in with_pauses(self._logs.loaded()):
            if not log.segments or log.is_deleted or log.failure is not None:
                continue
            flush_ms = log.config.flush_ms
            if flush_ms != NO_LIMIT:
                self._flush_tick_s = min(self._flush_tick_s, flush_ms / 1000)
            rolled = log.recovery_point < log.segments[-1].base_offset
            # If the wall clock was set back, the difference is negative and the log is flushed now.
            due = flush_ms != NO_LIMIT and not 0 <= now_ms - log.last_flush_ms < flush_ms
            if rolled or log.unflushed_bytes > _MAX_UNFLUSHED_BYTES or (due and log.recovery_point < log.end_offset):
                flushed |= await self._flush(log)
        if flushed or self._logs.has_outdated_checkpoints:
            await self._logs.checkpoint()

    async def _flush(self, log: PartitionLog) -> bool:
        try:
            await self._logs.flush(log)
        except Exception as error:  # noqa: BLE001 -- other logs are flushed
            if log.failure is None:  # a failed fsync has already been logged
                self._reports.report(log.name, "cannot be flushed", error)
            return False
        return True

    async def expire_producers(self) -> None:
        """Forget producer ids that have not written for ``producer.id.expiration.ms``, in all open logs."""
        before_ms = self._now_ms() - self._settings().producer_expiration_ms
        async for log in with_pauses(self._logs.loaded()):
            if len(log.producers):
                log.producers.expire(before_ms)

    async def check(self) -> None:
        """Apply retention to every log with data, and write the checkpoint files."""
        self._changed.clear()
        self._all_changed = False
        async for topic_id, partition in with_pauses(self._logs.partitions()):
            if self._logs.has_directory(topic_id, partition):
                try:
                    self._logs.get(topic_id, partition)
                except Exception as error:  # noqa: BLE001 -- other logs are checked
                    if partition not in self._logs.offline_partitions(topic_id):  # otherwise it is already logged
                        self._reports.report(f"Partition {partition} of {topic_id}", "cannot be opened", error)
                await asyncio.sleep(0)
        await self._check_all(list(self._logs.loaded()))
        await self._checkpoint()

    async def check_changed(self) -> None:
        """Apply retention to the logs whose configs have changed."""
        logs = list(self._logs.loaded()) if self._all_changed else self._changed
        self._changed, self._all_changed = [], False
        if await self._check_all(logs):
            await self._checkpoint()

    async def _check_all(self, logs: Sequence[PartitionLog]) -> int:
        removed = 0
        async for log in with_pauses(logs):
            try:
                while self._may_delete(log) and (count := self._apply_retention(log)):
                    removed += count
                    await asyncio.sleep(0)
            except Exception as error:  # noqa: BLE001 -- other logs are checked
                self._reports.report(log.name, "cannot remove old segments", error)
        return removed

    def _apply_retention(self, log: PartitionLog) -> int:
        apply = partial(apply_retention, log, self._now_ms(), max_segments=_SEGMENTS_AT_ONCE)
        if log.config.preallocate:  # a new segment of full size would use up the ballast in vain
            return apply()
        return self._logs.checkpoint_files.ballast.spend(apply)

    def _may_delete(self, log: PartitionLog) -> bool:
        """Return whether a log is in use and its configs are durable. If they are not, it is checked again later."""
        if not self._logs.is_settled(log):
            self._changed.append(log)
            return False
        return bool(log.segments) and not log.is_deleted and log.failure is None

    async def _checkpoint(self) -> None:
        """Write the checkpoint files, which renames the files of old segments, and remove those without a delay."""
        await self._logs.checkpoint()
        await self._logs.remove_retired(self._now_ms())


HIGH_WATERMARK = -1
"""Offset in DeleteRecords that stands for the high watermark, which deletes all records."""


def apply_retention(log: PartitionLog, now_ms: int, *, max_segments: int = 2**31) -> int:
    """Remove whole segments from the start of the log, at most ``max_segments``, and return their number.

    The files keep their names until the next checkpoint.

    ``retention.ms`` compares the largest timestamp of a segment, or the time of the last append if it has none.
    ``retention.bytes`` keeps at least that many bytes. Both apply only with ``cleanup.policy`` "delete". Segments below
    the log start offset are always removed.

    Raises:
        OSError: The new segment of a log that loses its only segment cannot be created.
    """
    doomed = 0
    size = log.size
    for index, segment in enumerate(log.segments):
        if doomed == max_segments:
            break
        end = log.segments[index + 1].base_offset if index + 1 < len(log.segments) else log.end_offset
        if segment.size == 0 and index + 1 == len(log.segments):
            break
        if end > log.log_start_offset and not (
            log.config.is_deleted and (_is_old(log, segment, now_ms) or _is_surplus(log, segment, size))
        ):
            break
        size -= segment.size
        doomed += 1
    if doomed:
        _remove_first(log, doomed)
    return doomed


def _is_old(log: PartitionLog, segment: LogSegment, now_ms: int) -> bool:
    if log.config.retention_ms < 0:
        return False
    written_ms = segment.largest_timestamp
    if segment.is_damaged:  # the unreadable part may contain newer records
        written_ms = max(written_ms, segment.modified_ms)
    return now_ms - written_ms > log.config.retention_ms


def _is_surplus(log: PartitionLog, segment: LogSegment, size: int) -> bool:
    return log.config.retention_bytes >= 0 and size - segment.size >= log.config.retention_bytes


def _remove_first(log: PartitionLog, count: int) -> None:
    if count == len(log.segments):
        try:
            log.roll()  # the name of the new, empty segment keeps the end offset
        except OSError:
            count -= 1  # on a full disk, the older segments make room for the new one
            if not count:
                raise
    log.doomed += log.segments[:count]
    del log.segments[:count]
    log.forget_positions()
    log.log_start_offset = max(log.log_start_offset, log.segments[0].base_offset)
    log.recovery_point = max(log.recovery_point, log.log_start_offset)
    logger.info("%s: removed %d segments, the log starts at offset %d", log.name, count, log.log_start_offset)


def delete_records(log: PartitionLog, before_offset: int) -> int:
    """Advance the log start offset (DeleteRecords) and return it. Whole segments below it leave the log at once.

    The caller must write the checkpoint before it sends the response. The checkpoint also renames the files.

    Args:
        log: Log of the partition.
        before_offset: First offset to keep; ``HIGH_WATERMARK`` deletes all records.

    Raises:
        OffsetOutOfRangeError: The offset is below -1 or above the high watermark.
    """
    offset = log.high_watermark if before_offset == HIGH_WATERMARK else before_offset
    if not 0 <= offset <= log.high_watermark:
        raise OffsetOutOfRangeError(
            f"The specified offset {before_offset} is out of range (0 to {log.high_watermark}) for {log.name}"
        )
    if offset > log.log_start_offset:
        log.log_start_offset = offset
        below = max(log.segment_index(offset), 0)
        if below:  # never all segments: the last one contains the end offset
            _remove_first(log, below)
    return log.log_start_offset

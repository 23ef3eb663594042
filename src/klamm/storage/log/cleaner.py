"""The log cleaner: the task that finds logs to compact, and compaction (``cleanup.policy=compact``).

Compaction keeps only the last record of each key, at its offset.

One pass:

1. ``_plan`` selects the closed segments that end at or below the last stable offset and whose newest record is older
   than ``min.compaction.lag.ms``, if their share of new data exceeds ``min.cleanable.dirty.ratio``, or if
   ``max.compaction.lag.ms`` is over. Records of open transactions are therefore never touched.
2. A thread reads the new segments and builds the map from key to last offset (``find_last_offsets``).
3. The thread rewrites all selected segments without superseded records (``rewrite``). Small neighbours become one
   segment. The new files are in a separate directory.
4. When a new segment is durable, it replaces the old ones (``segment_swap``, crash-safe at every step).

Which records and batches are kept:

- A tombstone (null value) stays until the delete horizon of its batch (KIP-534). The first pass that meets the
  tombstone sets the horizon to now plus ``delete.retention.ms``.
- Records of aborted transactions are removed at once. Their markers are removed later (``TransactionSweep``).
- A batch that loses all records stays as an empty batch while it is its producer's last one. Otherwise the sequence
  number of that producer would be lost.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import KafkaApiError
from klamm.storage.log import segment_rewriter, segment_swap
from klamm.storage.log.config import HousekeepingSettings
from klamm.storage.log.files import FsyncError
from klamm.storage.log.flusher import in_thread
from klamm.storage.log.housekeeping import ErrorReports, KeptLogs, with_pauses
from klamm.storage.log.partition import overlapping
from klamm.storage.log.segment_rewriter import (
    Pace,
    Rules,
    SegmentShape,
    SourceSegment,
    StoppedError,
    TransactionSweep,
    find_last_offsets,
)
from klamm.storage.log.segment_swap import DISK, READY, WORK, Disk

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from klamm.storage.log.config import LogConfig
    from klamm.storage.log.partition import PartitionLog
    from klamm.storage.log.segment import LogSegment

logger = logging.getLogger(__name__)

_MIN_BACKOFF_S: Final = 0.01


class Cleaner:
    """The log cleaner. It compacts one log after the other, in a thread that pauses between batches.

    Owned by the log manager. Kafka's ``log.cleaner.threads`` has no effect: a second thread would only compete for the
    Python interpreter.
    """

    def __init__(
        self, logs: KeptLogs, *, now_ms: Callable[[], int], settings: Callable[[], HousekeepingSettings]
    ) -> None:
        self._logs = logs
        self._now_ms = now_ms
        self._settings = settings
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._stop = threading.Event()
        self._pace = Pace()
        """Pauses of the current or latest pass."""
        self._is_interrupted = False
        """Whether logs were left out because their configs were not durable."""
        self._reports = ErrorReports()

    def start(self) -> None:
        """Start the cleaner task."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="log cleaner")

    def check_soon(self, logs: Sequence[PartitionLog] | None) -> None:
        """Look for logs to compact now, because the configs of these logs have changed. None means broker configs.

        A change of the I/O rate applies to a running pass at once.
        """
        if logs is None:
            self._pace.bytes_per_s = self._settings().cleaner_bytes_per_s
        if logs is None or any(log.config.is_compacted for log in logs):
            for log in logs or ():
                log.is_uncleanable = False
            self._woken.set()

    def check_again(self) -> None:
        """Check the logs now that were left out because their configs were not durable."""
        if self._is_interrupted:
            self._woken.set()

    async def close(self) -> None:
        """Stop the task. A running compaction is abandoned at the next batch, and restarts after the next start."""
        self._stop.set()
        if self._task is not None:
            self._woken.set()
            await self._task
            self._task = None

    async def _run(self) -> None:
        while not self._stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(max(self._settings().cleaner_backoff_s, _MIN_BACKOFF_S)):
                    await self._woken.wait()
            self._woken.clear()
            if not self._stop.is_set() and self._settings().cleaner_is_enabled:
                try:
                    await self.clean()
                except StoppedError:
                    return
                except Exception as error:  # noqa: BLE001 -- without this task, no log would be compacted any more
                    self._reports.report("Compaction", "cannot be finished", error)

    async def clean(self) -> int:
        """Compact every open log that needs it, and return the number of bytes saved.

        Raises:
            OSError: The checkpoint files cannot be written.
            StoppedError: The broker is stopping.
        """
        saved = passes = 0
        self._is_interrupted = False
        async for log in with_pauses(self._logs.loaded()):
            if not self._may_clean(log):
                continue
            before = log.compacted_up_to
            settings = self._settings()
            if settings.cleaner_bytes_per_s == 0:
                break  # not a byte may be read; like Kafka, wait for another rate
            self._pace = Pace(settings.cleaner_bytes_per_s, self._stop)
            try:
                # Its configs may change while it is flushed.
                if not await self._is_checkpointed(log) or not self._may_clean(log):
                    continue
                saved += await compact(log, self._now_ms(), settings=settings, pace=self._pace)
            except OSError as error:
                self._reports.report(log.name, "cannot be compacted", error)
                # After a failed fsync of the directory, that of the next flush would succeed without its new names.
                is_directory = isinstance(error, FsyncError) and error.filename == str(log.directory)
                if is_directory or log.failure is not None:
                    self._logs.take_offline(log, error)
            except StoppedError:
                raise
            except Exception as error:  # noqa: BLE001 -- like Kafka, continue with the other logs
                self._reports.report(log.name, "cannot be compacted", error)
            passes += log.compacted_up_to != before
        if passes:
            await self._logs.checkpoint()
        return saved

    def _may_clean(self, log: PartitionLog) -> bool:
        """Return whether a log may be compacted. One whose configs are not durable is checked again later."""
        if len(log.segments) < 2 or not _is_cleanable(log):  # noqa: PLR2004  # the last one is written to
            return False
        if self._logs.is_settled(log):
            return True
        self._is_interrupted = True
        return False

    async def _is_checkpointed(self, log: PartitionLog) -> bool:
        """Return whether the checkpointed recovery point covers all closed segments; flush the log if it does not.

        Compaction leaves gaps between the offsets of segments. Below the recovery point a start accepts such gaps.
        Above it, a start after a crash treats a gap as lost records and cuts the log there.
        """
        if log.checkpointed_point < log.segments[-1].base_offset:
            await self._logs.flush(log)
            await self._logs.checkpoint()
        return log.checkpointed_point >= log.segments[-1].base_offset


def _is_cleanable(log: PartitionLog) -> bool:
    """Return whether a log may be compacted. As in Kafka, a pass is abandoned when this is no longer so."""
    is_usable = not log.is_deleted and not log.is_uncleanable and log.failure is None
    return is_usable and log.config.is_compacted


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """The segments and offsets of one compaction pass."""

    segments: tuple[LogSegment, ...]
    """All segments that may be rewritten, starting with the first one of the log."""
    start: int
    """First offset that no pass has read yet."""
    end: int
    """First offset that must not be compacted yet."""


async def compact(
    log: PartitionLog,
    now_ms: int,
    *,
    settings: HousekeepingSettings | None = None,
    pace: Pace | None = None,
    disk: Disk = DISK,
) -> int:
    """Compact a log's closed segments if enough of them is new, and return the number of bytes saved.

    Raises:
        OSError: The disk failed. Every segment is either the complete old or the complete new one.
        StoppedError: The pass was stopped through ``pace``.
    """
    plan = _plan(log, now_ms)
    if plan is None:
        return 0
    settings = settings if settings is not None else HousekeepingSettings()
    try:
        pace = pace if pace is not None else Pace()
        return await _compact(log, plan, now_ms, settings=settings, pace=pace, disk=disk)
    except FileNotFoundError:
        if not log.is_deleted:
            raise
        return 0
    except KafkaApiError as error:
        logger.warning("%s cannot be compacted: %s", log.name, error)
        log.is_uncleanable = True
        return 0


def _plan(log: PartitionLog, now_ms: int) -> _Plan | None:
    """Return the segments to compact, by age and share of new data; None if no pass is needed."""
    config, closed = log.config, log.segments[:-1]
    ends = [segment.base_offset for segment in log.segments[1:]]
    stable = log.last_stable_offset
    settled = [
        segment
        for segment, _ in itertools.takewhile(
            lambda pair: pair[1] <= stable and _is_settled(config, pair[0], now_ms), zip(closed, ends, strict=True)
        )
    ]
    if not settled:
        return None
    end = ends[len(settled) - 1]
    start = min(max(log.compacted_up_to, log.log_start_offset), end)
    dirty = [segment for segment, its_end in zip(settled, ends, strict=False) if its_end > start and segment.size]
    if not dirty:
        return None
    share = sum(segment.size for segment in dirty) / sum(segment.size for segment in settled)
    # As in Kafka, a segment whose first batch has no timestamp is never overdue.
    timestamps = [segment.first_timestamp or 0 for segment in dirty]
    oldest_ms = min((timestamp for timestamp in timestamps if timestamp > 0), default=now_ms)
    overdue = now_ms - oldest_ms > config.max_compaction_lag_ms
    if not overdue and share <= config.min_cleanable_dirty_ratio:
        return None
    return _Plan(segments=tuple(settled), start=start, end=end)


def _is_settled(config: LogConfig, segment: LogSegment, now_ms: int) -> bool:
    lag = config.min_compaction_lag_ms
    return lag <= 0 or now_ms - segment.largest_timestamp >= lag


async def _compact(
    log: PartitionLog, plan: _Plan, now_ms: int, *, settings: HousekeepingSettings, pace: Pace, disk: Disk
) -> int:
    config = log.config
    dirty = [segment.file.path for segment, end in _with_ends(plan) if end > plan.start]
    offset_map = await in_thread(
        None,
        find_last_offsets,
        dirty,
        start=plan.start,
        end=plan.end,
        max_bytes=settings.cleaner_map_bytes,
        pace=pace,
        sweep=_sweep(log, plan.start, plan.end),
    )
    rules = Rules(
        last_offsets=offset_map,
        producers_last_offsets=frozenset(log.producers.last_offsets()),
        marker_epochs=log.producers.marker_epochs(),
        sweep=_sweep(log, plan.segments[0].base_offset, plan.end),
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
    )
    waiting = [segment for segment in plan.segments if segment.base_offset < offset_map.end_offset]
    saved = 0
    try:
        while waiting and _is_cleanable(log):
            count, less = await _rewrite_some(log, waiting, plan.end, rules=rules, pace=pace, disk=disk)
            saved += less
            if count:
                waiting = waiting[count:]
            elif waiting[0] in log.segments:
                break  # a config forbade compaction for a moment; the next pass reads the transactions again
            else:
                # Retention has removed segments. Those that are left must not be skipped, because the next pass does
                # not have the keys of this one. The transactions are read from the new start of the log.
                waiting = [segment for segment in waiting if segment in log.segments]
                rules = replace(rules, sweep=_sweep(log, log.segments[0].base_offset, plan.end))
    finally:
        await in_thread(None, shutil.rmtree, log.directory / WORK, ignore_errors=True)
    if not waiting:  # otherwise the pass was abandoned
        log.compacted_up_to = max(log.compacted_up_to, offset_map.end_offset)
    if saved:
        logger.info("Compacted %s: %d bytes saved", log.name, saved)
    return saved


def _sweep(log: PartitionLog, start: int, end: int) -> TransactionSweep:
    return TransactionSweep(overlapping(log.segments[max(log.segment_index(start), 0) :], start, end))


def _with_ends(plan: _Plan) -> zip[tuple[LogSegment, int]]:
    ends = [*(segment.base_offset for segment in plan.segments[1:]), plan.end]
    return zip(plan.segments, ends, strict=True)


async def _rewrite_some(
    log: PartitionLog, segments: Sequence[LogSegment], end: int, *, rules: Rules, pace: Pace, disk: Disk
) -> tuple[int, int]:
    """Replace the first segments that fit into one by a rewritten one.

    Returns:
        The number of replaced segments, and the bytes saved. Both are 0 if the log has changed, so that the segments
        must not be replaced.
    """
    directory, config = log.directory, log.config
    await in_thread(None, segment_swap.clean_up, directory, disk)
    ends = [*(segment.base_offset for segment in segments[1:]), end]
    try:
        made = await in_thread(
            None,
            segment_rewriter.rewrite,
            [
                SourceSegment(path=segment.file.path, base_offset=segment.base_offset, end_offset=end)
                for segment, end in zip(segments, ends, strict=True)
            ],
            directory / WORK,
            rules=rules,
            shape=SegmentShape(
                max_bytes=config.segment_bytes,
                max_index_bytes=config.segment_index_bytes,
                index_interval=config.index_interval_bytes,
            ),
            pace=pace,
        )
    except FileNotFoundError:
        if segments[0] in log.segments:
            raise
        return 0, 0  # the files of removed segments are renamed by the next checkpoint
    group = segments[: made.count]
    if _is_abandoned(log, group):
        return 0, 0
    await in_thread(None, segment_swap.decide, directory, [segment.base_offset for segment in group], disk)
    if _is_abandoned(log, group):
        if (directory / READY).exists():
            await in_thread(None, segment_swap.clean_up, directory, disk)
        return 0, 0
    saved = sum(segment.size for segment in group) - made.size
    _take_places(log, group, disk)
    await in_thread(None, segment_swap.settle, directory, disk)
    return made.count, saved


def _is_abandoned(log: PartitionLog, group: Sequence[LogSegment]) -> bool:
    """Return whether segments must not be replaced, because of a change while the thread worked.

    The log was deleted, has failed or is no longer compacted, or retention has removed one of the segments.
    """
    return not _is_cleanable(log) or any(segment not in log.segments for segment in group)


def _take_places(log: PartitionLog, group: Sequence[LogSegment], disk: Disk) -> None:
    """Replace files and segments without an await, so that no request reads in between."""
    index = log.segments.index(group[0])
    log.forget_positions()
    try:
        renamed = segment_swap.take_places(log.directory, disk)
        put_away = [file for segment in group for file in segment.put_away(renamed)]
        new = log.segment_at(group[0].base_offset, created_ms=max(segment.modified_ms for segment in group))
    except segment_swap.UndoneError:
        raise  # the old segments are still valid
    except OSError as error:
        # The files are not those of the segments any more, until a start has completed the swap and opened the new one.
        log.take_offline(error, cause="compacted files could not take their places")
        log.close()
        raise
    log.retire_files(put_away)
    log.segments[index : index + len(group)] = [new]

"""Compaction (``cleanup.policy=compact``): only the last record of each key is kept, at its offset.

One pass:

1. ``_plan`` selects the closed segments below the last stable offset (minus ``min.compaction.lag.ms``), if their share
   of new data exceeds ``min.cleanable.dirty.ratio``, or if ``max.compaction.lag.ms`` is over. Records of open
   transactions are therefore never touched.
2. A thread reads the new segments and builds the map from key to last offset (``find_last_offsets``).
3. The thread rewrites all selected segments without superseded records (``rewrite``). Small neighbours become one
   segment. The new files are in a separate directory.
4. When a new segment is durable, it replaces the old ones (``segment_swap``, crash-safe at every step).

Which records and batches are kept:

- A tombstone (null value) stays until the delete horizon of its batch (KIP-534). The first pass that meets the
  tombstone sets the horizon to now plus ``delete.retention.ms``.
- Records of aborted transactions are removed at once. Their markers are removed later (``transaction_cleaning``).
- A batch that loses all records stays as an empty batch while it is its producer's last one. Otherwise the sequence
  number of that producer would be lost.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from klamm.protocol.errors import KafkaApiError
from klamm.storage.log import segment_rewriter, segment_swap
from klamm.storage.log.aborted import overlapping
from klamm.storage.log.config import HousekeepingSettings
from klamm.storage.log.segment_rewriter import Pace, Rules, SegmentShape, SourceSegment, find_last_offsets
from klamm.storage.log.segment_swap import DISK, READY, WORK, Disk
from klamm.storage.log.transaction_cleaning import TransactionSweep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.storage.log.config import LogConfig
    from klamm.storage.log.partition import PartitionLog
    from klamm.storage.log.segment import LogSegment

logger = logging.getLogger(__name__)


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
    oldest_ms = min(segment.first_timestamp or 0 for segment in dirty)
    overdue = now_ms - oldest_ms > config.max_compaction_lag_ms
    if not overdue and share <= config.min_cleanable_dirty_ratio:
        return None
    return _Plan(segments=tuple(settled), start=start, end=end)


def _is_settled(config: LogConfig, segment: LogSegment, now_ms: int) -> bool:
    lag = config.min_compaction_lag_ms
    return lag <= 0 or now_ms - segment.max_timestamp >= lag


async def _compact(
    log: PartitionLog, plan: _Plan, now_ms: int, *, settings: HousekeepingSettings, pace: Pace, disk: Disk
) -> int:
    config = log.config
    dirty = [segment.file.path for segment, end in _with_ends(plan) if end > plan.start]
    found = await asyncio.to_thread(
        find_last_offsets,
        dirty,
        start=plan.start,
        end=plan.end,
        max_bytes=settings.cleaner_map_bytes,
        pace=pace,
        sweep=_sweep(log, plan.start, plan.end),
    )
    rules = Rules(
        last_offsets=found.offsets,
        producers_last_offsets=frozenset(log.producers.last_offsets()),
        marker_epochs=log.producers.marker_epochs(),
        sweep=_sweep(log, plan.segments[0].base_offset, plan.end),
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
    )
    waiting = [segment for segment in plan.segments if segment.base_offset < found.end_offset]
    saved = 0
    try:
        while waiting and not log.is_deleted:
            count, less = await _rewrite_some(log, waiting, plan.end, rules=rules, pace=pace, disk=disk)
            saved += less
            waiting = waiting[count:]
    finally:
        await asyncio.to_thread(shutil.rmtree, log.directory / WORK, ignore_errors=True)
    if not log.is_deleted:
        log.compacted_up_to = max(log.compacted_up_to, found.end_offset)
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
    """Replace the first segments that fit into one by a rewritten one. Return their number and the bytes saved."""
    directory, config = log.directory, log.config
    await asyncio.to_thread(shutil.rmtree, directory / WORK, ignore_errors=True)
    ends = [*(segment.base_offset for segment in segments[1:]), end]
    made = await asyncio.to_thread(
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
    group = segments[: made.count]
    if _is_gone(log, group):
        return made.count, 0
    await asyncio.to_thread(segment_swap.decide, directory, [segment.base_offset for segment in group], disk)
    if _is_gone(log, group):
        if (directory / READY).exists():
            await asyncio.to_thread(segment_swap.discard, directory)
        return made.count, 0
    saved = sum(segment.size for segment in group) - made.size
    _take_places(log, group, disk)
    await asyncio.to_thread(segment_swap.settle, directory, disk)
    return made.count, saved


def _is_gone(log: PartitionLog, group: Sequence[LogSegment]) -> bool:
    """Return whether the topic or one of the segments was deleted while the thread worked."""
    return log.is_deleted or any(segment not in log.segments for segment in group)


def _take_places(log: PartitionLog, group: Sequence[LogSegment], disk: Disk) -> None:
    """Replace files and segments without an await, so that no request reads in between."""
    index = log.segments.index(group[0])
    log.forget_positions()
    for segment in group:
        segment.close()
    put_away = segment_swap.take_places(log.directory, disk)
    for segment in group:
        segment.give_up()  # a response that still reads the old segment must fail rather than read the new file
    log.retire_files(put_away)
    new = log.segment_at(group[0].base_offset, created_ms=max(segment.created_ms for segment in group))
    log.segments[index : index + len(group)] = [new]

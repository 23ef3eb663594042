"""Background maintenance of logs: flushes, retention, expiration of producers, removal of files."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from klamm.storage.log.config import NO_LIMIT
from klamm.storage.log.error_reports import ErrorReports
from klamm.storage.log.pauses import with_pauses
from klamm.storage.log.retention import apply_retention

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from uuid import UUID

    from klamm.storage.log.config import HousekeepingSettings
    from klamm.storage.log.partition import PartitionLog

logger = logging.getLogger(__name__)

_TICK_S: Final = 5.0
_MIN_TICK_S: Final = 0.01
_SEGMENTS_AT_ONCE: Final = 32
_MAX_UNFLUSHED_BYTES: Final = 256 * 1024 * 1024
"""Unflushed bytes at which a log is flushed. This bounds the recovery after a crash (in Kafka by one segment)."""


class KeptLogs(Protocol):
    """The part of the log manager that housekeeping needs."""

    def loaded(self) -> Iterator[PartitionLog]:
        """Return the logs that are open."""
        ...

    def known(self) -> Sequence[tuple[UUID, int]]:
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
        else:
            self._changed.extend(logs)
            self._is_tick_wanted |= any(log.config.flush_ms != NO_LIMIT for log in logs)
        self._woken.set()

    async def check_now(self) -> None:
        """Apply retention to all open logs, and return when that is done."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        self.check_soon(None)
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
            interval_s = self._settings().retention_check_interval_s
            producer_interval_s = self._settings().producer_check_interval_s
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
                if loop.time() >= checked + interval_s:
                    checked = loop.time()
                    await self.check()
                elif self._all_changed or self._changed:
                    await self.check_changed()
            except OSError as error:
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
        except OSError as error:
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
        async for topic_id, partition in with_pauses(self._logs.known()):
            if self._logs.has_directory(topic_id, partition):
                try:
                    self._logs.get(topic_id, partition)
                except OSError as error:
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
            if not log.segments or log.is_deleted or log.failure is not None:
                continue
            try:
                while count := apply_retention(log, self._now_ms(), max_segments=_SEGMENTS_AT_ONCE):
                    removed += count
                    await asyncio.sleep(0)
            except OSError as error:
                self._reports.report(log.name, "cannot remove old segments", error)
        return removed

    async def _checkpoint(self) -> None:
        """Write the checkpoint files, which renames the files of old segments, and remove those without a delay."""
        await self._logs.checkpoint()
        await self._logs.remove_retired(self._now_ms())

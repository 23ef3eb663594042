"""The log cleaner: the task that finds logs to compact."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from klamm.storage.log.compaction import compact
from klamm.storage.log.error_reports import ErrorReports
from klamm.storage.log.pauses import with_pauses
from klamm.storage.log.segment_rewriter import Pace, StoppedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from klamm.storage.log.config import HousekeepingSettings
    from klamm.storage.log.partition import PartitionLog

logger = logging.getLogger(__name__)

_MIN_BACKOFF_S: Final = 0.01


class CompactableLogs(Protocol):
    """The part of the log manager that compaction needs."""

    def loaded(self) -> Iterator[PartitionLog]:
        """Return the logs that are open."""
        ...

    async def flush(self, log: PartitionLog) -> None:
        """Make a log durable up to its current end offset."""
        ...

    async def checkpoint(self) -> None:
        """Write the checkpoint files durably, including the compacted offset of each log."""
        ...


class Cleaner:
    """The log cleaner. It compacts one log after the other, in a thread that pauses between batches.

    Owned by the log manager. Kafka's ``log.cleaner.threads`` has no effect: a second thread would only compete for the
    Python interpreter.
    """

    def __init__(
        self, logs: CompactableLogs, *, now_ms: Callable[[], int], settings: Callable[[], HousekeepingSettings]
    ) -> None:
        self._logs = logs
        self._now_ms = now_ms
        self._settings = settings
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._stop = threading.Event()
        self._reports = ErrorReports()

    def start(self) -> None:
        """Start the cleaner task."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="log cleaner")

    def check_soon(self, logs: Sequence[PartitionLog] | None) -> None:
        """Look for logs to compact now, because the configs of these logs have changed. None means all logs."""
        if logs is None or any(log.config.is_compacted for log in logs):
            for log in logs or ():
                log.is_uncleanable = False
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
                except OSError as error:
                    self._reports.report("Compaction", "cannot be finished", error)

    async def clean(self) -> int:
        """Compact every open log that needs it, and return the number of bytes saved.

        Raises:
            OSError: The checkpoint files cannot be written.
            StoppedError: The broker is stopping.
        """
        saved = passes = 0
        async for log in with_pauses(self._logs.loaded()):
            if len(log.segments) < 2 or not _is_cleanable(log):  # noqa: PLR2004  # the last one is written to
                continue
            before = log.compacted_up_to
            settings = self._settings()
            pace = Pace(settings.cleaner_bytes_per_s, self._stop)
            try:
                if not await self._is_checkpointed(log):
                    continue
                saved += await compact(log, self._now_ms(), settings=settings, pace=pace)
            except OSError as error:
                self._reports.report(log.name, "cannot be compacted", error)
            passes += log.compacted_up_to != before
        if passes:
            await self._logs.checkpoint()
        return saved

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
    is_usable = not log.is_deleted and not log.is_uncleanable and log.failure is None
    return is_usable and log.config.is_compacted

"""The log flusher: threads that make logs durable, and the partitions that are offline because the disk failed.

A stop with 20,000 changed logs needs 80,000 fsyncs, each with a barrier on the disk. On Linux, one ``syncfs`` makes the
whole file system durable instead. It is used only where its result can be trusted:

* since Linux 5.8, whose ``syncfs`` reports errors of earlier writebacks to descriptors that were open at that time;
* on file systems that pass the call and its errors on: ext4 and xfs. An overlay or a network file system need not.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from klamm.lazy_dataclass import dataclass
from klamm.storage.descriptors import EXHAUSTED, FLUSH_THREADS, SPARE
from klamm.storage.log.files import FsyncError, fsync_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from concurrent.futures import Executor
    from pathlib import Path
    from uuid import UUID

    from klamm.storage.log.partition import PartitionLog

logger = logging.getLogger(__name__)

_TRUSTED: Final = frozenset({"ext4", "xfs"})
_REPORTS_ERRORS_SINCE: Final = (5, 8)
MOUNTS: Final = "/proc/self/mountinfo"


class FileSystem:
    """The file system of a directory, kept open, so that ``sync`` reports every failed write since then.

    Any thread may call ``sync``. An object that is not closed is closed when it is collected.
    """

    def __init__(self, directory: Path) -> None:
        self._descriptor: int | None = None
        self._descriptor = SPARE.open(directory, os.O_RDONLY)
        self._device = os.fstat(self._descriptor).st_dev

    def sync(self, directories: Sequence[Path]) -> list[bool]:
        """Make everything on the file system durable, and return which of the directories are on it.

        Raises:
            OSError: The file system cannot be made durable as a whole, or some write to it has failed.
        """
        if self._descriptor is None or not is_trusted(self._device):
            raise OSError(errno.ENOTSUP, "syncfs is not known to report errors here")
        are_here = [device_of(directory) == self._device for directory in directories]
        syncfs(self._descriptor)
        return are_here

    def __del__(self) -> None:
        """Close the descriptor."""
        self.close()

    def close(self) -> None:
        """Close the descriptor. A second call has no effect."""
        if self._descriptor is not None:
            SPARE.close(self._descriptor)
            self._descriptor = None


def is_trusted(device: int) -> bool:
    """Return whether ``syncfs`` makes everything on a device durable and reports every error."""
    return _kernel_version() >= _REPORTS_ERRORS_SINCE and _type_of(device) in _TRUSTED


def syncfs(descriptor: int) -> None:
    """Make the file system of an open file durable, without the interpreter lock.

    Raises:
        OSError: The system has no ``syncfs``, or a write to the file system has failed.
    """
    import ctypes  # noqa: PLC0415 -- slow to import, and only a stop with many logs needs it

    function = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if function(descriptor) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _kernel_version() -> tuple[int, ...]:
    """Return the version of Linux, (0,) on other systems."""
    system = os.uname() if hasattr(os, "uname") else None
    match = re.match(r"(\d+)\.(\d+)", system.release) if system is not None and system.sysname == "Linux" else None
    return (0,) if match is None else tuple(map(int, match.groups()))


def _type_of(device: int) -> str | None:
    """Return the type of the file system on a device, None if it is unknown."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open(MOUNTS, encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
                fields = line.split()
                if fields[2] == number:
                    return fields[fields.index("-", 6) + 1]
    except (OSError, ValueError, IndexError):
        pass
    return None


def device_of(directory: Path) -> int | None:
    """Return the device of a directory, None if it cannot be read."""
    try:
        return directory.stat().st_dev
    except OSError:
        return None


FLUSHED_TOGETHER: Final = 16
"""Number of logs that one thread flushes or creates in a row, to limit thread switches."""
MANY_LOGS: Final = 500
"""Number of changed logs from which a sync of the whole file system takes less time than an fsync of each file. Other
programs' unwritten data are written with it."""
_PASSING: Final = EXHAUSTED | {errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.ENOTEMPTY}
"""Error numbers after which the next attempt to open a log may succeed."""
_NOT_RUN: Final = OSError("The files have not been made durable")
T = TypeVar("T")
Result = TypeVar("Result")
P = ParamSpec("P")


@dataclass(slots=True)
class RecoveryState:
    """A recovery point, and the files that must be durable before it is checkpointed."""

    log: PartitionLog
    recovery_point: int
    files: tuple[Path, ...]
    error: OSError | None = _NOT_RUN
    """Error of the fsync; None once it has succeeded."""


class Flusher:
    """The threads that make logs durable. Used on the event loop only."""

    def __init__(self, data_dir: Path) -> None:
        self._file_system = FileSystem(data_dir)
        self._threads = ThreadPoolExecutor(FLUSH_THREADS, thread_name_prefix="klamm-flush")
        self._offline: dict[UUID, dict[int, str]] = {}
        """Partitions that are offline, with the reason, by topic."""
        self.failures = 0
        """Number of failed fsyncs since the start."""

    async def flush(self, log: PartitionLog) -> None:
        """Make a log durable up to its current end offset, in a thread. If the fsync fails, the log goes offline.

        Only one flush of a log runs at a time. The kernel reports a failed fsync only once. If two flushes ran
        concurrently, one would get the error, and the other would succeed and wrongly advance the recovery point.

        Raises:
            OSError: The flush failed, or an earlier one has.
        """
        (error,) = await self.flush_together([log])
        if error is not None:
            raise error

    async def flush_together(
        self, logs: Sequence[PartitionLog], besides: Mapping[PartitionLog, Sequence[Path]] = MappingProxyType({})
    ) -> Sequence[OSError | None]:
        """Flush logs, up to ``FLUSHED_TOGETHER`` in a row in one thread, and return each log's error or None.

        Args:
            logs: The logs. If ``MANY_LOGS`` or more have changed, one sync of the whole file system flushes them where
                that is possible.
            besides: Further files to make durable with a log.
        """
        async with AsyncExitStack() as locks:
            for log in logs:
                await locks.enter_async_context(log.flushing)
            flushes = [_Flush(log, besides.get(log, ())) for log in logs]
            try:
                if unflushed := [flush for flush in flushes if flush.files]:
                    await to_its_end(asyncio.ensure_future(self._make_durable(unflushed)))
            finally:
                for flush in flushes:
                    if flush.error is None:
                        flush.log.flushed(flush.end_offset)
            return [flush.error for flush in flushes]

    async def _make_durable(self, flushes: Sequence[_Flush]) -> None:
        if len(flushes) >= MANY_LOGS:
            directories = [flush.log.directory for flush in flushes]
            try:
                are_done = await self.run(self._file_system.sync, directories)
            except OSError as error:
                logger.info("The file system is not synced as a whole, but file by file: %s", error)
            else:
                for flush, is_done in zip(flushes, are_done, strict=True):
                    if is_done:
                        flush.error = None
                flushes = [flush for flush in flushes if flush.error is not None]
        await self.fsync(flushes)

    async def fsync(self, items: Sequence[_Flush | RecoveryState]) -> None:
        """Make the files of logs durable, in several threads if there are many.

        If a thread cannot be started or fails, the error is raised when the other threads have ended. Until then, no
        other flush of these logs may begin.

        A log whose fsync fails goes offline, whatever the file: the next fsync of that file would succeed without it.
        """
        running: list[asyncio.Future[None]] = []
        try:
            running.extend(self.run(_fsync_all, part) for part in in_parts(items))
        finally:
            try:
                if running:
                    await to_its_end(asyncio.ensure_future(asyncio.wait(running)))
            finally:
                for item in items:
                    if isinstance(item.error, FsyncError):
                        self.take_offline(item.log, item.error)
        for work in running:
            work.result()

    def take_offline(self, log: PartitionLog, error: OSError) -> None:
        """Stop serving a log after a disk error, and count it as offline. A failed fsync is counted, too."""
        if isinstance(error, FsyncError) and log.failure is None:
            self.failures += 1
        log.take_offline(error)
        if not log.is_deleted:
            self._offline.setdefault(log.topic_id, {})[log.partition] = str(error)

    @contextmanager
    def opening(self, topic_id: UUID, topic: str, partition: int) -> Iterator[None]:
        """Take a partition offline if its log cannot be opened inside, unless that may succeed the next time.

        Each further attempt would read the log again up to the damage, while all other requests wait.

        Raises:
            OSError: The log cannot be opened, or the partition is offline since an earlier attempt.
        """
        if (earlier := self._offline.get(topic_id, {}).get(partition)) is not None:
            raise OSError(errno.EIO, f"the log is offline since it could not be opened: {earlier}")
        try:
            yield
        except OSError as error:
            if isinstance(error, FsyncError) or error.errno not in _PASSING:
                self._offline.setdefault(topic_id, {})[partition] = str(error)
                logger.error(  # noqa: TRY400 -- the message is complete
                    "%s-%d is offline, its clients receive KAFKA_STORAGE_ERROR: it cannot be opened (%s). Repair the"
                    " disk, then restart the broker",
                    topic,
                    partition,
                    error,
                )
            raise

    def run(self, work: Callable[[Sequence[T]], Result], items: Sequence[T]) -> asyncio.Future[Result]:
        """Run work on items in one of the threads. If the start of a thread fails, the work never runs."""
        return in_thread(self._threads, work, items)

    @property
    def offline_count(self) -> int:
        """Number of logs that are offline because of a disk error."""
        return sum(map(len, self._offline.values()))

    def offline_partitions(self, topic_id: UUID) -> AbstractSet[int]:
        """Return the partitions of a topic that are offline because of a disk error."""
        return self._offline.get(topic_id, {}).keys()

    def forget(self, topic_id: UUID) -> None:
        """Forget the offline partitions of a deleted topic."""
        self._offline.pop(topic_id, None)

    def close(self) -> None:
        """Wait for the threads to end."""
        self._threads.shutdown()
        self._file_system.close()


def in_thread(
    executor: Executor | None, work: Callable[P, Result], *arguments: P.args, **options: P.kwargs
) -> asyncio.Future[Result]:
    """Run work in a thread of an executor, None for the loop's own. After a RuntimeError, the work never runs.

    A ``ThreadPoolExecutor`` queues work before it starts a thread for it. If that start fails, ``submit`` raises, but
    another thread of the executor would run the work later, at the same time as the caller's next attempt. An fsync
    that runs then would consume the only report of an error, and the fsync of the next flush would succeed.

    Raises:
        RuntimeError: No thread can be started, and no other one has begun the work.
    """
    future: Future[Result] = Future()

    def run() -> None:
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work(*arguments, **options))
            except BaseException as error:  # noqa: BLE001 -- raised in the caller
                future.set_exception(error)

    try:
        asyncio.get_running_loop().run_in_executor(executor, run)
    except RuntimeError:
        if future.cancel():
            raise
    return asyncio.wrap_future(future)


async def to_its_end(working: asyncio.Future[Any]) -> None:
    """Wait for work in a thread, however often the caller is cancelled: a lost connection cancels twice."""
    is_cancelled = False
    while not working.done():
        try:
            await asyncio.wait({working})
        except asyncio.CancelledError:
            is_cancelled = True
    if is_cancelled:
        raise asyncio.CancelledError
    working.result()


def in_parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Divide items into parts for one thread each."""
    return (items[start : start + FLUSHED_TOGETHER] for start in range(0, len(items), FLUSHED_TOGETHER))


class _Flush:
    """The files of one log that a thread makes durable, and the result."""

    __slots__ = ("end_offset", "error", "files", "log")

    def __init__(self, log: PartitionLog, besides: Sequence[Path]) -> None:
        self.log = log
        self.end_offset = log.end_offset
        self.files: Sequence[Path] = ()
        self.error: OSError | None = None
        """Why the files are not durable; None if there are none or once they are durable."""
        try:
            if log.failure is not None:
                raise FsyncError(errno.EIO, f"the log is offline since {log.failure}", str(log.directory))
            self.files = tuple(dict.fromkeys((*log.fsync_files(), *besides)))
            if self.files:
                self.error = _NOT_RUN
        except OSError as error:
            self.error = error


def _fsync_all(items: Iterable[_Flush | RecoveryState]) -> None:
    """Make the files of logs durable. Each log keeps its own error."""
    for item in items:
        for path in item.files:
            try:
                fsync_path(path)
            except FileNotFoundError:
                continue  # deleted meanwhile by retention or with its topic
            except OSError as error:
                item.error = error
                break
        else:
            item.error = None

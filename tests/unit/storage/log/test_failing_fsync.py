"""A failing fsync takes its partition offline; other partitions continue."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock
from uuid import UUID

import pytest

from klamm.protocol.errors import StorageError
from klamm.storage.log.directories import CLEAN_SHUTDOWN, OFFLINE
from klamm.storage.log.files import FsyncError
from klamm.storage.log.flusher import Flusher, in_thread
from klamm.storage.log.housekeeping import ErrorReports
from tests.support.logs import TOPIC_ID, CrashableLogs, batch, read_all
from tests.support.transactions import ABORT, end, write

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from klamm.storage.log import PartitionLog

OTHER_ID = UUID(int=8)


class Disk:
    """fsync of paths that contain ``broken`` fails; the kernel forgets what it could not write, and reports it once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broken: str | None = None
        self.released = threading.Event()
        """The broken fsync waits for this event."""
        self.released.set()
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self.fsync)

    def fsync(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if self.broken is not None and self.broken in path:
            self.broken = None
            assert self.released.wait(20)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._fsync(descriptor)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def crashable(tmp_path: Path) -> CrashableLogs:
    """Partitions t-0 and other-0 with a record each."""
    crashable = CrashableLogs(tmp_path)
    crashable.partitions.append((OTHER_ID, "other", 0))
    crashable.open()
    crashable.log.append(batch("a"))
    other(crashable).append(batch("b"))
    return crashable


def other(crashable: CrashableLogs) -> PartitionLog:
    log = crashable.manager.get(OTHER_ID, 0)
    assert log is not None
    return log


async def test_flush_after_a_failed_fsync_does_not_advance_the_recovery_point(
    crashable: CrashableLogs, disk: Disk
) -> None:
    disk.broken = "t-0/"
    with pytest.raises(FsyncError):
        await crashable.manager.flush(crashable.log)
    with pytest.raises(FsyncError):
        await crashable.manager.flush(crashable.log)
    await crashable.manager.checkpoint()

    assert crashable.log.recovery_point == 0
    assert "t 0" not in (crashable.data_dir / "recovery-point-offset-checkpoint").read_text()
    for rejected in (lambda: crashable.log.append(batch("c")), lambda: crashable.log.read(0, 100)):
        with pytest.raises(StorageError, match="t-0 is offline since fsync failed"):
            rejected()
    with pytest.raises(StorageError):
        end(crashable.log, 1, ABORT)
    assert (crashable.manager.offline_count, crashable.manager.flush_failures) == (1, 1)
    assert crashable.manager.offline_partitions(TOPIC_ID) == {0}
    crashable.manager.delete_topic(TOPIC_ID)
    assert (crashable.manager.offline_count, crashable.manager.offline_partitions(TOPIC_ID)) == (0, frozenset())


@pytest.mark.parametrize("error", [OSError(errno.EIO, "I/O"), FsyncError(errno.ENOSPC, "full")], ids=["read", "fsync"])
async def test_unreadable_log_is_offline_until_restart(
    crashable: CrashableLogs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: OSError
) -> None:
    """Another recovery by each request would stop all others while it reads."""
    # given
    manager, recovery = crashable.open(), Mock(side_effect=error)
    with monkeypatch.context() as patch:
        patch.setattr("klamm.storage.log.manager.open_partition", recovery)
        manager.recover()
    recovery.reset_mock(side_effect=True)
    # when
    with pytest.raises(OSError, match="the log is offline since it could not be opened"):
        manager.get(TOPIC_ID, 0)
    await manager.housekeeper.check()
    # then
    assert not recovery.called
    assert (manager.offline_count, manager.offline_partitions(TOPIC_ID)) == (2, {0})
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
    manager.delete_topic(OTHER_ID)
    assert manager.offline_count == 1
    await manager.close()
    crashable.open()
    assert (read_all(crashable.log)[0].value, crashable.manager.was_clean) == (b"a", False)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM, errno.ENOSPC])
async def test_log_is_opened_by_the_first_request_after_a_shortage(
    crashable: CrashableLogs, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    manager = crashable.open()
    with monkeypatch.context() as patch:
        patch.setattr("klamm.storage.log.manager.open_partition", Mock(side_effect=OSError(code, os.strerror(code))))
        manager.recover()
    assert manager.offline_count == 0
    assert read_all(crashable.log)[0].value == b"a"


async def test_failed_fsync_of_recovery_state_takes_the_log_offline(
    crashable: CrashableLogs, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    # given
    for log in (crashable.log, other(crashable)):
        await crashable.manager.flush(log)
    disk.broken = "t-0/leader-epoch-checkpoint"
    # when
    for _ in range(2):  # the second fsync would succeed
        await crashable.manager.checkpoint()
    # then
    points = (crashable.data_dir / "recovery-point-offset-checkpoint").read_text()
    assert ("t 0 1" in points, "other 0 1" in points) == (False, True)
    assert (crashable.manager.offline_count, crashable.manager.flush_failures) == (1, 1)
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1


async def test_failed_fsync_while_recovery_state_is_saved_takes_the_log_offline(
    crashable: CrashableLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise FsyncError(errno.EIO, os.strerror(errno.EIO), "t-0")

    await crashable.manager.flush(crashable.log)
    monkeypatch.setattr(type(crashable.log), "save_recovery_state", fail)
    await crashable.manager.checkpoint()
    assert (crashable.manager.offline_count, crashable.manager.flush_failures) == (1, 1)


async def test_failed_flush_of_cancelled_request_takes_the_log_offline(crashable: CrashableLogs, disk: Disk) -> None:
    disk.broken = "t-0/"
    disk.released.clear()
    flushing = asyncio.create_task(crashable.manager.flush(crashable.log))
    for _ in range(3):
        await asyncio.sleep(0)
    for _ in range(2):  # as for a lost connection over TLS
        flushing.cancel()
        for _ in range(3):
            await asyncio.sleep(0)  # the cancellation arrives while the fsync is running
    assert not flushing.done()
    disk.released.set()
    with pytest.raises(asyncio.CancelledError):
        await flushing
    assert crashable.manager.offline_count == 1


async def test_unopenable_file_is_flushed_later(crashable: CrashableLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_descriptor(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr("klamm.storage.log.flusher.fsync_path", no_descriptor)
        with pytest.raises(OSError, match="Too many open files"):
            await crashable.manager.flush(crashable.log)
    await crashable.manager.flush(crashable.log)
    assert (crashable.manager.offline_count, crashable.log.recovery_point) == (0, 1)


async def test_flush_without_a_thread_does_not_advance_the_recovery_point(
    crashable: CrashableLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    # when
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await crashable.manager.flush(crashable.log)
    # then
    assert crashable.log.recovery_point == 0
    await crashable.manager.flush(crashable.log)
    assert crashable.log.recovery_point == 1


async def test_flush_without_a_second_thread_waits_for_the_first(
    crashable: CrashableLogs, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given: each log is flushed in its own thread, and only one thread starts
    monkeypatch.setattr("klamm.storage.log.flusher.FLUSHED_TOGETHER", 1)
    threads = Flusher(crashable.data_dir)
    parts = []
    run = threads.run

    def run_once(work: Callable[[Sequence[Any]], None], items: Sequence[Any]) -> asyncio.Future[None]:
        parts.append(items)
        if len(parts) > 1:
            raise RuntimeError("can't start new thread")
        return run(work, items)

    monkeypatch.setattr(threads, "run", run_once)
    disk.broken = "t-0/"
    disk.released.clear()
    # when
    flushing = asyncio.create_task(threads.flush_together([crashable.log, other(crashable)]))
    for _ in range(10):
        await asyncio.sleep(0)
    disk.released.set()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        await flushing
    # then: the error of the first log, which the kernel reports only once, is not lost
    assert crashable.log.failure is not None
    assert (other(crashable).failure, other(crashable).recovery_point) == (None, 0)
    threads.close()


async def test_flush_without_a_thread_leaves_the_error_to_the_next_flush(
    crashable: CrashableLogs, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given: the only thread is busy, and no second one starts
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads = Flusher(crashable.data_dir)
    may_end = threading.Event()
    busy = threads.run(lambda _: may_end.wait(20), [])
    disk.broken = "t-0/"
    # when
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await threads.flush(crashable.log)
    may_end.set()
    await busy
    threads.close()  # the thread has run all that was queued
    # then
    with pytest.raises(FsyncError):
        await crashable.manager.flush(crashable.log)
    assert crashable.log.failure is not None


async def test_work_that_has_begun_is_awaited_although_no_thread_starts() -> None:
    # given
    class Threads(ThreadPoolExecutor):
        def submit(self, work: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
            super().submit(work, *arguments, **options).result()
            raise RuntimeError("can't start new thread")

    # when
    with Threads() as threads:
        result = await in_thread(threads, len, "abc")
    # then
    assert result == 3


def test_restart_reads_offline_log_from_disk(
    crashable: CrashableLogs, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page cache shows records that the disk never received."""
    asyncio.run(crashable.manager.flush(crashable.log))
    durable = crashable.log.size
    crashable.log.append(batch("dropped by the kernel"))
    disk.broken = "t-0/"
    with pytest.raises(FsyncError):
        asyncio.run(crashable.manager.flush(crashable.log))

    def drop_the_cache(descriptor: int, _offset: int, _length: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_DONTNEED
        os.pwrite(descriptor, bytes(os.fstat(descriptor).st_size - durable), durable)

    monkeypatch.setattr(os, "posix_fadvise", drop_the_cache)
    crashable.open()

    assert [record.value for record in read_all(crashable.log)] == [b"a"]
    assert not (crashable.log.directory / OFFLINE).exists()
    assert crashable.log.append(batch("c")).base_offset == 1


@pytest.mark.parametrize("failing", ["t-0/", "other-0/"])
async def test_failed_fsync_does_not_affect_other_logs(
    crashable: CrashableLogs, disk: Disk, failing: str, caplog: pytest.LogCaptureFixture
) -> None:
    crashable.configs.update({"flush.ms": "1", "segment.bytes": "140", "retention.bytes": "0"})
    crashable.manager.update_configs()
    for log in (crashable.log, other(crashable)):
        for _ in range(3):
            log.append(batch("x" * 60))
    crashable.clock.now_ms += 1000
    disk.broken = failing

    for _ in range(3):
        await crashable.manager.housekeeper.tick()
        await crashable.manager.housekeeper.check()

    sound = other(crashable) if failing == "t-0/" else crashable.log
    assert (sound.recovery_point, sound.log_start_offset) == (4, 4)
    points = (crashable.data_dir / "recovery-point-offset-checkpoint").read_text()
    assert f"{sound.topic} 0 4" in points
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1


def test_failed_cleanup_of_one_log_does_not_affect_others(
    crashable: CrashableLogs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    crashable.configs.update({"segment.bytes": "140", "retention.bytes": "0"})
    crashable.manager.update_configs()
    for log in (crashable.log, other(crashable)):
        for _ in range(3):
            log.append(batch("x" * 60))

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(crashable.log, "retire", fail)
    asyncio.run(crashable.manager.housekeeper.check())
    asyncio.run(crashable.manager.housekeeper.check())

    assert other(crashable).log_start_offset == 4
    assert len([record for record in caplog.records if "cannot remove old segments" in record.message]) == 1


def test_failed_compaction_of_one_log_does_not_affect_others(
    crashable: CrashableLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashable.configs.update({"segment.bytes": "140", "cleanup.policy": "compact"})
    crashable.manager.update_configs()
    for log in (crashable.log, other(crashable)):
        for _ in range(3):
            log.append(batch("x" * 60))
    compacted = []

    async def compact(log: PartitionLog, *_: object, **_options: object) -> int:
        compacted.append(log.name)
        if log.name == "t-0":
            raise OSError(errno.EIO, "Input/output error")
        return 0

    monkeypatch.setattr("klamm.storage.log.cleaner.compact", compact)
    asyncio.run(crashable.manager.cleaner.clean())

    assert compacted == ["t-0", "other-0"]


async def test_failed_fsync_of_the_directory_in_compaction_takes_the_log_offline(
    crashable: CrashableLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    crashable.configs.update({"segment.bytes": "140", "cleanup.policy": "compact"})
    crashable.manager.update_configs()
    for _ in range(3):
        crashable.log.append(batch("x" * 60))

    def fail_for_directory(path: Path) -> None:
        if path == crashable.log.directory:
            raise FsyncError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr("klamm.storage.log.segment_swap.fsync_path", fail_for_directory)
    # when
    await crashable.manager.cleaner.clean()
    # then
    assert crashable.log.failure is not None
    assert crashable.manager.offline_count == 1


async def test_failed_producer_snapshot_keeps_only_its_recovery_point(
    crashable: CrashableLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(crashable.log, "save_producers", fail)

    for log in (crashable.log, other(crashable)):
        await crashable.manager.flush(log)
    await crashable.manager.checkpoint()
    points = (crashable.data_dir / "recovery-point-offset-checkpoint").read_text()
    assert ("t 0 1" in points, "other 0 1" in points) == (False, True)


def test_shutdown_after_a_failed_fsync_is_not_clean_but_saves_other_logs(crashable: CrashableLogs, disk: Disk) -> None:
    disk.broken = "t-0/"

    asyncio.run(crashable.manager.close())

    assert "other 0 1" in (crashable.data_dir / "recovery-point-offset-checkpoint").read_text()
    assert not (crashable.data_dir / CLEAN_SHUTDOWN).exists()


def test_transaction_index_is_rewritten_after_a_failed_fsync(
    crashable: CrashableLogs, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(crashable.log, 1, "no", sequence=0)
    end(crashable.log, 1, ABORT)
    index = crashable.log.segments[-1].aborted
    disk.broken = ".txnindex"
    with pytest.raises(FsyncError):
        index.sync()
    index.file.truncate(0)  # by the kernel

    index.sync()

    assert index.file.size() == 34


@pytest.mark.parametrize(("flush_messages", "waits"), [("1", True), (str(2**63 - 1), False)])
def test_duplicate_batch_waits_for_the_disk_like_the_first_one(
    crashable: CrashableLogs, flush_messages: str, waits: bool
) -> None:
    crashable.configs["flush.messages"] = flush_messages
    crashable.manager.update_configs()
    data = [bytes(batch("once", producer_id=1, producer_epoch=0, base_sequence=0)) for _ in range(3)]

    assert crashable.log.append(memoryview(data[0])).needs_flush is waits
    assert crashable.log.append(memoryview(data[1])).needs_flush is waits
    asyncio.run(crashable.manager.flush(crashable.log))
    assert crashable.log.append(memoryview(data[2])).needs_flush is False
    assert crashable.log.end_offset == 2


def test_errors_of_long_ago_take_no_memory() -> None:
    now_s = 0.0
    reports = ErrorReports(lambda: now_s)
    for number in range(100):
        now_s = number * 60.0
        reports.report(f"t-{number}", "cannot be flushed", OSError("Input/output error"))
    assert list(reports._silent_until) == [f"t-{number} cannot be flushed" for number in range(90, 100)]


def test_persistent_error_is_logged_every_ten_minutes(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    reports = ErrorReports(lambda: now_s)
    minutes: list[int] = []
    for minute in range(25):
        now_s = minute * 60.0
        before = len(caplog.records)
        reports.report("t-0", "cannot be flushed", OSError("Input/output error"))
        if len(caplog.records) > before:
            minutes.append(minute)

    assert minutes == [0, 10, 20]
    reports.report("t-1", "cannot be flushed", OSError("Input/output error"))
    assert caplog.messages[-1] == "t-1 cannot be flushed, will be retried: Input/output error"

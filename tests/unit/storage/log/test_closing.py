"""Closing of a log manager: thousands of logs become durable together, and a failing log fails alone."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from typing import TYPE_CHECKING

from klamm.storage.log import flusher
from klamm.storage.log.directories import CLEAN_SHUTDOWN, RECOVERY_POINTS, read_offsets
from klamm.storage.log.files import FsyncError
from tests.support.logs import TOPIC_ID, CrashableLogs, batch

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

COUNT = 100


class SlowDisk:
    """Takes a while for each fsync, and as long for many at a time."""

    def __init__(self, *, broken: str = "") -> None:
        self.paths: list[str] = []
        self.most = 0
        self._broken = broken
        self._running = 0
        self._lock = threading.Lock()

    def __call__(self, path: Path) -> None:
        with self._lock:
            self.paths.append(f"{path.parent.name}/{path.name}")
            self._running += 1
            self.most = max(self.most, self._running)
        time.sleep(0.002)
        with self._lock:
            self._running -= 1
        if self._broken and path.parent.name == self._broken:
            raise FsyncError(errno.EIO, "broken", str(path))


def filled(data_dir: Path) -> CrashableLogs:
    crashable = CrashableLogs(data_dir)
    crashable.partitions = [(TOPIC_ID, "t", number) for number in range(COUNT)]
    crashable.open()
    for number in range(COUNT):
        log = crashable.manager.get(TOPIC_ID, number)
        assert log is not None
        for value in ("a", "b"):
            log.append(batch(value))
    return crashable


def test_all_files_of_all_logs_are_durable_after_many_fsyncs_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashable, disk = filled(tmp_path), SlowDisk()
    monkeypatch.setattr(flusher, "fsync_path", disk)

    asyncio.run(crashable.manager.close())

    assert disk.most >= 5
    for number in range(COUNT):
        for name in (f"t-{number}/{0:020d}.log", f"t-{number}/{0:020d}.timeindex", f"{tmp_path.name}/t-{number}"):
            assert disk.paths.count(name) == 1, name
    assert read_offsets(tmp_path / RECOVERY_POINTS) == {f"t-{number}": 2 for number in range(COUNT)}
    assert (tmp_path / CLEAN_SHUTDOWN).exists()


def test_log_with_failed_flush_alone_keeps_its_recovery_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crashable = filled(tmp_path)
    monkeypatch.setattr(flusher, "fsync_path", SlowDisk(broken="t-7"))

    asyncio.run(crashable.manager.close())

    expected = {f"t-{number}": 2 for number in range(COUNT) if number != 7}
    assert read_offsets(tmp_path / RECOVERY_POINTS) == expected
    assert crashable.manager.flush_failures == 1
    assert not (tmp_path / CLEAN_SHUTDOWN).exists()


class WholeDisk:
    """File system that may fail to be synced as a whole."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: OSError | None = None) -> None:
        self.syncs = 0
        self._error = error
        monkeypatch.setattr(flusher, "MANY_LOGS", COUNT)
        monkeypatch.setattr(flusher, "is_trusted", lambda _: True)
        monkeypatch.setattr(flusher, "syncfs", self.sync)

    def sync(self, _: int) -> None:
        self.syncs += 1
        if self._error is not None:
            raise self._error


def test_many_logs_are_made_durable_by_one_file_system_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, single, crashable = WholeDisk(monkeypatch), SlowDisk(), filled(tmp_path)
    monkeypatch.setattr(flusher, "fsync_path", single)

    asyncio.run(crashable.manager.close())

    assert (whole.syncs, single.paths) == (1, [])
    assert read_offsets(tmp_path / RECOVERY_POINTS) == {f"t-{number}": 2 for number in range(COUNT)}
    assert (tmp_path / CLEAN_SHUTDOWN).exists()
    crashable.open()
    assert crashable.manager.was_clean


def test_failed_file_system_sync_falls_back_to_fsync_per_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only so it is known whose data are lost: that log is offline, the others are not."""
    whole, crashable = WholeDisk(monkeypatch, OSError(errno.EIO, "broken")), filled(tmp_path)
    single = SlowDisk(broken="t-7")
    monkeypatch.setattr(flusher, "fsync_path", single)

    asyncio.run(crashable.manager.close())

    assert whole.syncs == 1
    assert f"t-8/{0:020d}.log" in single.paths
    assert read_offsets(tmp_path / RECOVERY_POINTS) == {f"t-{number}": 2 for number in range(COUNT) if number != 7}
    assert crashable.manager.offline_partitions(TOPIC_ID) == {7}
    assert not (tmp_path / CLEAN_SHUTDOWN).exists()


def test_partition_on_another_file_system_is_synced_by_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, single, crashable = WholeDisk(monkeypatch), SlowDisk(), filled(tmp_path)
    monkeypatch.setattr(flusher, "fsync_path", single)
    device_of = flusher.device_of
    monkeypatch.setattr(flusher, "device_of", lambda path: -1 if path.name == "t-7" else device_of(path))

    asyncio.run(crashable.manager.close())

    assert whole.syncs == 1
    assert {path.split("/")[-2:][0] for path in single.paths if path.endswith(".log")} == {"t-7"}
    assert (tmp_path / CLEAN_SHUTDOWN).exists()

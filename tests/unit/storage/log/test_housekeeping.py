"""Retention by time and size, DeleteRecords, and the housekeeping task."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from typing import TYPE_CHECKING
from unittest.mock import MagicMock

import pytest

from klamm.storage.log import HousekeepingSettings, LogConfig, LogManager, housekeeping
from klamm.storage.log.directories import BALLAST, BALLAST_BYTES, LOG_START_OFFSETS
from klamm.storage.log.files import LogFile
from klamm.storage.log.housekeeping import apply_retention, with_pauses
from tests.support.logs import NOON_MS, TOPIC_ID, Clock, CrashableLogs, batch, fill_disk, read_all

if TYPE_CHECKING:
    from pathlib import Path

    from klamm.storage.log.partition import PartitionLog

DAY_MS = 86_400_000
SIZE = len(batch("x" * 100))


def filled(tmp_path: Path, count: int, *, step_ms: int = 0, **configs: str) -> CrashableLogs:
    """Two batches to a segment."""
    crashable = CrashableLogs(tmp_path, segment_bytes=str(2 * SIZE), segment_ms=str(10**15), **configs)
    for number in range(count):
        crashable.log.append(batch("x" * 100, at=NOON_MS - (count - number) * step_ms))
    return crashable


def test_segments_past_retention_ms_are_deleted(tmp_path: Path) -> None:
    crashable = filled(tmp_path, 10, step_ms=DAY_MS, retention_ms=str(5 * DAY_MS))

    assert apply_retention(crashable.log, NOON_MS) == 2

    assert crashable.log.log_start_offset == 4
    assert [record.offset for record in read_all(crashable.log)] == [4, 5, 6, 7, 8, 9]
    assert len(crashable.log.doomed) == 2
    asyncio.run(crashable.manager.checkpoint())
    assert sorted(path.name for path in (tmp_path / "t-0").glob("*.log"))[0] == f"{4:020d}.log"


def test_log_with_only_expired_records_keeps_its_end_offset(tmp_path: Path) -> None:
    crashable = filled(tmp_path, 4, step_ms=DAY_MS, retention_ms="1000")

    apply_retention(crashable.log, NOON_MS)
    asyncio.run(crashable.manager.checkpoint())

    assert (crashable.log.log_start_offset, crashable.log.end_offset, crashable.log.size) == (4, 4, 0)
    crashable.open()
    assert (crashable.log.log_start_offset, crashable.log.end_offset) == (4, 4)
    assert crashable.log.append(batch("y")).base_offset == 4


def test_no_file_is_renamed_before_the_log_start_offset_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashable = filled(tmp_path, 6, step_ms=DAY_MS, retention_ms=str(3 * DAY_MS))
    files = sorted((tmp_path / "t-0").glob("*.log"))
    apply_retention(crashable.log, NOON_MS)

    def fail(*_: object, **__: object) -> None:
        assert sorted((tmp_path / "t-0").glob("*.log")) == files
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("klamm.storage.log.directories.write_offsets", fail)
        with pytest.raises(OSError, match="No space"):
            asyncio.run(crashable.manager.checkpoint())
    assert sorted((tmp_path / "t-0").glob("*.log")) == files

    asyncio.run(crashable.manager.checkpoint())

    assert sorted((tmp_path / "t-0").glob("*.log")) == files[1:]
    assert crashable.log.doomed == []
    assert "t 0 2" in (tmp_path / LOG_START_OFFSETS).read_text()


@pytest.mark.parametrize("count", [6, 2], ids=["three segments", "one segment"])
async def test_retention_removes_files_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    # given
    crashable = filled(tmp_path, count, step_ms=DAY_MS, retention_ms="-1", file_delete_delay_ms="0")
    crashable.log.append(batch("x", producer_id=1, producer_epoch=0, base_sequence=0))  # the roll writes a snapshot
    crashable.flush_log()
    await crashable.manager.checkpoint()
    # when
    fill_disk(tmp_path, monkeypatch)
    crashable.configs["retention.ms"] = "1000"
    crashable.clock.now_ms += DAY_MS
    crashable.manager.update_config(TOPIC_ID)
    await crashable.manager.housekeeper.check()
    # then
    assert (crashable.log.log_start_offset, crashable.log.doomed) == (count + 1, [])
    assert [path.name for path in (tmp_path / "t-0").glob("*.log*")] == [f"{count + 1:020d}.log"]
    assert f"t 0 {count + 1}" in (tmp_path / LOG_START_OFFSETS).read_text()


async def test_file_that_does_not_fit_its_directory_is_renamed_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    crashable = filled(tmp_path, 6, step_ms=DAY_MS, retention_ms=str(3 * DAY_MS))
    await crashable.manager.checkpoint()
    rename = LogFile.rename

    def rename_with_room(file: LogFile, path: Path) -> None:
        if (tmp_path / BALLAST).stat().st_size == BALLAST_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rename(file, path)

    # when
    monkeypatch.setattr(LogFile, "rename", rename_with_room)
    await crashable.manager.housekeeper.check()
    # then
    assert crashable.log.doomed == []
    assert (tmp_path / BALLAST).stat().st_size == BALLAST_BYTES // 2


async def test_preallocated_log_does_not_spend_the_ballast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    crashable = filled(tmp_path, 5, step_ms=DAY_MS, retention_ms="1000", preallocate="true")
    await crashable.manager.checkpoint()
    # when
    monkeypatch.setattr("klamm.storage.log.files.LogFile.reserve", MagicMock(side_effect=OSError(errno.ENOSPC, "full")))
    await crashable.manager.housekeeper.check()
    # then
    assert crashable.log.log_start_offset == 4, "the older segments are removed"
    assert crashable.log.doomed == []
    assert (tmp_path / BALLAST).stat().st_size == BALLAST_BYTES


def test_failed_rename_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crashable = filled(tmp_path, 8, step_ms=DAY_MS, retention_ms=str(3 * DAY_MS))
    apply_retention(crashable.log, NOON_MS)
    first, second = crashable.log.doomed
    rename = LogFile.rename

    def stuck(file: LogFile, path: Path) -> None:
        if file is first.file:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(file, path)

    with monkeypatch.context() as failing:
        failing.setattr(LogFile, "rename", stuck)
        asyncio.run(crashable.manager.checkpoint())
    assert crashable.log.doomed == [first]
    asyncio.run(crashable.manager.checkpoint())

    assert crashable.log.doomed == []
    assert {retired.file.path.name for retired in crashable.log.retired} >= {
        f"{0:020d}.log.deleted",
        f"{second.base_offset:020d}.log.deleted",
    }


def test_unlimited_retention_keeps_all_segments(tmp_path: Path) -> None:
    crashable = filled(tmp_path, 6, step_ms=DAY_MS, retention_ms="-1")

    assert apply_retention(crashable.log, NOON_MS + 10_000 * DAY_MS) == 0


@pytest.mark.parametrize(("timestamp", "is_damaged"), [(-1, False), (NOON_MS - 9 * DAY_MS, True)])
def test_retention_without_known_timestamp_counts_from_last_append(
    tmp_path: Path, timestamp: int, is_damaged: bool
) -> None:
    crashable = CrashableLogs(tmp_path, retention_ms=str(DAY_MS))
    for _ in range(2):
        crashable.log.append(batch("x", at=timestamp))
        crashable.clock.now_ms += DAY_MS
    crashable.log.segments[0].is_damaged = is_damaged

    assert apply_retention(crashable.log, crashable.clock.now_ms) == 0
    assert apply_retention(crashable.log, crashable.clock.now_ms + 1) == 1


def test_retention_bytes_are_kept_at_least(tmp_path: Path) -> None:
    crashable = filled(tmp_path, 10, retention_bytes=str(5 * SIZE))

    assert apply_retention(crashable.log, NOON_MS) == 2
    assert crashable.log.size == 6 * SIZE


def test_compacted_topic_is_not_subject_to_retention(tmp_path: Path) -> None:
    crashable = filled(tmp_path, 6, step_ms=DAY_MS, retention_ms="1", retention_bytes="1", cleanup_policy="compact")

    assert apply_retention(crashable.log, NOON_MS) == 0


def test_cached_position_is_not_used_after_removal(tmp_path: Path) -> None:
    crashable = filled(tmp_path, 6, step_ms=DAY_MS, retention_ms=str(3 * DAY_MS))
    for _ in range(2):
        assert read_all(crashable.log, 0, max_bytes=SIZE)

    apply_retention(crashable.log, NOON_MS)

    assert [record.offset for record in read_all(crashable.log)] == [2, 3, 4, 5]


def test_configs_are_parsed_and_missing_ones_have_kafkas_defaults() -> None:
    parsed = LogConfig.from_configs(
        {
            "cleanup.policy": "compact, delete",
            "compression.type": "zstd",
            "compression.zstd.level": "7",
            "min.cleanable.dirty.ratio": "0.1",
            "retention.ms": "-1",
            "message.timestamp.type": "LogAppendTime",
            "min.insync.replicas": "1",
        }
    )

    assert parsed.is_compacted
    assert parsed.is_deleted
    assert (parsed.compression, parsed.compression_level) == (4, 7)
    assert (parsed.retention_ms, parsed.min_cleanable_dirty_ratio, parsed.message_timestamp_type) == (-1, 0.1, 1)
    assert LogConfig.from_configs({}) == LogConfig()
    assert LogConfig.from_configs({"compression.type": "producer"}).compression is None


def test_housekeeping_task_cleans_closed_logs_and_ends_with_the_manager(tmp_path: Path) -> None:
    """Also for logs that were not opened since the start."""
    crashable = filled(tmp_path, 10, step_ms=DAY_MS, retention_ms=str(5 * DAY_MS))
    asyncio.run(crashable.manager.close())

    async def live() -> None:
        manager = LogManager(
            tmp_path,
            configs_of=lambda _: crashable.configs,
            now_ms=crashable.clock,
            settings=lambda: HousekeepingSettings(retention_check_interval_s=0.02),
        )
        manager.create(TOPIC_ID, "t", 0)
        await manager.start()
        assert not list(manager.loaded())
        async with asyncio.timeout(20):
            while not any(log.log_start_offset == 4 for log in manager.loaded()):  # noqa: ASYNC110  # no event tells
                await asyncio.sleep(0.005)
        await manager.close()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(live())
    assert "t 0 10" in (tmp_path / "recovery-point-offset-checkpoint").read_text()


async def test_immediate_check_includes_logs_not_opened_since_the_start(tmp_path: Path) -> None:
    # given
    crashable = filled(tmp_path, 10, step_ms=DAY_MS, retention_ms=str(5 * DAY_MS))
    await crashable.manager.close()
    manager = LogManager(tmp_path, configs_of=lambda _: crashable.configs, now_ms=crashable.clock)
    manager.create(TOPIC_ID, "t", 0)
    await manager.start()
    async with asyncio.timeout(20):
        # when
        await manager.check_retention()
    # then
    assert [log.log_start_offset for log in manager.loaded()] == [4]
    await manager.close()


async def test_producers_expire_with_an_interval_of_their_own(tmp_path: Path) -> None:
    clock = Clock()
    manager = LogManager(
        tmp_path,
        configs_of=lambda _: {},
        now_ms=clock,
        settings=lambda: HousekeepingSettings(producer_check_interval_s=0.02, producer_expiration_ms=1_000),
    )
    manager.create(TOPIC_ID, "t", 0)
    await manager.start()
    log = manager.get(TOPIC_ID, 0)
    assert log is not None
    log.append(batch("x", producer_id=5, producer_epoch=0, base_sequence=0))
    await asyncio.sleep(0.1)
    assert len(log.producers) == 1
    clock.now_ms += 10_000
    async with asyncio.timeout(20):  # the check of retention comes after 300 s
        while len(log.producers):  # noqa: ASYNC110  # no event tells
            await asyncio.sleep(0.005)
    await manager.close()


async def test_cancelled_checkpoint_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next one would write the same file at the same time."""
    crashable = filled(tmp_path, 2)
    writes: list[str] = []
    is_cancelled = threading.Event()

    def write_slowly(path: Path, _offsets: object) -> None:
        writes.append(f"begin {path.name}")
        assert is_cancelled.wait(20)
        writes.append(f"end {path.name}")

    monkeypatch.setattr("klamm.storage.log.directories.write_offsets", write_slowly)
    first = asyncio.create_task(crashable.manager.checkpoint())
    while not writes:  # noqa: ASYNC110  # a thread tells
        await asyncio.sleep(0.001)
    first.cancel()
    asyncio.get_running_loop().call_later(0.02, is_cancelled.set)
    await crashable.manager.checkpoint()
    assert first.cancelled()
    assert writes[0].startswith("begin")
    assert all(end == f"end{begin.removeprefix('begin')}" for begin, end in zip(writes[::2], writes[1::2], strict=True))


def test_closed_segments_and_overdue_logs_become_durable(tmp_path: Path) -> None:
    crashable = filled(tmp_path, 5)
    asyncio.run(crashable.manager.housekeeper.tick())
    assert crashable.log.recovery_point == 5

    crashable.log.append(batch("y"))
    asyncio.run(crashable.manager.housekeeper.tick())
    assert crashable.log.recovery_point == 5

    crashable.configs["flush.ms"] = "1000"
    crashable.manager.update_config(TOPIC_ID)
    crashable.clock.now_ms += 1000
    asyncio.run(crashable.manager.housekeeper.tick())
    assert crashable.log.recovery_point == 6


def test_clock_set_back_does_not_delay_flushes(tmp_path: Path) -> None:
    crashable = filled(tmp_path, 1, flush_ms="1000")
    crashable.clock.now_ms += 1000
    asyncio.run(crashable.manager.housekeeper.tick())
    crashable.log.append(batch("y"))

    crashable.clock.now_ms -= 3_600_000
    asyncio.run(crashable.manager.housekeeper.tick())

    assert crashable.log.recovery_point == crashable.log.end_offset


def test_idle_producers_expire(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path)
    crashable.log.append(batch("x", producer_id=5, producer_epoch=0, base_sequence=0))
    asyncio.run(crashable.manager.housekeeper.expire_producers())
    assert len(crashable.log.producers) == 1

    crashable.clock.now_ms += DAY_MS + 1
    asyncio.run(crashable.manager.housekeeper.check())
    assert len(crashable.log.producers) == 1, "with log.retention.check.interval.ms"
    asyncio.run(crashable.manager.housekeeper.expire_producers())

    assert len(crashable.log.producers) == 0
    assert crashable.log.append(batch("y", producer_id=5, producer_epoch=0, base_sequence=9)).base_offset == 1


async def test_other_tasks_run_after_a_fixed_number_of_items() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counter = asyncio.create_task(count_turns())
    items = [item async for item in with_pauses(range(35), at_once=10)]
    counter.cancel()
    assert items == list(range(35))
    assert turns == 3


def test_few_items_are_returned_without_a_pause() -> None:
    async def run() -> list[int]:
        return [item async for item in with_pauses(range(255))]

    with pytest.raises(StopIteration) as end:
        run().send(None)
    assert end.value.value == list(range(255))


async def test_housekeeping_continues_after_an_unexpected_error_of_one_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    crashable = filled(tmp_path, 10, step_ms=DAY_MS, retention_ms=str(5 * DAY_MS))
    manager = crashable.manager
    manager.create(TOPIC_ID, "t", 1)
    good = manager.get(TOPIC_ID, 1)
    assert good is not None
    for number in range(10):
        good.append(batch("x" * 100, at=NOON_MS - (10 - number) * DAY_MS))
    bad = crashable.log

    def failing(log: PartitionLog, now_ms: int, **options: int) -> int:
        if log is bad:
            raise ZeroDivisionError
        return apply_retention(log, now_ms, **options)

    monkeypatch.setattr(housekeeping, "apply_retention", failing)
    await manager.start()
    async with asyncio.timeout(20):
        await manager.housekeeper.check_now()
        assert good.log_start_offset == 4
        assert "t-0 cannot remove old segments" in caplog.text
        monkeypatch.setattr(manager.housekeeper, "tick", MagicMock(side_effect=ZeroDivisionError))
        await manager.housekeeper.check_now()
        assert "Housekeeping cannot be finished" in caplog.text
        monkeypatch.undo()
        await manager.housekeeper.check_now()
    assert bad.log_start_offset == 4
    await manager.close()


class UnsettledConfigs:
    """Configs of topics that are applied and not durable yet, until a test says so."""

    are_durable = False

    def is_settled(self, topic: str) -> bool:
        return self.are_durable or topic != "t"


async def test_nothing_is_deleted_by_configs_that_are_not_durable(tmp_path: Path) -> None:
    """Their commit may fail, and the next part of a request may keep what the first one does not."""
    # given
    crashable = filled(tmp_path, 10, step_ms=DAY_MS, retention_ms=str(5 * DAY_MS))
    manager, configs = crashable.manager, UnsettledConfigs()
    manager.topic_configs = configs
    await manager.start()
    async with asyncio.timeout(20):
        # when
        await manager.check_retention()
        # then
        assert crashable.log.log_start_offset == 0
        # when
        configs.are_durable = True
        manager.check_again()
        # then
        while crashable.log.log_start_offset != 4:  # noqa: ASYNC110  # no event tells
            await asyncio.sleep(0)
    await manager.close()

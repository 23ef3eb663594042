"""Compaction: the last record of each key keeps its offset, also after failures."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from klamm.protocol.errors import StorageError
from klamm.protocol.records import BATCH_OVERHEAD, Codec, Record, encode_batch, iter_batches, iter_fields
from klamm.storage.log import delete_records, segment_rewriter, segment_swap
from klamm.storage.log.cleaner import Cleaner, compact
from klamm.storage.log.config import HousekeepingSettings
from tests.support.logs import NOON_MS, TOPIC_ID, CrashableLogs, batch, read_all
from tests.support.long_tests import long_only
from tests.support.transactions import ABORT, end, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from types import ModuleType

DAY_MS = 86_400_000


def compacted(tmp_path: Path, **configs: str) -> CrashableLogs:
    return CrashableLogs(tmp_path, cleanup_policy="compact", **{"segment_bytes": "500", **configs})


def run(crashable: CrashableLogs, now_ms: int = NOON_MS) -> int:
    return asyncio.run(compact(crashable.log, now_ms))


def latest(records: list[Record]) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in records}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    rows=st.lists(st.lists(st.tuples(st.sampled_from("abcdefg"), st.integers()), min_size=1, max_size=4), max_size=40),
    codec=st.sampled_from([Codec.NONE, Codec.LZ4]),
)
def test_last_value_of_every_key_keeps_its_offset(
    rows: list[list[tuple[str, int]]], codec: Codec, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # given
    crashable = compacted(tmp_path_factory.mktemp("log"))
    for row in rows:
        records = [Record(key.encode(), b"%d" % value, (), NOON_MS, at) for at, (key, value) in enumerate(row)]
        crashable.log.append(memoryview(encode_batch(records, codec=codec)))
    before = read_all(crashable.log)
    boundary = crashable.log.segments[-1].base_offset if crashable.log.segments else 0
    # when
    run(crashable)
    # then
    after = read_all(crashable.log)
    last = {record.key: record.offset for record in before if record.offset < boundary}
    expected = [record for record in before if record.offset >= boundary or last[record.key] == record.offset]
    assert after == expected
    assert latest(after) == latest(before)
    # and after a restart
    end_offset = crashable.log.end_offset
    crashable.open()
    assert crashable.log.end_offset == end_offset
    assert read_all(crashable.log) == expected


def test_read_from_a_compacted_offset_continues_at_the_next_record(tmp_path: Path) -> None:
    crashable = compacted(tmp_path)
    for number in range(20):
        crashable.log.append(batch(f"{number}", key=b"same" if number % 2 else b"%d" % number))
    run(crashable)

    boundary = crashable.log.segments[-1].base_offset
    offsets = [record.offset for record in read_all(crashable.log)]
    for offset in range(20):
        assert [record.offset for record in read_all(crashable.log, offset)] == [at for at in offsets if at >= offset]
    assert len([at for at in offsets if at < boundary and at % 2]) == 1


def test_read_in_compacted_gap_is_empty(tmp_path: Path) -> None:
    crashable = compacted(tmp_path, delete_retention_ms="0")
    for _ in range(3):
        crashable.log.append(batch("x", key=b"a"))
    crashable.log.append(batch(None, key=b"a"))
    crashable.log.roll()
    run(crashable)
    crashable.log.compacted_up_to = 0
    run(crashable)

    assert crashable.log.end_offset == 4
    assert crashable.log.read(1, 1000) == b""


def test_tombstone_is_kept_until_its_delete_horizon(tmp_path: Path) -> None:
    """KIP-534."""
    crashable = compacted(tmp_path, delete_retention_ms=str(DAY_MS), min_cleanable_dirty_ratio="0")
    crashable.log.append(batch("value", key=b"gone"))
    crashable.log.append(batch(None, key=b"gone"))
    for number in range(10):
        crashable.log.append(batch("x" * 50, key=b"%d" % number))

    def kept() -> list[bytes | None]:
        return [record.value for record in read_all(crashable.log) if record.key == b"gone"]

    run(crashable)
    assert kept() == [None]
    (marked,) = [item for item in iter_batches(crashable.log.read(0, 1 << 20)) if item.has_delete_horizon]
    assert marked.base_timestamp == NOON_MS + DAY_MS
    assert next(record for record in read_all(crashable.log) if record.value is None).timestamp == NOON_MS

    crashable.log.compacted_up_to = 0
    run(crashable, NOON_MS + DAY_MS - 1)
    assert kept() == [None]
    crashable.log.compacted_up_to = 0
    run(crashable, NOON_MS + DAY_MS)
    assert kept() == []


def test_endless_tombstone_retention_stays_readable(tmp_path: Path) -> None:
    crashable = compacted(tmp_path, delete_retention_ms=str(2**63 - 1), min_cleanable_dirty_ratio="0")
    crashable.log.append(batch("value", key=b"gone"))
    crashable.log.append(batch(None, key=b"gone"))
    crashable.log.roll()
    for now_ms in (NOON_MS, NOON_MS + 1000 * DAY_MS):
        crashable.log.compacted_up_to = 0
        run(crashable, now_ms)
        assert [(record.value, record.timestamp) for record in read_all(crashable.log)] == [(None, NOON_MS)]
    (kept,) = iter_batches(crashable.log.read(0, 1 << 20))
    assert kept.has_delete_horizon
    assert [fields.timestamp_delta for fields in iter_fields(bytes(kept.buffer[BATCH_OVERHEAD:]), 1)] == [
        NOON_MS - kept.base_timestamp
    ]


def test_producer_continues_after_its_last_batch_was_emptied(tmp_path: Path) -> None:
    crashable = compacted(tmp_path)
    crashable.log.append(batch("old", key=b"a", at=100, producer_id=7, producer_epoch=0, base_sequence=0))
    for _ in range(10):
        crashable.log.append(batch("new" * 20, key=b"a"))
    run(crashable)

    (first, *_) = iter_batches(crashable.log.read(0, 1 << 20))
    assert (first.base_offset, first.record_count, first.producer_id, first.max_timestamp) == (0, 0, 7, 100)
    crashable.open()
    assert crashable.log.append(batch("next", producer_id=7, producer_epoch=0, base_sequence=1)).base_offset == 11


def test_log_below_dirty_ratio_is_not_compacted(tmp_path: Path) -> None:
    crashable = compacted(tmp_path, min_cleanable_dirty_ratio="0.5")
    for _ in range(40):
        crashable.log.append(batch("x" * 100, key=b"a"))
    assert run(crashable) > 0
    for number in range(40):
        crashable.log.append(batch("x" * 100, key=b"%d" % number))
    assert run(crashable) >= 0
    for _ in range(6):
        crashable.log.append(batch("x" * 100, key=b"a"))

    before = crashable.log.size
    assert run(crashable) == 0
    assert crashable.log.size == before


def test_records_within_min_compaction_lag_are_not_compacted(tmp_path: Path) -> None:
    crashable = compacted(tmp_path, min_compaction_lag_ms=str(DAY_MS))
    for _ in range(20):
        crashable.log.append(batch("x" * 100, key=b"a"))

    assert run(crashable, NOON_MS + DAY_MS - 1) == 0
    assert run(crashable, NOON_MS + DAY_MS) > 0


def test_min_compaction_lag_of_records_without_timestamps_counts_from_last_append(tmp_path: Path) -> None:
    crashable = compacted(tmp_path, min_compaction_lag_ms=str(DAY_MS), min_cleanable_dirty_ratio="0")
    crashable.log.append(batch("x" * 100, key=b"a", at=-1))
    crashable.clock.now_ms += DAY_MS
    for _ in range(20):
        crashable.log.append(batch("x" * 100, key=b"a", at=-1))

    assert run(crashable, NOON_MS + 2 * DAY_MS - 1) == 0
    assert run(crashable, NOON_MS + 2 * DAY_MS) > 0
    assert crashable.log.segments[0].largest_timestamp == NOON_MS + DAY_MS


def test_files_of_interrupted_compaction_are_removed(tmp_path: Path) -> None:
    crashable = compacted(tmp_path)
    for number in range(20):
        crashable.log.append(batch("x" * 100, at=NOON_MS + number))
    work = tmp_path / "t-0" / segment_swap.WORK
    work.mkdir()
    (work / f"{0:020d}.log").write_bytes(b"half")

    crashable.open()

    assert [record.offset for record in read_all(crashable.log)] == list(range(20))
    assert not work.exists()


def test_topic_deleted_during_compaction_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crashable = compacted(tmp_path)
    for _ in range(20):
        crashable.log.append(batch("x" * 100, key=b"a"))
    whole = segment_rewriter.rewrite

    def delete_first(*paths: object, **arguments: object) -> segment_rewriter.Rewritten:
        made = whole(*paths, **arguments)  # type: ignore[arg-type]  # passed on as they come
        crashable.log.is_deleted = True
        return made

    monkeypatch.setattr(segment_rewriter, "rewrite", delete_first)

    assert run(crashable) == 0
    crashable.manager.delete_topic(TOPIC_ID)


@pytest.mark.parametrize("is_failed", [False, True], ids=["no longer compacted", "offline"])
@pytest.mark.parametrize("step", [(segment_rewriter, "rewrite"), (segment_swap, "decide")], ids=["rewrite", "decide"])
def test_log_that_must_not_be_compacted_any_more_keeps_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: tuple[ModuleType, str], *, is_failed: bool
) -> None:
    # given
    crashable = compacted(tmp_path)
    for _ in range(20):
        crashable.log.append(batch("x" * 100, key=b"a"))
    log, before = crashable.log, read_all(crashable.log)
    whole = getattr(*step)

    def change_after(*arguments: object, **options: object) -> object:
        made = whole(*arguments, **options)
        if is_failed:
            log.take_offline(OSError(errno.EIO, os.strerror(errno.EIO)))
        else:
            crashable.configs["cleanup.policy"] = "delete"
            crashable.manager.update_config(TOPIC_ID)
        return made

    monkeypatch.setattr(*step, change_after)
    # when
    saved = run(crashable)
    # then
    assert (saved, log.compacted_up_to) == (0, 0)
    assert not [path for path in log.directory.iterdir() if path.is_dir()]
    log.failure = None
    assert read_all(log) == before


@pytest.mark.parametrize(
    "step",
    [(segment_swap, "clean_up"), (segment_rewriter, "rewrite"), (segment_swap, "decide")],
    ids=["clean up", "rewrite", "decide"],
)
def test_pass_compacts_segments_left_by_retention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: tuple[ModuleType, str]
) -> None:
    """The next pass maps only newer keys, so a segment that this pass skips would keep its superseded records."""
    # given: a deleted key and an aborted transaction, which begins in the segment that is removed
    crashable = compacted(tmp_path)
    log = crashable.log
    write(log, 1, "no", sequence=0)
    log.roll()
    log.append(batch("old", key=b"deleted"))
    write(log, 1, "no", sequence=1)
    end(log, 1, ABORT)
    log.roll()
    log.append(batch(None, key=b"deleted"))
    log.append(batch("last", key=b"kept"))
    log.roll()
    whole = getattr(*step)

    def remove_after(*arguments: object, **options: object) -> object:
        made = whole(*arguments, **options)
        delete_records(log, 1)
        for segment in tuple(log.doomed):
            log.retire(segment)
        return made

    monkeypatch.setattr(*step, remove_after)
    # when
    run(crashable)
    # then
    assert [record.value for record in read_all(log)][-2:] == [None, b"last"]
    assert not {b"old", b"no"} & {record.value for record in read_all(log)}
    assert log.compacted_up_to == log.end_offset


def test_corrupt_batch_stops_compaction_and_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    crashable = compacted(tmp_path)
    for _ in range(20):
        crashable.log.append(batch("x" * 100, key=b"a"))
    path = crashable.log.segments[1].file.path
    with path.open("r+b") as file:
        file.seek(62)
        file.write(b"\xff\xff\xff\xff\xff\xff")
    size = crashable.log.size

    assert run(crashable) == 0
    assert crashable.log.size == size
    assert crashable.log.is_uncleanable
    assert "cannot be compacted" in caplog.text


def test_unreadable_segment_is_reported_and_other_logs_are_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # given
    class UnreadableFile(io.FileIO):
        def readinto(self, _: object) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    open_path = Path.open

    def open_file(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.parent.name == "t-0" and path.suffix == ".log":
            return io.BufferedReader(UnreadableFile(path))
        return open_path(path, *arguments, **options)

    crashable = compacted(tmp_path)
    crashable.partitions.append((TOPIC_ID, "t", 1))
    crashable.open()
    other = crashable.manager.get(TOPIC_ID, 1)
    assert other is not None
    for log in (crashable.log, other):
        for _ in range(20):
            log.append(batch("x" * 100, key=b"a"))
    size, other_size = crashable.log.size, other.size
    # when
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", open_file)
        saved = asyncio.run(crashable.manager.cleaner.clean())
    # then
    assert "t-0 cannot be compacted, will be retried: [Errno 5]" in caplog.text
    assert (crashable.log.size, saved) == (size, other_size - other.size)
    assert saved > 0


def test_segment_truncated_during_compaction_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # given
    class TruncatingPace(segment_rewriter.Pace):
        def did(self, size: int) -> None:
            super().did(size)
            if size:  # the first batch was read
                os.truncate(path, size + BATCH_OVERHEAD)

    crashable = compacted(tmp_path, segment_bytes="10000000", max_message_bytes="5000000")
    for value in ("x", "x" * 3_000_000):  # more than is read at once
        crashable.log.append(batch(value, key=b"a"))
    crashable.log.roll()
    path = crashable.log.segments[0].file.path
    # when
    saved = asyncio.run(compact(crashable.log, NOON_MS, pace=TruncatingPace()))
    # then
    assert saved == 0
    assert "t-0 cannot be compacted: Record batch declares 3000075 bytes" in caplog.text


def test_log_is_compacted_after_an_unexpected_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # given
    crashable = compacted(tmp_path)
    filled_segments(crashable, 60, keys=3)
    with monkeypatch.context() as patch:
        patch.setattr(segment_rewriter, "rewrite", MagicMock(side_effect=RuntimeError("can't start new thread")))
        assert asyncio.run(crashable.manager.cleaner.clean()) == 0
    # when
    saved = asyncio.run(crashable.manager.cleaner.clean())
    # then
    assert saved > 0
    assert "t-0 cannot be compacted, will be retried" in caplog.text


async def test_rewrite_without_a_thread_does_not_run_later(tmp_path: Path) -> None:
    # given: the work is queued, but the thread for it does not start
    class Threads(ThreadPoolExecutor):
        def __init__(self) -> None:
            super().__init__()
            self.queued: list[Callable[[], None]] = []
            self.count = 0

        def submit(self, work: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
            self.count += 1
            if self.count == 3:  # after the search for keys and the removal of older files
                self.queued.append(partial(work, *arguments, **options))
                raise RuntimeError("can't start new thread")
            return super().submit(work, *arguments, **options)

    threads = Threads()
    asyncio.get_running_loop().set_default_executor(threads)
    crashable = compacted(tmp_path, min_cleanable_dirty_ratio="0")
    filled_segments(crashable, 20, keys=3)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        await compact(crashable.log, NOON_MS)
    # when
    for work in threads.queued:
        work()
    # then
    assert not (crashable.log.directory / segment_swap.WORK).exists()
    assert await compact(crashable.log, NOON_MS) > 0


def filled_segments(crashable: CrashableLogs, count: int, *, keys: int) -> None:
    for number in range(count):
        crashable.log.append(batch("x" * 60 + str(number), key=b"%d" % (number % keys), at=NOON_MS + number))


def test_small_neighboring_segments_are_merged(tmp_path: Path) -> None:
    crashable = compacted(tmp_path, segment_bytes="2000")
    filled_segments(crashable, 100, keys=5)
    before = len(crashable.log.segments)
    run(crashable)

    assert before > 5
    assert len(crashable.log.segments) == 2
    assert crashable.log.log_start_offset == 0
    assert latest(read_all(crashable.log)) == {b"%d" % (n % 5): b"x" * 60 + b"%d" % n for n in range(95, 100)}
    crashable.open()
    assert len(crashable.log.segments) == 2
    assert not list((tmp_path / "t-0").glob("*.deleted"))


@pytest.mark.parametrize("interval", ["0", "1", "60"])
def test_segments_with_an_index_entry_per_batch_are_merged(tmp_path: Path, interval: str) -> None:
    crashable = compacted(tmp_path, segment_bytes="2000", index_interval_bytes=interval)
    filled_segments(crashable, 100, keys=5)
    run(crashable)

    assert len(crashable.log.segments) == 2


class _Crash(BaseException):
    """The end of the process, here and now."""


class CrashingDisk(segment_swap.Disk):
    """A disk whose process dies before a step."""

    def __init__(self, steps: int) -> None:
        self.steps_left = steps

    def _step(self) -> None:
        if self.steps_left == 0:
            raise _Crash
        self.steps_left -= 1

    def rename(self, path: Path, target: Path) -> None:
        self._step()
        super().rename(path, target)

    def remove(self, path: Path) -> None:
        self._step()
        super().remove(path)

    def remove_directory(self, path: Path) -> None:
        self._step()
        super().remove_directory(path)

    def fsync(self, path: Path) -> None:
        self._step()
        super().fsync(path)


class FailingDisk(CrashingDisk):
    """A disk on which one step fails."""

    def _step(self) -> None:
        self.steps_left -= 1
        if self.steps_left == -1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    rows=st.lists(st.tuples(st.sampled_from("abcdefgh"), st.none() | st.integers()), min_size=30, max_size=60),
    crashes=st.lists(st.integers(0, 60), min_size=1, max_size=4),
)
def test_crash_at_any_step_of_the_swap_loses_no_record(
    rows: list[tuple[str, int | None]], crashes: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    # given
    crashable = compacted(tmp_path_factory.mktemp("log"), min_cleanable_dirty_ratio="0")
    for key, value in rows:
        text = None if value is None else str(value).rjust(60)
        crashable.log.append(batch(text, key=key.encode()))
    before = read_all(crashable.log)
    end_offset = crashable.log.end_offset
    # when
    for steps in crashes:
        with contextlib.suppress(_Crash):
            asyncio.run(compact(crashable.log, NOON_MS, disk=CrashingDisk(steps)))
        crashable.open()
        # then
        after = read_all(crashable.log)
        assert latest(after) == latest(before)
        assert set(after) <= set(before)
        assert [record.offset for record in after] == sorted(record.offset for record in after)
        assert crashable.log.end_offset == end_offset
        assert not [path for path in (crashable.data_dir / "t-0").iterdir() if path.is_dir()]


def test_no_old_index_is_left_if_a_power_cut_loses_the_first_renames_of_a_swap(tmp_path: Path) -> None:
    """File systems that do not keep the order of renames may lose earlier ones."""
    # given
    names = [f"{0:020d}{suffix}" for suffix in (".log", ".index", ".timeindex", ".txnindex")]
    for name in names:
        (tmp_path / name).write_text("old")
    work = tmp_path / segment_swap.WORK
    work.mkdir()
    (work / names[0]).write_text("new")
    segment_swap.decide(tmp_path, [0])
    (tmp_path / segment_swap.READY / names[0]).replace(tmp_path / names[0])
    # when
    segment_swap.finish(tmp_path)
    # then
    assert [(tmp_path / name).read_text() for name in names] == ["new", "", "", ""]


def test_log_is_offline_until_a_start_after_a_swap_that_can_be_neither_completed_nor_undone(tmp_path: Path) -> None:
    class BrokenDisk(segment_swap.Disk):
        def rename(self, path: Path, target: Path) -> None:
            if (path.parent.name == segment_swap.READY and path.suffix == ".log") or path.suffix == ".deleted":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().rename(path, target)

    crashable = compacted(tmp_path, min_cleanable_dirty_ratio="0")
    filled_segments(crashable, 5, keys=3)
    before = latest(read_all(crashable.log))

    with pytest.raises(OSError, match="Input/output error"):
        asyncio.run(compact(crashable.log, NOON_MS, disk=BrokenDisk()))

    with pytest.raises(StorageError, match="offline since compacted files could not take their places"):
        read_all(crashable.log)
    crashable.open()
    assert latest(read_all(crashable.log)) == before


def test_log_is_offline_if_a_compacted_segment_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    crashable = compacted(tmp_path, min_cleanable_dirty_ratio="0")
    filled_segments(crashable, 5, keys=3)
    before = latest(read_all(crashable.log))
    failing = MagicMock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO)))
    monkeypatch.setattr(crashable.log, "segment_at", failing)
    # when
    with pytest.raises(OSError, match="Input/output error"):
        asyncio.run(compact(crashable.log, NOON_MS))
    # then
    with pytest.raises(StorageError, match="offline since compacted files could not take their places"):
        read_all(crashable.log)
    crashable.open()
    assert latest(read_all(crashable.log)) == before


def test_crash_after_any_replacement_step_keeps_the_latest_values(tmp_path: Path) -> None:
    """All of them, one after the other, on the same shape of log."""
    for steps in range(200):
        data_dir = tmp_path / str(steps)
        data_dir.mkdir()
        crashable = compacted(data_dir, segment_bytes="2000")
        filled_segments(crashable, 60, keys=4)
        before = latest(read_all(crashable.log))
        disk = CrashingDisk(steps)
        try:
            asyncio.run(compact(crashable.log, NOON_MS, disk=disk))
        except _Crash:
            crashable.open()
            assert latest(read_all(crashable.log)) == before
        else:
            break
    assert steps > 15


def test_next_pass_compacts_the_log_after_any_failed_step_of_the_swap(tmp_path: Path) -> None:
    for steps in range(200):
        data_dir = tmp_path / str(steps)
        data_dir.mkdir()
        crashable = compacted(data_dir, segment_bytes="2000", min_cleanable_dirty_ratio="0")
        filled_segments(crashable, 60, keys=4)
        before = read_all(crashable.log)
        try:
            asyncio.run(compact(crashable.log, NOON_MS, disk=FailingDisk(steps)))
        except OSError:
            between = read_all(crashable.log)
            assert (latest(between), set(between) - set(before)) == (latest(before), set())
            assert [record.offset for record in between] == sorted({record.offset for record in between})
            run(crashable)
            assert crashable.log.compacted_up_to == crashable.log.segments[-1].base_offset
            assert not [path for path in crashable.log.directory.iterdir() if path.is_dir()]
            after = read_all(crashable.log)
            assert latest(after) == latest(before)
            crashable.open()
            assert read_all(crashable.log) == after
        else:
            break
    assert steps > 15


def test_more_keys_than_the_offset_map_take_several_passes(tmp_path: Path) -> None:
    crashable = compacted(tmp_path, min_cleanable_dirty_ratio="0")
    filled_segments(crashable, 80, keys=20)
    before = latest(read_all(crashable.log))
    few = HousekeepingSettings(cleaner_map_bytes=2000)

    passes = 0
    while crashable.log.compacted_up_to < crashable.log.segments[-1].base_offset:
        asyncio.run(compact(crashable.log, NOON_MS, settings=few))
        passes += 1
        assert latest(read_all(crashable.log)) == before

    assert passes > 2
    assert len(read_all(crashable.log)) < 60


@pytest.mark.parametrize("seed", [0, 1, 2, *long_only(*range(3, 10))])
def test_deleted_records_do_not_come_back_in_many_passes(tmp_path: Path, seed: int) -> None:
    """A tombstone dropped by a pass that does not read that far would uncover an older record of its key."""
    crashable = compacted(tmp_path, min_cleanable_dirty_ratio="0", delete_retention_ms="1000", segment_bytes="4000")
    few_keys = HousekeepingSettings(cleaner_map_bytes=1000)  # fewer than a segment has
    chance, now_ms = random.Random(seed), NOON_MS
    values: dict[bytes | None, bytes | None] = {}
    for number in range(400):
        key, value = b"%d" % chance.randrange(30), None if chance.random() < 0.4 else b"%d" % number
        values[key] = value
        crashable.log.append(batch(value, key=key, at=now_ms))
        if chance.random() < 0.05:
            asyncio.run(compact(crashable.log, now_ms, settings=few_keys))
            now_ms += 1001
            left = latest(read_all(crashable.log))
            assert {key for key in left if left[key] is not None} == {key for key in values if values[key] is not None}
            assert {key: values[key] for key in left} == left


def test_compaction_progress_survives_a_restart(tmp_path: Path) -> None:
    crashable = compacted(tmp_path)
    filled_segments(crashable, 40, keys=3)
    run(crashable)
    asyncio.run(crashable.manager.close())
    reached = crashable.log.compacted_up_to

    crashable.open()

    assert crashable.log.compacted_up_to == reached > 0
    assert run(crashable) == 0


def test_segments_after_a_young_segment_are_not_compacted(tmp_path: Path) -> None:
    crashable = compacted(tmp_path, min_compaction_lag_ms="1000", segment_bytes="400")
    crashable.log.append(batch("x" * 300, key=b"a", at=NOON_MS + 5000))
    for _ in range(5):
        crashable.log.append(batch("x" * 300, key=b"a", at=NOON_MS - 5000))

    assert run(crashable) == 0
    assert run(crashable, NOON_MS + 6000) > 0


def test_max_compaction_lag_ms_overrides_the_dirty_ratio(tmp_path: Path) -> None:
    """KIP-354."""
    crashable = compacted(tmp_path, min_cleanable_dirty_ratio="1", max_compaction_lag_ms="1000", segment_ms=str(10**12))
    for _ in range(10):
        crashable.log.append(batch("x" * 100, key=b"a"))

    assert run(crashable, NOON_MS + 1000) == 0
    assert run(crashable, NOON_MS + 1001) > 0
    assert crashable.log.config.roll_after_ms(0) == 1000


def test_records_without_timestamps_do_not_override_the_dirty_ratio(tmp_path: Path) -> None:
    crashable = compacted(tmp_path, min_cleanable_dirty_ratio="1", max_compaction_lag_ms="1000", segment_ms=str(10**12))
    for _ in range(10):
        crashable.log.append(batch("x" * 100, key=b"a", at=-1))

    assert run(crashable, NOON_MS + DAY_MS) == 0


def test_replaced_files_are_removed_after_file_delete_delay_ms(tmp_path: Path) -> None:
    crashable = compacted(tmp_path, file_delete_delay_ms="5000")
    filled_segments(crashable, 40, keys=3)
    run(crashable)

    def put_away() -> list[Path]:
        return list((tmp_path / "t-0").glob("*.deleted"))

    asyncio.run(crashable.manager.housekeeper.tick())
    assert put_away()
    crashable.clock.now_ms += 5000
    asyncio.run(crashable.manager.housekeeper.tick())
    assert not put_away()


def test_compaction_stays_within_its_io_rate(tmp_path: Path) -> None:
    crashable = compacted(tmp_path)
    filled_segments(crashable, 60, keys=3)
    began = time.perf_counter()
    asyncio.run(compact(crashable.log, NOON_MS, pace=segment_rewriter.Pace(bytes_per_s=crashable.log.size * 4)))

    assert time.perf_counter() - began > 0.4


def test_io_rate_of_zero_pauses_compaction(tmp_path: Path) -> None:
    crashable = compacted(tmp_path)
    filled_segments(crashable, 60, keys=3)
    rates = [0.0, 1e9]
    cleaner = Cleaner(
        crashable.manager,
        now_ms=crashable.clock,
        settings=lambda: HousekeepingSettings(cleaner_bytes_per_s=rates[0]),
    )

    assert asyncio.run(cleaner.clean()) == 0
    rates.pop(0)
    assert asyncio.run(cleaner.clean()) > 0


async def test_running_pass_follows_changes_of_its_io_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    loop, paused, resumed = asyncio.get_running_loop(), asyncio.Event(), threading.Semaphore(0)

    def sleep(_: float) -> None:
        loop.call_soon_threadsafe(paused.set)
        resumed.acquire()

    monkeypatch.setattr(segment_rewriter, "time", SimpleNamespace(perf_counter=time.perf_counter, sleep=sleep))
    crashable = compacted(tmp_path)
    filled_segments(crashable, 60, keys=3)
    rates = [0.001]
    cleaner = Cleaner(
        crashable.manager,
        now_ms=crashable.clock,
        settings=lambda: HousekeepingSettings(cleaner_bytes_per_s=rates[-1]),
    )
    cleaning = asyncio.create_task(cleaner.clean())
    try:
        async with asyncio.timeout(20):
            # when
            for rate, steps in ((0.0, 1), (float("inf"), 1000)):
                await paused.wait()
                paused.clear()
                rates.append(rate)
                cleaner.check_soon(None)
                resumed.release(steps)
            # then
            assert await asyncio.shield(cleaning) > 0
    finally:
        await cleaner.close()
        resumed.release(1000)
        await asyncio.wait([cleaning])


def test_compaction_stops_with_the_broker(tmp_path: Path) -> None:
    crashable = compacted(tmp_path)
    filled_segments(crashable, 60, keys=3)
    before = read_all(crashable.log)
    stop = threading.Event()
    stop.set()

    with pytest.raises(segment_rewriter.StoppedError):
        asyncio.run(compact(crashable.log, NOON_MS, pace=segment_rewriter.Pace(stop=stop)))
    assert read_all(crashable.log) == before


async def test_cleaner_task_continues_after_an_unexpected_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    crashable = CrashableLogs(tmp_path)
    cleaned = asyncio.Event()

    async def clean() -> int:
        monkeypatch.setattr(cleaner, "clean", succeed)
        raise ZeroDivisionError

    async def succeed() -> int:
        cleaned.set()
        return 0

    cleaner = Cleaner(crashable.manager, now_ms=crashable.clock, settings=HousekeepingSettings)
    monkeypatch.setattr(cleaner, "clean", clean)
    cleaner.start()
    async with asyncio.timeout(20):
        cleaner.check_soon(None)
        while not caplog.records:  # noqa: ASYNC110  # no event tells
            await asyncio.sleep(0.005)
        cleaner.check_soon(None)
        await cleaned.wait()
    await cleaner.close()
    assert "Compaction cannot be finished" in caplog.text

"""Ranges of segments that are read later: the right bytes or an error, despite changes of the log."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.protocol.errors import StorageError
from klamm.storage.log import LogRange, delete_records
from klamm.storage.log.cleaner import compact
from klamm.storage.log.files import FilePool, LogFile
from tests.support.logs import TOPIC_ID, CrashableLogs, batch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path


def range_with_bytes(crashable: CrashableLogs) -> tuple[LogRange, bytes]:
    """Return the range of the first segment and what it holds now."""
    item = crashable.log.find(0, 1 << 20)
    assert item is not None
    return item, item.read()


def filled(data_dir: Path, **configs: str) -> CrashableLogs:
    crashable = CrashableLogs(data_dir, **configs)
    for number in range(6):
        crashable.log.append(batch(f"value-{number}"))
    crashable.log.roll()
    crashable.log.append(batch("last"))
    return crashable


def test_range_is_read_in_any_parts(tmp_path: Path) -> None:
    item, whole = range_with_bytes(filled(tmp_path))
    assert len(item) == len(whole)
    assert b"".join(item.read(start, 7) for start in range(0, len(whole), 7)) == whole
    assert item.end_offset == 6


def test_range_outlives_its_descriptor_and_later_appends(tmp_path: Path) -> None:
    crashable = filled(tmp_path)
    item, whole = range_with_bytes(crashable)
    crashable.log.segments[0].close()
    crashable.log.append(batch("later"))
    assert item.read() == whole


async def removed_by_retention(crashable: CrashableLogs) -> None:
    delete_records(crashable.log, 6)
    await crashable.manager.checkpoint()


async def removed_by_compaction(crashable: CrashableLogs) -> None:
    await compact(crashable.log, crashable.clock.now_ms)


@pytest.mark.parametrize("remove", [removed_by_retention, removed_by_compaction])
async def test_range_of_a_removed_segment_stays_readable_until_file_deletion(
    tmp_path: Path, remove: Callable[[CrashableLogs], Awaitable[None]]
) -> None:
    # given
    crashable = filled(tmp_path, file_delete_delay_ms="60000", cleanup_policy="compact")
    item, whole = range_with_bytes(crashable)
    # when
    await remove(crashable)
    # then
    assert crashable.log.read(crashable.log.log_start_offset, 1 << 20) != whole
    assert item.read() == whole
    # when
    crashable.clock.now_ms += 60_000
    await crashable.manager.remove_retired()
    # then
    with pytest.raises(StorageError):
        item.read()
    assert not list(deleted_files_held_open(tmp_path))


async def test_ranges_of_segments_with_the_same_offset_stay_apart(tmp_path: Path) -> None:
    """Each compaction replaces the segment at offset 0, and each range is read again after the others."""
    # given
    crashable = filled(tmp_path, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    held = [range_with_bytes(crashable)]
    # when
    for number in range(4):
        await compact(crashable.log, crashable.clock.now_ms)
        held.append(range_with_bytes(crashable))
        crashable.log.append(batch(f"newer-{number}"))
        crashable.log.roll()
    await removed_by_retention(crashable)
    # then
    assert len({whole for _, whole in held}) == len(held)
    assert [item.read() for item, _ in held] == [whole for _, whole in held]


def deleted_files_held_open(directory: Path) -> Iterator[str]:
    """Yield the deleted files in a directory whose space an open descriptor of this process still holds."""
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor of the listing
            target = os.readlink(f"/proc/self/fd/{descriptor}")
            if target.startswith(str(directory)) and target.endswith("(deleted)"):
                yield target


@pytest.mark.parametrize("is_compacted", [False, True])
async def test_range_of_a_deleted_topic_fails(tmp_path: Path, is_compacted: bool) -> None:
    """It must not read the files of a later topic with the same name."""
    # given
    crashable = filled(tmp_path, cleanup_policy="compact")
    item, _ = range_with_bytes(crashable)
    if is_compacted:
        await removed_by_compaction(crashable)
    directory = crashable.data_dir / "t-0"
    files = list(directory.iterdir())
    # when
    crashable.manager.delete_topic(TOPIC_ID)
    # then
    assert not directory.exists()
    directory.mkdir()
    for file in files:
        file.write_bytes(bytes(10_000))
    with pytest.raises(StorageError):
        item.read()


@pytest.mark.parametrize("max_open", [0, 1, 3])
def test_file_pool_closes_used_files_beyond_its_limit(tmp_path: Path, max_open: int) -> None:
    pool = FilePool(max_open)
    files = [LogFile(pool, tmp_path / str(number)) for number in range(8)]
    for file in files * 3:
        assert file.descriptor >= 0
        assert file.is_open
        assert sum(file.is_open for file in files) <= max(max_open, 1)
    pool.close()
    assert not any(file.is_open for file in files)


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=60))
def test_file_pool_keeps_its_limit_in_any_order_of_uses(steps: list[tuple[int, bool]]) -> None:
    pool = FilePool(3)
    files = [LogFile(pool, os.devnull) for _ in range(6)]
    for number, is_closed in steps:
        if is_closed:
            files[number].close()
        else:
            assert files[number].opened() >= 0
        assert sum(file.is_open for file in files) <= 3
    pool.close()
    assert not any(file.is_open for file in files)

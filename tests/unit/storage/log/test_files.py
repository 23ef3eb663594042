"""Ranges of segments that are read later: the right bytes or an error, despite changes of the log."""

from __future__ import annotations

import asyncio
import os
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


def test_range_stays_readable_after_retention_until_file_deletion(tmp_path: Path) -> None:
    crashable = filled(tmp_path, file_delete_delay_ms="60000")
    item, whole = range_with_bytes(crashable)
    delete_records(crashable.log, 6)
    asyncio.run(crashable.manager.checkpoint())
    assert item.read() == whole
    crashable.clock.now_ms += 60_000
    asyncio.run(crashable.manager.remove_retired())
    crashable.pool.close()
    with pytest.raises(StorageError):
        item.read()


def test_range_of_a_compacted_segment_fails(tmp_path: Path) -> None:
    crashable = filled(tmp_path, cleanup_policy="compact")
    item, _ = range_with_bytes(crashable)
    asyncio.run(compact(crashable.log, crashable.clock.now_ms))
    assert len(crashable.log.read(0, 1 << 20)) < len(item)
    with pytest.raises(StorageError):
        item.read()


def test_range_of_a_deleted_topic_fails(tmp_path: Path) -> None:
    crashable = filled(tmp_path)
    item, _ = range_with_bytes(crashable)
    crashable.manager.delete_topic(TOPIC_ID)
    for file in (crashable.data_dir / "t-0").glob("*"):
        pytest.fail(f"{file} is still there")
    (crashable.data_dir / "t-0").mkdir()
    (crashable.data_dir / "t-0" / "00000000000000000000.log").write_bytes(bytes(10_000))
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

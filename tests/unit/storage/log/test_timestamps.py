"""Searches in segments with few index entries."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from klamm.protocol.errors import StorageError
from klamm.storage.log import offset_for_timestamp, timestamps
from klamm.storage.log.cleaner import compact
from tests.support.by_thread import replace_for_this_thread
from tests.support.logs import NOON_MS, CrashableLogs, batch

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def crashable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CrashableLogs:
    """Return a log whose newest record follows 50 older ones with the same timestamp and key."""
    monkeypatch.setattr(timestamps, "_HEADS_AT_ONCE", 10)
    crashable = CrashableLogs(
        tmp_path, cleanup_policy="compact", min_cleanable_dirty_ratio="0", file_delete_delay_ms="0"
    )
    for _ in range(50):
        crashable.log.append(batch("old"))
    crashable.log.append(batch("new", key=b"other", at=NOON_MS + 5))
    return crashable


async def test_long_search_lets_other_tasks_run(crashable: CrashableLogs) -> None:
    search = asyncio.create_task(offset_for_timestamp(crashable.log, NOON_MS + 1))
    await asyncio.sleep(0)

    assert not search.done()
    assert (await search).offset == 50


async def test_search_starts_again_when_its_segment_is_removed(
    crashable: CrashableLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashable.log.roll()
    before = crashable.log.segments[0]
    sleep, saved = asyncio.sleep, []

    async def compact_once(_: float) -> None:
        monkeypatch.setattr(asyncio, "sleep", sleep)
        saved.append(await compact(crashable.log, NOON_MS))
        await crashable.manager.remove_retired()

    replace_for_this_thread(monkeypatch, asyncio, "sleep", compact_once)
    found = await offset_for_timestamp(crashable.log, NOON_MS + 1)

    assert saved[0] > 0
    assert crashable.log.segments[0] is not before
    assert (found.offset, found.timestamp) == (50, NOON_MS + 5)


async def test_search_starts_again_when_its_segment_is_removed_while_a_batch_is_searched(
    crashable: CrashableLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashable.log.append(batch("newest", key=b"third", at=NOON_MS + 6))
    crashable.log.roll()
    search = timestamps._in_batch

    async def compact_once(*_: object) -> None:
        monkeypatch.setattr(timestamps, "_in_batch", search)
        await compact(crashable.log, NOON_MS)
        await crashable.manager.remove_retired()

    monkeypatch.setattr(timestamps, "_in_batch", compact_once)
    assert (await offset_for_timestamp(crashable.log, NOON_MS + 1)).offset == 50


async def test_unreadable_segment_is_a_storage_error(crashable: CrashableLogs) -> None:
    crashable.log.segments[0].file.give_up()
    with pytest.raises(StorageError, match="Cannot read t-0"):
        await offset_for_timestamp(crashable.log, NOON_MS + 1)


def test_index_interval_is_limited(tmp_path: Path) -> None:
    """A read scans the batches after an index entry on the event loop."""
    crashable = CrashableLogs(tmp_path, index_interval_bytes=str(2**31 - 1))
    for _ in range(30):
        crashable.log.append(batch("x" * 50_000))

    (segment,) = crashable.log.segments
    positions = [segment.position_of(offset) for offset in range(30)]
    assert len(segment.offset_index) == 4
    assert positions == [at * segment.size // 30 for at in range(30)]

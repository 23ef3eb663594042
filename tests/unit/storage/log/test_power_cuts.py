"""Effects of single power cuts on a log: producers, truncated segments and truncated ends."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from klamm.storage.log.directories import RECOVERY_POINTS
from klamm.storage.log.housekeeping import apply_retention
from klamm.storage.log.producers import SNAPSHOT
from tests.support.logs import NOON_MS, LogHouse, batch, read_all
from tests.support.recorded_disk import RecordedDisk
from tests.support.transactions import COMMIT, end, write

if TYPE_CHECKING:
    from pathlib import Path


async def flush_and_checkpoint(house: LogHouse) -> None:
    await house.manager.flush(house.log)
    await house.manager.checkpoint()


@pytest.mark.parametrize("seed", range(20))
def test_open_transaction_below_the_recovery_point_survives_a_power_cut(tmp_path: Path, seed: int) -> None:
    here, cut = tmp_path / "here", tmp_path / "cut"
    here.mkdir()
    disk = RecordedDisk(here)
    with disk.recording():
        house = LogHouse(here)
        write(house.log, 1, "open", sequence=0)
        asyncio.run(flush_and_checkpoint(house))
    # when
    (left,) = disk.cuts([len(disk.journal)], random.Random(seed))
    left.write(cut)
    # then
    log = LogHouse(cut).log
    assert (log.end_offset, log.last_stable_offset, log.recovery_point) == (1, 0, 1)


@pytest.mark.parametrize("seed", range(4))
def test_partial_rename_of_expired_segments_leaves_no_gap(tmp_path: Path, seed: int) -> None:
    here, cut = tmp_path / "here", tmp_path / "cut"
    here.mkdir()
    disk = RecordedDisk(here)
    with disk.recording():
        house = LogHouse(here, segment_bytes="170", retention_bytes="400")
        house.log.append(batch("a"))
        house.log.append(batch("b"))
        asyncio.run(flush_and_checkpoint(house))
        for value in "cdefghijkl":
            house.log.append(batch(value))
        asyncio.run(house.manager.flush(house.log))  # the checkpointed recovery point stays at offset 2
        # when
        begun = len(disk.journal)
        assert apply_retention(house.log, NOON_MS) == 3
        asyncio.run(house.manager.checkpoint())
    # then
    for left in disk.cuts(range(begun, len(disk.journal) + 1), random.Random(seed)):
        left.write(cut)
        log = LogHouse(cut).log
        assert [record.offset for record in read_all(log)] == [*range(log.log_start_offset, 12)]
        assert log.log_start_offset in {0, 6}, (left.moment, left.operation)


def test_producer_snapshot_of_a_longer_truncated_log_is_ignored(tmp_path: Path) -> None:
    house = LogHouse(tmp_path)
    house.log.append(batch("kept"))
    asyncio.run(flush_and_checkpoint(house))
    write(house.log, 1, "lost", sequence=0)
    end(house.log, 1, COMMIT)
    house.log.save_producers()
    # when: the power cut takes everything that was not flushed, and other records take its place
    house.log.segments[-1].truncate(house.log.segments[-1].position_of(1) or 0)
    house.open()
    assert not (house.log.directory / SNAPSHOT).exists()
    for sequence in range(3):
        write(house.log, 2, "open", sequence=sequence)
    house.open()
    # then
    assert house.log.producers.open_producers() == ((2, 0),)
    assert house.log.producers.epoch_of(1) == -1


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_records_after_a_truncated_segment_are_truncated(tmp_path: Path, policy: str) -> None:
    """Otherwise readers would find a gap, and a transaction would continue after its lost marker."""
    house = LogHouse(tmp_path, segment_bytes="170", cleanup_policy=policy)
    house.log.append(batch("a"))
    asyncio.run(flush_and_checkpoint(house))
    for value in "bcdef":
        house.log.append(batch(value))
    first = house.log.segments[0]
    assert (len(house.log.segments), house.log.segments[1].base_offset) == (3, 2)
    # when
    first.truncate(first.position_of(1) or 0)
    house.open()
    # then
    assert [record.value for record in read_all(house.log)] == [b"a"]
    assert house.log.append(batch("g")).base_offset == 1


def test_compaction_gap_is_kept_in_recovery(tmp_path: Path) -> None:
    """Also when the checkpoint of the recovery points is lost."""
    house = LogHouse(tmp_path, segment_bytes="170", cleanup_policy="compact")
    for value in "abcdef":
        house.log.append(batch(value))
    asyncio.run(flush_and_checkpoint(house))
    first = house.log.segments[0]
    first.truncate(first.position_of(1) or 0)  # as a compaction would leave it
    for _ in range(2):
        house.open()
        assert [record.value for record in read_all(house.log)] == [b"a", b"c", b"d", b"e", b"f"]
        (tmp_path / RECOVERY_POINTS).unlink(missing_ok=True)


def test_compaction_waits_until_a_start_would_trust_the_closed_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = LogHouse(tmp_path, segment_bytes="170", cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    for value in "abcdef":
        house.log.append(batch(value))
    trusted: list[int] = []

    async def compact(*_: object, **_options: object) -> int:
        trusted.append(house.log.checkpointed_point)
        assert "t 0 6" in (tmp_path / RECOVERY_POINTS).read_text()
        return 0

    monkeypatch.setattr("klamm.storage.log.cleaner.compact", compact)
    asyncio.run(house.manager._cleaner.clean())

    assert trusted == [6]


@pytest.mark.parametrize("seed", range(20))
def test_truncated_records_do_not_reappear_after_a_power_cut(tmp_path: Path, seed: int) -> None:
    here, cut = tmp_path / "here", tmp_path / "cut"
    here.mkdir()
    house = LogHouse(here, segment_bytes="170")
    for value in "abcdef":
        house.log.append(batch(value))
    first = house.log.segments[0]
    first.truncate(first.size - 1)
    disk = RecordedDisk(here)
    with disk.recording():
        house.open()
        assert house.log.end_offset == 1
        house.log.append(batch("g"))
    # when
    (left,) = disk.cuts([len(disk.journal)], random.Random(seed))
    left.write(cut)
    # then
    assert [record.value for record in read_all(LogHouse(cut).log)] in ([b"a", b"g"], [b"a"])


def test_batch_at_the_recovery_point_is_checked_despite_its_index_entry(tmp_path: Path) -> None:
    """The index may reach the disk before the batch. The log must end behind the batches that were flushed."""
    house = LogHouse(tmp_path, index_interval_bytes="1")
    for value in "ab":
        house.log.append(batch(value))
    asyncio.run(flush_and_checkpoint(house))
    for value in "cd":
        house.log.append(batch(value))
    segment = house.log.segments[-1]
    segment.seal()
    position = segment.position_of(2)
    assert position in {segment.offset_index.entry(index).value for index in range(len(segment.offset_index))}
    # when
    with segment.file.path.open("r+b") as file:
        file.seek(position + 61)
        file.write(bytes(8))
    house.open()
    # then
    assert (house.log.end_offset, house.log.recovery_point) == (2, 2)
    assert [record.value for record in read_all(house.log)] == [b"a", b"b"]

"""Effects of single power cuts on a log: producers, truncated segments and truncated ends."""

from __future__ import annotations

import asyncio
import errno
import random
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from klamm.storage.log import delete_records, segment_swap
from klamm.storage.log.cleaner import compact
from klamm.storage.log.directories import RECOVERY_POINTS
from klamm.storage.log.housekeeping import apply_retention
from klamm.storage.log.producers import PREVIOUS_SNAPSHOT, SNAPSHOT, AppendedBatch, ProducerStates
from tests.support.logs import NOON_MS, CrashableLogs, batch, read_all
from tests.support.recorded_disk import RecordedDisk
from tests.support.transactions import ABORT, COMMIT, committed_values, end, write

if TYPE_CHECKING:
    from pathlib import Path

    from klamm.storage.log import PartitionLog


async def flush_and_checkpoint(crashable: CrashableLogs) -> None:
    await crashable.manager.flush(crashable.log)
    await crashable.manager.checkpoint()


@pytest.mark.parametrize("seed", range(20))
def test_open_transaction_below_the_recovery_point_survives_a_power_cut(tmp_path: Path, seed: int) -> None:
    here, cut = tmp_path / "here", tmp_path / "cut"
    here.mkdir()
    disk = RecordedDisk(here)
    with disk.recording():
        crashable = CrashableLogs(here)
        write(crashable.log, 1, "open", sequence=0)
        asyncio.run(flush_and_checkpoint(crashable))
    # when
    (left,) = disk.cuts([len(disk.journal)], random.Random(seed))
    left.write(cut)
    # then
    log = CrashableLogs(cut).log
    assert (log.end_offset, log.last_stable_offset, log.recovery_point) == (1, 0, 1)


@pytest.mark.parametrize("seed", range(4))
def test_partial_rename_of_expired_segments_leaves_no_gap(tmp_path: Path, seed: int) -> None:
    here, cut = tmp_path / "here", tmp_path / "cut"
    here.mkdir()
    disk = RecordedDisk(here)
    with disk.recording():
        crashable = CrashableLogs(here, segment_bytes="170", retention_bytes="400")
        crashable.log.append(batch("a"))
        crashable.log.append(batch("b"))
        asyncio.run(flush_and_checkpoint(crashable))
        for value in "cdefghijkl":
            crashable.log.append(batch(value))
        asyncio.run(crashable.manager.flush(crashable.log))  # the checkpointed recovery point stays at offset 2
        # when
        begun = len(disk.journal)
        assert apply_retention(crashable.log, NOON_MS) == 3
        asyncio.run(crashable.manager.checkpoint())
    # then
    for left in disk.cuts(range(begun, len(disk.journal) + 1), random.Random(seed)):
        left.write(cut)
        log = CrashableLogs(cut).log
        assert [record.offset for record in read_all(log)] == [*range(log.log_start_offset, 12)]
        assert log.log_start_offset in {0, 6}, (left.moment, left.operation)


def test_power_cut_after_an_undone_replacement_loses_no_record(tmp_path: Path) -> None:
    # given
    class FailingDisk(segment_swap.Disk):
        def rename(self, path: Path, target: Path) -> None:
            if path.parent.name == segment_swap.READY:
                raise OSError(errno.EIO, "Input/output error")
            super().rename(path, target)

    here, cut = tmp_path / "here", tmp_path / "cut"
    here.mkdir()
    disk = RecordedDisk(here)
    with disk.recording():
        crashable = CrashableLogs(here, segment_bytes="170", cleanup_policy="compact", min_cleanable_dirty_ratio="0")
        for number in range(6):
            crashable.log.append(batch(str(number), key=b"%d" % min(number, 4)))
        asyncio.run(flush_and_checkpoint(crashable))
        # when
        begun = len(disk.journal)
        with pytest.raises(OSError, match="Input/output error"):
            asyncio.run(compact(crashable.log, NOON_MS, disk=FailingDisk()))
        asyncio.run(compact(crashable.log, NOON_MS))
    # then
    for left in disk.cuts(range(begun, len(disk.journal) + 1), random.Random(0), fate="random"):
        left.write(cut)
        values = {record.key: record.value for record in read_all(CrashableLogs(cut).log)}
        assert values == {b"0": b"0", b"1": b"1", b"2": b"2", b"3": b"3", b"4": b"5"}, (left.moment, left.operation)


def test_producer_snapshot_of_a_longer_truncated_log_is_ignored(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path)
    crashable.log.append(batch("kept"))
    asyncio.run(flush_and_checkpoint(crashable))
    write(crashable.log, 1, "lost", sequence=0)
    end(crashable.log, 1, COMMIT)
    crashable.log.save_producers()
    # when: the power cut takes everything that was not flushed, and other records take its place
    crashable.log.segments[-1].truncate(crashable.log.segments[-1].position_of(1) or 0)
    crashable.open()
    assert not (crashable.log.directory / SNAPSHOT).exists()
    for sequence in range(3):
        write(crashable.log, 2, "open", sequence=sequence)
    crashable.open()
    # then
    assert crashable.log.producers.open_producers() == ((2, 0),)
    assert crashable.log.producers.epoch_of(1) == -1


def test_previous_producer_snapshot_below_the_first_segment_is_ignored(tmp_path: Path) -> None:
    """It may contain a transaction whose marker was in a segment that is gone."""
    # given
    crashable = CrashableLogs(tmp_path)
    write(crashable.log, 1, "old", sequence=0)
    asyncio.run(flush_and_checkpoint(crashable))
    end(crashable.log, 1, COMMIT)
    crashable.log.roll()
    crashable.log.append(batch("kept"))
    asyncio.run(crashable.manager.flush(crashable.log))
    crashable.log.append(batch("lost"))
    delete_records(crashable.log, 2)
    asyncio.run(crashable.manager.checkpoint())
    # when: the power cut takes a record that the newest snapshot covers
    crashable.log.segments[-1].truncate(crashable.log.segments[-1].position_of(3) or 0)
    crashable.open()
    # then
    assert committed_values(crashable.log) == ["kept"]


def _append(log: PartitionLog, value: str, sequence: int, producer_id: int = 1) -> None:
    log.append(batch(value, producer_id=producer_id, producer_epoch=0, base_sequence=sequence))


def _windows(log: PartitionLog) -> dict[int, list[AppendedBatch]]:
    return {producer_id: list(state.batches) for producer_id, state in log.producers.items()}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_power_cut_during_appends_leaves_a_usable_producer_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Otherwise a start would read the whole partition. Appends during a flush put the newest snapshot ahead of it."""
    # given
    here, cut = tmp_path / "here", tmp_path / "cut"
    here.mkdir()
    disk = RecordedDisk(here)
    with disk.recording():
        crashable = CrashableLogs(here, segment_bytes="300")
        _append(crashable.log, "a", 0)
        asyncio.run(flush_and_checkpoint(crashable))
        begun = len(disk.journal)
        for sequence in range(1, 9, 2):
            _append(crashable.log, "b", sequence)
            asyncio.run(crashable.manager.flush(crashable.log))
            _append(crashable.log, "c", sequence + 1)
            asyncio.run(crashable.manager.checkpoint())
    load, loaded = ProducerStates.load, []

    def recording_load(*arguments: Any) -> int | None:
        loaded.append(load(*arguments))
        return loaded[-1]

    monkeypatch.setattr(ProducerStates, "load", recording_load)
    # when
    for left in disk.cuts(range(begun, len(disk.journal) + 1), random.Random(seed)):
        left.write(cut)
        crashable = CrashableLogs(cut)
        end_offset = crashable.log.end_offset
        # then
        assert 1 <= (loaded[-1] or 0) <= end_offset, (left.moment, left.operation)
        # and: no snapshot is used that a later append has overtaken
        for sequence in range(9 - end_offset):
            _append(crashable.log, "other", sequence, producer_id=2)
        crashable.open()
        found = _windows(crashable.log)
        for name in (SNAPSHOT, PREVIOUS_SNAPSHOT):
            (cut / "t-0" / name).write_text("damaged")
        crashable.open()
        assert found == _windows(crashable.log), (left.moment, left.operation)
        crashable.pool.close()


def test_aborted_records_stay_hidden_after_a_second_power_cut(tmp_path: Path) -> None:
    """After the first one, the start from an earlier snapshot completes indexes below the recovery point again."""
    # given
    here, cut, again = tmp_path / "here", tmp_path / "cut", tmp_path / "again"
    here.mkdir()
    disk = RecordedDisk(here)
    with disk.recording():
        crashable = CrashableLogs(here, segment_bytes="700")
        write(crashable.log, 1, "committed", sequence=0)
        end(crashable.log, 1, COMMIT)
        asyncio.run(flush_and_checkpoint(crashable))
        write(crashable.log, 1, "aborted", sequence=1)
        end(crashable.log, 1, ABORT)
        assert len(crashable.log.segments) == 1
        while len(crashable.log.segments) == 1:
            crashable.log.append(batch("kept"))
        asyncio.run(crashable.manager.flush(crashable.log))
        _append(crashable.log, "late", 0, producer_id=3)
        asyncio.run(crashable.manager.checkpoint())
    for left in disk.cuts([len(disk.journal)] * 8, random.Random(0), fate="random"):
        left.write(cut)
        # when
        once_more = RecordedDisk(cut)
        with once_more.recording():
            crashable = CrashableLogs(cut)
            crashable.log.append(batch("kept"))
            asyncio.run(flush_and_checkpoint(crashable))
        crashable.pool.close()
        # then
        for last in once_more.cuts([len(once_more.journal)] * 8, random.Random(0), fate="random"):
            last.write(again)
            recovered = CrashableLogs(again)
            values = committed_values(recovered.log)
            recovered.pool.close()
            assert "aborted" not in values
            assert values[:2] == ["committed", "kept"]


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_records_after_a_truncated_segment_are_truncated(tmp_path: Path, policy: str) -> None:
    """Otherwise readers would find a gap, and a transaction would continue after its lost marker."""
    crashable = CrashableLogs(tmp_path, segment_bytes="170", cleanup_policy=policy)
    crashable.log.append(batch("a"))
    asyncio.run(flush_and_checkpoint(crashable))
    for value in "bcdef":
        crashable.log.append(batch(value))
    first = crashable.log.segments[0]
    assert (len(crashable.log.segments), crashable.log.segments[1].base_offset) == (3, 2)
    # when
    first.truncate(first.position_of(1) or 0)
    crashable.open()
    # then
    assert [record.value for record in read_all(crashable.log)] == [b"a"]
    assert crashable.log.append(batch("g")).base_offset == 1


def test_compaction_gap_is_kept_in_recovery(tmp_path: Path) -> None:
    """Also when the checkpoint of the recovery points is lost."""
    crashable = CrashableLogs(tmp_path, segment_bytes="170", cleanup_policy="compact")
    for value in "abcdef":
        crashable.log.append(batch(value))
    asyncio.run(flush_and_checkpoint(crashable))
    first = crashable.log.segments[0]
    first.truncate(first.position_of(1) or 0)  # as a compaction would leave it
    for _ in range(2):
        crashable.open()
        assert [record.value for record in read_all(crashable.log)] == [b"a", b"c", b"d", b"e", b"f"]
        (tmp_path / RECOVERY_POINTS).unlink(missing_ok=True)


def test_compaction_waits_until_a_start_would_trust_the_closed_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashable = CrashableLogs(tmp_path, segment_bytes="170", cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    for value in "abcdef":
        crashable.log.append(batch(value))
    trusted: list[int] = []

    async def compact(*_: object, **_options: object) -> int:
        trusted.append(crashable.log.checkpointed_point)
        assert "t 0 6" in (tmp_path / RECOVERY_POINTS).read_text()
        return 0

    monkeypatch.setattr("klamm.storage.log.cleaner.compact", compact)
    asyncio.run(crashable.manager.cleaner.clean())

    assert trusted == [6]


def test_compaction_continues_after_a_checkpoint_that_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    crashable = CrashableLogs(tmp_path, segment_bytes="170", cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    for value in "abcdef":
        crashable.log.append(batch(value))
    asyncio.run(crashable.manager.flush(crashable.log))
    failing = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    with monkeypatch.context() as patch:
        patch.setattr(crashable.manager.checkpoint_files, "write", failing)
        with pytest.raises(OSError, match="No space left"):
            asyncio.run(crashable.manager.checkpoint())
    assert crashable.log.checkpointed_point == 0
    # when: nothing more is appended
    saved = asyncio.run(crashable.manager.cleaner.clean())
    # then
    assert crashable.log.checkpointed_point == 6
    assert saved > 0


@pytest.mark.parametrize("seed", range(20))
def test_truncated_records_do_not_reappear_after_a_power_cut(tmp_path: Path, seed: int) -> None:
    here, cut = tmp_path / "here", tmp_path / "cut"
    here.mkdir()
    crashable = CrashableLogs(here, segment_bytes="170")
    for value in "abcdef":
        crashable.log.append(batch(value))
    first = crashable.log.segments[0]
    first.truncate(first.size - 1)
    disk = RecordedDisk(here)
    with disk.recording():
        crashable.open()
        assert crashable.log.end_offset == 1
        crashable.log.append(batch("g"))
    # when
    (left,) = disk.cuts([len(disk.journal)], random.Random(seed))
    left.write(cut)
    # then
    assert [record.value for record in read_all(CrashableLogs(cut).log)] in ([b"a", b"g"], [b"a"])


def test_batch_at_the_recovery_point_is_checked_despite_its_index_entry(tmp_path: Path) -> None:
    """The index may reach the disk before the batch. The log must end behind the batches that were flushed."""
    crashable = CrashableLogs(tmp_path, index_interval_bytes="1")
    for value in "ab":
        crashable.log.append(batch(value))
    asyncio.run(flush_and_checkpoint(crashable))
    for value in "cd":
        crashable.log.append(batch(value))
    segment = crashable.log.segments[-1]
    segment.seal()
    position = segment.position_of(2)
    assert position in {segment.offset_index.entry(index).value for index in range(len(segment.offset_index))}
    # when
    with segment.file.path.open("r+b") as file:
        file.seek(position + 61)
        file.write(bytes(8))
    crashable.open()
    # then
    assert (crashable.log.end_offset, crashable.log.recovery_point) == (2, 2)
    assert [record.value for record in read_all(crashable.log)] == [b"a", b"b"]

"""Damaged files of a log: the broker starts, keeps every valid record, and logs the repairs."""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from klamm.protocol.errors import CorruptBatchError, OutOfOrderSequenceError
from klamm.protocol.records import ControlType
from klamm.storage.log import append_marker, delete_records, offset_for_timestamp
from klamm.storage.log.cleaner import compact
from klamm.storage.log.directories import EpochStart, read_epochs, write_offsets
from klamm.storage.log.housekeeping import apply_retention
from klamm.storage.log.partition import overlapping
from tests.support.logs import NOON_MS, CrashableLogs, batch, read_all, records_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from klamm.storage.log import PartitionLog
    from klamm.storage.log.segment import LogSegment

COUNT = 60
HOUR_MS = 3_600_000


def filled(data_dir: Path, **configs: str) -> CrashableLogs:
    """A log of several closed segments with one record per batch, a second apart."""
    crashable = CrashableLogs(data_dir, segment_bytes="2000", index_interval_bytes="100", **configs)
    for number in range(COUNT):
        crashable.log.append(batch(f"{number:040d}", at=NOON_MS + number * 1000, key=b"%d" % number))
    assert len(crashable.log.segments) > 2
    return crashable


def stop(crashable: CrashableLogs, *, clean: bool) -> None:
    if clean:
        asyncio.run(crashable.manager.close())
    else:
        crashable.log.save_state()
        crashable.flush_log()
        asyncio.run(crashable.manager.checkpoint())


def offsets(crashable: CrashableLogs) -> list[int]:
    return [record.offset for record in read_all(crashable.log)]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\xff\xfe\x00",
        b"0\n1\nt 0 \xb2\n",
        bytes(40),
        b"0\n1\nt 0 9\n0 9\n",
        b"0\n1\nt 0 9999999999999999999999\n",
    ],
)
@pytest.mark.parametrize(
    "name",
    [
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "cleaner-offset-checkpoint",
        "t-0/leader-epoch-checkpoint",
        "t-0/partition.metadata",
        "t-0/klamm-producers.json",
    ],
)
def test_damaged_checkpoint_is_ignored_without_loss_of_records(
    tmp_path: Path, name: str, damage: bytes, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    # given
    crashable = filled(tmp_path)
    crashable.log.append(batch("last", producer_id=9, producer_epoch=0, base_sequence=0))
    stop(crashable, clean=clean)
    assert (tmp_path / name).exists()
    (tmp_path / name).write_bytes(damage)
    # when
    crashable.open().recover()
    # then
    assert offsets(crashable) == list(range(COUNT + 1))
    assert crashable.log.epochs.latest == 0
    assert crashable.log.end_offset_for_epoch(0) == EpochStart(0, COUNT + 1)
    assert crashable.log.append(batch("last", producer_id=9, producer_epoch=0, base_sequence=0)).base_offset == COUNT
    assert name.rpartition("/")[2] in caplog.text or "t-0 has no readable topic id" in caplog.text


def test_lost_leader_epochs_are_restored_from_batches(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path)
    crashable.log.append(batch("a"))
    crashable.log.leader_epoch = 3
    crashable.log.append(batch("b"))
    crashable.log.append(batch("c"))
    (tmp_path / "t-0" / "leader-epoch-checkpoint").unlink()

    crashable.open()

    assert crashable.log.end_offset_for_epoch(1) == EpochStart(0, 1)
    assert crashable.log.epochs.latest == 3


def test_epochs_of_recovered_batches_are_added_to_an_outdated_file(tmp_path: Path) -> None:
    """The file is replaced without an fsync, so after a power cut the older one may be there."""
    crashable = CrashableLogs(tmp_path)
    path = tmp_path / "t-0" / "leader-epoch-checkpoint"
    crashable.log.append(batch("a"))
    crashable.log.append(batch("lost"))
    for epoch in (3, 5):
        crashable.log.leader_epoch = epoch
        crashable.log.append(batch("b"))
    path.write_text("0\n2\n0 0\n1 3\n")  # epoch 1 belongs to an end that was cut before
    crashable.open()
    crashable.log.leader_epoch = 6

    assert [crashable.log.end_offset_for_epoch(epoch) for epoch in (0, 3, 5)] == [(0, 2), (3, 3), (5, 4)]


@pytest.mark.parametrize(
    ("start_offset", "kept"), [(0, [0, 2, 4]), (1, [0, 2, 4]), (2, [2, 4]), (3, [2, 4]), (5, [4]), (6, [4])]
)
def test_leader_epochs_below_the_log_start_are_removed_with_the_next_epoch(
    tmp_path: Path, start_offset: int, kept: list[int]
) -> None:
    # given
    crashable = CrashableLogs(tmp_path)
    for epoch in (0, 2, 4):
        crashable.log.leader_epoch = epoch
        crashable.log.append(batch("a", "b"))
    crashable.flush_log()
    # when
    delete_records(crashable.log, start_offset)
    asyncio.run(crashable.manager.checkpoint())
    crashable.open()
    epoch = crashable.log.epochs.epoch_of(start_offset)
    crashable.log.leader_epoch = 6
    crashable.log.append(batch("b"))
    # then
    assert epoch == (max(kept) if start_offset == 6 else start_offset // 2 * 2)
    assert [entry.epoch for entry in read_epochs(tmp_path / "t-0" / "leader-epoch-checkpoint")] == [*kept, 6]
    assert crashable.log.end_offset_for_epoch(4) == EpochStart(4, 6)


def test_new_leader_epochs_are_made_durable_with_the_next_checkpoint(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path)
    crashable.log.append(batch("a"))
    crashable.log.append(batch("b"))
    path = tmp_path / "t-0" / "leader-epoch-checkpoint"

    assert path in crashable.log.save_recovery_state(0)
    assert path not in crashable.log.save_recovery_state(1)


def test_changed_digit_in_the_producer_snapshot_is_detected(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path)
    crashable.log.append(batch("a", producer_id=9, producer_epoch=0, base_sequence=0))
    crashable.log.save_state()
    path = tmp_path / "t-0" / "klamm-producers.json"
    path.write_text(path.read_text().replace("[[0,0,", "[[7,7,"))

    crashable.open()

    with pytest.raises(OutOfOrderSequenceError):
        crashable.log.append(batch("b", producer_id=9, producer_epoch=0, base_sequence=8))
    assert crashable.log.append(batch("b", producer_id=9, producer_epoch=0, base_sequence=1)).base_offset == 1


# -- indexes


def _zero_last_entry(data: bytes, size: int) -> bytes:
    return data[:-size] + bytes(size)


DAMAGES: dict[str, Callable[[bytes, int], bytes]] = {
    "zeroed last entry": _zero_last_entry,
    "all 0xff": lambda data, _: b"\xff" * len(data),
    "all zero": lambda data, _: bytes(len(data)),
    "0xff in the middle": lambda data, size: data[: 2 * size] + b"\xff" * (2 * size) + data[4 * size :],
    "zeros in the middle": lambda data, size: data[: 2 * size] + bytes(2 * size) + data[4 * size :],
    "cut in an entry": lambda data, size: data[: -size - 3],
    "one entry too few": lambda data, size: data[:-size],
    "empty": lambda _, __: b"",
    "too long": lambda data, _: data + bytes(7),
    "other places": lambda data, size: b"".join(
        struct.pack(">ii" if size == 8 else ">qi", *(n + 1 for n in entry))
        for entry in struct.iter_unpack(">ii" if size == 8 else ">qi", data)
    ),
}


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_index_is_rebuilt_without_loss_of_records(
    tmp_path: Path, damage: Callable[[bytes, int], bytes], suffix: str, clean: bool
) -> None:
    # given
    crashable = filled(tmp_path, retention_ms=str(HOUR_MS))
    stop(crashable, clean=clean)
    for path in (tmp_path / "t-0").glob(f"*{suffix}"):
        path.write_bytes(damage(path.read_bytes(), 8 if suffix == ".index" else 12))
    # when
    crashable.open().recover()
    # then
    assert offsets(crashable) == list(range(COUNT))
    for offset in range(COUNT):
        first = records_in(crashable.log.read(offset, 500))[0]
        assert first.offset == offset
    assert asyncio.run(_offsets_of(crashable.log, [NOON_MS + offset * 1000 for offset in range(COUNT)])) == offsets(
        crashable
    )
    ends = [segment.base_offset for segment in crashable.log.segments[1:]]
    for segment, end in zip(crashable.log.segments, [*ends, COUNT], strict=True):
        assert segment.max_timestamp == NOON_MS + (end - 1) * 1000
    assert apply_retention(crashable.log, NOON_MS + HOUR_MS) == 0
    assert crashable.log.append(batch("next")).base_offset == COUNT


async def _offsets_of(log: PartitionLog, timestamps: Sequence[int]) -> list[int | None]:
    return [(await offset_for_timestamp(log, timestamp)).offset for timestamp in timestamps]


@pytest.mark.parametrize("damage", [b"\xff" * 34, bytes(34), bytes(5)], ids=["0xff", "zeros", "half an entry"])
def test_corrupt_transaction_index_is_rebuilt(tmp_path: Path, damage: bytes) -> None:
    # given
    crashable = CrashableLogs(tmp_path, segment_bytes="300")
    for sequence in range(3):
        record = batch("x" * 50, producer_id=9, producer_epoch=0, base_sequence=sequence, is_transactional=True)
        crashable.log.append(record, is_verified=True)
    append_marker(
        crashable.log, ControlType.ABORT, producer_id=9, producer_epoch=0, coordinator_epoch=0, now_ms=NOON_MS
    )
    for _ in range(8):
        crashable.log.append(batch("y" * 50))
    entries = overlapping(crashable.log.segments, 0, crashable.log.end_offset)
    assert entries
    stop(crashable, clean=True)
    # when
    (path,) = (tmp_path / "t-0").glob("*.txnindex")
    path.write_bytes(damage)
    crashable.open()
    # then
    assert overlapping(crashable.log.segments, 0, crashable.log.end_offset) == entries


# -- batches


def _overwrite(segment: LogSegment, offset: int, data: Callable[[int], bytes]) -> None:
    position = segment.position_of(offset)
    assert position is not None
    head = segment.head_at(position)
    assert head is not None
    with segment.file.path.open("r+b") as file:
        file.seek(position)
        file.write(data(head.size))


@pytest.mark.parametrize("damage", [bytes, lambda size: b"\xff" * size, lambda size: b"x" * size])
def test_corruption_in_a_closed_segment_is_an_error_and_the_rest_is_served(
    tmp_path: Path, damage: Callable[[int], bytes]
) -> None:
    # given
    crashable = filled(tmp_path)
    stop(crashable, clean=True)
    crashable.open()
    closed = crashable.log.segments[1]
    bad = closed.base_offset + 10
    _overwrite(closed, bad, damage)
    # when
    crashable.open().recover()
    # then
    with pytest.raises(CorruptBatchError):
        crashable.log.read(bad, 1 << 20)
    offsets = set()
    for offset in range(COUNT):
        with suppress(CorruptBatchError):
            offsets.add(records_in(crashable.log.read(offset, 1))[0].offset)
    assert offsets >= {*range(bad), *range(crashable.log.segments[2].base_offset, COUNT)}
    assert bad not in offsets
    assert apply_retention(crashable.log, NOON_MS) == 0
    assert crashable.log.append(batch("next")).base_offset == COUNT


def test_records_after_damage_survive_without_index(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    crashable = filled(tmp_path)
    stop(crashable, clean=True)
    crashable.open()
    closed = crashable.log.segments[1]
    bad = closed.base_offset + 1
    _overwrite(closed, bad, bytes)
    closed.offset_index.file.path.unlink()

    crashable.open().recover()

    assert f"{closed.file.path} is damaged" in caplog.text
    with pytest.raises(CorruptBatchError):
        crashable.log.read(bad, 1 << 20)
    assert (
        records_in(crashable.log.read(crashable.log.segments[2].base_offset, 1))[0].offset
        == crashable.log.segments[2].base_offset
    )
    # The newest record of the damaged segment is not known, so the age of the file counts.
    assert apply_retention(crashable.log, NOON_MS + 604_800_000 + 5 * HOUR_MS) == 1


def test_timestamp_lookup_rejects_a_batch_with_wrong_checksum(tmp_path: Path) -> None:
    crashable = filled(tmp_path)
    _overwrite_last_byte(crashable.log.segments[0], 5)

    with pytest.raises(CorruptBatchError):
        asyncio.run(offset_for_timestamp(crashable.log, NOON_MS + 5000))
    assert asyncio.run(offset_for_timestamp(crashable.log, NOON_MS + 6000)).offset == 6


def test_compaction_does_not_recompute_the_checksum_of_corrupt_records(tmp_path: Path) -> None:
    crashable = filled(tmp_path, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    segment = crashable.log.segments[0]
    _overwrite_last_byte(segment, 5)
    before = segment.file.path.read_bytes()

    assert asyncio.run(compact(crashable.log, crashable.clock.now_ms)) == 0

    assert crashable.log.is_uncleanable
    assert segment.file.path.read_bytes() == before


def _overwrite_last_byte(segment: LogSegment, offset: int) -> None:
    position = segment.position_of(offset)
    assert position is not None
    head = segment.head_at(position)
    assert head is not None
    with segment.file.path.open("r+b") as file:
        file.seek(position + head.size - 1)
        file.write(b"\x55")


def test_offsets_below_the_log_start_are_not_used_again_when_the_log_was_lost(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path)
    crashable.log.append(batch("x"))
    write_offsets(tmp_path / "log-start-offset-checkpoint", {"t-0": 50})

    crashable.open()

    assert (crashable.log.log_start_offset, crashable.log.end_offset) == (50, 50)
    assert crashable.log.append(batch("y")).base_offset == 50
    assert offsets(crashable) == [50]
    crashable.open()
    assert offsets(crashable) == [50]

"""Recovery after a crash: acknowledged records survive, torn ones are truncated, and one line is logged."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from klamm.protocol.errors import OutOfOrderSequenceError, StorageError
from klamm.storage.log import delete_records
from klamm.storage.log.directories import EpochStart, read_epochs, read_offsets, write_epochs, write_offsets
from tests.support.logs import NOON_MS, TOPIC_ID, CrashableLogs, batch, open_count, read_all

if TYPE_CHECKING:
    from pathlib import Path


def log_file(crashable: CrashableLogs, base: int = 0) -> Path:
    return crashable.data_dir / "t-0" / f"{base:020d}.log"


def offsets(crashable: CrashableLogs) -> list[int]:
    return [record.offset for record in read_all(crashable.log)]


def test_empty_partition_has_no_directory_and_no_open_file(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path)
    for partition in range(10_000):
        crashable.manager.create(TOPIC_ID, "t", partition)

    assert crashable.log.end_offset == 0
    assert crashable.log.read(0, 100) == b""
    assert list(tmp_path.iterdir()) == []
    assert open_count(crashable.pool) == 0


def test_appended_records_survive_a_crash(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path, segment_bytes="1000", index_interval_bytes="100")
    for _ in range(50):
        crashable.log.append(batch("x" * 100, "y"))

    crashable.open()

    assert (crashable.log.log_start_offset, crashable.log.end_offset) == (0, 100)
    assert offsets(crashable) == list(range(100))
    assert crashable.log.append(batch("z")).base_offset == 100


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(min_value=1), noise=st.binary(max_size=50))
def test_torn_end_is_truncated_at_any_byte(cut: int, noise: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    # given
    crashable = CrashableLogs(tmp_path_factory.mktemp("log"), index_interval_bytes="100")
    sizes = [len(batch("x" * size)) for size in range(50)]
    for size in range(50):
        crashable.log.append(batch("x" * size))
    crashable.log.save_state()
    # when
    kept = cut % (sum(sizes) + 1)
    with log_file(crashable).open("r+b") as file:
        file.truncate(kept)
        file.seek(0, 2)
        file.write(noise)
    crashable.open()
    # then
    whole = next((count for count in range(50) if sum(sizes[: count + 1]) > kept), 50)
    assert crashable.log.end_offset == whole
    assert log_file(crashable).stat().st_size == sum(sizes[:whole])
    assert offsets(crashable) == list(range(whole))
    assert crashable.log.append(batch("next")).base_offset == whole
    assert [r.offset for r in read_all(crashable.open().get(TOPIC_ID, 0))] == list(range(whole + 1))  # type: ignore[arg-type]  # it is there


def test_truncation_is_logged_in_one_line_with_its_size(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    crashable = CrashableLogs(tmp_path)
    crashable.log.append(batch("x"))
    with log_file(crashable).open("ab") as file:
        file.write(batch("torn")[:-3])

    with caplog.at_level(logging.WARNING):
        assert crashable.open().get(TOPIC_ID, 0) is not None

    (line,) = caplog.messages
    assert line.startswith(f"t-0: truncated at offset 1, {len(batch('torn')) - 3} bytes are lost")


def test_wrong_checksum_after_the_recovery_point_truncates_the_log(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path, segment_bytes="400")
    for _ in range(12):
        crashable.log.append(batch("x" * 30))
    damaged = crashable.log.segments[1]
    with damaged.file.path.open("r+b") as file:
        file.seek(damaged.size - 1)
        file.write(b"\x07")

    crashable.open()

    assert [segment.base_offset for segment in crashable.log.segments] == [0, 4]
    assert crashable.log.end_offset == 4 + 3
    assert offsets(crashable) == list(range(crashable.log.end_offset))


def test_clean_shutdown_skips_the_check(tmp_path: Path) -> None:
    # given
    crashable = CrashableLogs(tmp_path, index_interval_bytes="100")
    for size in range(30):
        crashable.log.append(batch("x" * size))
    asyncio.run(crashable.manager.close())
    assert crashable.manager.was_clean is False
    # when
    reopened = crashable.open()
    # then
    assert reopened.was_clean
    assert crashable.log.recovery_point == crashable.log.end_offset == 30
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    assert offsets(crashable) == list(range(30))


def test_segments_below_the_recovery_point_are_not_read(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path)
    crashable.log.append(batch("x" * 30))
    crashable.log.append(batch("y"))
    asyncio.run(crashable.manager.close())
    with log_file(crashable).open("r+b") as file:
        file.seek(len(batch("x" * 30)) - 1)
        file.write(b"\x07")

    assert crashable.open().get(TOPIC_ID, 0).end_offset == 2  # type: ignore[union-attr]  # it is there


def test_zeroed_index_is_ignored(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path, index_interval_bytes="100")
    for size in range(60):
        crashable.log.append(batch("x" * size))
    crashable.log.save_state()
    index = log_file(crashable).with_suffix(".index")
    index.write_bytes(bytes(index.stat().st_size + 3))

    crashable.open()

    assert offsets(crashable) == list(range(60))


def test_lost_indexes_of_closed_segments_are_rebuilt(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path, segment_bytes="2000", index_interval_bytes="100")
    for number in range(60):
        crashable.log.append(batch("x" * 100, at=NOON_MS + number))
    asyncio.run(crashable.manager.close())
    for path in (tmp_path / "t-0").glob("*index"):
        path.unlink()

    crashable.open()

    assert offsets(crashable) == list(range(60))
    assert crashable.log.segments[0].max_timestamp == NOON_MS + crashable.log.segments[1].base_offset - 1


@pytest.mark.parametrize("clean", [True, False])
def test_repeated_batches_are_recognised_after_a_restart(tmp_path: Path, clean: bool) -> None:
    """Also those before the last one, which Kafka's snapshots forget."""
    crashable = CrashableLogs(tmp_path, segment_bytes="400")
    for sequence in range(10):
        crashable.log.append(batch("v", producer_id=9, producer_epoch=0, base_sequence=sequence))
    if clean:
        asyncio.run(crashable.manager.close())

    crashable.open()

    assert crashable.log.append(batch("v", producer_id=9, producer_epoch=0, base_sequence=6)).base_offset == 6
    with pytest.raises(OutOfOrderSequenceError):
        crashable.log.append(batch("v", producer_id=9, producer_epoch=0, base_sequence=11))
    assert crashable.log.append(batch("v", producer_id=9, producer_epoch=0, base_sequence=10)).base_offset == 10


def test_producer_below_the_recovery_point_survives_a_crash(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path)
    crashable.log.append(batch("v"))
    crashable.log.roll()
    crashable.log.append(batch("v", producer_id=9, producer_epoch=0, base_sequence=0))
    asyncio.run(crashable.manager.housekeeper.tick())
    crashable.log.append(batch("v", producer_id=9, producer_epoch=0, base_sequence=1))
    assert read_offsets(tmp_path / "recovery-point-offset-checkpoint") == {"t-0": 2}

    crashable.open()

    assert crashable.log.append(batch("v", producer_id=9, producer_epoch=0, base_sequence=0)).base_offset == 1
    assert crashable.log.append(batch("v", producer_id=9, producer_epoch=0, base_sequence=1)).base_offset == 2


@pytest.mark.parametrize("damage", ["", "{", '{"version": 2, "offset": 0, "producers": []}', '{"version": 1}', "[]"])
def test_corrupt_producer_snapshot_is_ignored(tmp_path: Path, damage: str) -> None:
    crashable = CrashableLogs(tmp_path)
    crashable.log.append(batch("v", producer_id=9, producer_epoch=0, base_sequence=0))
    crashable.log.save_state()
    (tmp_path / "t-0" / "klamm-producers.json").write_text(damage)

    crashable.open()

    assert crashable.log.append(batch("v", producer_id=9, producer_epoch=0, base_sequence=0)).base_offset == 0


def test_deleted_records_stay_deleted_after_a_crash(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path)
    for _ in range(5):
        crashable.log.append(batch("x"))

    assert delete_records(crashable.log, 3) == 3
    asyncio.run(crashable.manager.checkpoint())
    crashable.open()

    assert crashable.log.log_start_offset == 3
    assert offsets(crashable) == [3, 4]


def test_log_start_offset_at_a_segment_boundary_is_durable(tmp_path: Path) -> None:
    """The segments before it are renamed, and a power cut may take that back."""
    crashable = CrashableLogs(tmp_path, segment_bytes="150")
    for _ in range(5):
        crashable.log.append(batch("x" * 50))
    before = log_file(crashable).read_bytes()

    assert delete_records(crashable.log, 3) == 3
    asyncio.run(crashable.manager.checkpoint())
    log_file(crashable).write_bytes(before)
    crashable.open()

    assert crashable.log.log_start_offset == 3
    assert offsets(crashable) == [3, 4]


def test_offset_is_not_given_out_again_after_a_segment_without_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashable = CrashableLogs(tmp_path, segment_bytes="200", preallocate="true")
    crashable.log.append(batch("a" * 50))
    with monkeypatch.context() as patch:
        patch.setattr("klamm.storage.log.files.LogFile.reserve", no_room)
        with pytest.raises(StorageError, match="No space"):
            crashable.log.append(batch("b" * 100))
    crashable.log.append(batch("c"))

    asyncio.run(crashable.manager.close())
    crashable.open()

    assert offsets(crashable) == [0, 1]
    assert crashable.log.append(batch("d")).base_offset == 2


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_records_behind_a_cut_are_checked_again(tmp_path: Path) -> None:
    """The disk has lost durable bytes: what is written in their place is not durable yet."""
    crashable = CrashableLogs(tmp_path)
    for _ in range(4):
        crashable.log.append(batch("x"))
    crashable.flush_log()
    asyncio.run(crashable.manager.checkpoint())
    size = len(batch("x"))
    with log_file(crashable).open("r+b") as file:
        file.truncate(2 * size)
    crashable.open()
    for _ in range(2):
        crashable.log.append(batch("y"))
    with log_file(crashable).open("r+b") as file:
        file.seek(3 * size - 1)
        file.write(b"\x07")

    crashable.open()

    assert offsets(crashable) == [0, 1]


def test_checkpoints_and_partition_metadata_use_kafkas_format(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path)
    crashable.log.append(batch("x"))
    crashable.log.append(batch("x"))
    delete_records(crashable.log, 1)
    asyncio.run(crashable.manager.close())

    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\nt 0 2\n"
    assert (tmp_path / "log-start-offset-checkpoint").read_text() == "0\n1\nt 0 1\n"
    assert (tmp_path / "t-0" / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"
    assert (tmp_path / "t-0" / "partition.metadata").read_text() == "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABw"


@pytest.mark.parametrize("text", ["", "1\n0\n", "0\n2\nt 0 5\n", "0\n1\nnonsense\n", "0\n1\nt x 5\n"])
def test_corrupt_checkpoint_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "checkpoint").write_text(text)

    assert read_offsets(tmp_path / "checkpoint") == {}
    assert read_epochs(tmp_path / "checkpoint") == []


def test_checkpoints_round_trip(tmp_path: Path) -> None:
    write_offsets(tmp_path / "offsets", {"a-b-1": 5, "c-0": 2**40})
    write_epochs(tmp_path / "epochs", [EpochStart(0, 0), EpochStart(3, 17)])

    assert read_offsets(tmp_path / "offsets") == {"a-b-1": 5, "c-0": 2**40}
    assert read_epochs(tmp_path / "epochs") == [EpochStart(0, 0), EpochStart(3, 17)]


def test_many_partitions_share_few_descriptors(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path)
    crashable.pool.max_open = 8
    for number in range(3):
        for partition in range(20):
            crashable.manager.create(TOPIC_ID, "t", partition)
            log = crashable.manager.get(TOPIC_ID, partition)
            assert log is not None
            assert log.append(batch(f"{partition}")).base_offset == number

    assert open_count(crashable.pool) <= 8
    assert [len(read_all(log)) for log in crashable.manager.loaded()] == [3] * 20

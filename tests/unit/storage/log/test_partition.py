"""Append and read: offsets, validation and whole batches."""

from __future__ import annotations

import asyncio
import errno
import struct
import threading
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from klamm.protocol.errors import (
    CorruptBatchError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTimestampError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    StorageError,
    UnsupportedCompressionTypeError,
)
from klamm.protocol.records import Codec, Record, TimestampType, encode_batch, iter_batches, patch_header, verify_crc
from klamm.storage.log import InvalidRecordsError, InvalidTimestampsError, PartitionLog, flusher
from klamm.storage.log.directories import CLEAN_SHUTDOWN, RECOVERY_POINTS, read_offsets
from klamm.storage.log.files import FsyncError
from tests.support.damaged_batches import START_MS, cases
from tests.support.logs import NOON_MS, TOPIC_ID, CrashableLogs, batch, read_all, records_in

if TYPE_CHECKING:
    from pathlib import Path

DAMAGED = {case.name: memoryview(case.batch) for case in cases((Codec.LZ4,))}


@pytest.fixture
def crashable(tmp_path: Path) -> CrashableLogs:
    return CrashableLogs(tmp_path)


def test_records_get_consecutive_offsets_and_are_read_unchanged(crashable: CrashableLogs) -> None:
    # when
    first = crashable.log.append(batch("a", "b"))
    second = crashable.log.append(batch("c"))
    # then
    assert (first.base_offset, first.last_offset, second.base_offset) == (0, 1, 2)
    assert (crashable.log.log_start_offset, crashable.log.high_watermark, crashable.log.end_offset) == (0, 3, 3)
    assert read_all(crashable.log) == [
        Record(b"k", b"a", (), NOON_MS, 0),
        Record(b"k", b"b", (), NOON_MS + 1, 1),
        Record(b"k", b"c", (), NOON_MS, 2),
    ]


def test_append_overwrites_base_offset_and_leader_epoch(crashable: CrashableLogs) -> None:
    sent = bytearray(batch("a"))
    patch_header(sent, partition_leader_epoch=77)
    crashable.log.append(batch("x"))

    crashable.log.append(memoryview(sent))

    (stored,) = iter_batches(crashable.log.read(1, 1000))
    assert (stored.base_offset, stored.partition_leader_epoch) == (1, 0)
    assert verify_crc(stored)
    assert bytes(stored.buffer[16:]) == bytes(sent[16:])


def test_read_at_end_is_empty_and_outside_is_out_of_range(crashable: CrashableLogs) -> None:
    crashable.log.append(batch("a"))

    assert crashable.log.read(1, 1000) == b""
    for offset in (-1, 2):
        with pytest.raises(OffsetOutOfRangeError):
            crashable.log.read(offset, 1000)


def test_whole_batches_are_read_within_the_limit(crashable: CrashableLogs) -> None:
    size = len(batch("x" * 100))
    for _ in range(100):
        crashable.log.append(batch("x" * 100))

    for count in (1, 2, 50, 99, 100):
        for slack in (0, size - 1):
            assert len(crashable.log.read(0, count * size + slack)) == min(count, 100) * size


def test_first_batch_above_max_bytes_is_returned_alone_or_not_at_all(crashable: CrashableLogs) -> None:
    crashable.log.append(batch("x" * 100))
    crashable.log.append(batch("y"))

    assert [record.offset for record in records_in(crashable.log.read(0, 10))] == [0]
    assert crashable.log.read(0, 10, min_one_batch=False) == b""
    assert crashable.log.read(0, -5, min_one_batch=False) == b""


def test_read_within_a_batch_returns_the_whole_batch(crashable: CrashableLogs) -> None:
    crashable.log.append(batch("a", "b", "c"))

    assert [record.offset for record in records_in(crashable.log.read(2, 1000))] == [0, 1, 2]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(min_value=0, max_value=3000), min_size=1, max_size=40), data=st.data())
def test_any_offset_is_found_in_any_segment(
    sizes: list[int], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # given
    crashable = CrashableLogs(tmp_path_factory.mktemp("log"), segment_bytes="8000", index_interval_bytes="500")
    for size in sizes:
        crashable.log.append(batch("x" * size, "y"))
    # when
    offset = data.draw(st.integers(min_value=0, max_value=2 * len(sizes) - 1))
    max_bytes = data.draw(st.integers(min_value=0, max_value=9000))
    batches = crashable.log.read(offset, max_bytes)
    # then
    records = records_in(batches)
    assert records[0].offset == offset - offset % 2
    assert len(batches) <= max_bytes or len(records) == 2
    assert [record.offset for record in read_all(crashable.log, offset, max_bytes)] == list(
        range(offset, 2 * len(sizes))
    )


# -- what is rejected


def test_rejected_batch_leaves_no_bytes(crashable: CrashableLogs) -> None:
    broken = bytearray(batch("abc"))
    broken[-1] ^= 1

    with pytest.raises(CorruptBatchError):
        crashable.log.append(memoryview(broken))

    assert crashable.log.end_offset == 0


def test_batch_above_max_message_bytes_is_rejected(tmp_path: Path) -> None:
    size = len(batch("x" * 100))
    crashable = CrashableLogs(tmp_path, max_message_bytes=str(size))
    crashable.log.append(batch("x" * 100))

    crashable.configs["max.message.bytes"] = str(size - 1)
    crashable.manager.update_config(TOPIC_ID)

    with pytest.raises(MessageTooLargeError, match=f"{size} bytes which exceeds the maximum configured value"):
        crashable.log.append(batch("x" * 100))


def test_batch_above_max_message_bytes_in_codec_of_the_topic_is_rejected(tmp_path: Path) -> None:
    value = "x" * 5000
    size = len(batch(value))
    crashable = CrashableLogs(tmp_path, max_message_bytes=str(size), compression_type="uncompressed")
    sent = memoryview(encode_batch([Record(b"k", value.encode(), (), NOON_MS, 0)], codec=Codec.GZIP))
    assert len(sent) < size
    crashable.log.append(sent)

    crashable.configs["max.message.bytes"] = str(size - 1)
    crashable.manager.update_config(TOPIC_ID)

    with pytest.raises(MessageTooLargeError, match=f"{size} bytes .* exceeds the maximum configured size"):
        crashable.log.append(sent)
    assert crashable.log.end_offset == 1


def test_produce_requires_exactly_one_batch(crashable: CrashableLogs) -> None:
    for records in (b"", bytes(batch("a")) * 2):
        with pytest.raises(InvalidRecordError, match="exactly one"):
            crashable.log.append(memoryview(records))


@pytest.mark.parametrize(("offset", "value"), [(23, 5), (23, -1), (57, 2), (57, 0), (57, -1)])
def test_record_count_mismatch_is_rejected(crashable: CrashableLogs, offset: int, value: int) -> None:
    sent = bytearray(batch("a", "b", "c"))
    struct.pack_into(">i", sent, offset, value)
    patch_header(sent, producer_id=-1)  # a right checksum over wrong numbers

    with pytest.raises(InvalidRecordError, match="Inconsistent"):
        crashable.log.append(memoryview(sent))


def test_control_old_format_moved_and_unsequenced_batches_are_rejected(crashable: CrashableLogs) -> None:
    control = encode_batch([Record(b"k", b"v")], is_control=True)
    moved = encode_batch([Record(b"k", b"v", (), 0, 5)])
    old = bytearray(batch("a" * 30))
    old[16] = 1
    unsequenced = encode_batch([Record(b"k", b"v")], producer_id=5, producer_epoch=0)

    for sent in (control, moved, old, unsequenced):
        with pytest.raises(InvalidRecordError):
            crashable.log.append(memoryview(sent))


def test_unknown_codec_is_rejected(crashable: CrashableLogs) -> None:
    sent = bytearray(batch("a"))
    patch_header(sent, attributes=5)

    with pytest.raises(UnsupportedCompressionTypeError):
        crashable.log.append(memoryview(sent))


@pytest.mark.parametrize(
    ("case", "fault"),
    [
        ("two frames", "followed by 30 bytes"),
        ("empty frame behind the payload", "followed by 11 bytes"),
        ("skippable frame first", "does not begin with"),
        ("linked blocks", "linked blocks"),
        ("dictionary", "linked blocks"),
        ("empty block", "empty block"),
        ("stored block of no bytes", "followed by"),
    ],
)
def test_lz4_data_that_java_clients_cannot_read_is_rejected(crashable: CrashableLogs, case: str, fault: str) -> None:
    sent = DAMAGED[f"lz4: {case}"]

    with pytest.raises(InvalidRecordError, match=fault):
        crashable.log.append(sent)


@pytest.mark.parametrize(
    "case",
    [
        "two blocks",
        "blocks of 4 MiB",
        "content size",
        "content checksum",
        "block checksums",
        "empty block before the end",
    ],
)
def test_lz4_frame_of_independent_blocks_is_appended(crashable: CrashableLogs, case: str) -> None:
    crashable.clock.now_ms = START_MS

    crashable.log.append(DAMAGED[f"lz4: {case}"])

    assert [record.value for record in read_all(crashable.log)] == [b"ab"] * 3


def test_record_without_key_is_rejected_on_a_compacted_topic(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path, cleanup_policy="delete,compact")
    mixed = encode_batch([Record(b"k", b"1", (), 0, 0), Record(None, b"2", (), 0, 1)], codec=Codec.GZIP)

    with pytest.raises(InvalidRecordsError) as rejection:
        crashable.log.append(memoryview(mixed))

    assert [error.batch_index for error in rejection.value.record_errors] == [1]
    crashable.log.append(batch("with key"))


@pytest.mark.parametrize(("base", "delta"), [(2**63 - 1, 1), (-(2**63), -1), (-(2**62) - 1, -(2**62))])
@pytest.mark.parametrize(
    "configs",
    [
        {},
        {"message_timestamp_after_max_ms": str(2**63 - 1)},
        {"message_timestamp_type": "LogAppendTime", "compression_type": "gzip"},
    ],
)
def test_timestamp_of_more_than_64_bits_is_rejected(
    base: int, delta: int, configs: dict[str, str], tmp_path: Path
) -> None:
    """The records could be appended, but not be written again by compaction."""
    data = encode_batch([Record(b"a", b"", (), 0, 0), Record(b"b", b"", (), delta, 1)])
    patch_header(data, base_timestamp=base, max_timestamp=base)
    log = CrashableLogs(tmp_path, **configs).log

    with pytest.raises(InvalidTimestampsError):
        log.append(memoryview(data))
    assert log.end_offset == 0


def test_record_from_the_future_is_rejected_by_index(crashable: CrashableLogs) -> None:
    records = [Record(b"k", b"v", (), NOON_MS, 0), Record(b"k", b"v", (), NOON_MS + 3_600_001, 1)]

    with pytest.raises(InvalidTimestampsError) as rejection:
        crashable.log.append(memoryview(encode_batch(records)))

    assert [error.batch_index for error in rejection.value.record_errors] == [1]


def test_record_before_the_timestamp_limit_is_rejected(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path, message_timestamp_before_max_ms="1000")
    records = [Record(b"k", b"v", (), NOON_MS, 0), Record(b"k", b"v", (), NOON_MS - 1001, 1)]

    with pytest.raises(InvalidTimestampsError):
        crashable.log.append(memoryview(encode_batch(records)))
    crashable.log.append(batch("in time", at=NOON_MS - 1000))


def test_log_append_time_set_by_a_producer_is_rejected(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path, message_timestamp_type="LogAppendTime")
    sent = encode_batch([Record(b"k", b"v")], timestamp_type=TimestampType.LOG_APPEND_TIME, log_append_time=5)

    with pytest.raises(InvalidTimestampError):
        crashable.log.append(memoryview(sent))


def test_log_append_time_of_a_producer_becomes_create_time(crashable: CrashableLogs) -> None:
    """Kafka 4.4 takes such a batch, with the header's time for all records."""
    sent = encode_batch([Record(b"k", b"v")], timestamp_type=TimestampType.LOG_APPEND_TIME, log_append_time=5)

    crashable.log.append(memoryview(sent))

    (stored,) = iter_batches(crashable.log.read(0, 1000))
    assert (stored.timestamp_type, stored.max_timestamp, verify_crc(stored)) == (TimestampType.CREATE_TIME, 5, True)


def test_log_append_time_is_stamped_if_configured(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path, message_timestamp_type="LogAppendTime")

    result = crashable.log.append(batch("a", "b", at=1))

    (stored,) = iter_batches(crashable.log.read(0, 1000))
    assert result.log_append_time_ms == NOON_MS
    assert verify_crc(stored)
    assert {record.timestamp for record in read_all(crashable.log)} == {NOON_MS}


@pytest.mark.parametrize("codec", Codec)
def test_compression_type_of_the_topic_replaces_the_producers(tmp_path: Path, codec: Codec) -> None:
    name = "uncompressed" if codec is Codec.NONE else codec.name.lower()
    crashable = CrashableLogs(tmp_path, compression_type=name)

    crashable.log.append(memoryview(encode_batch([Record(b"k", b"v" * 500, (), 5, 0)], codec=Codec.GZIP)))

    (stored,) = iter_batches(crashable.log.read(0, 1000))
    assert stored.codec == codec
    assert read_all(crashable.log) == [Record(b"k", b"v" * 500, (), 5, 0)]


# -- idempotent producers


def sequenced(sequence: int, *, epoch: int = 0, count: int = 1, producer: int = 9) -> memoryview:
    return batch(*["v"] * count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


def test_duplicate_batch_is_answered_with_its_first_offset(crashable: CrashableLogs) -> None:
    crashable.log.append(batch("other"))
    first = crashable.log.append(sequenced(0, count=3))
    for sequence in range(3, 7):
        crashable.log.append(sequenced(sequence))

    again = crashable.log.append(sequenced(0, count=3))

    assert (again.base_offset, again.last_offset) == (first.base_offset, first.last_offset) == (1, 3)
    assert crashable.log.end_offset == 8


def test_last_five_batches_of_a_producer_are_remembered(crashable: CrashableLogs) -> None:
    for sequence in range(6):
        crashable.log.append(sequenced(sequence))

    assert crashable.log.append(sequenced(1)).base_offset == 1
    with pytest.raises(OutOfOrderSequenceError):
        crashable.log.append(sequenced(0))


def test_sequence_gap_is_rejected_and_the_right_batch_accepted(crashable: CrashableLogs) -> None:
    crashable.log.append(sequenced(0, count=2))

    with pytest.raises(OutOfOrderSequenceError):
        crashable.log.append(sequenced(3))

    assert crashable.log.append(sequenced(2)).base_offset == 2


def test_unknown_producer_may_start_at_any_sequence(crashable: CrashableLogs) -> None:
    assert crashable.log.append(sequenced(1234)).base_offset == 0


def test_sequence_wraps_to_zero_after_the_maximum(crashable: CrashableLogs) -> None:
    crashable.log.append(sequenced(2**31 - 2, count=2))

    assert crashable.log.append(sequenced(0)).base_offset == 2


def test_older_epoch_is_fenced_and_newer_one_starts_at_zero(crashable: CrashableLogs) -> None:
    crashable.log.append(sequenced(0, epoch=3))

    with pytest.raises(InvalidProducerEpochError):
        crashable.log.append(sequenced(1, epoch=2))
    with pytest.raises(OutOfOrderSequenceError):
        crashable.log.append(sequenced(1, epoch=4))
    assert crashable.log.append(sequenced(0, epoch=4)).base_offset == 1


# -- disks that fail


@pytest.mark.parametrize("room", [0, 1, 15, 16, 60])
def test_full_disk_rejects_the_batch_and_leaves_the_log_unchanged(crashable: CrashableLogs, room: int) -> None:
    crashable.log.append(sequenced(0))
    size = crashable.log.size

    crashable.pool.room = room
    with pytest.raises(StorageError):
        crashable.log.append(sequenced(1))
    crashable.pool.room = None

    assert (crashable.log.end_offset, crashable.log.size) == (1, size)
    assert (crashable.data_dir / "t-0" / f"{0:020d}.log").stat().st_size == size
    assert crashable.log.append(sequenced(1)).base_offset == 1
    assert [record.offset for record in read_all(crashable.log)] == [0, 1]


def test_partial_writes_are_completed(crashable: CrashableLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = crashable.pool.writev
    monkeypatch.setattr(crashable.pool, "writev", lambda fd, buffers, at: whole(fd, [b"".join(buffers)[:50]], at))

    crashable.log.append(batch("x" * 300))

    assert read_all(crashable.log)[0].value == b"x" * 300


# -- segments


def test_full_segment_is_rolled(tmp_path: Path) -> None:
    size = len(batch("x" * 100))
    crashable = CrashableLogs(tmp_path, segment_bytes=str(3 * size))
    for _ in range(7):
        crashable.log.append(batch("x" * 100))

    assert [segment.base_offset for segment in crashable.log.segments] == [0, 3, 6]
    assert [record.offset for record in read_all(crashable.log)] == list(range(7))


def test_segment_is_rolled_after_segment_ms(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path, segment_ms="1000")
    for at in (0, 1000, 1001, 1500):
        crashable.log.append(batch("x", at=at))

    assert [segment.base_offset for segment in crashable.log.segments] == [0, 2]


def test_flush_messages_requests_a_flush_before_the_response(tmp_path: Path) -> None:
    crashable = CrashableLogs(tmp_path, flush_messages="3")

    needs = [crashable.log.append(batch("x")).needs_flush for _ in range(3)]
    crashable.flush_log()
    needs.append(crashable.log.append(batch("x")).needs_flush)

    assert needs == [False, False, True, False]


class Waiter:
    def __init__(self) -> None:
        self.sizes: list[int] = []

    def appended(self, log: PartitionLog, size: int) -> None:
        assert log.name == "t-0"
        self.sizes.append(size)


def test_waiters_are_notified_of_every_batch(crashable: CrashableLogs) -> None:
    waiter = Waiter()
    crashable.log.waiters.add(waiter)

    crashable.log.append(batch("x"))

    assert waiter.sizes == [len(batch("x"))]


COUNT = 100


class SlowDisk:
    """Takes a while for each fsync, and as long for many at a time. The first ones wait for ``at_once`` at a time."""

    def __init__(self, *, broken: str = "", at_once: int = 1) -> None:
        self.paths: list[str] = []
        self.most = 0
        self._broken = broken
        self._at_once = at_once
        self._running = 0
        self._began = threading.Condition()

    def __call__(self, path: Path) -> None:
        with self._began:
            self.paths.append(f"{path.parent.name}/{path.name}")
            self._running += 1
            self.most = max(self.most, self._running)
            self._began.notify_all()
            assert self._began.wait_for(lambda: self.most >= self._at_once, 30)
        time.sleep(0.002)
        with self._began:
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
    crashable, disk = filled(tmp_path), SlowDisk(at_once=5)
    monkeypatch.setattr(flusher, "fsync_path", disk)

    asyncio.run(crashable.manager.close())

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

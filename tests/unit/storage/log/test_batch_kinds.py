"""Every kind of batch with every topic config that changes its header: append, read, restart, compaction."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

from klamm.protocol.errors import InvalidRecordError
from klamm.protocol.records import Codec, Record, RecordBatch, TimestampType, encode_batch, iter_batches, verify_crc
from klamm.protocol.records.layout import CODEC_MASK, CONTROL, DELETE_HORIZON, TIMESTAMP_TYPE, TRANSACTIONAL
from klamm.storage.log.cleaner import compact
from tests.support.damaged_batches import cases
from tests.support.logs import NOON_MS, CrashableLogs, records_in
from tests.support.transactions import ABORT, COMMIT, committed_values, end

if TYPE_CHECKING:
    from pathlib import Path

    from klamm.storage.log import PartitionLog

LATER_MS: Final = NOON_MS + 60_000
"""Time of the broker; the records are from NOON_MS."""
KINDS: Final = ("plain", "horizon", "idempotent", "committed", "aborted")
KIND_BITS: Final = TRANSACTIONAL | CONTROL


def sent(kind: str, codec: Codec, producer_id: int) -> memoryview:
    """Return a batch of a producer. Its record has a key of its own, so compaction keeps it."""
    value = f"{kind} {codec.name}"
    is_stamped = kind not in {"plain", "horizon"}
    data = encode_batch(
        [Record(value.encode(), value.encode(), (), NOON_MS, 0)],
        codec=codec,
        delete_horizon=NOON_MS if kind == "horizon" else None,
        is_transactional=kind in {"committed", "aborted"},
        producer_id=producer_id if is_stamped else -1,
        producer_epoch=0 if is_stamped else -1,
        base_sequence=0 if is_stamped else -1,
    )
    return memoryview(data)


def append_all(log: PartitionLog) -> dict[int, RecordBatch]:
    """Append all kinds of batches and their markers. Return the batches as they were sent, by offset."""
    appended = {}
    for number, (kind, codec) in enumerate((kind, codec) for kind in KINDS for codec in Codec):
        data = sent(kind, codec, number)
        result = log.append(data, is_verified=True)
        appended[result.base_offset] = RecordBatch(data)
        if kind in {"committed", "aborted"}:
            end(log, number, COMMIT if kind == "committed" else ABORT)
    return appended


def stored_batches(log: PartitionLog) -> list[RecordBatch]:
    return [item for segment in log.segments for item in iter_batches(segment.file.read(segment.size, 0))]


@pytest.mark.parametrize("compression", [None, Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("timestamp_type", TimestampType)
def test_batches_keep_their_kind_in_restarts_and_compactions(
    tmp_path: Path, timestamp_type: TimestampType, compression: Codec | None
) -> None:
    is_append_time = timestamp_type is TimestampType.LOG_APPEND_TIME
    crashable = CrashableLogs(
        tmp_path,
        message_timestamp_type="LogAppendTime" if is_append_time else "CreateTime",
        compression_type="producer"
        if compression is None
        else compression.name.lower().replace("none", "uncompressed"),
        cleanup_policy="compact",
        segment_bytes="1000",
    )
    crashable.clock.now_ms = LATER_MS
    appended = append_all(crashable.log)
    committed = [f"{kind} {codec.name}" for kind in KINDS if kind != "aborted" for codec in Codec]

    def check(*, are_aborted_there: bool) -> None:
        log = crashable.log
        batches = stored_batches(log)
        records = (record for item in batches if not item.is_control for record in records_in(bytes(item.buffer)))
        values = [(record.value or b"").decode() for record in records]
        assert log.last_stable_offset == log.end_offset
        assert committed_values(log) == committed
        assert [value for value in values if not value.startswith("aborted")] == committed
        assert ("aborted NONE" in values) == are_aborted_there
        for stored in batches:
            assert verify_crc(stored)
            assert stored.timestamp_type is timestamp_type
            batch = appended.get(stored.base_offset)
            if batch is None:
                assert stored.attributes & ~DELETE_HORIZON == KIND_BITS | is_append_time * TIMESTAMP_TYPE
                continue
            codec = batch.codec if compression is None else compression
            assert stored.attributes & KIND_BITS == batch.attributes & KIND_BITS
            if not stored.record_count:
                continue  # kept by compaction for its sequence number
            assert stored.attributes & CODEC_MASK == codec
            assert stored.has_delete_horizon == (batch.has_delete_horizon and codec == batch.codec)
            assert stored.max_timestamp == (LATER_MS if is_append_time else NOON_MS)

    check(are_aborted_there=True)
    crashable.open()  # after a crash
    check(are_aborted_there=True)
    asyncio.run(crashable.manager.close())
    crashable.open()
    check(are_aborted_there=True)
    asyncio.run(compact(crashable.log, LATER_MS))
    check(are_aborted_there=False)
    crashable.open()
    check(are_aborted_there=False)


@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_old_formats_are_rejected(tmp_path: Path, timestamp_type: str) -> None:
    log = CrashableLogs(tmp_path, message_timestamp_type=timestamp_type).log
    for case in cases(()):
        if "of magic" in case.name:
            with pytest.raises(InvalidRecordError, match="magic 2"):
                log.append(memoryview(case.batch))


@pytest.mark.parametrize(("timestamp_type", "expected"), [("CreateTime", NOON_MS), ("LogAppendTime", LATER_MS)])
def test_duplicate_batch_gets_the_timestamp_in_the_log(tmp_path: Path, timestamp_type: str, expected: int) -> None:
    crashable = CrashableLogs(tmp_path, message_timestamp_type=timestamp_type)
    crashable.clock.now_ms = LATER_MS
    data = sent("idempotent", Codec.NONE, 1)
    crashable.log.append(data)
    crashable.clock.now_ms += 1

    def send_again() -> tuple[int, int]:
        result = crashable.log.append(data)
        return result.base_offset, result.log_append_time_ms

    assert send_again() == (0, expected)
    crashable.open()
    assert send_again() == (0, expected)  # replayed from the log
    crashable.log.save_state()
    crashable.open()
    assert send_again() == (0, expected)  # from the snapshot

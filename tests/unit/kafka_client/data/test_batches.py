from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

import pytest

from klamm.kafka_client.data.batches import Treatment, rebuild, split, stamp, walk
from klamm.protocol.errors import CorruptBatchError
from klamm.protocol.records import (
    Codec,
    Record,
    RecordBatch,
    TimestampType,
    decode_records,
    encode_batch,
    iter_batches,
    verify_crc,
)
from klamm.protocol.types import AbortedTransaction

if TYPE_CHECKING:
    from collections.abc import Sequence


def records(first: int, count: int) -> list[Record]:
    return [
        Record(key=b"k", value=b"v%d" % offset, headers=(("h", None),), timestamp=1000 + offset, offset=offset)
        for offset in range(first, first + count)
    ]


def marker(offset: int, producer_id: int, *, abort: bool) -> bytearray:
    key = struct.pack(">hh", 0, 0 if abort else 1)
    record = Record(key=key, value=struct.pack(">hi", 0, 0), offset=offset, timestamp=1)
    return encode_batch([record], producer_id=producer_id, producer_epoch=0, is_transactional=True, is_control=True)


def old_message() -> bytes:
    """A message of magic 1 at offset 3."""
    message = struct.pack(">bbqii", 1, 0, 55, -1, 1) + b"x"
    return struct.pack(">qiI", 3, len(message) + 4, zlib.crc32(message)) + message


def treatments(
    data: bytes | bytearray, fetch_offset: int = 0, aborted: Sequence[AbortedTransaction] | None = None
) -> list[tuple[str, int]]:
    return [(f.treatment.name, f.next_offset) for f in walk(memoryview(data), fetch_offset, aborted)]


def test_plain_batch_is_copied_unchanged() -> None:
    assert treatments(encode_batch(records(10, 3))) == [("COPY", 13)]


def test_batch_with_offset_gaps_is_rebuilt() -> None:
    compacted = [records(0, 5)[0], records(0, 5)[3]]
    assert treatments(encode_batch(compacted, base_offset=0, last_offset=4)) == [("REBUILD", 5)]


def test_batch_across_the_fetch_offset_is_rebuilt() -> None:
    data = encode_batch(records(0, 5), codec=Codec.ZSTD)
    assert treatments(data, fetch_offset=3) == [("REBUILD", 5)]
    view, offsets = rebuild(RecordBatch(memoryview(data)), 3)
    assert offsets == (3, 4)
    batch = RecordBatch(view)
    assert batch.codec == Codec.ZSTD
    assert [record.value for record in decode_records(batch)] == [b"v3", b"v4"]
    assert [record.timestamp for record in decode_records(batch)] == [1003, 1004]


def test_batch_before_the_fetch_offset_is_skipped() -> None:
    data = encode_batch(records(0, 2)) + encode_batch(records(2, 2))
    assert treatments(data, fetch_offset=2) == [("COPY", 4)]


def test_log_append_time_becomes_create_time_of_records() -> None:
    data = encode_batch(records(0, 2), timestamp_type=TimestampType.LOG_APPEND_TIME, log_append_time=77)
    assert treatments(data) == [("REBUILD", 2)]
    view, _ = rebuild(RecordBatch(memoryview(data)), 0)
    assert [record.timestamp for record in decode_records(RecordBatch(view))] == [77, 77]
    assert RecordBatch(view).timestamp_type is TimestampType.CREATE_TIME


def test_empty_compacted_batch_advances_the_offset_only() -> None:
    assert treatments(encode_batch([], base_offset=4, last_offset=6)) == [("DROP", 7)]


def test_read_committed_drops_markers_and_aborted_records() -> None:
    def of(producer_id: int, first: int) -> bytearray:
        return encode_batch(records(first, 2), producer_id=producer_id, producer_epoch=0, is_transactional=True)

    data = of(1, 0) + of(2, 2) + marker(4, 1, abort=True) + of(1, 5) + marker(7, 1, abort=False)
    data += marker(8, 2, abort=False)
    aborted = [AbortedTransaction(producer_id=1, first_offset=0)]
    assert treatments(data, aborted=aborted) == [
        ("DROP", 2),
        ("COPY", 4),
        ("DROP", 5),
        ("COPY", 7),
        ("DROP", 8),
        ("DROP", 9),
    ]
    assert [name for name, _ in treatments(data)].count("COPY") == 3, "read_uncommitted keeps aborted records"


def test_truncated_last_batch_is_left_for_the_next_fetch() -> None:
    data = encode_batch(records(0, 2)) + encode_batch(records(2, 2))[:-1]
    assert treatments(data) == [("COPY", 2)]


def test_batch_with_wrong_checksum_is_rejected() -> None:
    data = encode_batch(records(0, 2))
    data[-1] ^= 1
    with pytest.raises(CorruptBatchError, match="wrong checksum"):
        treatments(data)


def test_corrupt_control_batch_is_rejected() -> None:
    as_control = encode_batch(records(0, 2))
    as_control[22] |= 0x20
    with pytest.raises(CorruptBatchError, match="wrong checksum"):
        treatments(as_control)
    as_commit = marker(4, 1, abort=True)
    as_commit[as_commit.index(b"\x08" + struct.pack(">hh", 0, 0)) + 4] = 1
    with pytest.raises(CorruptBatchError, match="wrong checksum"):
        treatments(as_commit, aborted=[AbortedTransaction(producer_id=1, first_offset=0)])


def test_corrupt_old_messages_are_rejected() -> None:
    data = bytearray(old_message())
    data[-1] ^= 1
    with pytest.raises(CorruptBatchError, match="wrong checksum"):
        treatments(data)


def test_stamped_batch_keeps_its_records() -> None:
    data = encode_batch(
        records(100, 3),
        codec=Codec.LZ4,
        producer_id=9,
        producer_epoch=1,
        base_sequence=7,
        partition_leader_epoch=4,
        is_transactional=True,
        delete_horizon=5000,
    )
    before = [record._replace(offset=record.offset - 100) for record in decode_records(RecordBatch(memoryview(data)))]
    stamp(memoryview(data), producer_id=1, producer_epoch=2, base_sequence=3)
    (batch,) = iter_batches(data)
    assert verify_crc(batch)
    assert (batch.base_offset, batch.partition_leader_epoch) == (0, -1)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (1, 2, 3)
    assert (batch.codec, batch.is_transactional, batch.has_delete_horizon) == (Codec.LZ4, False, False)
    assert decode_records(batch) == before


def test_split_batch_keeps_all_records() -> None:
    data = encode_batch(records(0, 5))
    halves = split(memoryview(data))
    assert halves is not None
    assert [count for _, count in halves] == [2, 3]
    values = [record.value for view, _ in halves for record in decode_records(RecordBatch(view))]
    assert values == [b"v0", b"v1", b"v2", b"v3", b"v4"]
    assert split(memoryview(encode_batch(records(0, 1)))) is None


def test_old_messages_are_rebuilt() -> None:
    (fetched,) = walk(memoryview(bytearray(old_message())), 0)
    assert (fetched.treatment, fetched.next_offset) == (Treatment.REBUILD, 4)
    view, _ = rebuild(fetched.batch, 0)
    (record,) = decode_records(RecordBatch(view))
    assert (record.key, record.value, record.timestamp) == (None, b"x", 55)

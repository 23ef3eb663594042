"""The view of a batch header: reading, validation and patching."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.protocol.errors import CorruptBatchError, ErrorCode
from klamm.protocol.records import (
    BATCH_OVERHEAD,
    Codec,
    Record,
    RecordBatch,
    TimestampType,
    decode_records,
    encode_batch,
    iter_batches,
    patch_header,
    verify_crc,
)

RECORDS = [Record(b"k", b"v" * n, (), 1000 + n, n) for n in range(3)]


def only(buffer: bytes | bytearray | memoryview) -> RecordBatch:
    (batch,) = iter_batches(buffer)
    return batch


def test_header_fields_are_read_from_their_places() -> None:
    # given
    encoded = encode_batch(
        RECORDS,
        codec=Codec.LZ4,
        base_offset=0,
        last_offset=9,
        partition_leader_epoch=7,
        producer_id=4711,
        producer_epoch=3,
        base_sequence=12,
        is_transactional=True,
    )
    # when
    batch = only(encoded)
    # then
    assert (batch.base_offset, batch.last_offset_delta, batch.last_offset) == (0, 9, 9)
    assert (batch.partition_leader_epoch, batch.magic, batch.record_count) == (7, 2, 3)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (4711, 3, 12)
    assert (batch.base_timestamp, batch.max_timestamp) == (1000, 1002)
    assert batch.size == len(encoded) == batch.batch_length + 12
    assert batch.codec == Codec.LZ4
    assert batch.timestamp_type is TimestampType.CREATE_TIME
    assert (batch.is_transactional, batch.is_control, batch.has_delete_horizon) == (True, False, False)


def test_sequence_wraps_to_zero_after_the_maximum() -> None:
    batch = only(encode_batch(RECORDS, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2))

    assert batch.last_sequence == 0


def test_batches_are_views_of_the_given_buffer() -> None:
    buffer = bytearray(encode_batch(RECORDS) + encode_batch(RECORDS, base_offset=-3))

    first, second = iter_batches(buffer)
    buffer[7] = 42

    assert RecordBatch(first.buffer).base_offset == 42
    assert second.base_offset == -3


def test_batch_truncated_at_any_byte_is_rejected() -> None:
    whole = encode_batch(RECORDS)

    for size in range(1, len(whole)):
        with pytest.raises(CorruptBatchError) as rejection:
            list(iter_batches(whole[:size]))
        assert rejection.value.error_code is ErrorCode.CORRUPT_MESSAGE


def test_truncated_tail_of_a_fetch_response_is_ignored() -> None:
    whole = encode_batch(RECORDS)

    for size in range(len(whole)):
        assert [batch.size for batch in iter_batches(whole + whole[:size], allow_partial_tail=True)] == [len(whole)]


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 13, 48, 2**31 - 1])
def test_invalid_batch_length_is_rejected(length: int) -> None:
    batch = encode_batch(RECORDS)
    struct.pack_into(">i", batch, 8, length)

    with pytest.raises(CorruptBatchError):
        list(iter_batches(batch))


@pytest.mark.parametrize("magic", [3, 127, 255])
def test_unknown_magic_is_rejected(magic: int) -> None:
    batch = encode_batch(RECORDS)
    batch[16] = magic

    with pytest.raises(CorruptBatchError, match="magic"):
        list(iter_batches(batch))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_batches_or_rejected(garbage: bytes) -> None:
    try:
        for batch in iter_batches(garbage):
            decode_records(batch)
    except CorruptBatchError:
        pass


@given(st.integers(min_value=21), st.integers(min_value=1, max_value=255))
def test_changed_byte_after_the_checksum_is_detected(position: int, change: int) -> None:
    encoded = encode_batch(RECORDS)
    encoded[21 + position % (len(encoded) - 21)] ^= change

    assert not verify_crc(only(encoded))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_checksum_is_computed_over_any_buffer_type(kind: type) -> None:
    assert verify_crc(only(kind(bytes(encode_batch(RECORDS)))))


def test_base_offset_and_leader_epoch_are_stamped_without_touching_the_checksum() -> None:
    # given
    encoded = encode_batch(RECORDS)
    before = only(bytes(encoded))
    # when
    patch_header(encoded, base_offset=10**12, partition_leader_epoch=5)
    # then
    after = only(encoded)
    assert (after.base_offset, after.partition_leader_epoch, after.crc) == (10**12, 5, before.crc)
    assert verify_crc(after)
    assert [record.offset for record in decode_records(after)] == [10**12, 10**12 + 1, 10**12 + 2]


def test_patched_producer_fields_update_the_checksum() -> None:
    # given
    encoded = bytearray(b"in front") + encode_batch(RECORDS, producer_id=1, producer_epoch=1, base_sequence=1)
    # when
    patch_header(encoded, 8, producer_id=2**40, producer_epoch=9, base_sequence=77, attributes=0x10)
    # then
    after = only(memoryview(encoded)[8:])
    assert (after.producer_id, after.producer_epoch, after.base_sequence) == (2**40, 9, 77)
    assert after.is_transactional
    assert verify_crc(after)
    assert decode_records(after) == RECORDS


def test_patched_log_append_time_replaces_record_timestamps() -> None:
    encoded = encode_batch(RECORDS)

    patch_header(encoded, attributes=0x08, max_timestamp=99)

    assert verify_crc(only(encoded))
    assert {record.timestamp for record in decode_records(only(encoded))} == {99}


def test_only_batches_of_the_present_format_are_patched() -> None:
    with pytest.raises(CorruptBatchError):
        patch_header(bytearray())
    with pytest.raises(CorruptBatchError):
        patch_header(encode_batch(RECORDS)[:BATCH_OVERHEAD])


def test_batch_repr_shows_its_offsets() -> None:
    assert "base_offset=0, last_offset=2" in repr(only(encode_batch(RECORDS)))

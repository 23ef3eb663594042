"""Records compared with two other clients in both directions, and hostile records."""

from __future__ import annotations

import contextlib
import os
import struct
import tracemalloc
import zlib
from typing import Any

import aiokafka.record.memory_records as aiokafka_records  # type: ignore[import-untyped]  # ships no types
import cramjam
import kafka.record as kafka_python
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder  # type: ignore[import-untyped]  # ships no types
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder  # type: ignore[import-untyped]  # ships no types
from hypothesis import given
from hypothesis import strategies as st

from klamm.protocol.errors import CorruptBatchError, UnsupportedCompressionTypeError
from klamm.protocol.records import (
    Codec,
    Record,
    RecordBatch,
    TimestampType,
    compress,
    decode_records,
    decompress,
    decompress_view,
    encode_batch,
    iter_batches,
    patch_header,
    read_varint,
    verify_crc,
)
from klamm.protocol.records.codecs import MAX_DECOMPRESSED_BYTES
from klamm.protocol.records.record_check import read_unsigned

NULLABLE = st.none() | st.binary(max_size=60)
HEADERS = st.lists(st.tuples(st.text(max_size=8), NULLABLE), max_size=3).map(tuple)
TIMES = st.integers(min_value=0, max_value=2**42)
RECORDS = st.lists(st.tuples(NULLABLE, NULLABLE, HEADERS, TIMES), min_size=1, max_size=12).map(
    lambda rows: [Record(*row, offset) for offset, row in enumerate(rows)]
)
# kafka-python reads and writes the other codecs only with packages that klamm does not need.
KAFKA_PYTHON_CODECS = st.sampled_from([Codec.NONE, Codec.GZIP])
BIG = [Record(bytes([n % 7]) * 50, b"%d" % n * 100, (("n", None), ("n", b"%d" % n)), n, n) for n in range(3000)]


def only(buffer: bytes | bytearray | memoryview) -> RecordBatch:
    (batch,) = iter_batches(buffer)
    return batch


def as_records(batch: Any) -> list[Record]:
    return [Record(r.key, r.value, tuple(r.headers), r.timestamp, r.offset) for r in batch]


@given(RECORDS, st.sampled_from(Codec))
def test_encoded_records_decode_to_themselves(records: list[Record], codec: Codec) -> None:
    batch = only(encode_batch(records, codec=codec, producer_id=5, producer_epoch=1, base_sequence=0))

    assert verify_crc(batch)
    assert decode_records(batch) == records


@given(RECORDS, KAFKA_PYTHON_CODECS)
def test_kafka_python_reads_encoded_records(records: list[Record], codec: Codec) -> None:
    (batch,) = kafka_python.MemoryRecords(bytes(encode_batch(records, codec=codec)))

    assert batch.validate_crc()
    assert as_records(batch) == records


@given(RECORDS, KAFKA_PYTHON_CODECS)
def test_records_of_kafka_python_are_decoded(records: list[Record], codec: Codec) -> None:
    builder = kafka_python.MemoryRecordsBuilder(2, int(codec), 1 << 20)
    for record in records:
        builder.append(record.timestamp, record.key, record.value, list(record.headers))
    builder.close()

    batch = only(builder.buffer())

    assert verify_crc(batch)
    assert decode_records(batch) == records


@pytest.mark.parametrize("codec", Codec)
def test_aiokafka_reads_encoded_records(codec: Codec) -> None:
    batch = aiokafka_records.MemoryRecords(bytes(encode_batch(BIG, codec=codec))).next_batch()

    assert batch is not None
    assert batch.validate_crc()
    assert as_records(batch) == BIG


@pytest.mark.parametrize("codec", Codec)
def test_records_of_aiokafka_are_decoded(codec: Codec) -> None:
    builder = DefaultRecordBatchBuilder(2, int(codec), 0, -1, -1, -1, 1 << 24)
    for record in BIG:
        builder.append(record.offset, record.timestamp, record.key, record.value, list(record.headers))

    batch = only(bytes(builder.build()))

    assert verify_crc(batch)
    assert decode_records(batch) == BIG


OLD_RECORDS = [Record(None, b"a" * 99, (), 11, 0), Record(b"k", None, (), 12, 1), Record(b"", b"", (), 13, 2)]


def old_message_set(magic: int, codec: Codec) -> bytes:
    """As a broker keeps it: a wrapper has the offset of its last message."""
    builder = LegacyRecordBatchBuilder(magic, int(codec), 1 << 20)
    for record in OLD_RECORDS:
        builder.append(record.offset, record.timestamp, record.key, record.value)
    built = bytes(builder.build())
    return built if codec is Codec.NONE else struct.pack(">q", 2) + built[8:]


@pytest.mark.parametrize(
    ("magic", "codec"),
    [
        (0, Codec.NONE),
        (0, Codec.GZIP),
        (0, Codec.SNAPPY),
        (1, Codec.NONE),
        (1, Codec.GZIP),
        (1, Codec.SNAPPY),
        (1, Codec.LZ4),
    ],
)
def test_message_sets_of_older_clients_are_decoded(magic: int, codec: Codec) -> None:
    # when
    batches = list(iter_batches(old_message_set(magic, codec)))
    # then
    assert all(verify_crc(batch) for batch in batches)
    assert [record for batch in batches for record in decode_records(batch)] == [
        record if magic else record._replace(timestamp=-1) for record in OLD_RECORDS
    ]


def test_lz4_checksum_of_message_format_0_is_accepted() -> None:
    # given
    frame = bytearray(compress(Codec.LZ4, old_message_set(0, Codec.NONE)))
    frame[6] ^= 0x55
    message = struct.pack(">bbii", 0, int(Codec.LZ4), -1, len(frame)) + frame
    wrapper = struct.pack(">qiI", 2, len(message) + 4, zlib.crc32(message)) + message
    # when
    records = decode_records(only(wrapper))
    # then
    assert [(record.offset, record.key, record.value) for record in records] == [
        (record.offset, record.key, record.value) for record in OLD_RECORDS
    ]


def test_offsets_in_a_compressed_message_set_are_relative_to_its_last_offset() -> None:
    builder = LegacyRecordBatchBuilder(1, int(Codec.GZIP), 1 << 20)
    for offset in range(3):
        builder.append(offset, 7, None, b"v")
    wrapper = bytearray(builder.build())
    struct.pack_into(">q", wrapper, 0, 100)

    assert [record.offset for record in decode_records(only(wrapper))] == [98, 99, 100]


def test_invalid_utf_8_header_key_keeps_its_bytes() -> None:
    builder = kafka_python.MemoryRecordsBuilder(2, 0, 1 << 20)
    builder.append(1, b"k", b"v", [("ab", b"")])
    builder.close()
    buffer = bytearray(builder.buffer())
    at = buffer.index(b"ab")
    buffer[at] = 0xFF

    (record,) = decode_records(only(buffer))

    assert b"\xffb" in encode_batch([record])


def test_offset_gaps_within_a_batch_are_kept() -> None:
    records = [Record(b"a", b"1", (), 5, 100), Record(b"b", None, (), 6, 107)]

    batch = only(encode_batch(records, base_offset=98, last_offset=110))

    assert decode_records(batch) == records
    assert (batch.base_offset, batch.last_offset, batch.record_count) == (98, 110, 2)


def test_encoded_batch_without_records_keeps_its_offsets() -> None:
    batch = only(encode_batch([], base_offset=5, last_offset=9))

    assert (batch.base_offset, batch.last_offset, batch.record_count) == (5, 9, 0)
    assert decode_records(batch) == []


def test_delete_horizon_does_not_change_record_timestamps() -> None:
    records = [Record(b"a", None, (), 5, 0), Record(b"b", b"", (), 60, 1)]

    batch = only(encode_batch(records, delete_horizon=10_000))

    assert batch.has_delete_horizon
    assert batch.base_timestamp == 10_000
    assert decode_records(batch) == records


def test_log_append_time_applies_to_all_records() -> None:
    batch = only(encode_batch(BIG[:2], timestamp_type=TimestampType.LOG_APPEND_TIME, log_append_time=12))

    assert [record.timestamp for record in decode_records(batch)] == [12, 12]


@given(st.integers(min_value=61), st.integers(min_value=0, max_value=255), st.sampled_from(Codec))
def test_changed_record_byte_decodes_or_is_rejected(position: int, byte: int, codec: Codec) -> None:
    encoded = encode_batch(BIG[:4], codec=codec)
    encoded[61 + position % (len(encoded) - 61)] = byte

    with contextlib.suppress(CorruptBatchError):
        decode_records(only(encoded))


@pytest.mark.parametrize(
    ("data", "number"),
    [(b"\x82\x80\x80\x80\x10", 1), (b"\x80\x80\x80\x80\x10", 0), (b"\xff\xff\xff\xff\x7f", -(2**31))],
)
def test_varint_with_excess_bits_decodes_to_what_was_validated(data: bytes, number: int) -> None:
    """Java discards the excess. A record that was appended so must not make its partition uncleanable."""
    unsigned, end = read_unsigned(data, 0, len(data))
    assert ((unsigned >> 1) ^ -(unsigned & 1), end) == (number, len(data))
    assert read_varint(data, 0) == (number, len(data))


@pytest.mark.parametrize("count", [-1, 1, 3, 2**31 - 1])
def test_record_count_mismatch_is_rejected(count: int) -> None:
    encoded = encode_batch(BIG[:2])
    struct.pack_into(">i", encoded, 57, count)

    with pytest.raises(CorruptBatchError):
        decode_records(only(encoded))


def test_unknown_codec_is_rejected_by_number() -> None:
    encoded = encode_batch(BIG[:1])
    patch_header(encoded, attributes=6)

    with pytest.raises(UnsupportedCompressionTypeError, match="6"):
        decode_records(only(encoded))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_garbage_is_rejected_by_every_codec(codec: Codec) -> None:
    for garbage in (b"", b"\x00" * 40, b"\xff" * 40, compress(codec, b"records" * 100)[:-5]):
        with pytest.raises(CorruptBatchError):
            decompress(codec, garbage)


def test_raw_snappy_without_the_framing_is_read() -> None:
    framed = compress(Codec.SNAPPY, b"abc" * 10)

    assert bytes(decompress(Codec.SNAPPY, framed[20:])) == b"abc" * 10


def test_snappy_block_with_false_size_is_rejected_before_allocation() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatchError):
            decompress(Codec.SNAPPY, b"\xff\xff\xff\x3f" + b"\x00" * 8)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_decompression_bomb_is_rejected(codec: Codec) -> None:
    bomb = compress(codec, bytes(MAX_DECOMPRESSED_BYTES + 1))

    with pytest.raises(CorruptBatchError):
        decompress(codec, bomb)


def test_incompressible_lz4_blocks_round_trip() -> None:
    noise = b"".join(struct.pack(">I", n * 2654435761 % 2**32) for n in range(40_000))

    assert bytes(decompress(Codec.LZ4, compress(Codec.LZ4, noise))) == noise


@pytest.mark.parametrize("level", [1, 3, 9, 12, 17])
@pytest.mark.parametrize("data", [b"", b"a", bytes(range(256)) * 1000, b"abc" * 100_000])
def test_every_lz4_level_round_trips(level: int, data: bytes) -> None:
    assert bytes(decompress(Codec.LZ4, compress(Codec.LZ4, data, level=level))) == data


def test_higher_lz4_level_compresses_better_and_default_levels_match() -> None:
    text = " ".join(str(number * number % 9973) for number in range(5000)).encode()
    assert len(compress(Codec.LZ4, text, level=17)) < len(compress(Codec.LZ4, text, level=1))
    assert compress(Codec.LZ4, text, level=9) == compress(Codec.LZ4, text)
    assert compress(Codec.GZIP, text, level=-1) == compress(Codec.GZIP, text)


def test_lz4_frames_with_other_headers_are_accepted_and_wrong_lengths_rejected() -> None:
    data = bytes(range(256)) * 1000 + os.urandom(70_000)
    ours, other = compress(Codec.LZ4, data), bytes(cramjam.lz4.compress(data))
    assert ours[:7] != other[:7]
    assert decompress(Codec.LZ4, ours) == decompress(Codec.LZ4, other) == data
    for end in (*range(12), len(ours) - 70_100, len(ours) - 5, len(ours) - 1):
        with pytest.raises(CorruptBatchError):
            decompress(Codec.LZ4, ours[:end])
    for frame in (ours, other):
        with pytest.raises(CorruptBatchError):
            decompress(Codec.LZ4, frame + bytes(1))


def test_lz4_frames_are_read_as_the_library_reads_them() -> None:
    header, stored = compress(Codec.LZ4, b"")[:7], 1 << 31

    def frame(*blocks: tuple[int, bytes]) -> bytes:
        return header + b"".join(size.to_bytes(4, "little") + block for size, block in (*blocks, (0, b"")))

    # A block of 15 literals: the library's function for blocks can read it as a size of 240 and a block, too.
    twofold = bytes.fromhex("f00000001f410100d570") + b"abcdefg"
    sized = bytes(cramjam.lz4.compress_block(b"text" * 9, store_size=True))
    long = b"x" * 65_537
    assert decompress(Codec.LZ4, frame((len(twofold), twofold))) == twofold[2:]
    assert bytes(decompress(Codec.LZ4, 2 * frame((3 | stored, b"abc")))) == b"abcabc"
    for damaged in (
        frame((len(sized), sized)),
        frame((len(long) | stored, long)),
        frame((3 | stored, b"abc")) + b"behind the end",
    ):
        with pytest.raises(CorruptBatchError):
            decompress(Codec.LZ4, damaged)


def test_decompress_view_reuses_its_buffer_and_decompress_copies() -> None:
    first, second = compress(Codec.LZ4, b"first" * 9), compress(Codec.LZ4, b"other" * 9)
    copy, view = decompress(Codec.LZ4, first), decompress_view(Codec.LZ4, first)
    assert copy == view
    assert decompress_view(Codec.LZ4, second) == view == b"other" * 9
    assert copy == b"first" * 9

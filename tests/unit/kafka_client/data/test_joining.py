from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.kafka_client.data.batches import stamp, walk
from klamm.kafka_client.data.joining import in_groups, join, joined
from klamm.protocol.errors import CorruptBatchError
from klamm.protocol.records import (
    Codec,
    Record,
    RecordBatch,
    decode_records,
    encode_batch,
    iter_batches,
    layout,
    verify_crc,
    write_crc,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

NOW = 1_700_000_000_000
KIB = 1024

some_bytes = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=5), some_bytes), max_size=2).map(tuple)
times = st.integers(NOW - 100_000, NOW + 100_000) | st.sampled_from([-1, 0, 253_402_300_799_999])
fields = st.tuples(some_bytes, some_bytes, headers, times)


Fields: TypeAlias = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]
"""Key, value, headers and timestamp of a record."""


def batches_of(*contents: Sequence[Fields], codec: Codec = Codec.NONE) -> bytes:
    """Return batches one behind the other, their offsets counted through from 1,000."""
    data = bytearray()
    offset = 1000
    for content in contents:
        data += encode_batch([Record(*record, offset=offset + at) for at, record in enumerate(content)], codec=codec)
        offset += len(content)
    return bytes(data)


def plain(*counts: int, value: bytes = b"v", codec: Codec = Codec.NONE) -> bytes:
    return batches_of(*[[(None, value, (), NOW + at) for at in range(count)] for count in counts], codec=codec)


def groups(data: bytes, *, join_up_to: int = 100 * KIB, fetch_offset: int = 1000) -> list[list[tuple[str, int]]]:
    walked = walk(memoryview(bytearray(data)), fetch_offset)
    return [
        [(each.treatment.name, each.batch.record_count) for each in group]
        for group in in_groups(walked, join_up_to=join_up_to)
    ]


@given(contents=st.lists(st.lists(fields, min_size=1, max_size=90), min_size=1, max_size=5))
def test_joined_batch_holds_all_records_unchanged(contents: list[list[Fields]]) -> None:
    # given
    data = batches_of(*contents)
    batches = list(iter_batches(data))
    expected = [
        record._replace(offset=number)
        for number, record in enumerate(record for batch in batches for record in decode_records(batch))
    ]
    # when
    view = join(batches)
    stamp(view, producer_id=7, producer_epoch=1, base_sequence=5)
    joined = RecordBatch(view)
    # then
    assert verify_crc(joined)
    assert decode_records(joined) == expected
    assert (joined.size, joined.base_offset, joined.record_count) == (len(view), 0, len(expected))
    assert joined.last_offset_delta == len(expected) - 1
    assert joined.max_timestamp == max(record.timestamp for record in expected)


def test_varints_of_any_length_are_joined() -> None:
    """Offset deltas beyond the lookup table, record lengths above two bytes, timestamp deltas above one byte."""
    many: list[Fields] = [(None, b"", (), NOW + 200)] * 120
    contents: list[list[Fields]] = [[(None, bytes(100_000), (), NOW)], *[many] * 70]
    contents += [[(b"k", bytes(9_000), (), NOW + 10**9)], [(None, None, (), -1)]]
    batches = list(iter_batches(batches_of(*contents)))
    records = decode_records(RecordBatch(join(batches)))
    assert [(record.key, record.value, record.headers, record.timestamp) for record in records] == [
        *itertools.chain(*contents)
    ]
    assert [record.offset for record in records] == list(range(1000, 1000 + 8403))


def test_neighbours_are_joined_up_to_a_size() -> None:
    data = plain(2, 2, 2, 2, 2, value=bytes(400))
    assert groups(data) == [[("COPY", 2)] * 5]
    assert groups(data, join_up_to=2 * KIB) == [[("COPY", 2)] * 2, [("COPY", 2)] * 2, [("COPY", 2)]]
    assert groups(data, join_up_to=0) == [[("COPY", 2)]] * 5


def parts(data: bytes, *, join_up_to: int = 100 * KIB) -> list[tuple[list[int], RecordBatch | None]]:
    """Return how many records the batches have that become one, and what they become."""
    walked = walk(memoryview(bytearray(data)), 1000)
    return [
        ([each.batch.record_count for each in part], None if view is None else RecordBatch(view))
        for group in in_groups(walked, join_up_to=join_up_to)
        for part, view in joined(group, join_up_to=join_up_to, at_once=5)
    ]


@given(
    contents=st.lists(st.lists(fields, min_size=1, max_size=30), min_size=6, max_size=9),
    codec=st.sampled_from([Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]),
)
def test_compressed_batches_are_joined_with_the_same_codec(contents: list[list[Fields]], codec: Codec) -> None:
    ((counts, batch),) = parts(batches_of(*contents, codec=codec), join_up_to=1024 * KIB)
    assert counts == [len(content) for content in contents]
    assert batch is not None
    assert batch.codec == codec
    records = decode_records(batch)
    assert [(record.key, record.value, record.headers, record.timestamp) for record in records] == [
        *itertools.chain(*contents)
    ]
    assert [record.offset for record in records] == list(range(1000, 1000 + len(records)))


def test_compressed_batches_are_not_joined_by_default() -> None:
    assert parts(plain(1, 2, 3, 4, 5, codec=Codec.LZ4)) == [([count], None) for count in range(1, 6)]


def test_gzip_batches_are_not_joined() -> None:
    """It is compressed at some 50 MB/s: that costs more than the batches do."""
    assert parts(plain(*[1] * 8, codec=Codec.GZIP)) == [([1], None)] * 8


def test_compressed_batches_are_joined_up_to_an_uncompressed_size() -> None:
    joined = parts(plain(*[1] * 8, value=bytes(3 * KIB), codec=Codec.ZSTD), join_up_to=10 * KIB)
    assert [counts for counts, _ in joined] == [[1, 1, 1], [1, 1, 1], [1, 1]]
    assert all(batch is not None and batch.size < KIB for _, batch in joined)


def test_batch_with_huge_uncompressed_size_is_not_joined() -> None:
    """30 MB of zeros in a kilobyte of zstd: nothing of that size is made in memory."""
    data = batches_of(
        *[[(None, b"v", (), NOW)]] * 3, [(None, bytes(30_000_000), (), NOW)], *[[(None, b"v", (), NOW)]] * 3,
        codec=Codec.ZSTD,
    )  # fmt: skip
    assert [(counts, batch is None) for counts, batch in parts(data)] == [
        ([1] * 3, False),
        ([1], True),
        ([1] * 3, False),
    ]


@pytest.mark.parametrize("codec", [Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("damage", ["not of that codec", "not the records announced"])
def test_corrupt_compressed_batches_are_copied_unchanged(codec: Codec, damage: str) -> None:
    # given
    data = bytearray(plain(*[2] * 7, codec=codec))
    third = list(iter_batches(data))[2]
    if damage == "not of that codec":
        third.buffer[70:] = bytes(third.size - 70)
    else:
        layout.INT32.pack_into(third.buffer, layout.RECORD_COUNT_AT, 1)
        layout.INT32.pack_into(third.buffer, layout.LAST_OFFSET_DELTA_AT, 0)
    write_crc(third.buffer)
    # when
    joined = parts(bytes(data))
    # then
    assert sum(len(counts) for counts, _ in joined) == 7
    assert all(batch is None for counts, batch in joined if len(counts) == 1)
    assert not any(1 in counts for counts, batch in joined if batch is not None)


def test_large_rebuilt_dropped_or_other_codec_batches_are_not_joined() -> None:
    small = [Record(None, b"v", (), NOW, offset) for offset in range(1000, 1002)]
    data = bytearray(encode_batch(small))
    data += encode_batch([record._replace(offset=record.offset + 2) for record in small])
    data += encode_batch([record._replace(offset=record.offset + 4) for record in small], codec=Codec.LZ4)
    data += encode_batch([Record(None, b"v", (), NOW, 1006 + at) for at in range(513)])
    data += encode_batch([Record(None, b"v", (), NOW, 1519)], last_offset=1540)
    data += encode_batch([Record(None, b"v", (), NOW, 1541)])
    data += encode_batch([Record(b"\0\0\0\1", b"", (), NOW, 1542)], is_control=True, producer_id=1, producer_epoch=0)
    data += encode_batch([Record(None, b"v", (), NOW, 1543)])
    assert groups(bytes(data)) == [
        [("COPY", 2), ("COPY", 2)],
        [("COPY", 2)],
        [("COPY", 513)],
        [("REBUILD", 1)],
        [("COPY", 1)],
        [("DROP", 1)],
        [("COPY", 1)],
    ]


def test_batches_with_offsets_missing_between_them_are_not_joined() -> None:
    data = encode_batch([Record(None, b"v", (), NOW, 1000)]) + encode_batch([Record(None, b"v", (), NOW, 1005)])
    assert groups(bytes(data)) == [[("COPY", 1)], [("COPY", 1)]]


def test_batches_before_a_corrupt_one_are_returned_first() -> None:
    # given
    data = bytearray(plain(2, 2, 2))
    data[-1] ^= 1
    fetched = in_groups(walk(memoryview(data), 1000), join_up_to=KIB)
    # then
    assert [each.batch.record_count for each in next(fetched)] == [2, 2]
    with pytest.raises(CorruptBatchError, match="wrong checksum"):
        next(fetched)


def test_damaged_lengths_are_reported_or_harmless() -> None:
    """Only with a checksum that is right can such bytes come here; they end in an error or in a batch of that size."""
    data = bytearray(plain(2, 2))
    first, second = data[: len(data) // 2], data[len(data) // 2 :]
    rejections = 0
    for at, byte in itertools.product(range(61, len(second)), [0x00, 0x01, 0x7F, 0x80, 0xFF]):
        damaged = second.copy()
        damaged[at] = byte
        try:
            view = join([RecordBatch(memoryview(first)), RecordBatch(memoryview(damaged))])
        except CorruptBatchError:
            rejections += 1
        else:
            assert RecordBatch(view).size == len(view)
    assert rejections > 0

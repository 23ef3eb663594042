from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.protocol.errors import CorruptBatchError
from klamm.protocol.records import Codec, Record, RecordBatch, decode_records, encode_batch, iter_batches, verify_crc
from klamm.wire.batches import stamp, walk
from klamm.wire.joining import in_groups, join

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


def batches_of(*contents: Sequence[Fields]) -> bytes:
    """Return batches one behind the other, their offsets counted through from 1,000."""
    data = bytearray()
    offset = 1000
    for content in contents:
        data += encode_batch([Record(*record, offset=offset + at) for at, record in enumerate(content)])
        offset += len(content)
    return bytes(data)


def plain(*counts: int, value: bytes = b"v") -> bytes:
    return batches_of(*[[(None, value, (), NOW + at) for at in range(count)] for count in counts])


def groups(data: bytes, *, join_up_to: int = 100 * KIB, fetch_offset: int = 1000) -> list[list[tuple[str, int]]]:
    walked = walk(memoryview(bytearray(data)), fetch_offset)
    return [
        [(each.treatment.name, each.batch.record_count) for each in group]
        for group in in_groups(walked, join_up_to=join_up_to)
    ]


@given(contents=st.lists(st.lists(fields, min_size=1, max_size=90), min_size=1, max_size=5))
def test_a_joined_batch_holds_the_records_of_all_as_they_were(contents: list[list[Fields]]) -> None:
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


def test_numbers_of_any_length_are_written() -> None:
    """Offsets beyond what is looked up, records beyond two bytes of length, times beyond one byte."""
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


def test_what_is_compressed_large_rebuilt_or_left_out_stays_by_itself() -> None:
    small = [Record(None, b"v", (), NOW, offset) for offset in range(1000, 1002)]
    data = bytearray(encode_batch(small))
    data += encode_batch([record._replace(offset=record.offset + 2) for record in small])
    data += encode_batch([record._replace(offset=record.offset + 4) for record in small], codec=Codec.LZ4)
    data += encode_batch([Record(None, b"v", (), NOW, 1006 + at) for at in range(129)])
    data += encode_batch([Record(None, b"v", (), NOW, 1135)], last_offset=1140)
    data += encode_batch([Record(None, b"v", (), NOW, 1141)])
    data += encode_batch([Record(b"\0\0\0\1", b"", (), NOW, 1142)], is_control=True, producer_id=1, producer_epoch=0)
    data += encode_batch([Record(None, b"v", (), NOW, 1143)])
    assert groups(bytes(data)) == [
        [("COPY", 2), ("COPY", 2)],
        [("COPY", 2)],
        [("COPY", 129)],
        [("REBUILD", 1)],
        [("COPY", 1)],
        [("DROP", 1)],
        [("COPY", 1)],
    ]


def test_batches_with_offsets_missing_between_them_are_not_joined() -> None:
    data = encode_batch([Record(None, b"v", (), NOW, 1000)]) + encode_batch([Record(None, b"v", (), NOW, 1005)])
    assert groups(bytes(data)) == [[("COPY", 1)], [("COPY", 1)]]


def test_what_stands_before_damage_comes_first() -> None:
    # given
    data = bytearray(plain(2, 2, 2))
    data[-1] ^= 1
    fetched = in_groups(walk(memoryview(data), 1000), join_up_to=KIB)
    # then
    assert [each.batch.record_count for each in next(fetched)] == [2, 2]
    with pytest.raises(CorruptBatchError, match="wrong checksum"):
        next(fetched)


def test_damaged_lengths_are_told_or_harmless() -> None:
    """Only with a checksum that is right can such bytes come here; they end in an error or in a batch of that size."""
    data = bytearray(plain(2, 2))
    first, second = data[: len(data) // 2], data[len(data) // 2 :]
    told = 0
    for at, byte in itertools.product(range(61, len(second)), [0x00, 0x01, 0x7F, 0x80, 0xFF]):
        damaged = second.copy()
        damaged[at] = byte
        try:
            view = join([RecordBatch(memoryview(first)), RecordBatch(memoryview(damaged))])
        except CorruptBatchError:
            told += 1
        else:
            assert RecordBatch(view).size == len(view)
    assert told > 0

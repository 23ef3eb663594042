"""The ends of the records of a batch, computed from their lengths alone."""

from __future__ import annotations

import itertools

import pytest

from klamm.protocol.errors import CorruptBatchError
from klamm.protocol.records import record_ends, varint


def all_ends(data: bytes, begin: int, end: int, count: int) -> list[int]:
    last_offsets, runs = record_ends(data, begin, end, count)
    ends = [begin]
    for index, last in enumerate(last_offsets):
        records = runs.get(index, 1)
        size = (last - ends[-1]) // records
        ends += range(ends[-1] + size, last + 1, size)
    return ends[1:]


@pytest.mark.parametrize(
    "sizes",
    [[7] * 20, [63, 64, 65, 7, 8192], [8191, 8192, 8193, 1_048_576], [70] * 12 + [71] * 9, [326] * 12 + [198] * 12],
)
def test_record_ends_follow_from_record_lengths(sizes: list[int]) -> None:
    records = [varint(size) + bytes(size) for size in sizes]
    data = b"".join(records)
    ends = list(itertools.accumulate(map(len, records)))
    assert all_ends(data + bytes(16), 0, len(data), len(records)) == ends
    assert all_ends(bytes(5) + data + bytes(16), 5, 5 + len(data), len(records)) == [5 + end for end in ends]


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (varint(9) + bytes(8), 1),
        (varint(9) + bytes(10), 1),
        (varint(9) + bytes(9), 2),
        (varint(-1) + bytes(9), 1),
        (b"\xff" * 9, 1),
        ((varint(9) + bytes(9)) * 12, 11),
        ((varint(9) + bytes(9)) * 12, 13),
    ],
    ids=["too long", "bytes follow", "a record is missing", "negative", "an endless length", "too many", "too few"],
)
def test_records_that_do_not_fill_their_batch_are_rejected(data: bytes, count: int) -> None:
    with pytest.raises(CorruptBatchError):
        record_ends(data + bytes(16), 0, len(data), count)

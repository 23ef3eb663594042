"""The ends of the records of a batch, found by their lengths alone."""

from __future__ import annotations

import itertools

import pytest

from klamm.protocol.errors import CorruptBatchError
from klamm.protocol.records import record_ends, varint


@pytest.mark.parametrize("sizes", [[7] * 20, [63, 64, 65, 7, 8192], [8191, 8192, 8193, 1_048_576], [70] * 12 + [71]])
def test_the_ends_of_records_follow_from_their_lengths(sizes: list[int]) -> None:
    records = [varint(size) + bytes(size) for size in sizes]
    data = b"".join(records)
    ends = list(itertools.accumulate(map(len, records)))
    assert record_ends(data + bytes(16), 0, len(data), len(records)) == ends
    assert record_ends(bytes(5) + data + bytes(16), 5, 5 + len(data), len(records)) == [5 + end for end in ends]


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (varint(9) + bytes(8), 1),
        (varint(9) + bytes(10), 1),
        (varint(9) + bytes(9), 2),
        (varint(-1) + bytes(9), 1),
        (b"\xff" * 9, 1),
    ],
    ids=["too long", "bytes follow", "a record is missing", "negative", "an endless length"],
)
def test_records_that_do_not_fill_their_batch_are_refused(data: bytes, count: int) -> None:
    with pytest.raises(CorruptBatchError):
        record_ends(data + bytes(16), 0, len(data), count)

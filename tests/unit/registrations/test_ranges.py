"""Cutting a topic into pieces for tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from klamm.registrations.ranges import OffsetRange, split


def test_a_small_partition_is_one_piece() -> None:
    assert split({0: (5, 9)}) == (OffsetRange(partition=0, start=5, end=9),)


def test_an_empty_topic_has_no_pieces() -> None:
    assert split({}) == split({0: (7, 7)}) == ()


@given(
    bounds=st.dictionaries(
        st.integers(0, 5), st.tuples(st.integers(0, 1_000), st.integers(0, 1_000)).map(lambda two: (min(two), max(two)))
    ),
    records_per_task=st.integers(1, 300),
)
def test_pieces_cover_every_offset_once_and_none_is_too_large(
    bounds: dict[int, tuple[int, int]], records_per_task: int
) -> None:
    pieces = split(bounds, records_per_task=records_per_task)
    covered = [(piece.partition, offset) for piece in pieces for offset in range(piece.start, piece.end)]
    assert covered == [
        (partition, offset) for partition, (first, end) in sorted(bounds.items()) for offset in range(first, end)
    ]
    assert all(0 < piece.end - piece.start <= records_per_task for piece in pieces)

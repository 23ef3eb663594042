"""Cutting topics into pieces for tasks, and into rounds of a stream."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from klamm.dataframes.ranges import OffsetRange, limited, split

bounds_by_partition = st.dictionaries(
    st.tuples(st.sampled_from("ab"), st.integers(0, 5)),
    st.tuples(st.integers(0, 1_000), st.integers(0, 1_000)).map(lambda two: (min(two), max(two))),
)


def test_a_partition_is_one_piece_unless_somebody_wants_more() -> None:
    assert split({("t", 0): (5, 9)}) == (OffsetRange(topic="t", partition=0, start=5, end=9),)


def test_an_empty_topic_has_no_pieces() -> None:
    assert split({}) == split({("t", 0): (7, 7)}) == ()


@given(bounds=bounds_by_partition, records_per_range=st.none() | st.integers(1, 300))
def test_pieces_cover_every_offset_once_and_none_is_too_large(
    bounds: dict[tuple[str, int], tuple[int, int]], records_per_range: int | None
) -> None:
    pieces = split(bounds, records_per_range=records_per_range)
    covered = [(piece.topic, piece.partition, offset) for piece in pieces for offset in range(piece.start, piece.end)]
    assert covered == [
        (*where, offset) for where, (first, end) in sorted(bounds.items()) for offset in range(first, end)
    ]
    assert all(0 < piece.end - piece.start <= (records_per_range or 1_000) for piece in pieces)


@given(bounds=bounds_by_partition, most=st.integers(1, 500))
def test_a_round_takes_about_as_much_as_it_may_and_all_continue(
    bounds: dict[tuple[str, int], tuple[int, int]], most: int
) -> None:
    start = {where: first for where, (first, _) in bounds.items()}
    end = {where: to for where, (_, to) in bounds.items()}
    taken = limited(start, end, most)
    assert set(taken) == set(end)
    assert sum(taken.values()) - sum(start.values()) <= most + len(bounds)
    for where, to in end.items():
        assert start[where] <= taken[where] <= to
        assert taken[where] > start[where] or to == start[where]

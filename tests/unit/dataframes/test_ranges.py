"""Division of topics into ranges for tasks, and limits of a micro-batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.dataframes.positions import OffsetRange, limited, split

bounds_by_partition = st.dictionaries(
    st.tuples(st.sampled_from("ab"), st.integers(0, 5)),
    st.tuples(st.integers(0, 1_000), st.integers(0, 1_000)).map(lambda two: (min(two), max(two))),
)


def test_partition_is_one_range_by_default() -> None:
    assert split({("t", 0): (5, 9)}) == (OffsetRange(topic="t", partition=0, start=5, end=9),)


def test_empty_topic_has_no_ranges() -> None:
    assert split({}) == split({("t", 0): (7, 7)}) == ()


@given(
    bounds=bounds_by_partition,
    records_per_range=st.none() | st.integers(1, 300),
    min_ranges=st.none() | st.integers(1, 30),
)
def test_ranges_cover_every_offset_once_within_their_maximum_size(
    bounds: dict[tuple[str, int], tuple[int, int]], records_per_range: int | None, min_ranges: int | None
) -> None:
    pieces = split(bounds, records_per_range=records_per_range, min_ranges=min_ranges)
    covered = [(piece.topic, piece.partition, offset) for piece in pieces for offset in range(piece.start, piece.end)]
    assert covered == [
        (*where, offset) for where, (first, end) in sorted(bounds.items()) for offset in range(first, end)
    ]
    assert all(0 < piece.end - piece.start <= (records_per_range or 1_000) for piece in pieces)


@pytest.mark.parametrize(
    ("sizes", "min_ranges", "expected"),
    [  # as KafkaOffsetRangeCalculator of Spark 4.2 splits them
        ((10, 10), 2, (10, 10)),
        ((10, 0, 10), 3, (5, 5, 5, 5)),
        ((100, 10), 3, (50, 50, 10)),
        ((1, 100), 4, (1, 33, 33, 34)),
        ((2,), 5, (1, 1)),
    ],
)
def test_large_partitions_are_split_until_there_are_min_ranges(
    sizes: tuple[int, ...], min_ranges: int, expected: tuple[int, ...]
) -> None:
    bounds = {("t", number): (5, 5 + size) for number, size in enumerate(sizes)}
    pieces = split(bounds, min_ranges=min_ranges)
    assert tuple(piece.end - piece.start for piece in pieces) == expected


@given(bounds=bounds_by_partition, most=st.integers(1, 500))
def test_rate_limit_advances_every_partition(bounds: dict[tuple[str, int], tuple[int, int]], most: int) -> None:
    start = {where: first for where, (first, _) in bounds.items()}
    end = {where: to for where, (_, to) in bounds.items()}
    taken = limited(start, end, most)
    assert set(taken) == set(end)
    assert sum(taken.values()) - sum(start.values()) <= most + len(bounds)
    for where, to in end.items():
        assert start[where] <= taken[where] <= to
        assert taken[where] > start[where] or to == start[where]

from __future__ import annotations

import pytest

from klamm.mirror.operations.offset_reset import TopicPartitions, partitions_by_topic


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        (["orders:0", "orders:1"], {"orders": (0, 1)}),
        (["orders:0", "orders"], {"orders": None}),
        (["orders", "orders:0", "users:2,3"], {"orders": None, "users": (2, 3)}),
    ],
)
def test_topic_named_twice_has_all_its_partitions_reset(
    topics: list[str], expected: dict[str, tuple[int, ...] | None]
) -> None:
    chosen = []
    for text in topics:
        topic, _, numbers = text.partition(":")
        chosen.append(TopicPartitions(topic=topic, partitions=tuple(map(int, numbers.split(","))) if numbers else None))
    assert partitions_by_topic(chosen) == expected

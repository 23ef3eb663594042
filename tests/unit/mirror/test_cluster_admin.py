"""Requests of the mirror to its clusters."""

from __future__ import annotations

from klamm.mirror.cluster_admin import portions


def test_changes_are_split_into_portions_for_controller() -> None:
    """Apache Kafka 4.4: "Unable to perform excessively large batch operation." from 10,000 records on."""
    topics = [f"orders-{number}" for number in range(500)]
    dealt = list(portions(topics, lambda _: 21))
    assert [topic for portion in dealt for topic in portion] == topics
    assert max(21 * len(portion) for portion in dealt) < 10_000


def test_oversized_change_is_sent_alone() -> None:
    assert list(portions([1, 20_000, 2], lambda weight: weight)) == [[1], [20_000], [2]]


def test_no_changes_make_no_portion() -> None:
    assert list(portions([], lambda weight: weight)) == []

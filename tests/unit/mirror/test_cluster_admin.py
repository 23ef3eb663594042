"""How the mirror asks its clusters."""

from __future__ import annotations

from klamm.mirror.cluster_admin import portions


def test_many_changes_are_dealt_to_requests_that_a_controller_takes() -> None:
    """Apache Kafka 4.4: "Unable to perform excessively large batch operation." from 10,000 records on."""
    topics = [f"orders-{number}" for number in range(500)]
    dealt = list(portions(topics, lambda _: 21))
    assert [topic for portion in dealt for topic in portion] == topics
    assert max(21 * len(portion) for portion in dealt) < 10_000


def test_what_is_too_large_by_itself_is_still_asked_for() -> None:
    assert list(portions([1, 20_000, 2], lambda weight: weight)) == [[1], [20_000], [2]]


def test_nothing_is_no_request() -> None:
    assert list(portions([], lambda weight: weight)) == []

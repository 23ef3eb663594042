"""Metadata requests of a copier while some of its partitions fail."""

from __future__ import annotations

from klamm.mirror.copy.partition import PartitionCopy, PartitionId, TopicRefreshes

TOPICS = ("a", "b", "c")
SICK = PartitionId("t", 0, "A.t")


def test_all_topics_are_refreshed_once_then_failing_ones() -> None:
    refreshes = TopicRefreshes()
    assert refreshes.due(TOPICS, 1.0) == ["a", "b", "c"]
    refreshes.done(TOPICS, 1.0)
    assert refreshes.due(TOPICS, 1.0) == []
    refreshes.want("b", 3.0)
    refreshes.want("b", 2.0)
    refreshes.want("b", 4.0)
    assert refreshes.due(TOPICS, 1.9) == []
    assert refreshes.due(TOPICS, 2.0) == ["b"], "and still so if asking fails"
    assert refreshes.due(TOPICS, 2.1) == ["b"]
    refreshes.done(["b"], 2.1)
    assert refreshes.due(TOPICS, 5.0) == []
    assert refreshes.due(TOPICS, 400.0) == ["a", "b", "c"]


def test_partition_backoff_resets_after_success() -> None:
    copy = PartitionCopy(SICK, start_offset=0, committed=True)
    assert [copy.source_failed("no", 10.0) for _ in range(5)] == [10.2, 10.4, 10.8, 11.0, 11.0]
    copy.fetched(end_offset=0)
    assert copy.source_failed("no", 10.0) == 10.2

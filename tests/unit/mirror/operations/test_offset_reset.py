from __future__ import annotations

import pytest

import klamm
from klamm.mirror.copy.source_offset_store import StoredSourceOffsets
from klamm.mirror.operations.offset_reset import (
    OffsetResetError,
    ResetTo,
    SourceOffsetReset,
    TopicPartitions,
    partitions_by_topic,
    reset_topics,
)
from klamm.mirror.settings.mirror import parse_settings

PROPERTIES = {
    "clusters": "A,B",
    "A.bootstrap.servers": "127.0.0.1:1",
    "B.bootstrap.servers": "127.0.0.1:2",
    "A->B.enabled": "true",
    "A->B.topics": "orders.*",
}
(FLOW,) = parse_settings(PROPERTIES).flows
STORED = StoredSourceOffsets(offsets={("orders", 0): 5, ("orders-old", 0): 6, ("users", 0): 7})


def test_reset_of_a_flow_leaves_topics_of_other_flows_out() -> None:
    assert reset_topics(FLOW, STORED) == {"orders", "orders-old"}
    with pytest.raises(OffsetResetError, match="topic users is not selected by the flow"):
        SourceOffsetReset(FLOW, STORED).plan([TopicPartitions("users")], ResetTo.EARLIEST, 0)


@pytest.mark.process
def test_reset_of_a_flow_leaves_deleted_topics_out() -> None:
    with klamm.Broker(topics=["orders"], control=True) as broker:
        flow = parse_settings({**PROPERTIES, "A.bootstrap.servers": broker.bootstrap_servers}).flows[0]
        reset = SourceOffsetReset(flow, STORED)
        assert [change.topic for change in reset.plan([], ResetTo.EARLIEST, 0)] == ["orders"]
        assert reset.absent == ("orders-old",)
        with pytest.raises(OffsetResetError, match="topic orders-old does not exist on the source"):
            reset.plan([TopicPartitions("orders-old")], ResetTo.EARLIEST, 0)


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

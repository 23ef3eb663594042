from __future__ import annotations

from klamm.broker.cluster import coordinator_for
from klamm.broker.handlers import api_008_offset_commit
from klamm.broker.handlers.api_047_offset_delete import ROUTE
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from klamm.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from tests.support.group_broker import GroupBroker

Topic = OffsetDeleteRequest.OffsetDeleteRequestTopic
Partition = OffsetDeleteRequest.OffsetDeleteRequestPartition
REQUEST = OffsetDeleteRequest(
    group_id="g",
    topics=[
        Topic(name="t", partitions=[Partition(partition_index=0), Partition(partition_index=5)]),
        Topic(name="nowhere", partitions=[Partition(partition_index=0)]),
    ],
)


def test_partitions_are_answered_independently() -> None:
    """KIP-496."""
    with GroupBroker() as broker:
        partition = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0)
        topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[partition])
        broker.ask(
            api_008_offset_commit.ROUTE, OffsetCommitRequest(group_id="g", topics=[topic]), OffsetCommitResponse, 9
        )
        answer = broker.ask(ROUTE, REQUEST, OffsetDeleteResponse, 0)

    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert answer.error_code == 0
    assert [(t.name, p.partition_index, p.error_code) for t in answer.topics for p in t.partitions] == [
        ("t", 0, 0),
        ("t", 5, unknown),
        ("nowhere", 0, unknown),
    ]


def test_unknown_group_is_reported_at_top_level() -> None:
    with GroupBroker() as broker:
        answer = broker.ask(ROUTE, REQUEST, OffsetDeleteResponse, 0)

    assert (answer.error_code, answer.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])


def test_offset_delete_on_other_broker_is_not_coordinator() -> None:
    with GroupBroker(brokers=2) as broker:
        wrong = 3 - coordinator_for("g", (1, 2))
        answer = broker.ask(ROUTE, REQUEST, OffsetDeleteResponse, 0, node_id=wrong)

    assert answer.error_code == ErrorCode.NOT_COORDINATOR


def test_empty_group_id_is_rejected_like_kafka() -> None:
    with GroupBroker() as broker:
        answer = broker.ask(ROUTE, OffsetDeleteRequest(group_id="", topics=REQUEST.topics), OffsetDeleteResponse, 0)

    assert (answer.error_code, answer.topics) == (ErrorCode.INVALID_GROUP_ID, [])

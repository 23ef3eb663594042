from __future__ import annotations

from uuid import UUID

import pytest

from klamm.broker.handlers.api_008_offset_commit import ROUTE
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from tests.support.group_broker import TOPIC_ID, GroupBroker

Topic = OffsetCommitRequest.OffsetCommitRequestTopic
Partition = OffsetCommitRequest.OffsetCommitRequestPartition


def request(*offsets: tuple[str, int], group_id: str = "g", generation_id: int = -1) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation_id,
        topics=[
            Topic(
                name=name,
                partitions=[Partition(partition_index=partition, committed_offset=5, committed_metadata=None)],
            )
            for name, partition in offsets
        ],
    )


def codes(answer: OffsetCommitResponse) -> list[tuple[str, int, int]]:
    return [(t.name, p.partition_index, p.error_code) for t in answer.topics for p in t.partitions]


@pytest.mark.parametrize("version", range(2, 10))
def test_partitions_are_answered_in_request_order(version: int) -> None:
    with GroupBroker() as broker:
        answer = broker.ask(ROUTE, request(("t", 1), ("nowhere", 0), ("t", 7)), OffsetCommitResponse, version)

    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes(answer) == [("t", 1, 0), ("nowhere", 0, unknown), ("t", 7, unknown)]


@pytest.mark.parametrize(("version", "error_code"), [(8, "ILLEGAL_GENERATION"), (9, "GROUP_ID_NOT_FOUND")])
def test_generation_of_unknown_group_is_rejected(version: int, error_code: str) -> None:
    with GroupBroker() as broker:
        answer = broker.ask(ROUTE, request(("t", 0), generation_id=3), OffsetCommitResponse, version)

    assert codes(answer) == [("t", 0, ErrorCode[error_code])]


def test_topics_are_named_by_their_ids_from_v10_on() -> None:
    topics = [
        Topic(topic_id=topic_id, partitions=[Partition(partition_index=index, committed_offset=5)])
        for topic_id, index in ((TOPIC_ID, 1), (UUID(int=7), 0), (TOPIC_ID, 7), (UUID(int=0), 0))
    ]
    with GroupBroker() as broker:
        answer = broker.ask(ROUTE, OffsetCommitRequest(group_id="g", topics=topics), OffsetCommitResponse, 10)

    unknown = ErrorCode.UNKNOWN_TOPIC_ID
    assert [(t.topic_id.int, p.partition_index, p.error_code) for t in answer.topics for p in t.partitions] == [
        (1, 1, 0),
        (7, 0, unknown),
        (1, 7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (0, 0, unknown),
    ]


def test_unknown_topic_id_keeps_its_error_when_the_group_is_rejected() -> None:
    topics = [
        Topic(topic_id=topic_id, partitions=[Partition(partition_index=0, committed_offset=5)])
        for topic_id in (UUID(int=7), TOPIC_ID)
    ]
    request = OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=3, topics=topics)
    with GroupBroker() as broker:
        answer = broker.ask(ROUTE, request, OffsetCommitResponse, 10)

    codes = [topic.partitions[0].error_code for topic in answer.topics]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.GROUP_ID_NOT_FOUND]


def test_offset_commit_on_other_broker_is_not_coordinator() -> None:
    with GroupBroker(brokers=2) as broker:
        outcomes = [
            codes(broker.ask(ROUTE, request(("t", 0)), OffsetCommitResponse, 9, node_id=node_id))[0][2]
            for node_id in (1, 2)
        ]

    assert sorted(outcomes) == [ErrorCode.NONE, ErrorCode.NOT_COORDINATOR]

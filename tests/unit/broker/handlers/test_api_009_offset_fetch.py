from __future__ import annotations

from uuid import UUID

import pytest

from klamm.broker.cluster import coordinator_for
from klamm.broker.handlers import api_008_offset_commit
from klamm.broker.handlers.api_009_offset_fetch import ROUTE
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from tests.support.group_broker import TOPIC_ID, GroupBroker

Group = OffsetFetchRequest.OffsetFetchRequestGroup
TopicOfGroup = OffsetFetchRequest.OffsetFetchRequestTopics
Topic = OffsetFetchRequest.OffsetFetchRequestTopic


def commit(broker: GroupBroker, group_id: str, *, node_id: int = 1) -> None:
    partition = OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=1, committed_offset=5, committed_leader_epoch=0, committed_metadata="note"
    )
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[partition])
    request = OffsetCommitRequest(group_id=group_id, topics=[topic])
    broker.ask(api_008_offset_commit.ROUTE, request, OffsetCommitResponse, 9, node_id=node_id)


@pytest.mark.parametrize("version", range(1, 8))
def test_offsets_of_one_group_are_returned(version: int) -> None:
    with GroupBroker() as broker:
        commit(broker, "g")
        request = OffsetFetchRequest(group_id="g", topics=[Topic(name="t", partition_indexes=[0, 1])])
        answer = broker.ask(ROUTE, request, OffsetFetchResponse, version)

    (topic,) = answer.topics
    assert [(p.partition_index, p.committed_offset, p.metadata, p.error_code) for p in topic.partitions] == [
        (0, -1, "", 0),
        (1, 5, "note", 0),
    ]


@pytest.mark.parametrize("version", range(2, 8))
def test_null_topics_return_all_committed_offsets(version: int) -> None:
    with GroupBroker() as broker:
        commit(broker, "g")
        answer = broker.ask(ROUTE, OffsetFetchRequest(group_id="g", topics=None), OffsetFetchResponse, version)

    assert [(topic.name, len(topic.partitions)) for topic in answer.topics] == [("t", 1)]


def test_topics_are_named_by_their_ids_from_v10_on() -> None:
    wanted = [TopicOfGroup(topic_id=topic_id, partition_indexes=[0, 1]) for topic_id in (UUID(int=7), TOPIC_ID)]
    with GroupBroker() as broker:
        commit(broker, "g")
        request = OffsetFetchRequest(groups=[Group(group_id="g", topics=wanted), Group(group_id="g", topics=None)])
        answer = broker.ask(ROUTE, request, OffsetFetchResponse, 10)

    named, everything = (
        [
            (topic.topic_id.int, [(p.partition_index, p.committed_offset, p.error_code) for p in topic.partitions])
            for topic in group.topics
        ]
        for group in answer.groups
    )
    unknown = ErrorCode.UNKNOWN_TOPIC_ID
    assert named == [(1, [(0, -1, 0), (1, 5, 0)]), (7, [(0, -1, unknown), (1, -1, unknown)])]
    assert everything == [(1, [(1, 5, 0)])]


@pytest.mark.parametrize("version", [8, 9])
def test_offsets_of_several_groups_are_returned(version: int) -> None:
    with GroupBroker() as broker:
        commit(broker, "g")
        request = OffsetFetchRequest(
            groups=[
                Group(group_id="g", topics=None),
                Group(group_id="unknown", topics=[TopicOfGroup(name="t", partition_indexes=[1])]),
                Group(group_id="unknown", topics=None),
            ],
            require_stable=True,
        )
        answer = broker.ask(ROUTE, request, OffsetFetchResponse, version)

    offsets = [
        [(t.name, p.partition_index, p.committed_offset) for t in group.topics for p in t.partitions]
        for group in answer.groups
    ]
    assert offsets == [[("t", 1, 5)], [("t", 1, -1)], []]


def test_group_of_another_coordinator_does_not_fail_others() -> None:
    with GroupBroker(brokers=2) as broker:
        ours = next(f"g{n}" for n in range(99) if coordinator_for(f"g{n}", (1, 2)) == 1)
        theirs = next(f"g{n}" for n in range(99) if coordinator_for(f"g{n}", (1, 2)) == 2)
        commit(broker, ours)
        commit(broker, theirs, node_id=2)
        request = OffsetFetchRequest(groups=[Group(group_id=theirs, topics=None), Group(group_id=ours, topics=None)])
        answer = broker.ask(ROUTE, request, OffsetFetchResponse, 9)

    assert [(group.error_code, len(group.topics)) for group in answer.groups] == [
        (ErrorCode.NOT_COORDINATOR, 0),
        (0, 1),
    ]


@pytest.mark.parametrize("version", [1, 2])
def test_v1_reports_group_errors_per_partition(version: int) -> None:
    with GroupBroker(brokers=2) as broker:
        theirs = next(f"g{n}" for n in range(99) if coordinator_for(f"g{n}", (1, 2)) == 2)
        request = OffsetFetchRequest(group_id=theirs, topics=[Topic(name="t", partition_indexes=[0])])
        answer = broker.ask(ROUTE, request, OffsetFetchResponse, version)

    at_partitions = [p.error_code for topic in answer.topics for p in topic.partitions]
    expected = (0, [ErrorCode.NOT_COORDINATOR]) if version == 1 else (ErrorCode.NOT_COORDINATOR, [])
    assert (answer.error_code, at_partitions) == expected

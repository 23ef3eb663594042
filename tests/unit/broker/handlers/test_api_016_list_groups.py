from __future__ import annotations

import pytest

from klamm.broker.cluster import coordinator_for
from klamm.broker.handlers import api_008_offset_commit
from klamm.broker.handlers.api_016_list_groups import ROUTE
from klamm.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from klamm.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from tests.support.group_broker import GroupBroker


def create(broker: GroupBroker, group_id: str) -> None:
    partition = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0)
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[partition])
    node_id = coordinator_for(group_id, broker.cluster.node_ids)
    request = OffsetCommitRequest(group_id=group_id, topics=[topic])
    broker.ask(api_008_offset_commit.ROUTE, request, OffsetCommitResponse, 9, node_id=node_id)


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed_with_the_fields_of_the_version(version: int) -> None:
    with GroupBroker() as broker:
        create(broker, "g")
        answer = broker.ask(ROUTE, ListGroupsRequest(), ListGroupsResponse, version)

    (group,) = answer.groups
    assert (group.group_id, group.protocol_type) == ("g", "")
    assert group.group_state == ("Empty" if version >= 4 else "")
    assert group.group_type == ("classic" if version >= 5 else "")


@pytest.mark.parametrize(
    ("states", "types", "is_listed"),
    [(["Empty"], [], True), (["Stable"], [], False), ([], ["classic"], True), ([], ["consumer"], False)],
)
def test_filters_exclude_groups(states: list[str], types: list[str], is_listed: bool) -> None:
    with GroupBroker() as broker:
        create(broker, "g")
        request = ListGroupsRequest(states_filter=states, types_filter=types)
        answer = broker.ask(ROUTE, request, ListGroupsResponse, 5)

    assert bool(answer.groups) is is_listed


def test_each_broker_lists_the_groups_it_coordinates() -> None:
    names = [f"g{number}" for number in range(12)]
    with GroupBroker(brokers=3) as broker:
        for name in names:
            create(broker, name)
        answers = [
            broker.ask(ROUTE, ListGroupsRequest(), ListGroupsResponse, 5, node_id=node_id) for node_id in (1, 2, 3)
        ]

    assert sorted(group.group_id for answer in answers for group in answer.groups) == sorted(names)


def test_groups_are_described_one_at_a_time_so_that_other_requests_run_meanwhile() -> None:
    with GroupBroker() as broker:
        create(broker, "g")
        group = next(broker.groups.list_groups())

    assert group.group_id == "g"

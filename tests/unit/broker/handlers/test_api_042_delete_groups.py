from __future__ import annotations

import pytest

from klamm.broker.cluster import coordinator_for
from klamm.broker.handlers import api_008_offset_commit
from klamm.broker.handlers.api_042_delete_groups import ROUTE
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from klamm.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from tests.support.group_broker import GroupBroker


def commit(broker: GroupBroker) -> None:
    """Commit an offset, which creates the group ``g``."""
    partition = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0)
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[partition])
    broker.ask(api_008_offset_commit.ROUTE, OffsetCommitRequest(group_id="g", topics=[topic]), OffsetCommitResponse, 9)


@pytest.mark.parametrize("version", range(3))
def test_groups_are_deleted_independently(version: int) -> None:
    with GroupBroker() as broker:
        commit(broker)
        answer = broker.ask(ROUTE, DeleteGroupsRequest(groups_names=["unknown", "g"]), DeleteGroupsResponse, version)
        left = list(broker.groups.list_groups())

    assert [(result.group_id, result.error_code) for result in answer.results] == [
        ("unknown", ErrorCode.GROUP_ID_NOT_FOUND),
        ("g", ErrorCode.NONE),
    ]
    assert left == []


def test_repeated_group_has_one_entry() -> None:
    with GroupBroker() as broker:
        commit(broker)
        answer = broker.ask(ROUTE, DeleteGroupsRequest(groups_names=["g", "g"]), DeleteGroupsResponse, 2)

    assert [(result.group_id, result.error_code) for result in answer.results] == [("g", ErrorCode.NONE)]


def test_group_of_another_coordinator_is_not_deleted() -> None:
    with GroupBroker(brokers=2) as broker:
        wrong = 3 - coordinator_for("g", (1, 2))
        answer = broker.ask(ROUTE, DeleteGroupsRequest(groups_names=["g"]), DeleteGroupsResponse, 2, node_id=wrong)

    assert answer.results[0].error_code == ErrorCode.NOT_COORDINATOR

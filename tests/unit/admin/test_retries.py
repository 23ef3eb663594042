"""Retriable error codes in responses: the admin client repeats the request until the cluster is ready."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from klamm.admin import AdminClient, TopicPartition
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.delete_groups import DeleteGroupsResponse
from klamm.protocol.messages.describe_groups import DescribeGroupsResponse
from klamm.protocol.messages.find_coordinator import FindCoordinatorResponse
from klamm.protocol.messages.list_groups import ListGroupsResponse
from klamm.protocol.messages.list_offsets import ListOffsetsResponse
from tests.support.stub_broker import NODE_ID, StubBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from klamm.protocol.schema import Message

FIND_COORDINATOR = 10
LIST_OFFSETS, DESCRIBE_GROUPS, LIST_GROUPS, DELETE_GROUPS = 2, 15, 16, 42
PARTITION = TopicPartition("stub", 0)

LOADING = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
)
LEADING = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
)


def listed_groups(code: int) -> Message:
    return ListGroupsResponse(error_code=code)


def listed_offsets(code: int) -> Message:
    partition = ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=0, error_code=code, offset=5)
    return ListOffsetsResponse(
        topics=[ListOffsetsResponse.ListOffsetsTopicResponse(name="stub", partitions=[partition])]
    )


def described_groups(code: int) -> Message:
    return DescribeGroupsResponse(
        groups=[DescribeGroupsResponse.DescribedGroup(group_id="g", group_state="Empty", error_code=code)]
    )


def deleted_groups(code: int) -> Message:
    return DeleteGroupsResponse(results=[DeleteGroupsResponse.DeletableGroupResult(group_id="g", error_code=code)])


CALLS: dict[int, tuple[Callable[[int], Message], Callable[[AdminClient], Any], tuple[ErrorCode, ...]]] = {
    LIST_GROUPS: (listed_groups, lambda admin: admin.list_groups(), LOADING),
    LIST_OFFSETS: (listed_offsets, lambda admin: admin.list_offsets({PARTITION: -1}), LEADING),
    DESCRIBE_GROUPS: (described_groups, lambda admin: admin.describe_groups(["g"]), LOADING),
    DELETE_GROUPS: (deleted_groups, lambda admin: admin.delete_groups(["g"]), LOADING),
}


@pytest.fixture(scope="module")
def broker() -> Iterator[StubBroker]:
    versions = {
        LIST_OFFSETS: (1, 9),
        FIND_COORDINATOR: (0, 5),
        DESCRIBE_GROUPS: (0, 5),
        LIST_GROUPS: (0, 4),
        DELETE_GROUPS: (0, 2),
    }
    with StubBroker(versions=versions) as stub:
        coordinator = FindCoordinatorResponse.Coordinator(key="g", node_id=NODE_ID)
        stub.answer(FIND_COORDINATOR, lambda _: FindCoordinatorResponse(coordinators=[coordinator]))
        yield stub


@pytest.fixture(scope="module")
def admin(broker: StubBroker) -> Iterator[AdminClient]:
    with AdminClient(broker.bootstrap_servers, timeout_ms=30_000) as client:
        yield client


@pytest.mark.parametrize(
    ("api_key", "code"), [(api_key, code) for api_key, (_, _, codes) in CALLS.items() for code in codes]
)
def test_a_code_that_passes_is_not_the_result_of_a_call(
    broker: StubBroker, admin: AdminClient, api_key: int, code: ErrorCode
) -> None:
    # given
    response, call, _ = CALLS[api_key]
    codes = [code, ErrorCode.NONE]
    broker.answer(api_key, lambda _: response(codes.pop(0)))
    # when
    call(admin).result(30)
    # then
    assert not codes

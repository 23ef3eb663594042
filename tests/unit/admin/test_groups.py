"""Calls on groups against brokers of several ages, and coordinators that move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from klamm.admin import AdminClient, OffsetAndMetadata, TopicPartition
from klamm.admin._groups import partitions_of
from klamm.kafka_client.pool.pool import ConnectionPool
from klamm.protocol.errors import ErrorCode, GroupAuthorizationError, KafkaApiError, UnsupportedVersionError
from klamm.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from klamm.protocol.messages.describe_groups import DescribeGroupsResponse
from klamm.protocol.messages.find_coordinator import FindCoordinatorResponse
from klamm.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from klamm.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from tests.support.stub_broker import NODE_ID, SILENCE, StubBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from klamm.kafka_client.pool.calls import Deadline
    from klamm.protocol.schema import Message

KAFKA_2_3 = {8: (0, 7), 9: (0, 5), 10: (0, 2), 15: (0, 3), 42: (0, 1)}
KAFKA_4_1 = {8: (2, 10), 9: (1, 10), 10: (0, 6), 15: (0, 6), 42: (0, 2), 47: (0, 0)}
ORDERS = TopicPartition("orders", 3)

Group = OffsetFetchResponse.OffsetFetchResponseGroup
Topics = OffsetFetchResponse.OffsetFetchResponseTopics
Partitions = OffsetFetchResponse.OffsetFetchResponsePartitions


@pytest.fixture
def old_broker() -> Iterator[StubBroker]:
    with StubBroker(versions=KAFKA_2_3) as stub:
        stub.answer(10, lambda _: FindCoordinatorResponse(node_id=NODE_ID, host="127.0.0.1", port=stub.port))
        yield stub


@pytest.fixture
def broker() -> Iterator[StubBroker]:
    with StubBroker(versions=KAFKA_4_1) as stub:
        stub.answer(10, lambda _: coordinators("g"))
        yield stub


def coordinators(*group_ids: str, error_code: int = 0) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(
        coordinators=[
            FindCoordinatorResponse.Coordinator(key=group_id, node_id=NODE_ID, error_code=error_code)
            for group_id in group_ids
        ]
    )


def committed(offset: int, error_code: int = 0, *, group_error: int = 0) -> OffsetFetchResponse:
    partition = Partitions(partition_index=3, committed_offset=offset, metadata="", error_code=error_code)
    topic = Topics(name="orders", partitions=[partition])
    return OffsetFetchResponse(groups=[Group(group_id="g", topics=[topic], error_code=group_error)])


def test_old_broker_is_queried_one_group_at_a_time(old_broker: StubBroker) -> None:
    # given
    partition = OffsetFetchResponse.OffsetFetchResponsePartition(
        partition_index=3, committed_offset=5, committed_leader_epoch=2, metadata="m"
    )
    topic = OffsetFetchResponse.OffsetFetchResponseTopic(name="orders", partitions=[partition])
    old_broker.answer(9, lambda _: OffsetFetchResponse(topics=[topic]))
    with AdminClient(old_broker.bootstrap_servers, timeout_ms=30_000) as admin:
        # when
        offsets = admin.list_group_offsets({"one": [ORDERS], "all": None}).all().result()
    # then
    expected = {ORDERS: OffsetAndMetadata(offset=5, leader_epoch=2, metadata="m")}
    assert offsets == {"one": expected, "all": expected}
    requests = [request.read(OffsetFetchRequest) for request in old_broker.requests(9)]
    single, every = (request for request in requests if isinstance(request, OffsetFetchRequest))
    assert single.topics is not None
    assert (single.group_id, single.topics[0].partition_indexes) == ("one", [3])
    assert (every.group_id, every.topics) == ("all", None)


def test_dead_group_on_old_broker_is_group_id_not_found(old_broker: StubBroker) -> None:
    # given
    gone = DescribeGroupsResponse.DescribedGroup(group_id="g", group_state="Dead")
    old_broker.answer(15, lambda _: DescribeGroupsResponse(groups=[gone]))
    with (
        AdminClient(old_broker.bootstrap_servers, timeout_ms=30_000) as admin,
        pytest.raises(KafkaApiError, match="g not found") as failure,
    ):
        # when
        admin.describe_groups(["g"]).all().result()
    # then
    assert failure.value.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_unsupported_calls_on_old_broker_raise_unsupported_version(old_broker: StubBroker) -> None:
    with AdminClient(old_broker.bootstrap_servers, timeout_ms=30_000) as admin:
        # when
        stable = admin.list_group_offsets({"g": None}, require_stable=True).values()["g"]
        deleted = admin.delete_group_offsets("g", [ORDERS]).values()[ORDERS]
        # then
        assert isinstance(stable.exception(), UnsupportedVersionError)
        assert isinstance(deleted.exception(), UnsupportedVersionError)


def test_moved_or_loading_coordinator_is_looked_up_again(broker: StubBroker) -> None:
    # given
    responses = [
        coordinators("g", error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE),
        coordinators("g"),
        coordinators("g"),
    ]
    broker.answer(10, lambda _: responses.pop(0) if len(responses) > 1 else responses[0])
    answers = [
        committed(-1, group_error=ErrorCode.NOT_COORDINATOR),
        committed(-1, ErrorCode.UNSTABLE_OFFSET_COMMIT),
        committed(9),
    ]
    broker.answer(9, lambda _: answers.pop(0))
    with AdminClient(broker.bootstrap_servers, timeout_ms=30_000) as admin:
        # when
        offsets = admin.list_group_offsets({"g": [ORDERS]}).all().result()
    # then
    assert offsets["g"][ORDERS].offset == 9
    assert {request.api_version for request in broker.requests(9)} == {9}, "names of topics, not ids"


def test_silent_coordinator_times_out(broker: StubBroker) -> None:
    # given
    broker.answer(42, lambda _: SILENCE)
    with AdminClient(broker.bootstrap_servers) as admin:
        # when
        future = admin.delete_groups(["g"], timeout_ms=500).values()["g"]
        # then
        assert isinstance(future.exception(30), TimeoutError)


def test_deletion_is_not_sent_again_before_the_request_timeout(
    broker: StubBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The response to a second request would be that the group or the offset does not exist."""
    # given
    limits_ms: dict[type[Message], int] = {}
    send = ConnectionPool.send

    async def recording_send(pool: ConnectionPool, request: Message, *arguments: Any, **options: Any) -> Message:
        deadline: Deadline = options["deadline"]
        limits_ms[type(request)] = deadline.limit_ms
        return await send(pool, request, *arguments, **options)

    monkeypatch.setattr(ConnectionPool, "send", recording_send)
    topic = OffsetDeleteResponse.OffsetDeleteResponseTopic(
        name="orders", partitions=[OffsetDeleteResponse.OffsetDeleteResponsePartition(partition_index=3)]
    )
    broker.answer(42, lambda _: DeleteGroupsResponse(results=[DeleteGroupsResponse.DeletableGroupResult(group_id="g")]))
    broker.answer(47, lambda _: OffsetDeleteResponse(topics=[topic]))
    # when
    with AdminClient(broker.bootstrap_servers, timeout_ms=60_000, request_timeout_ms=30_000) as admin:
        admin.delete_groups(["g"]).result()
        admin.delete_group_offsets("g", [ORDERS]).result()
    # then
    assert limits_ms[DeleteGroupsRequest] > 30_000
    assert limits_ms[OffsetDeleteRequest] > 30_000


def test_errors_are_reported_per_group_and_partition(broker: StubBroker) -> None:
    # given
    broker.answer(10, lambda _: coordinators("g", "secret"))
    rejected = DeleteGroupsResponse.DeletableGroupResult(
        group_id="secret", error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED
    )
    broker.answer(
        42,
        lambda _: DeleteGroupsResponse(results=[DeleteGroupsResponse.DeletableGroupResult(group_id="g"), rejected]),
    )
    broker.answer(9, lambda _: committed(-1, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with AdminClient(broker.bootstrap_servers, timeout_ms=30_000) as admin:
        # when
        deleted = admin.delete_groups(["g", "secret"]).values()
        listed = admin.list_group_offsets({"g": [ORDERS]}).values()["g"]
        # then
        assert deleted["g"].result() is None
        assert isinstance(deleted["secret"].exception(), GroupAuthorizationError)
        assert isinstance(listed.exception(), KafkaApiError), "an offset that may not be seen is not 'no offset'"


def test_alter_group_offsets_sends_no_member_or_generation(broker: StubBroker) -> None:
    # given
    done = OffsetCommitResponse.OffsetCommitResponsePartition(partition_index=3)
    topic = OffsetCommitResponse.OffsetCommitResponseTopic(name="orders", partitions=[done])
    broker.answer(8, lambda _: OffsetCommitResponse(topics=[topic]))
    with AdminClient(broker.bootstrap_servers, timeout_ms=30_000) as admin:
        # when
        admin.alter_group_offsets("g", {ORDERS: OffsetAndMetadata(offset=4, leader_epoch=1)}).all().result()
    # then
    (request,) = broker.requests(8)
    sent = request.read(OffsetCommitRequest)
    assert isinstance(sent, OffsetCommitRequest)
    assert (sent.group_id, sent.member_id, sent.generation_id_or_member_epoch) == ("g", "", -1)
    (partition,) = sent.topics[0].partitions
    assert (partition.partition_index, partition.committed_offset, partition.committed_leader_epoch) == (3, 4, 1)


def test_malformed_assignment_is_none() -> None:
    # given
    assignment = (
        b"\x00\x03" + b"\x00\x00\x00\x01" + b"\x00\x01t" + b"\x00\x00\x00\x02" + bytes(7) + b"\x05" + b"\xff" * 4
    )
    # when, then
    assert partitions_of(assignment) == (TopicPartition("t", 0), TopicPartition("t", 5))
    assert partitions_of(b"") == ()
    assert partitions_of(assignment[:12]) is None
    assert partitions_of(b"\x00\x01\x7f\xff\xff\xff\xff\xff") is None

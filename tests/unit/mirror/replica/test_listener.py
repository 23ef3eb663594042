"""Requests to a broker without storage."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest

from klamm.mirror.replica.leader_partition import (
    FIRST_FETCH_S,
    LAGGING_S,
    LeaderPartition,
    Leadership,
    Presence,
    ReplicaProgress,
)
from klamm.mirror.replica.listener import (
    ROUTES,
    delete_records,
    fetch,
    list_offsets,
    offset_for_leader_epoch,
    produce,
    write_txn_markers,
)
from klamm.mirror.replica.relay import ClientRelay
from klamm.protocol.errors import ErrorCode, ProtocolError
from klamm.protocol.frames import read_request_header
from klamm.protocol.messages.alter_configs import AlterConfigsRequest
from klamm.protocol.messages.delete_records import DeleteRecordsRequest
from klamm.protocol.messages.describe_configs import DescribeConfigsRequest
from klamm.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from klamm.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from klamm.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from klamm.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from klamm.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from klamm.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from klamm.protocol.messages.produce import ProduceRequest
from klamm.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from klamm.protocol.types import ResourceType
from klamm.server.codec import read_request
from tests.support.wire import request_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from klamm.mirror.replica.listener import ReplicaContext
    from klamm.protocol.schema import Message
    from klamm.server.fetch_response import PartitionRead

NODES = frozenset({1, 2, 3})


def error_code(leader: LeaderPartition) -> int:
    """Return the error code of the answer to a coordinator."""
    services: Any = SimpleNamespace(is_leased=lambda: True, find_by_name=lambda _topic, _partition: leader)
    topic = WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=leader.topic, partition_indexes=[leader.partition])
    marker = WriteTxnMarkersRequest.WritableTxnMarker(producer_id=1, transaction_result=True, topics=[topic])
    context = cast("ReplicaContext", SimpleNamespace(services=services))
    response = asyncio.run(write_txn_markers(WriteTxnMarkersRequest(markers=[marker]), context))
    return response.markers[0].topics[0].partitions[0].error_code


def test_marker_for_a_sealed_partition_is_left_to_its_next_leader() -> None:
    leader = LeaderPartition("A.orders", UUID(int=7), 0)
    leader.lead(Leadership(leader_epoch=0, partition_epoch=0, replicas=NODES, live=NODES), 100.0)
    assert error_code(leader) == ErrorCode.NONE

    leader.seal()

    assert error_code(leader) == ErrorCode.NOT_LEADER_OR_FOLLOWER


def leads(leader: LeaderPartition) -> bool:
    """Do nothing. Return whether the lease lasts."""
    return True


def is_sealed(leader: LeaderPartition) -> bool:
    leader.seal()
    return True


def is_handed_over(leader: LeaderPartition) -> bool:
    leader.resign(is_replaced=True)
    return True


def has_no_lease(leader: LeaderPartition) -> bool:
    return False


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (leads, ErrorCode.POLICY_VIOLATION),
        (is_sealed, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (is_handed_over, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (has_no_lease, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
@pytest.mark.parametrize("version", [9, 12, 13])
def test_writers_look_for_the_leader_of_partitions_that_klamm_does_not_lead(
    change: Callable[[LeaderPartition], bool], code: ErrorCode, version: int
) -> None:
    """A producer that knows an old leader drops its records after an error that is not retriable."""
    # given
    leader = LeaderPartition("A.orders", UUID(int=7), 0)
    leader.lead(Leadership(leader_epoch=0, partition_epoch=0, replicas=NODES, live=NODES), 100.0)
    is_leased = change(leader)
    services: Any = SimpleNamespace(
        is_leased=lambda: is_leased,
        find=lambda *key: {(leader.topic_id, 0): leader}.get(key),
        find_by_name=lambda *key: {(leader.topic, 0): leader}.get(key),
    )
    context = cast("ReplicaContext", SimpleNamespace(services=services, api_version=version))
    written = [ProduceRequest.PartitionProduceData(index=index) for index in range(2)]
    identity: Any = {"topic_id": leader.topic_id} if version >= 13 else {"name": leader.topic}
    topic = ProduceRequest.TopicProduceData(partition_data=written, **identity)
    purged = [DeleteRecordsRequest.DeleteRecordsPartition(partition_index=index) for index in range(2)]
    purged_topic = DeleteRecordsRequest.DeleteRecordsTopic(name=leader.topic, partitions=purged)
    # when
    produced = asyncio.run(produce(ProduceRequest(acks=-1, topic_data=[topic]), context)).responses[0]
    deleted = asyncio.run(delete_records(DeleteRecordsRequest(topics=[purged_topic]), context)).topics[0]
    # then
    assert (produced.name, produced.topic_id) == (topic.name, topic.topic_id)
    expected = [(0, code, -1), (1, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]
    assert [(each.index, each.error_code, each.base_offset) for each in produced.partition_responses] == expected
    assert [(each.partition_index, each.error_code, each.low_watermark) for each in deleted.partitions] == expected
    reason = produced.partition_responses[0].error_message
    assert (reason is not None) == (code == ErrorCode.POLICY_VIOLATION)


@pytest.mark.parametrize(
    ("offset", "rack", "node_id"),
    [(5, "c", 3), (7, "c", 3), (8, "c", 2), (8, "", 2), (5, "a", 2), (15, "c", 1), (3, "c", 2)],
    ids=[
        "has it",
        "has all before it",
        "lacks it",
        "no rack",
        "does not fetch",
        "only a silent one has it",
        "purged it",
    ],
)
def test_consumer_is_sent_to_a_replica_that_has_its_offset(offset: int, rack: str, node_id: int) -> None:
    # given
    leader = LeaderPartition("A.orders", UUID(int=7), 0)
    leader.lead(Leadership(leader_epoch=0, partition_epoch=0, replicas=NODES, live=NODES), 100.0)
    leader.high_watermark = 7
    now = time.monotonic()
    for node, (start, end, at) in enumerate([(0, 20, now - LAGGING_S - 1), (0, 9, now), (4, 7, now)], start=1):
        leader.followers[node] = ReplicaProgress(end, 0, Presence(at=at), start)
    # when
    answer = consume(leader, offset, rack=rack)
    # then
    assert answer.preferred_read_replica == node_id
    # a consumer would take the high watermark for its end under read_committed
    assert (answer.high_watermark, answer.last_stable_offset) == (7, -1)


def consume(
    leader: LeaderPartition, offset: int, *, rack: str = "", epoch: int = -1, is_leased: bool = True
) -> PartitionRead:
    """Return the answer to the fetch of a consumer."""
    services: Any = SimpleNamespace(
        is_leased=lambda: is_leased,
        find=lambda _topic_id, _partition: leader,
        access=SimpleNamespace(may=lambda *_: True),
        rack_of=" abc".__getitem__,
    )
    context = cast("ReplicaContext", SimpleNamespace(services=services, api_version=13, session=None))
    wanted = FetchRequest.FetchPartition(fetch_offset=offset, current_leader_epoch=epoch)
    topic = FetchRequest.FetchTopic(topic_id=leader.topic_id, partitions=[wanted])
    (answer,) = asyncio.run(fetch(FetchRequest(replica_id=-1, rack_id=rack, topics=[topic]), context)).partitions
    return answer


def mirrored(fetching: Iterable[int] = NODES, *, log_start: int = 300) -> LeaderPartition:
    """Return a partition whose replicas have the offsets from ``log_start`` to 500, where the source ends too."""
    now = time.monotonic()
    leader = LeaderPartition("A.orders", UUID(int=7), 0)
    leader.lead(Leadership(leader_epoch=4, partition_epoch=0, replicas=NODES, live=NODES), now)
    leader.begin(0, 500)
    wanted = FetchRequest.FetchPartition(fetch_offset=500, last_fetched_epoch=4, log_start_offset=log_start)
    for node in fetching:
        leader.fetch(node, wanted, 1, Presence(now))
    return leader


@pytest.mark.parametrize("offset", [50, 299, 501, 900])
def test_fetch_offset_outside_all_replicas_is_out_of_range(offset: int) -> None:
    # when
    answer = consume(mirrored(), offset)
    # then
    assert (answer.error_code, answer.preferred_read_replica) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


@pytest.mark.parametrize("offset", [50, 900])
def test_consumer_without_offset_retries_until_all_live_replicas_have_fetched(offset: int) -> None:
    """After a restart of klamm, a replica that has not fetched yet may have the offset."""
    # given
    leader = mirrored([1, 2])
    leader.tick(time.monotonic() + FIRST_FETCH_S + 1)
    assert leader.high_watermark == 500
    # when
    answer = consume(leader, offset)
    # then
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_consumer_before_all_known_log_starts_retries_while_a_replica_catches_up_to_its_offset() -> None:
    # given
    leader = mirrored()
    leader.fetch(3, FetchRequest.FetchPartition(log_start_offset=0), 1, Presence(time.monotonic()))
    # when
    answer = consume(leader, 50)
    # then
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_replica_does_not_depend_on_the_order_of_fetches() -> None:
    first = consume(mirrored(sorted(NODES)), 400).preferred_read_replica
    assert consume(mirrored(sorted(NODES, reverse=True)), 400).preferred_read_replica == first


def test_consumer_is_sent_to_a_replica_with_unknown_log_start() -> None:
    assert consume(mirrored(log_start=-1), 50).preferred_read_replica in NODES


def source_has_more(leader: LeaderPartition) -> None:
    leader.begin(0, 1000)


def source_is_unavailable(leader: LeaderPartition) -> None:
    leader.restart(time.monotonic())
    for node in NODES:
        leader.fetch(node, FetchRequest.FetchPartition(fetch_offset=500), 1, Presence(time.monotonic()))
    assert leader.high_watermark == 500


def source_is_another_one(leader: LeaderPartition) -> None:
    leader.halt("another source")


def partition_is_sealed(leader: LeaderPartition) -> None:
    leader.seal()


@pytest.mark.parametrize("change", [source_has_more, source_is_unavailable, source_is_another_one, partition_is_sealed])
def test_consumer_after_all_replicas_retries_while_the_source_may_have_its_offset(
    change: Callable[[LeaderPartition], None],
) -> None:
    # given
    leader = mirrored()
    change(leader)
    # when
    answer = consume(leader, 900)
    # then
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_offset_is_not_out_of_range_without_a_lease() -> None:
    assert consume(mirrored(), 900, is_leased=False).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_consumer_with_an_older_leader_epoch_validates_its_offset_before_it_is_out_of_range() -> None:
    assert consume(mirrored(), 900, epoch=3).error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_client_that_validates_its_offset_learns_where_the_replicas_were_truncated() -> None:
    # given
    leader, now = mirrored(), time.monotonic()
    assert leader.tail is not None
    leader.truncate(leader.tail, 4, (3, 480), now)
    leader.begin(300, 520)
    for node in NODES:
        wanted = FetchRequest.FetchPartition(fetch_offset=480, last_fetched_epoch=3, log_start_offset=300)
        leader.fetch(node, wanted, 1, Presence(now))
    # when
    ends = [end_of(leader, epoch, replica_id=-1) for epoch in (2, 3, 4)]
    # then
    assert ends == [(2, 520), (3, 480), (3, 480)]
    assert end_of(leader, 4, replica_id=1) == (4, 520)


def end_of(leader: LeaderPartition, epoch: int, *, replica_id: int) -> tuple[int, int]:
    """Return the leader epoch and end offset of the answer to a client or a broker."""
    services: Any = SimpleNamespace(
        is_leased=lambda: True,
        find_by_name=lambda _topic, _partition: leader,
        access=SimpleNamespace(may=lambda *_: True, is_broker=lambda _: True),
    )
    wanted = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(leader_epoch=epoch)
    topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=leader.topic, partitions=[wanted])
    request = OffsetForLeaderEpochRequest(replica_id=replica_id, topics=[topic])
    context = cast("ReplicaContext", SimpleNamespace(services=services, session=None))
    (answer,) = asyncio.run(offset_for_leader_epoch(request, context)).topics[0].partitions
    assert answer.error_code == ErrorCode.NONE
    return answer.leader_epoch, answer.end_offset


@dataclass(kw_only=True)
class Replica:
    """A replica with the offsets 20 to 120, and a transaction that is open from offset 100 on."""

    offset: int = 120
    """Offset that it returns, whatever is looked up."""
    fetch_error: ErrorCode = ErrorCode.NONE
    is_throttling: bool = False
    """Whether the fetch quota of klamm's principal is violated: Kafka then names no partition, and no error."""
    fetches: list[FetchRequest] = field(default_factory=list)

    async def ask(self, node_id: int, request: Message, _response: type[Message]) -> Message:
        assert node_id == 1
        if isinstance(request, FetchRequest):
            self.fetches.append(request)
            if self.is_throttling:
                return FetchResponse(throttle_time_ms=100, responses=[])
            answer = FetchResponse.PartitionData(
                error_code=self.fetch_error, last_stable_offset=-1 if self.fetch_error else 100
            )
            topic = FetchResponse.FetchableTopicResponse(topic_id=request.topics[0].topic_id, partitions=[answer])
            return FetchResponse(responses=[topic])
        assert isinstance(request, ListOffsetsRequest)
        assert request.replica_id == -2
        partition = ListOffsetsResponse.ListOffsetsPartitionResponse(timestamp=5, offset=self.offset, leader_epoch=3)
        return ListOffsetsResponse(
            topics=[ListOffsetsResponse.ListOffsetsTopicResponse(name="A.orders", partitions=[partition])]
        )

    def look_up(self, *, timestamp: int, isolation: int, replica_id: int = -1) -> tuple[int, int, int]:
        """Return error code, offset and leader epoch of klamm's answer. The high watermark is 110."""
        leader = LeaderPartition("A.orders", UUID(int=7), 0)
        nodes = frozenset({1})
        leader.lead(Leadership(leader_epoch=0, partition_epoch=0, replicas=nodes, live=nodes), 100.0)
        leader.high_watermark = 110
        leader.followers[1] = ReplicaProgress(120, 0, Presence(at=time.monotonic()), log_start_offset=20)
        services: Any = SimpleNamespace(
            is_leased=lambda: True,
            find_by_name=lambda _topic, _partition: leader,
            access=SimpleNamespace(may=lambda *_: True, is_broker=lambda _: False),
            own=self,
        )
        context = cast("ReplicaContext", SimpleNamespace(services=services, session=None))
        wanted = ListOffsetsRequest.ListOffsetsPartition(timestamp=timestamp)
        topic = ListOffsetsRequest.ListOffsetsTopic(name=leader.topic, partitions=[wanted])
        request = ListOffsetsRequest(replica_id=replica_id, isolation_level=isolation, topics=[topic])
        (answer,) = asyncio.run(list_offsets(request, context)).topics[0].partitions
        return answer.error_code, answer.offset, answer.leader_epoch


@pytest.mark.parametrize(
    ("timestamp", "found", "isolation", "replica_id", "offset"),
    [
        pytest.param(-1, 120, 0, -1, 110, id="latest is the high watermark"),
        pytest.param(-1, 120, 1, -1, 100, id="latest under read_committed is the last stable offset"),
        pytest.param(-1, 120, 1, -2, 120, id="latest of a debugging consumer is the log end"),
        pytest.param(7, 109, 0, -1, 109, id="record before the high watermark"),
        pytest.param(7, 110, 0, -1, -1, id="record at the high watermark"),
        pytest.param(7, 99, 1, -1, 99, id="record before the last stable offset"),
        pytest.param(7, 100, 1, -1, -1, id="record at the last stable offset"),
        pytest.param(-3, 115, 0, -1, -1, id="largest timestamp after the high watermark"),
        pytest.param(7, -1, 1, -1, -1, id="no record"),
        pytest.param(-2, 115, 1, -1, 115, id="earliest has no limit"),
    ],
)
def test_offsets_for_consumers_end_where_a_leader_ends_them(
    timestamp: int, found: int, isolation: int, replica_id: int, offset: int
) -> None:
    # given
    replica = Replica(offset=found)
    # when
    answer = replica.look_up(timestamp=timestamp, isolation=isolation, replica_id=replica_id)
    # then
    assert answer == (ErrorCode.NONE, offset, -1 if offset < 0 <= found else 3)


def test_last_stable_offset_is_fetched_as_a_consumer_at_the_high_watermark() -> None:
    # given
    replica = Replica()
    # when
    replica.look_up(timestamp=-1, isolation=1)
    # then
    (request,) = replica.fetches
    assert (request.replica_id, request.replica_state.replica_id, request.session_epoch) == (-1, -1, -1)
    assert (request.isolation_level, request.max_wait_ms) == (1, 0)
    (topic,) = request.topics
    assert (topic.topic, topic.topic_id, topic.partitions[0].fetch_offset) == ("A.orders", UUID(int=7), 110)


def test_unknown_last_stable_offset_is_an_error() -> None:
    # given
    replica = Replica(fetch_error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    # when
    answer = replica.look_up(timestamp=-1, isolation=1)
    # then
    assert answer == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1, -1)


@pytest.mark.parametrize(
    ("timestamp", "found"),
    [
        pytest.param(-1, 120, id="latest"),
        pytest.param(7, 105, id="record in an open transaction"),
    ],
)
def test_offset_is_retried_while_a_throttled_replica_names_no_last_stable_offset(timestamp: int, found: int) -> None:
    """With the high watermark, a consumer would skip the records of the open transaction."""
    # given
    replica = Replica(offset=found, is_throttling=True)
    # when
    answer = replica.look_up(timestamp=timestamp, isolation=1)
    # then
    assert answer == (ErrorCode.LEADER_NOT_AVAILABLE, -1, -1)


# --- the broker itself ------------------------------------------------------------------------------------------------

OWN_ID = 1000
CONFIG_REQUESTS = (DescribeConfigsRequest, AlterConfigsRequest, IncrementalAlterConfigsRequest)


def answer_of(request: Message, version: int, **services: object) -> Any:
    """Return the answer to a frame, by default on a listener that passes no requests on to brokers."""
    frame = memoryview(request_frame(request, version))[4:]
    services = {"relay": ClientRelay(lambda _listener: None), **services}
    shared = SimpleNamespace(node_id=OWN_ID, is_leased=lambda: True, **services)
    session = SimpleNamespace(listener="SASL_SSL", connection_id=1)
    context: Any = SimpleNamespace(services=shared, api_version=version, session=session)
    route = ROUTES[request.API_KEY]
    assert route.api.serves(version)
    return asyncio.run(cast("Any", route.handle(read_request(route, read_request_header(frame), frame), context)))


@pytest.mark.parametrize("version", range(6))
def test_no_groups_are_listed_where_no_requests_are_passed_on(version: int) -> None:
    """Clients list the groups of each broker, and most fail if one closes the connection."""
    assert answer_of(ListGroupsRequest(), version) == ListGroupsResponse()


@pytest.mark.parametrize("version", range(3))
def test_no_transactions_are_listed_where_no_requests_are_passed_on(version: int) -> None:
    assert answer_of(ListTransactionsRequest(), version) == ListTransactionsResponse()


@pytest.mark.parametrize("version", range(1, 6))
def test_log_directory_has_no_replicas(version: int) -> None:
    """Without any directory, the Java client reports CLUSTER_AUTHORIZATION_FAILED."""
    response = answer_of(DescribeLogDirsRequest(topics=None), version)
    (directory,) = response.results
    assert (response.error_code, directory.error_code, directory.topics) == (0, 0, [])
    assert (directory.total_bytes, directory.usable_bytes) == (-1, -1)


def config_request(request: type[Any], kind: ResourceType, name: str) -> Message:
    resource = getattr(request, request.__name__.removesuffix("Request").removeprefix("Incremental") + "Resource")
    message: Message = request(resources=[resource(resource_type=kind, resource_name=name)])
    return message


@pytest.mark.parametrize("version", range(1, 5))
@pytest.mark.parametrize("kind", [ResourceType.BROKER, ResourceType.BROKER_LOGGER])
def test_own_configs_are_empty(kind: ResourceType, version: int) -> None:
    (result,) = answer_of(config_request(DescribeConfigsRequest, kind, str(OWN_ID)), version).results
    assert (result.resource_type, result.resource_name, result.configs) == (kind, str(OWN_ID), [])
    assert (result.error_code, result.error_message) == (ErrorCode.NONE, None)


@pytest.mark.parametrize(
    ("request_type", "version"),
    [
        (AlterConfigsRequest, 0),
        (AlterConfigsRequest, 2),
        (IncrementalAlterConfigsRequest, 0),
        (IncrementalAlterConfigsRequest, 1),
    ],
)
@pytest.mark.parametrize("kind", [ResourceType.BROKER, ResourceType.BROKER_LOGGER])
def test_own_configs_cannot_be_altered(request_type: type[Message], version: int, kind: ResourceType) -> None:
    (result,) = answer_of(config_request(request_type, kind, str(OWN_ID)), version).responses
    assert (result.resource_type, result.resource_name, result.error_code) == (kind, str(OWN_ID), 42)
    assert "properties file" in result.error_message


@pytest.mark.parametrize(
    ("kind", "name"), [(ResourceType.TOPIC, str(OWN_ID)), (ResourceType.BROKER, ""), (ResourceType.BROKER, "1")]
)
@pytest.mark.parametrize("request_type", CONFIG_REQUESTS)
def test_other_configs_are_left_to_real_brokers(request_type: type[Message], kind: ResourceType, name: str) -> None:
    # given
    request = config_request(request_type, kind, name)
    frames: list[bytes] = []

    async def forward(_session: object, frame: bytes) -> memoryview:
        frames.append(frame)
        return memoryview(b"answer")

    # when
    answer = answer_of(request, 1, relay=SimpleNamespace(forward=forward))
    # then
    assert answer.buffers(1) == (b"answer",)
    assert frames == [request_frame(request, 1)[4:]]
    with pytest.raises(ProtocolError, match="listener SASL_SSL passes no requests on"):
        answer_of(request, 1)


def test_producers_of_a_partition_are_those_of_a_replica() -> None:
    # given
    leader = mirrored()
    asked: list[tuple[int, list[int]]] = []

    async def ask(node_id: int, request: DescribeProducersRequest, _: type[Message]) -> DescribeProducersResponse:
        (topic,) = request.topics
        asked.append((node_id, topic.partition_indexes))
        producer = DescribeProducersResponse.ProducerState(producer_id=5)
        partition = DescribeProducersResponse.PartitionResponse(active_producers=[producer])
        return DescribeProducersResponse(
            topics=[DescribeProducersResponse.TopicResponse(name=topic.name, partitions=[partition])]
        )

    def describe(name: str) -> dict[int, tuple[int, list[int]]]:
        topic = DescribeProducersRequest.TopicRequest(name=name, partition_indexes=[0, 1])
        response = answer_of(
            DescribeProducersRequest(topics=[topic]),
            0,
            find_by_name=lambda *key: leader if key == (leader.topic, 0) else None,
            own=SimpleNamespace(ask=ask),
            access=SimpleNamespace(may=lambda _session, _operation, topic: topic == leader.topic),
        )
        (result,) = response.topics
        return {
            each.partition_index: (each.error_code, [producer.producer_id for producer in each.active_producers])
            for each in result.partitions
        }

    # when
    described, denied = describe(leader.topic), describe("B.secret")
    # then
    assert described == {0: (ErrorCode.NONE, [5]), 1: (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])}
    assert denied == dict.fromkeys(range(2), (ErrorCode.TOPIC_AUTHORIZATION_FAILED, []))
    ((node_id, indexes),) = asked
    assert node_id in NODES
    assert indexes == [0]

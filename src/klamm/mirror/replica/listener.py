"""Requests that a broker without storage answers: those of the replicas of its partitions, and those of clients.

=======================  =============================================================================================
Request                  Answer
=======================  =============================================================================================
Fetch of a replica       batches of the source, see ``leader_partition``; TOPIC_AUTHORIZATION_FAILED without
                         CLUSTER_ACTION, as in Kafka, and on other listeners than that of the brokers
Fetch of a consumer      the replica to read from instead (KIP-392), from version 11 on; OFFSET_OUT_OF_RANGE if no
                         replica has the offset or will get it; else NOT_LEADER_OR_FOLLOWER
ListOffsets              log start and end of the source for replicas; for consumers, the answer of a replica, up to
                         the high watermark or the last stable offset
OffsetForLeaderEpoch     the log end for each epoch, for clients that of the longest replica: no log diverges, so none
                         is truncated. After klamm truncated replicas, clients get the end of what was left
Produce, DeleteRecords   POLICY_VIOLATION for partitions that klamm leads, NOT_LEADER_OR_FOLLOWER for others, such as
                         those that were handed over: clients then look for the leader
WriteTxnMarkers          success; nothing is written, because the source's markers are mirrored
ListGroups,              nothing: klamm coordinates no group and no transaction. Clients ask each broker, and most fail
ListTransactions         if one does not answer
DescribeProducers        the answer of a replica for partitions that klamm leads, else NOT_LEADER_OR_FOLLOWER
DescribeLogDirs          one log directory without replicas: the Java client takes none for a lack of rights
DescribeConfigs          no configs of klamm itself as a broker or of its loggers
AlterConfigs,            INVALID_REQUEST for configs of klamm itself as a broker or of its loggers
IncrementalAlterConfigs
ApiVersions              the APIs of a real broker, these ones in the versions above
SaslHandshake,           the login, on listeners with SASL
SaslAuthenticate
any other                the answer of a real broker, see ``relay``
=======================  =============================================================================================

klamm answers as leader only while its lease of the controller lasts. After that, another broker may lead.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from klamm.kafka_client.data.fetch import FetchLimits, WantedRecords, fetch_request
from klamm.lazy_dataclass import dataclass
from klamm.mirror.replica.fetch_sessions import FollowerSession, FollowerSessions
from klamm.mirror.replica.relay import RelayedResponse
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.codec import decode
from klamm.protocol.error_response import error_response, request_class
from klamm.protocol.errors import ErrorCode, ProtocolError
from klamm.protocol.frames import body_position, read_request_header
from klamm.protocol.messages.alter_configs import AlterConfigsRequest
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from klamm.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from klamm.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from klamm.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from klamm.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from klamm.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from klamm.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from klamm.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse
from klamm.protocol.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from klamm.protocol.types import ResourceType
from klamm.security.acls import AclOperation
from klamm.server.context import HandlerContext
from klamm.server.fetch_response import TOPIC_IDS_SINCE, FetchedBody, PartitionRead
from klamm.server.handlers import api_017_sasl_handshake, api_036_sasl_authenticate
from klamm.server.route import Route

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from uuid import UUID

    from klamm.mirror.replica.access import Access
    from klamm.mirror.replica.leader_partition import LeaderPartition
    from klamm.mirror.replica.relay import ClientRelay, OwnClient
    from klamm.protocol.schema import Message

_REPLICA_STATE_SINCE: Final = 15
_PREFERRED_REPLICA_SINCE: Final = 11
_PRODUCE_TOPIC_IDS_SINCE: Final = 13
_CONSUMER: Final = -1
"""Replica id of a consumer's request."""
_DEBUGGING_CONSUMER: Final = -2
"""Replica id of a request that any replica answers, up to its log end."""
_READ_COMMITTED: Final = 1
_NO_RECORDS: Final = FetchLimits(max_bytes=1, partition_max_bytes=1, min_bytes=0, max_wait_ms=0)
_RESOURCES_OF_A_BROKER: Final = frozenset({ResourceType.BROKER, ResourceType.BROKER_LOGGER})
_LATEST: Final = -1
_EARLIEST: Final = frozenset({-2, -4})
"""Timestamps of ListOffsets for the log start. Nothing is tiered here, so the local one is the same."""
_LOG_DIR: Final = "klamm-without-storage"
"""Path in place of that of a log directory."""
_NO_CONFIGS: Final = "klamm has no configs of a broker: change the properties file of the mirror instead"
_READ_ONLY: Final = "klamm mirrors this partition from another cluster, so it is read-only until it is promoted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaServices:
    """Objects that the handlers of one broker share."""

    node_id: int
    """Node id of this broker."""
    sessions: FollowerSessions
    find: Callable[[UUID, int], LeaderPartition | None]
    """Partition by topic id."""
    find_by_name: Callable[[str, int], LeaderPartition | None]
    is_leased: Callable[[], bool]
    """Whether the controller still counts this broker as alive."""
    rack_of: Callable[[int], str | None]
    """Rack of a broker of the target."""
    relay: ClientRelay
    """Connections to real brokers, in the name of clients."""
    own: OwnClient
    """Connections to real brokers, in the name of klamm."""
    access: Access
    """Decides who may do what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaContext(HandlerContext):
    """Context of one request."""

    services: ReplicaServices


def check_lease(services: ReplicaServices) -> None:
    """Check that the lease lasts.

    Raises:
        ProtocolError: It is over. The connection is closed without an answer.
    """
    if not services.is_leased():
        raise ProtocolError("the controller has not confirmed a heartbeat within the session timeout")


# --- Fetch ------------------------------------------------------------------------------------------------------------


async def fetch(request: FetchRequest, context: ReplicaContext) -> FetchedBody:
    """Answer a replica with batches, a consumer with the replica to fetch from."""
    is_new = context.api_version >= _REPLICA_STATE_SINCE
    node_id = request.replica_state.replica_id if is_new else request.replica_id
    if node_id < 0:
        return _send_to_replica(request, context)
    services = context.services
    if not services.access.is_broker(context.session):
        if request.session_epoch > 0:  # it names no partition: without an error, the replica would ask again at once
            return FetchedBody(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return FetchedBody(partitions=list(_rejected(request, ErrorCode.TOPIC_AUTHORIZATION_FAILED)))
    if context.api_version < TOPIC_IDS_SINCE:
        raise ProtocolError(f"Fetch v{context.api_version} of broker {node_id}: expected version 13 or newer")
    check_lease(services)
    now = time.monotonic()
    if request.session_epoch <= 0:
        session = services.sessions.open(request, node_id, now)
        return FetchedBody(session_id=session.session_id, partitions=session.first_answers(request.max_bytes))
    resumed = services.sessions.resume(request, node_id, now)
    if not isinstance(resumed, FollowerSession):
        return FetchedBody(error_code=resumed)
    answers = resumed.answers(request.max_bytes)
    deadline = asyncio.get_running_loop().time() + request.max_wait_ms / 1000
    while not answers:
        try:
            async with asyncio.timeout_at(deadline):
                await resumed.news.wait()
        except TimeoutError:
            break
        check_lease(services)
        answers = resumed.answers(request.max_bytes)
    return FetchedBody(session_id=resumed.session_id, partitions=answers)


def _send_to_replica(request: FetchRequest, context: ReplicaContext) -> FetchedBody:
    services, version = context.services, context.api_version
    answers = list(_rejected(request, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    partitions = (wanted for topic in request.topics for wanted in topic.partitions)
    for answer, wanted in zip(answers, partitions, strict=True):
        leader = (
            services.find_by_name(answer.topic, answer.partition)
            if version < TOPIC_IDS_SINCE
            else services.find(answer.topic_id, answer.partition)
        )
        if leader is None:
            continue
        if not services.access.may(context.session, AclOperation.READ, leader.topic):
            answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            continue
        if version < _PREFERRED_REPLICA_SINCE or not services.is_leased():
            continue
        node_id = _preferred_replica(leader, wanted.fetch_offset, services, rack=request.rack_id)
        if node_id is None:
            answer.error_code = leader.check_client_offset(wanted.fetch_offset, wanted.current_leader_epoch)
            continue
        answer.error_code, answer.preferred_read_replica = ErrorCode.NONE, node_id
        answer.high_watermark = leader.high_watermark  # only a replica knows the last stable offset
        answer.log_start_offset = max(0, leader.log_start)
    return FetchedBody(partitions=answers)


def _rejected(request: FetchRequest, error_code: ErrorCode) -> Iterator[PartitionRead]:
    """Yield the answer with an error code to each partition."""
    for topic in request.topics:
        for wanted in topic.partitions:
            yield PartitionRead(
                topic=topic.topic, topic_id=topic.topic_id, partition=wanted.partition, error_code=error_code
            )


def _preferred_replica(
    leader: LeaderPartition, offset: int | None, services: ReplicaServices, *, rack: str = ""
) -> int | None:
    """Return the most advanced live replica that has an offset (None: any), if possible in a rack. None: there is none.

    A replica without the offset would send the consumer back, again and again (as in Kafka's
    ``ReplicaManager.findPreferredReadReplica``). One that has stopped to fetch is taken only if no other is left.
    """
    leadership = leader.leadership
    if leadership is None or leader.high_watermark < 0 or not services.is_leased():
        return None
    followers, now = leader.followers, time.monotonic()
    live = {node: followers[node] for node in leadership.live if node in followers}
    able = [
        node for node, each in live.items() if offset is None or each.log_start_offset <= offset <= each.fetch_offset
    ]
    fetching = [node for node in able if not live[node].is_silent(now)] or able
    near = [node for node in fetching if rack and services.rack_of(node) == rack]
    return max(near or fetching, key=lambda node: live[node].fetch_offset, default=None)


# --- offsets ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Limit:
    """Limit of an offset that a replica returns."""

    topic_id: UUID
    offset: int
    """High watermark, or last stable offset."""
    is_latest: bool
    """Whether the latest offset is wanted. Otherwise, it is that of a record."""
    error_code: int = ErrorCode.NONE
    """Why the offset is not known."""

    def apply(self, answer: ListOffsetsResponse.ListOffsetsPartitionResponse) -> None:
        """Lower the latest offset, and remove that of a record which the consumer cannot read yet."""
        if answer.error_code or (answer.offset < self.offset and not self.error_code):
            return
        if self.is_latest and not self.error_code:
            answer.offset = self.offset
            return
        answer.error_code = self.error_code
        answer.timestamp = answer.offset = answer.leader_epoch = -1


async def list_offsets(request: ListOffsetsRequest, context: ReplicaContext) -> ListOffsetsResponse:
    """Return log start and end to a replica. For a consumer, ask the replica that it is to read from."""
    services = context.services
    if request.replica_id < 0 or not services.access.is_broker(context.session):
        return await _list_offsets_of_replicas(request, context)
    check_lease(services)
    return ListOffsetsResponse(
        topics=[
            ListOffsetsResponse.ListOffsetsTopicResponse(
                name=topic.name, partitions=[_bound(topic.name, wanted, context) for wanted in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _bound(
    topic: str, wanted: ListOffsetsRequest.ListOffsetsPartition, context: ReplicaContext
) -> ListOffsetsResponse.ListOffsetsPartitionResponse:
    leader = context.services.find_by_name(topic, wanted.partition_index)
    error_code, offset, epoch = ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1
    if leader is not None and leader.leadership is not None:
        if wanted.timestamp == _LATEST:
            error_code, offset = leader.end_offset(wanted.current_leader_epoch)
        elif wanted.timestamp in _EARLIEST:
            error_code, offset = leader.start_offset(wanted.current_leader_epoch)
        epoch = -1 if error_code else leader.leadership.leader_epoch
    return ListOffsetsResponse.ListOffsetsPartitionResponse(
        partition_index=wanted.partition_index, error_code=error_code, timestamp=-1, offset=offset, leader_epoch=epoch
    )


async def _list_offsets_of_replicas(request: ListOffsetsRequest, context: ReplicaContext) -> ListOffsetsResponse:
    """Ask one replica for each partition. Replicas answer only debugging consumers, their leader any consumer.

    They answer these up to their log ends. klamm limits the offsets for a consumer, as a leader does.
    """
    services, response = context.services, ListOffsetsResponse()
    for topic in request.topics:
        result = ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name)
        response.topics.append(result)
        by_node: dict[int, list[ListOffsetsRequest.ListOffsetsPartition]] = {}
        limits: dict[int, _Limit] = {}
        is_allowed = services.access.may(context.session, AclOperation.DESCRIBE, topic.name)
        for wanted in topic.partitions:
            index = wanted.partition_index
            leader = services.find_by_name(topic.name, index)
            node_id = None if leader is None else _preferred_replica(leader, None, services)
            if leader is None or node_id is None or not is_allowed:
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER if is_allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED
                result.partitions.append(
                    ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=index, error_code=code)
                )
                continue
            by_node.setdefault(node_id, []).append(wanted)
            if request.replica_id == _CONSUMER and wanted.timestamp not in _EARLIEST:
                limits[index] = _Limit(leader.topic_id, leader.high_watermark, is_latest=wanted.timestamp == _LATEST)
        for node_id, partitions in by_node.items():
            question = ListOffsetsRequest(
                replica_id=_DEBUGGING_CONSUMER,
                isolation_level=request.isolation_level,
                topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic.name, partitions=partitions)],
                timeout_ms=request.timeout_ms,
            )
            answer = await services.own.ask(node_id, question, ListOffsetsResponse)
            result.partitions += [each for answered in answer.topics for each in answered.partitions]
            limited = [each.partition_index for each in partitions if each.partition_index in limits]
            if limited and request.isolation_level == _READ_COMMITTED:
                at_high_watermark = [
                    WantedRecords(topic.name, limits[each].topic_id, each, limits[each].offset) for each in limited
                ]
                await _lower_to_last_stable(limits, node_id, at_high_watermark, services)
        for each in result.partitions:
            if (limit := limits.get(each.partition_index)) is not None:
                limit.apply(each)
    return response


async def _lower_to_last_stable(
    limits: Mapping[int, _Limit], node_id: int, at_high_watermark: Sequence[WantedRecords], services: ReplicaServices
) -> None:
    """Lower limits of partitions of one topic to the last stable offset.

    A replica names it in the Fetch of a consumer, because it knows the open transactions in its log. It is at most the
    replica's own high watermark. The response names no partition while the fetch quota of klamm's principal is violated
    (Kafka's ``FetchContext.getThrottledResponse``), and after an error of the whole request. Clients then ask again.
    """
    for wanted in at_high_watermark:
        limits[wanted.partition].error_code = ErrorCode.LEADER_NOT_AVAILABLE
    request = fetch_request(at_high_watermark, _NO_RECORDS, read_committed=True)
    response = await services.own.ask(node_id, request, FetchResponse)
    for each in (each for topic in response.responses for each in topic.partitions):
        limit = limits[each.partition_index]
        limit.error_code, limit.offset = each.error_code, min(limit.offset, each.last_stable_offset)


async def describe_producers(request: DescribeProducersRequest, context: ReplicaContext) -> DescribeProducersResponse:
    """Ask one replica for each partition, because klamm does not know the producers in the log."""
    services, response = context.services, DescribeProducersResponse()
    for topic in request.topics:
        result = DescribeProducersResponse.TopicResponse(name=topic.name)
        response.topics.append(result)
        is_allowed = services.access.may(context.session, AclOperation.READ, topic.name)
        by_node: dict[int, list[int]] = {}
        for index in topic.partition_indexes:
            leader = services.find_by_name(topic.name, index)
            node_id = None if leader is None else _preferred_replica(leader, None, services)
            if node_id is not None and is_allowed:
                by_node.setdefault(node_id, []).append(index)
                continue
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER if is_allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED
            result.partitions.append(
                DescribeProducersResponse.PartitionResponse(partition_index=index, error_code=code)
            )
        for node_id, indexes in by_node.items():
            question = DescribeProducersRequest(
                topics=[DescribeProducersRequest.TopicRequest(name=topic.name, partition_indexes=indexes)]
            )
            answer = await services.own.ask(node_id, question, DescribeProducersResponse)
            result.partitions += [each for answered in answer.topics for each in answered.partitions]
    return response


async def offset_for_leader_epoch(
    request: OffsetForLeaderEpochRequest, context: ReplicaContext
) -> OffsetForLeaderEpochResponse:
    """Return the log end for each epoch, so that no log diverges. Clients learn where replicas were truncated."""
    services = context.services
    check_lease(services)
    # Brokers name themselves from version 3 on, and those with metadata.version 4.3 use no older one.
    is_broker = request.replica_id >= 0 and services.access.is_broker(context.session)

    def answer(
        topic: str, wanted: OffsetForLeaderEpochRequest.OffsetForLeaderPartition
    ) -> OffsetForLeaderEpochResponse.EpochEndOffset:
        leader = services.find_by_name(topic, wanted.partition)
        error_code, end_epoch, offset = ErrorCode.NOT_LEADER_OR_FOLLOWER, wanted.leader_epoch, -1
        if not is_broker and not services.access.may(context.session, AclOperation.DESCRIBE, topic):
            error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif leader is not None:
            epoch = max(wanted.current_leader_epoch, wanted.leader_epoch)
            end_offset = leader.end_offset if is_broker else leader.end_offset_for_clients
            error_code, offset = end_offset(wanted.current_leader_epoch)
            if not error_code and leader.leadership is not None and epoch > leader.leadership.leader_epoch:
                error_code, offset = ErrorCode.UNKNOWN_LEADER_EPOCH, -1
            elif not (error_code or is_broker):
                end_epoch, offset = leader.truncated_end(wanted.leader_epoch) or (end_epoch, offset)
        return OffsetForLeaderEpochResponse.EpochEndOffset(
            error_code=error_code,
            partition=wanted.partition,
            leader_epoch=-1 if error_code else end_epoch,
            end_offset=offset,
        )

    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
                topic=topic.topic, partitions=[answer(topic.topic, wanted) for wanted in topic.partitions]
            )
            for topic in request.topics
        ]
    )


# --- writes -----------------------------------------------------------------------------------------------------------


def _is_led(leader: LeaderPartition | None, services: ReplicaServices) -> bool:
    """Return whether klamm leads a partition. A sealed one may have another leader already."""
    return leader is not None and leader.leadership is not None and not leader.is_sealed and services.is_leased()


def _write_error(leader: LeaderPartition | None, services: ReplicaServices) -> ErrorCode:
    """Return the error of a client that writes to a partition. Only with the second one, it looks for the leader."""
    return ErrorCode.POLICY_VIOLATION if _is_led(leader, services) else ErrorCode.NOT_LEADER_OR_FOLLOWER


async def produce(request: ProduceRequest, context: ReplicaContext) -> ProduceResponse:
    """Reject all records."""
    if request.acks == 0:
        raise ProtocolError("a producer with acks=0 writes to a mirrored partition")  # as Kafka: it has no other answer
    services = context.services

    def answer(topic: ProduceRequest.TopicProduceData, index: int) -> ProduceResponse.PartitionProduceResponse:
        has_name = context.api_version < _PRODUCE_TOPIC_IDS_SINCE
        leader = services.find_by_name(topic.name, index) if has_name else services.find(topic.topic_id, index)
        code = _write_error(leader, services)
        return ProduceResponse.PartitionProduceResponse(
            index=index,
            error_code=code,
            base_offset=-1,
            error_message=_READ_ONLY if code == ErrorCode.POLICY_VIOLATION else None,
        )

    return ProduceResponse(
        responses=[
            ProduceResponse.TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[answer(topic, wanted.index) for wanted in topic.partition_data],
            )
            for topic in request.topic_data
        ]
    )


async def delete_records(request: DeleteRecordsRequest, context: ReplicaContext) -> DeleteRecordsResponse:
    """Delete no records."""
    services = context.services
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsResponse.DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    DeleteRecordsResponse.DeleteRecordsPartitionResult(
                        partition_index=wanted.partition_index,
                        low_watermark=-1,
                        error_code=_write_error(services.find_by_name(topic.name, wanted.partition_index), services),
                    )
                    for wanted in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


async def write_txn_markers(request: WriteTxnMarkersRequest, context: ReplicaContext) -> WriteTxnMarkersResponse:
    """Report success without writing for partitions that klamm leads: the coordinator would repeat it forever.

    A sealed partition may have another leader already, which has to write the marker: the coordinator asks again.
    """
    services = context.services
    check_lease(services)
    response = WriteTxnMarkersResponse

    def code(topic: str, partition: int) -> ErrorCode:
        is_led = _is_led(services.find_by_name(topic, partition), services)
        return ErrorCode.NONE if is_led else ErrorCode.NOT_LEADER_OR_FOLLOWER

    return response(
        markers=[
            response.WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    response.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            response.WritableTxnMarkerPartitionResult(
                                partition_index=index, error_code=code(topic.name, index)
                            )
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


# --- the broker itself ------------------------------------------------------------------------------------------------


async def list_groups(request: ListGroupsRequest, context: ReplicaContext) -> ListGroupsResponse:
    """Return no group: none is coordinated here."""
    return ListGroupsResponse()


async def list_transactions(request: ListTransactionsRequest, context: ReplicaContext) -> ListTransactionsResponse:
    """Return no transaction: none is coordinated here."""
    return ListTransactionsResponse()


async def describe_log_dirs(request: DescribeLogDirsRequest, context: ReplicaContext) -> DescribeLogDirsResponse:
    """Return a log directory without replicas and sizes: nothing is stored here."""
    return DescribeLogDirsResponse(results=[DescribeLogDirsResponse.DescribeLogDirsResult(log_dir=_LOG_DIR)])


class _ConfigRequest(NamedTuple):
    """Request for configs, which a real broker answers unless it concerns this broker."""

    frame: bytes
    decoded: DescribeConfigsRequest | AlterConfigsRequest | IncrementalAlterConfigsRequest

    def is_for(self, node_id: int) -> bool:
        """Return whether it concerns a broker or its loggers. Clients send no other resource in the same request."""
        name = str(node_id)
        return all(
            each.resource_type in _RESOURCES_OF_A_BROKER and each.resource_name == name
            for each in self.decoded.resources
        )


async def describe_configs(
    request: _ConfigRequest, context: ReplicaContext
) -> DescribeConfigsResponse | RelayedResponse:
    """Return no configs of this broker, and the answer of a real one for other resources."""
    if not request.is_for(context.services.node_id):
        return await forward(request.frame, context)
    return DescribeConfigsResponse(
        results=[
            DescribeConfigsResponse.DescribeConfigsResult(
                error_message=None, resource_type=each.resource_type, resource_name=each.resource_name
            )
            for each in request.decoded.resources
        ]
    )


async def alter_configs(request: _ConfigRequest, context: ReplicaContext) -> Message | RelayedResponse | None:
    """Reject configs of this broker, and return the answer of a real one for other resources."""
    if not request.is_for(context.services.node_id):
        return await forward(request.frame, context)
    return error_response(request.decoded, context.api_version, ErrorCode.INVALID_REQUEST, _NO_CONFIGS)


# --- requests for a real broker ---------------------------------------------------------------------------------------


async def api_versions(frame: bytes, context: ReplicaContext) -> ApiVersionsResponse:
    """Return the APIs of a real broker, without versions that are not served here.

    Where none can be reached, as before a login, these are all APIs. Relayed requests then close the connection.
    """
    version, relay = context.api_version, context.services.relay
    if not relay.can_forward(context.session):
        return ApiVersionsResponse(api_keys=[*filter(None, map(_schema_versions, ROUTES))])
    response = decode(ApiVersionsResponse, version, await relay.forward(context.session, frame), 0)
    out = []
    for api in response.api_keys:
        route = ROUTES.get(api.api_key)
        if route is not None:
            api.min_version = max(api.min_version, route.api.min_version)
            api.max_version = min(api.max_version, route.api.max_version)
            out.append(api)
    response.api_keys = out
    return response


def _schema_versions(api_key: int) -> ApiVersionsResponse.ApiVersion | None:
    message, api = request_class(api_key), ROUTES[api_key].api
    if message is None:
        return None
    least, largest = message.VERSIONS
    return ApiVersionsResponse.ApiVersion(
        api_key=api_key, min_version=max(least, api.min_version), max_version=min(largest, api.max_version)
    )


async def forward(frame: bytes, context: ReplicaContext) -> RelayedResponse:
    """Return the response of a real broker."""
    return RelayedResponse(await context.services.relay.forward(context.session, frame))


def _whole(_version: int, frame: memoryview, _position: int) -> bytes:
    return bytes(frame)


def _config_request(request: type[Message], version: int, frame: memoryview, _position: int) -> _ConfigRequest:
    start = body_position(frame, read_request_header(frame), flexible=request.is_flexible(version))
    return _ConfigRequest(bytes(frame), cast("Any", decode(request, version, frame, start)))


def _config_route(key: ApiKey, request: type[Message], handle: Any) -> Route:
    api = Api(key=key, min_version=request.VERSIONS[0], max_version=request.VERSIONS[1])
    return Route(api=api, request=request, handle=handle, decode_raw=partial(_config_request, request))


def _route(key: ApiKey, request: type[Message], handle: Any, min_version: int, max_version: int) -> Route:
    api = Api(key=key, min_version=min_version, max_version=max_version)
    return Route(api=api, request=request, handle=handle, may_wait=key is ApiKey.FETCH)


def _relayed(key: ApiKey, handle: Any, max_version: int = 32767) -> Route:
    # The frame is passed on, so the class of the request is not used.
    api = Api(key=key, min_version=0, max_version=max_version)
    return Route(api=api, request=ApiVersionsRequest, handle=handle, decode_raw=_whole)


_OWN: Final = (
    _route(ApiKey.PRODUCE, ProduceRequest, produce, 3, 13),
    _route(ApiKey.FETCH, FetchRequest, fetch, 4, 18),
    _route(ApiKey.LIST_OFFSETS, ListOffsetsRequest, list_offsets, 1, 11),
    _relayed(ApiKey.API_VERSIONS, api_versions, 4),
    _route(ApiKey.DELETE_RECORDS, DeleteRecordsRequest, delete_records, 0, 2),
    _route(ApiKey.OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpochRequest, offset_for_leader_epoch, 2, 4),
    _route(ApiKey.WRITE_TXN_MARKERS, WriteTxnMarkersRequest, write_txn_markers, 1, 2),
    _route(ApiKey.LIST_GROUPS, ListGroupsRequest, list_groups, 0, 5),
    _route(ApiKey.LIST_TRANSACTIONS, ListTransactionsRequest, list_transactions, 0, 2),
    _route(ApiKey.DESCRIBE_PRODUCERS, DescribeProducersRequest, describe_producers, 0, 0),
    _route(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest, describe_log_dirs, 1, 5),
    _config_route(ApiKey.DESCRIBE_CONFIGS, DescribeConfigsRequest, describe_configs),
    _config_route(ApiKey.ALTER_CONFIGS, AlterConfigsRequest, alter_configs),
    _config_route(ApiKey.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest, alter_configs),
    api_017_sasl_handshake.ROUTE,
    api_036_sasl_authenticate.ROUTE,
)
ROUTES: Final[Mapping[int, Route]] = {int(key): _relayed(key, forward) for key in ApiKey} | {
    int(route.api.key): route for route in _OWN
}
"""Handlers by API key."""

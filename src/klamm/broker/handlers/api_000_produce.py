"""Produce (key 0), v3-13; v0-2 are announced, but a request with one of them closes the connection.

One batch per partition. Each partition has its own outcome: an error does not affect the others. Batches are checked
and stamped in place, not copied. Topics are named by name, from v13 on by id.

=====  ==================================================================================================
acks   Response
=====  ==================================================================================================
0      none; an error closes the connection
1, -1  after the append. Both are the same here, because the only replica has the data by then. With
       ``flush.messages``, after the fsync that it requires.
=====  ==================================================================================================

Requests of a client with enforced ``acks`` (``client.config.enforcement``) are served by the stronger of both values.

Versions below 3 are announced because librdkafka up to 2.11.0 drops compressed batches without them, as in Kafka 4.
Clients may not append to internal topics. A transactional batch is accepted when its partition belongs to the
transaction; from v12 on writing adds the partition (KIP-890).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from klamm.broker.requests.checks import may_transactional_id
from klamm.broker.requests.partitions import find_topic, leader_log
from klamm.broker.transactions.admission import (
    ClientAbility,
    NotEnoughReplicasError,
    ProduceAdmission,
    is_transactional,
)
from klamm.client_configs.definitions import ACKS
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import (
    ErrorCode,
    InvalidRecordError,
    InvalidRequiredAcksError,
    InvalidTopicError,
    KafkaApiError,
    ProtocolError,
    StorageError,
    TransactionalIdAuthorizationError,
    UnsupportedCompressionTypeError,
)
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse
from klamm.protocol.records import Codec
from klamm.protocol.records.layout import CODEC_MASK, FLAGS_AT
from klamm.security.acls import AclOperation
from klamm.server.route import Route
from klamm.storage.log import (
    DECOMPRESSED_AT_ONCE,
    InvalidRecordsError,
    InvalidTimestampsError,
    LongBatchError,
    in_records_thread,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from uuid import UUID

    from klamm.broker.context import RequestContext
    from klamm.broker.topics.catalog import Topic
    from klamm.protocol.records import RecordBatch
    from klamm.storage.log import PartitionLog

logger = logging.getLogger(__name__)

API: Final = Api(key=ApiKey.PRODUCE, min_version=0, max_version=13)
_MIN_SERVED: Final = 3
_ZSTD_SINCE: Final = 7
_LEADERS_SINCE: Final = 10
_ABORTABLE_SINCE: Final = 11
_ADDS_SINCE: Final = 12
_TOPIC_IDS_SINCE: Final = 13
_ACKS: Final = frozenset({-1, 0, 1})

PartitionResponse = ProduceResponse.PartitionProduceResponse
_NO_LEADER: Final = ProduceResponse.LeaderIdAndEpoch()
"""Shared by all responses that name no leader. Never modified."""


async def handle(request: ProduceRequest, context: RequestContext) -> ProduceResponse | None:
    """Append every partition's batch.

    Raises:
        ProtocolError: A partition failed and acks is 0. Closing the connection is the only way to report it.
    """
    to_flush: list[tuple[PartitionLog, ProduceResponse.PartitionProduceResponse]] = []
    context.session.reported[ACKS] = request.acks
    acks = context.services.enforcement.acks(request.acks, context.session, context.client_id)
    admission = None if request.transactional_id is None else await _admit(request, context)
    topics = [
        (data, _writable_topic(data, request.transactional_id, acks, context, admission))
        async for data in context.time_slice.over(request.topic_data)
    ]
    await _create_directories(topics, context)
    responses = [
        await _append_topic(data, topic, context, admission, to_flush)
        async for data, topic in context.time_slice.over(topics)
    ]
    if to_flush:
        await _flush(to_flush, context)
    if request.acks == 0:
        rejected = [item for topic in responses for item in topic.partition_responses if item.error_code]
        if rejected:
            raise ProtocolError(f"Produce with acks=0 failed: {ErrorCode(rejected[0].error_code).name}")
        return None
    endpoints = _endpoints(responses, context) if context.api_version >= _LEADERS_SINCE else []
    return ProduceResponse(responses=responses, node_endpoints=endpoints)


async def _admit(request: ProduceRequest, context: RequestContext) -> ProduceAdmission | None:
    """Return the transaction coordinator's admission; None when the principal may not use the transactional id."""
    transactional_id = request.transactional_id or ""
    if not may_transactional_id(context, AclOperation.WRITE, transactional_id):
        return None
    ability = ClientAbility(
        adds=context.api_version >= _ADDS_SINCE,
        knows_abortable=context.api_version >= _ABORTABLE_SINCE,
        retriable=NotEnoughReplicasError,
    )
    admission = ProduceAdmission(context.services.transactions, transactional_id, ability)
    if ability.adds and request.acks in _ACKS:
        slices = context.time_slice
        looked_at = [await slices.listed(_writable(data, context)) async for data in slices.over(request.topic_data)]
        await admission.add([item for of_topic in looked_at for item in of_topic if item is not None], slices)
    return admission


def _writable(
    data: ProduceRequest.TopicProduceData, context: RequestContext
) -> Iterator[tuple[PartitionLog, memoryview] | None]:
    """Yield logs and batches of the partitions of a topic, None for a partition with an error."""
    try:
        topic = _topic(data, context)
    except KafkaApiError:
        return
    for partition in data.partition_data:
        try:
            log = leader_log(context, topic, partition.index)
        except KafkaApiError:
            yield None
        else:
            yield log, memoryview(partition.records or b"")


def _topic(data: ProduceRequest.TopicProduceData, context: RequestContext) -> Topic:
    by_id = context.api_version >= _TOPIC_IDS_SINCE
    topic = find_topic(context, AclOperation.WRITE, name=None if by_id else data.name, topic_id=data.topic_id)
    if topic.is_internal:
        raise InvalidTopicError(f"Cannot append to internal topic {topic.name}")
    return topic


def _writable_topic(
    data: ProduceRequest.TopicProduceData,
    transactional_id: str | None,
    acks: int,
    context: RequestContext,
    admission: ProduceAdmission | None,
) -> Topic | KafkaApiError:
    """Return the topic to append to, or the error for all of its partitions."""
    try:
        if acks not in _ACKS:
            raise InvalidRequiredAcksError(f"acks={acks}: expected -1, 0 or 1")
        if transactional_id is not None and admission is None:
            raise TransactionalIdAuthorizationError("Transactional Id authorization failed.")
        return _topic(data, context)
    except KafkaApiError as error:
        return error.with_traceback(None)  # its traceback refers to this frame, and so to the request


async def _create_directories(
    topics: Sequence[tuple[ProduceRequest.TopicProduceData, Topic | KafkaApiError]], context: RequestContext
) -> None:
    """Create the directories of all partitions that get their first batch, together and in threads."""
    logs = context.services.logs
    new: list[tuple[UUID, int]] = []
    async for data, topic in context.time_slice.over(topics):
        if not isinstance(topic, KafkaApiError):
            topic_id = topic.topic_id
            new += [(topic_id, each.index) for each in data.partition_data if logs.is_new(topic_id, each.index)]
    if new:
        await logs.create_directories(new)


async def _append_topic(
    data: ProduceRequest.TopicProduceData,
    topic: Topic | KafkaApiError,
    context: RequestContext,
    admission: ProduceAdmission | None,
    to_flush: list[tuple[PartitionLog, ProduceResponse.PartitionProduceResponse]],
) -> ProduceResponse.TopicProduceResponse:
    if isinstance(topic, KafkaApiError):
        answers = await context.time_slice.listed(
            _rejected(partition.index, topic) for partition in data.partition_data
        )
    else:
        answers = []
        for partition in data.partition_data:
            await context.time_slice.give_way()
            answers.append(await _append(partition, topic, context, admission, to_flush))
    return ProduceResponse.TopicProduceResponse(name=data.name, topic_id=data.topic_id, partition_responses=answers)


async def _append(
    data: ProduceRequest.PartitionProduceData,
    topic: Topic,
    context: RequestContext,
    admission: ProduceAdmission | None,
    to_flush: list[tuple[PartitionLog, ProduceResponse.PartitionProduceResponse]],
) -> ProduceResponse.PartitionProduceResponse:
    try:
        log = leader_log(context, topic, data.index)
        if not data.records:
            raise InvalidRecordError(f"Produce requests must have exactly one record batch for {log.name}")
        records = memoryview(data.records)
        if context.api_version < _ZSTD_SINCE and _codec(records) == Codec.ZSTD:
            raise UnsupportedCompressionTypeError("Produce requests of v3 to v6 are not allowed to use ZStandard")
        if admission is None and is_transactional(records):
            raise TransactionalIdAuthorizationError("A transactional batch needs a transactional id.")
        if admission is not None:
            admission.check(log, records)  # before the records, as in Kafka: a fenced producer learns that
        batch = await _prepared(log, records)
        if log.is_deleted:  # while a thread checked the batch
            log = leader_log(context, topic, data.index)
        if admission is None:
            result = log.append_prepared(batch)
        else:
            result = log.append_prepared(
                batch, is_verified=admission.check(log, records), begins_at_zero=admission.begins_at_zero
            )
    except KafkaApiError as error:
        answer = _rejected(data.index, error)
        if error.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            answer.current_leader = ProduceResponse.LeaderIdAndEpoch(
                leader_id=context.services.cluster.leader(topic.partitions[data.index]),
                leader_epoch=context.services.cluster.leader_epoch,
            )
        return answer
    answer = PartitionResponse(
        index=data.index,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=log.log_start_offset,
        current_leader=_NO_LEADER,
    )
    if result.needs_flush:
        to_flush.append((log, answer))
    return answer


async def _prepared(log: PartitionLog, records: memoryview) -> RecordBatch:
    """Check a batch by itself. A large one is checked in a thread, so that other requests are served meanwhile.

    Raises:
        KafkaApiError: The batch is rejected.
    """
    if not log.is_long(records):
        try:
            return log.prepare(records, decompress_up_to=DECOMPRESSED_AT_ONCE)
        except LongBatchError:
            pass  # the batch holds more than its header declares
    config = log.config
    return await in_records_thread(lambda _: log.prepare(records, config=config))


async def _flush(
    appended: Sequence[tuple[PartitionLog, ProduceResponse.PartitionProduceResponse]], context: RequestContext
) -> None:
    """Wait for fsync where ``flush.messages`` requires it."""
    for log, answer in appended:
        try:
            await context.services.logs.flush(log)
        except OSError as error:
            rejection = _rejected(answer.index, StorageError(f"Cannot flush {log.name}: {error}"))
            answer.error_code, answer.base_offset = rejection.error_code, rejection.base_offset
            answer.error_message = rejection.error_message


def _codec(records: memoryview) -> int:
    return records[FLAGS_AT] & CODEC_MASK if len(records) > FLAGS_AT else Codec.NONE


def _rejected(index: int, error: KafkaApiError) -> ProduceResponse.PartitionProduceResponse:
    record_errors: Sequence[ProduceResponse.BatchIndexAndErrorMessage] = ()
    if isinstance(error, InvalidRecordsError | InvalidTimestampsError):
        record_errors = [
            ProduceResponse.BatchIndexAndErrorMessage(
                batch_index=record.batch_index, batch_index_error_message=record.message
            )
            for record in error.record_errors
        ]
    if error.error_code is ErrorCode.KAFKA_STORAGE_ERROR:
        logger.error("Produce rejected: %s", error)
    return PartitionResponse(
        index=index,
        error_code=error.error_code,
        base_offset=-1,
        record_errors=list(record_errors),
        error_message=error.error_message,
    )


def _endpoints(
    responses: Sequence[ProduceResponse.TopicProduceResponse], context: RequestContext
) -> list[ProduceResponse.NodeEndpoint]:
    """Return the addresses of the leaders that the response names (KIP-951)."""
    leaders = {
        item.current_leader.leader_id
        for topic in responses
        for item in topic.partition_responses
        if item.current_leader is not _NO_LEADER
    }
    if not leaders:
        return []
    return [
        ProduceResponse.NodeEndpoint(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
        for node in context.services.cluster.nodes_at(context.session.listener)
        if node.node_id in leaders
    ]


ROUTE: Final = Route(api=API, request=ProduceRequest, handle=handle, is_mostly_data=True, rejected_below=_MIN_SERVED)

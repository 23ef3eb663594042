"""AddPartitionsToTxn (key 24), v0-5.

Adds partitions to a producer's transaction, all or none. When one partition fails, the others get
OPERATION_NOT_ATTEMPTED. Topics require WRITE.

========  ===================  ====================================================  ================================
Versions  Sender               Content                                               Requires
========  ===================  ====================================================  ================================
v0-3      producers            one transaction                                       WRITE on the transactional id
v4-5      brokers              several transactions; ``verify_only`` only checks     CLUSTER_ACTION on the cluster
========  ===================  ====================================================  ================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.broker.requests.checks import may_cluster, may_topic, may_transactional_id, require_coordinator
from klamm.broker.transactions.model import TransactionAbortableError, TransactionPartition
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from klamm.protocol.types import ProducerIdentity
from klamm.security.acls import AclOperation
from klamm.server.route import Route

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.ADD_PARTITIONS_TO_TXN, min_version=0, max_version=5)
_BATCHES_SINCE: Final = 4
_FENCED_SINCE: Final = 2
"""First version with PRODUCER_FENCED; older clients know only INVALID_PRODUCER_EPOCH."""

PartitionResult = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult
TopicResult = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
TransactionResult = AddPartitionsToTxnResponse.AddPartitionsToTxnResult


class Place(NamedTuple):
    """Partition by topic name."""

    topic: str
    partition: int


async def handle(request: AddPartitionsToTxnRequest, context: RequestContext) -> AddPartitionsToTxnResponse:
    """Return one entry per partition of each transaction."""
    if context.api_version < _BATCHES_SINCE:
        transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
        denied = not may_transactional_id(context, AclOperation.WRITE, transaction.transactional_id)
        codes = await _codes(transaction, context, is_denied=denied)
        return AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=await _results(transaction.topics, codes, context)
        )
    if not may_cluster(context, AclOperation.CLUSTER_ACTION):
        return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            TransactionResult(
                transactional_id=transaction.transactional_id,
                topic_results=await _results(
                    transaction.topics, await _codes(transaction, context, is_denied=False), context
                ),
            )
            async for transaction in context.time_slice.over(request.transactions)
        ]
    )


async def _codes(
    transaction: AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction, context: RequestContext, *, is_denied: bool
) -> Mapping[Place, ErrorCode]:
    slices = context.time_slice
    wanted = await slices.listed(Place(topic.name, index) for topic in transaction.topics for index in topic.partitions)
    if is_denied:
        return dict.fromkeys(wanted, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    places = {place: _find(place, context) async for place in slices.over(wanted)}
    partitions = {place: item for place, item in places.items() if isinstance(item, TransactionPartition)}
    rejected = {place: item for place, item in places.items() if isinstance(item, ErrorCode)}
    if rejected:
        return dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED) | rejected
    transactions = context.services.transactions
    producer = ProducerIdentity(transaction.producer_id, transaction.producer_epoch)
    try:
        require_coordinator(transaction.transactional_id, context.node_id, context.services.cluster)
        if transaction.verify_only:
            name = transaction.transactional_id
            return {
                place: _verify(name, producer, item, context) async for place, item in slices.over(partitions.items())
            }
        await transactions.add(transaction.transactional_id, producer, partitions=frozenset(partitions.values()))
        # Each partition gets at least a marker, which would create its directory on the event loop.
        logs = context.services.logs
        new = await slices.listed(
            (topic_id, index) for topic_id, index in partitions.values() if logs.is_new(topic_id, index)
        )
        await logs.create_directories(new)
    except KafkaApiError as error:
        return dict.fromkeys(partitions, _code_for_version(error.error_code, context))
    return dict.fromkeys(partitions, ErrorCode.NONE)


def _find(place: Place, context: RequestContext) -> TransactionPartition | ErrorCode:
    topic = context.services.topics.get(place.topic)
    if not may_topic(context, AclOperation.WRITE, place.topic) or (topic is not None and topic.is_internal):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if topic is None or not topic.has_partition(place.partition):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return TransactionPartition(topic.topic_id, place.partition)


def _verify(
    transactional_id: str, producer: ProducerIdentity, partition: TransactionPartition, context: RequestContext
) -> ErrorCode:
    try:
        context.services.transactions.verify(transactional_id, producer, partition)
    except TransactionAbortableError as error:
        return error.error_code
    return ErrorCode.NONE


def _code_for_version(code: ErrorCode, context: RequestContext) -> ErrorCode:
    is_old = context.api_version < _FENCED_SINCE
    return ErrorCode.INVALID_PRODUCER_EPOCH if is_old and code is ErrorCode.PRODUCER_FENCED else code


async def _results(
    topics: Sequence[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic],
    codes: Mapping[Place, ErrorCode],
    context: RequestContext,
) -> list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult]:
    return [
        TopicResult(
            name=topic.name,
            results_by_partition=await context.time_slice.listed(
                PartitionResult(partition_index=index, partition_error_code=codes[Place(topic.name, index)])
                for index in topic.partitions
            ),
        )
        async for topic in context.time_slice.over(topics)
    ]


ROUTE: Final = Route(api=API, request=AddPartitionsToTxnRequest, handle=handle)

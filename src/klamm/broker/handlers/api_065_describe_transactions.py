"""DescribeTransactions (key 65), v0.

Returns state, producer and partitions of transactional ids (KIP-664). As in Kafka, a group whose offsets belong to the
transaction appears as its partition of ``__consumer_offsets``. Requires DESCRIBE on each transactional id; topics
without DESCRIBE are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.cluster import partition_for
from klamm.broker.requests.checks import may_topic, may_transactional_id, require_coordinator
from klamm.configs.names import CONSUMER_OFFSETS
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import TransactionalIdAuthorizationError
from klamm.protocol.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from klamm.security.acls import AclOperation
from klamm.server.attempt import attempt
from klamm.server.route import Route

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext
    from klamm.broker.transactions.model import Transaction

API: Final = Api(key=ApiKey.DESCRIBE_TRANSACTIONS, min_version=0, max_version=0)

TransactionState = DescribeTransactionsResponse.TransactionState


async def handle(request: DescribeTransactionsRequest, context: RequestContext) -> DescribeTransactionsResponse:
    """Return one entry per transactional id."""
    return DescribeTransactionsResponse(
        transaction_states=[
            await _describe(name, context) async for name in context.time_slice.over(request.transactional_ids)
        ]
    )


async def _describe(transactional_id: str, context: RequestContext) -> DescribeTransactionsResponse.TransactionState:
    async def find() -> Transaction:
        if not may_transactional_id(context, AclOperation.DESCRIBE, transactional_id):
            raise TransactionalIdAuthorizationError
        require_coordinator(transactional_id, context.node_id, context.services.cluster)
        return context.services.transactions.describe(transactional_id)

    transaction, error = await attempt(find, api=API.key)
    if transaction is None:
        return TransactionState(transactional_id=transactional_id, error_code=error.error_code)
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=transaction.state.value,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.started_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=[
            DescribeTransactionsResponse.TopicData(topic=topic, partitions=sorted(partitions))
            for topic, partitions in sorted(_partitions(transaction, context).items())
        ],
    )


def _partitions(transaction: Transaction, context: RequestContext) -> dict[str, set[int]]:
    partitions: dict[str, set[int]] = {}
    for item in transaction.partitions:
        topic = context.services.topics.by_id(item.topic_id)
        if topic is not None and may_topic(context, AclOperation.DESCRIBE, topic.name):
            partitions.setdefault(topic.name, set()).add(item.partition)
    if transaction.groups and may_topic(context, AclOperation.DESCRIBE, CONSUMER_OFFSETS):
        partitions[CONSUMER_OFFSETS] = {partition_for(group) for group in transaction.groups}
    return partitions


ROUTE: Final = Route(api=API, request=DescribeTransactionsRequest, handle=handle)

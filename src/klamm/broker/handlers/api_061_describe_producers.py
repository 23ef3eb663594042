"""DescribeProducers (key 61), v0.

Returns the idempotent and transactional producers of a partition, each with the start offset of its open transaction
(KIP-664). Requires READ on the topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.requests.checks import require_topic
from klamm.broker.requests.partitions import find_topic, leader_log
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from klamm.security.acls import AclOperation
from klamm.server.attempt import attempt
from klamm.server.route import Route

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext
    from klamm.storage.log import PartitionLog

API: Final = Api(key=ApiKey.DESCRIBE_PRODUCERS, min_version=0, max_version=0)
PartitionResponse = DescribeProducersResponse.PartitionResponse


async def handle(request: DescribeProducersRequest, context: RequestContext) -> DescribeProducersResponse:
    """Return one entry per partition."""
    return DescribeProducersResponse(
        topics=[
            DescribeProducersResponse.TopicResponse(
                name=topic.name,
                partitions=[
                    await _partition(topic.name, index, context)
                    async for index in context.time_slice.over(topic.partition_indexes)
                ],
            )
            async for topic in context.time_slice.over(request.topics)
        ]
    )


async def _partition(name: str, index: int, context: RequestContext) -> DescribeProducersResponse.PartitionResponse:
    async def describe() -> list[DescribeProducersResponse.ProducerState]:
        require_topic(context, AclOperation.READ, name)
        return _producers(leader_log(context, find_topic(context, AclOperation.READ, name=name), index))

    producers, error = await attempt(describe, api=API.key)
    if producers is None:
        return PartitionResponse(partition_index=index, error_code=error.error_code, error_message=error.error_message)
    return PartitionResponse(partition_index=index, active_producers=producers)


def _producers(log: PartitionLog) -> list[DescribeProducersResponse.ProducerState]:
    return [
        DescribeProducersResponse.ProducerState(
            producer_id=producer_id,
            producer_epoch=state.epoch,
            last_sequence=state.last_sequence,
            last_timestamp=state.last_timestamp,
            coordinator_epoch=state.coordinator_epoch,
            current_txn_start_offset=log.producers.open_offset_of(producer_id),
        )
        for producer_id, state in log.producers.items()
    ]


ROUTE: Final = Route(api=API, request=DescribeProducersRequest, handle=handle)

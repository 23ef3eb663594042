"""OffsetDelete (key 47), v0 (KIP-496).

Deletes committed offsets of partitions that the group does not use. An error of the group is the top-level error. An
unknown topic, or one that the group is subscribed to (GROUP_SUBSCRIBED_TO_TOPIC), is an error of its partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.groups.errors import check_group_id
from klamm.broker.requests.checks import may_topic, require_coordinator, require_group
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from klamm.security.acls import AclOperation
from klamm.server.route import Route

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.OFFSET_DELETE, min_version=0, max_version=0)


async def handle(request: OffsetDeleteRequest, context: RequestContext) -> OffsetDeleteResponse:
    """Delete the offsets of all valid partitions."""
    slices = context.time_slice
    partitions = await slices.listed(
        (topic.name, partition.partition_index) for topic in request.topics for partition in topic.partitions
    )
    try:
        require_group(context, AclOperation.DELETE, request.group_id)
        check_group_id(request.group_id)
        require_coordinator(request.group_id, context.node_id, context.services.cluster)
        denied = {
            topic.name
            async for topic in slices.over(request.topics)
            if not may_topic(context, AclOperation.READ, topic.name)
        }
        allowed = await slices.listed(partition for partition in partitions if partition[0] not in denied)
        deleted = iter(await context.services.groups.offsets.delete(request.group_id, allowed, time_slice=slices))
    except KafkaApiError as error:
        return OffsetDeleteResponse(error_code=error.error_code)
    codes = (ErrorCode.TOPIC_AUTHORIZATION_FAILED if name in denied else next(deleted) for name, _ in partitions)
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponse.OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=await slices.listed(
                    OffsetDeleteResponse.OffsetDeleteResponsePartition(
                        partition_index=partition.partition_index, error_code=next(codes)
                    )
                    for partition in topic.partitions
                ),
            )
            async for topic in slices.over(request.topics)
        ]
    )


ROUTE: Final = Route(api=API, request=OffsetDeleteRequest, handle=handle)

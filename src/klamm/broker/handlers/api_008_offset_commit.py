"""OffsetCommit (key 8), v2-10.

One entry per partition, in the order of the request. Without READ on the group, every partition has only that error.
Unknown topics and partitions are rejected before the group is checked; an error of the group applies to every other
partition. The response is sent when the offsets are durable. v2-4 may contain their own retention time. v9 returns
GROUP_ID_NOT_FOUND where older versions return ILLEGAL_GENERATION. v10 has topic ids instead of names. A member of a
consumer group that is behind may commit offsets if it had all of the partitions at the epoch that it sends (KIP-1251).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.groups.offset_coordinator import Committer
from klamm.broker.requests.checks import require_coordinator, require_group
from klamm.broker.requests.offset_commits import commit_permitted, requested_offsets
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from klamm.security.acls import AclOperation
from klamm.server.route import Route

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from klamm.broker.context import RequestContext
    from klamm.broker.groups.offsets import OffsetToCommit

API: Final = Api(key=ApiKey.OFFSET_COMMIT, min_version=2, max_version=10)
_TOPIC_IDS_SINCE: Final = 10


async def handle(request: OffsetCommitRequest, context: RequestContext) -> OffsetCommitResponse:
    """Commit the offsets of all valid partitions."""
    offsets = await requested_offsets(request, context, has_topic_ids=context.api_version >= _TOPIC_IDS_SINCE)
    try:
        require_group(context, AclOperation.READ, request.group_id)
    except KafkaApiError as error:
        return await _response(request, iter([error.error_code] * len(offsets)), context)
    codes = await commit_permitted(offsets, context, lambda permitted: _commit(request, permitted, context))
    return await _response(request, codes, context)


async def _commit(
    request: OffsetCommitRequest, offsets: Sequence[OffsetToCommit], context: RequestContext
) -> Sequence[ErrorCode]:
    try:
        require_coordinator(request.group_id, context.node_id, context.services.cluster)
    except KafkaApiError as error:
        return [error.error_code] * len(offsets)
    return await context.services.groups.offsets.commit(
        Committer(
            group_id=request.group_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            generation_id=request.generation_id_or_member_epoch,
        ),
        offsets,
        retention_ms=request.retention_time_ms,
        api_version=context.api_version,
        time_slice=context.time_slice,
    )


async def _response(
    request: OffsetCommitRequest, codes: Iterator[ErrorCode], context: RequestContext
) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponse.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=await context.time_slice.listed(
                    OffsetCommitResponse.OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=next(codes)
                    )
                    for partition in topic.partitions
                ),
            )
            async for topic in context.time_slice.over(request.topics)
        ]
    )


ROUTE: Final = Route(api=API, request=OffsetCommitRequest, handle=handle)

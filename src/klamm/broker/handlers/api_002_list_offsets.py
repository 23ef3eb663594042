"""ListOffsets (key 2), v1-11.

=========  ========  =============================================================================
Timestamp  Versions  Offset returned
=========  ========  =============================================================================
0 or more  all       first offset whose timestamp is equal or later
-1         all       latest
-2         all       earliest
-3         v7+       offset of the largest timestamp in the remaining segments (KIP-734). As in Kafka, it is
                     below the earliest offset if DeleteRecords has deleted the record and its segment remains
-4         v8+       earliest local: the same as earliest
-5         v9+       latest tiered: none, because there is no tiered storage
-6         v11+      earliest to be tiered (KIP-1023): none either
=========  ========  =============================================================================

The leader epoch in the response is that of the record. read_committed ignores records from the last stable offset on.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from klamm.broker.requests.checks import require_topic
from klamm.broker.requests.partitions import find_topic, leader_log
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import InvalidRequestError, UnsupportedVersionError
from klamm.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from klamm.security.acls import AclOperation
from klamm.server.attempt import attempt
from klamm.server.route import Route
from klamm.storage.log import TimestampOffset, offset_for_timestamp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.LIST_OFFSETS, min_version=1, max_version=11)
_READ_COMMITTED: Final = 1
_SPECIAL_SINCE: Final[Mapping[int, int]] = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11}
"""First version of each special timestamp."""

Wanted = ListOffsetsRequest.ListOffsetsPartition
Answer = ListOffsetsResponse.ListOffsetsPartitionResponse


async def handle(request: ListOffsetsRequest, context: RequestContext) -> ListOffsetsResponse:
    """Return one entry per partition. An error does not affect other partitions."""
    counts = Counter((topic.name, wanted.partition_index) for topic in request.topics for wanted in topic.partitions)
    return ListOffsetsResponse(
        topics=[
            ListOffsetsResponse.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    await _answer(
                        topic.name,
                        wanted,
                        context,
                        repeated=counts[topic.name, wanted.partition_index] > 1,
                        is_committed=request.isolation_level == _READ_COMMITTED,
                    )
                    async for wanted in context.time_slice.over(topic.partitions)
                ],
            )
            for topic in request.topics
        ]
    )


async def _answer(
    topic: str,
    wanted: ListOffsetsRequest.ListOffsetsPartition,
    context: RequestContext,
    *,
    repeated: bool,
    is_committed: bool,
) -> ListOffsetsResponse.ListOffsetsPartitionResponse:
    async def find() -> TimestampOffset:
        require_topic(context, AclOperation.DESCRIBE, topic)
        if repeated:
            raise InvalidRequestError(f"{topic}-{wanted.partition_index} is asked for more than once")
        return await _find(topic, wanted, context, is_committed=is_committed)

    timestamp_offset, error = await attempt(find, api=API.key)
    if timestamp_offset is None:
        return Answer(partition_index=wanted.partition_index, error_code=error.error_code)
    return Answer(
        partition_index=wanted.partition_index,
        timestamp=timestamp_offset.timestamp,
        offset=timestamp_offset.offset,
        leader_epoch=timestamp_offset.leader_epoch,
    )


async def _find(
    topic: str, wanted: ListOffsetsRequest.ListOffsetsPartition, context: RequestContext, *, is_committed: bool
) -> TimestampOffset:
    if wanted.timestamp < 0 and context.api_version < _SPECIAL_SINCE.get(wanted.timestamp, context.api_version + 1):
        raise UnsupportedVersionError(f"ListOffsets v{context.api_version} has no timestamp {wanted.timestamp}")
    log = leader_log(
        context,
        find_topic(context, AclOperation.DESCRIBE, name=topic),
        wanted.partition_index,
        current_leader_epoch=wanted.current_leader_epoch,
    )
    return await offset_for_timestamp(log, wanted.timestamp, is_committed=is_committed)


ROUTE: Final = Route(api=API, request=ListOffsetsRequest, handle=handle)

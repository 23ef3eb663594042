"""OffsetForLeaderEpoch (key 23), v2-4.

Returns the end offset of a leader epoch (KIP-101, KIP-320), by which a consumer detects a truncated log. For an unknown
epoch, epoch and offset are -1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.requests.partitions import find_topic, leader_log
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from klamm.security.acls import AclOperation
from klamm.server.attempt import attempt
from klamm.server.route import Route

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext
    from klamm.storage.log.directories import EpochStart

API: Final = Api(key=ApiKey.OFFSET_FOR_LEADER_EPOCH, min_version=2, max_version=4)

Answer = OffsetForLeaderEpochResponse.EpochEndOffset


async def handle(request: OffsetForLeaderEpochRequest, context: RequestContext) -> OffsetForLeaderEpochResponse:
    """Return one entry per partition. An error does not affect other partitions."""
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    await _answer(topic.topic, wanted, context)
                    async for wanted in context.time_slice.over(topic.partitions)
                ],
            )
            for topic in request.topics
        ]
    )


async def _answer(
    topic: str, wanted: OffsetForLeaderEpochRequest.OffsetForLeaderPartition, context: RequestContext
) -> OffsetForLeaderEpochResponse.EpochEndOffset:
    async def find() -> EpochStart:
        described = find_topic(context, AclOperation.DESCRIBE, name=topic)
        log = leader_log(context, described, wanted.partition, current_leader_epoch=wanted.current_leader_epoch)
        return log.end_offset_for_epoch(wanted.leader_epoch)

    end, error = await attempt(find, api=API.key)
    if end is None:
        return Answer(partition=wanted.partition, error_code=error.error_code)
    return Answer(partition=wanted.partition, leader_epoch=end.epoch, end_offset=end.start_offset)


ROUTE: Final = Route(api=API, request=OffsetForLeaderEpochRequest, handle=handle)

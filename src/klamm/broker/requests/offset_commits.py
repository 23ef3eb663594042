"""Common part of OffsetCommit and TxnOffsetCommit: offsets by topic, filtered by the READ permission."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.broker.groups.offsets import OffsetToCommit
from klamm.broker.requests.checks import may_topic
from klamm.protocol.errors import ErrorCode
from klamm.security.acls import AclOperation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from uuid import UUID

    from klamm.broker.context import RequestContext
    from klamm.protocol.messages.offset_commit import OffsetCommitRequest
    from klamm.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest


async def requested_offsets(
    request: OffsetCommitRequest | TxnOffsetCommitRequest, context: RequestContext, *, has_topic_ids: bool
) -> list[OffsetToCommit]:
    """Return the offsets of a request, in its order.

    Args:
        request: The request.
        context: Context of the request.
        has_topic_ids: Whether this version of the request has topic ids instead of names.
    """
    return await context.time_slice.listed(
        OffsetToCommit(
            topic=topic_name(topic.topic_id, context) if has_topic_ids else topic.name,
            partition=partition.partition_index,
            offset=partition.committed_offset,
            leader_epoch=partition.committed_leader_epoch,
            metadata=partition.committed_metadata or "",
            topic_id=topic.topic_id if has_topic_ids else None,
        )
        for topic in request.topics
        for partition in topic.partitions
    )


def topic_name(topic_id: UUID, context: RequestContext) -> str:
    """Return the name of a topic; empty if no topic has this id."""
    topic = context.services.topics.by_id(topic_id)
    return "" if topic is None else topic.name


async def commit_permitted(
    offsets: Sequence[OffsetToCommit],
    context: RequestContext,
    commit: Callable[[Sequence[OffsetToCommit]], Awaitable[Sequence[ErrorCode]]],
) -> Iterator[ErrorCode]:
    """Commit the offsets of topics that the principal may READ, and return one error code per offset, in order.

    Offsets with an unknown topic id need no permission: ``commit`` rejects them.

    Args:
        offsets: All offsets of the request.
        context: Context of the request.
        commit: Function that commits the permitted offsets and returns their error codes.
    """
    # One check per topic, which may have many partitions.
    names = {offset.topic for offset in offsets if offset.topic or offset.topic_id is None}
    denied = {name async for name in context.time_slice.over(names) if not may_topic(context, AclOperation.READ, name)}
    codes = iter(await commit([offset for offset in offsets if offset.topic not in denied] if denied else offsets))
    return (ErrorCode.TOPIC_AUTHORIZATION_FAILED if offset.topic in denied else next(codes) for offset in offsets)

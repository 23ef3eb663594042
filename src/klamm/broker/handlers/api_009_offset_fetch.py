"""OffsetFetch (key 9), v1-9.

v1-7 ask for one group, v8-9 for several; a group that cannot answer does not fail the others. No topics (null, v2+)
means everything the group has committed. Where nothing is committed, also in a group that does not exist, the offset
is -1. With ``require_stable`` a partition whose offset an open transaction may still change is answered with
UNSTABLE_OFFSET_COMMIT (KIP-447). Needs DESCRIBE on the group and on each topic.
Not done here: topic ids (v10), which Kafka 4.1 does not offer either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.broker.groups.offsets import NO_OFFSET
from klamm.broker.groups.placement import require_coordinator
from klamm.broker.route import Route
from klamm.broker.security.checks import may_topic, require_group
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from klamm.security.acls import AclOperation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.broker.context import RequestContext
    from klamm.broker.groups.commits import FetchedOffsets

API: Final = Api(key=ApiKey.OFFSET_FETCH, min_version=1, max_version=9)
FIRST_VERSION_WITH_GROUPS: Final = 8
FIRST_VERSION_WITH_ERROR_CODE: Final = 2
NO_LEADER_EPOCH: Final = -1


async def handle(request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
    """Answer per group."""
    if context.api_version < FIRST_VERSION_WITH_GROUPS:
        return await _answer_one_group(request, context)
    groups = []
    async for group in context.time_slice.over(request.groups):
        topics = None if group.topics is None else [(topic.name, topic.partition_indexes) for topic in group.topics]
        try:
            fetched, refused = await _fetch(group.group_id, topics, request, context)
        except KafkaApiError as error:
            groups.append(
                OffsetFetchResponse.OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.error_code)
            )
        else:
            groups.append(
                OffsetFetchResponse.OffsetFetchResponseGroup(group_id=group.group_id, topics=_topics(fetched, refused))
            )
    return OffsetFetchResponse(groups=groups)


async def _answer_one_group(request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
    topics = None if request.topics is None else [(topic.name, topic.partition_indexes) for topic in request.topics]
    error_code, refused = ErrorCode.NONE, Refusals()
    try:
        fetched, refused = await _fetch(request.group_id, topics, request, context)
    except KafkaApiError as error:
        error_code = error.error_code
        # v1 has no other place for an error than its partitions.
        fetched = (
            ()
            if context.api_version >= FIRST_VERSION_WITH_ERROR_CODE
            else tuple(
                (name, tuple((partition, None) for partition in partitions)) for name, partitions in topics or ()
            )
        )
    return OffsetFetchResponse(error_code=error_code, topics=_topics_of_one_group(fetched, refused, error_code))


class Refusals(NamedTuple):
    """What is not answered with an offset."""

    denied: frozenset[str] = frozenset()
    """Topics that may not be seen."""
    unstable: frozenset[tuple[str, int]] = frozenset()
    """Partitions whose offset an open transaction may still change."""

    def code(self, topic: str, partition: int) -> ErrorCode:
        """Return what a partition is answered with."""
        if topic in self.denied:
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return ErrorCode.UNSTABLE_OFFSET_COMMIT if (topic, partition) in self.unstable else ErrorCode.NONE


async def _fetch(
    group_id: str,
    topics: Sequence[tuple[str, Sequence[int]]] | None,
    request: OffsetFetchRequest,
    context: RequestContext,
) -> tuple[FetchedOffsets, Refusals]:
    """Return what is committed, and what is refused; topics not to be seen are left out when all were asked for."""
    require_group(context, AclOperation.DESCRIBE, group_id)
    require_coordinator(group_id, context.node_id, context.services.cluster.node_ids)
    offsets = context.services.groups.offsets
    if topics is None:
        everything = await offsets.fetch(group_id, None)
        seen = tuple(topic for topic in everything if may_topic(context, AclOperation.DESCRIBE, topic[0]))
        return _stable(group_id, seen, request, context)
    denied = frozenset(name for name, _ in topics if not may_topic(context, AclOperation.DESCRIBE, name))
    fetched = await offsets.fetch(group_id, [topic for topic in topics if topic[0] not in denied])
    hidden = tuple((name, tuple((index, None) for index in indexes)) for name, indexes in topics if name in denied)
    known, refused = _stable(group_id, fetched, request, context)
    return (*known, *hidden), refused._replace(denied=denied)


def _stable(
    group_id: str, fetched: FetchedOffsets, request: OffsetFetchRequest, context: RequestContext
) -> tuple[FetchedOffsets, Refusals]:
    """Take out what is not stable, if that is asked for."""
    if not request.require_stable:
        return fetched, Refusals()
    unstable = context.services.groups.offsets.unstable(group_id, fetched)
    if unstable:
        fetched = tuple(
            (name, tuple((index, None if (name, index) in unstable else commit) for index, commit in commits))
            for name, commits in fetched
        )
    return fetched, Refusals(unstable=unstable)


def _topics(fetched: FetchedOffsets, refused: Refusals) -> list[OffsetFetchResponse.OffsetFetchResponseTopics]:
    return [
        OffsetFetchResponse.OffsetFetchResponseTopics(
            name=name,
            partitions=[
                OffsetFetchResponse.OffsetFetchResponsePartitions(
                    partition_index=partition,
                    committed_offset=NO_OFFSET if commit is None else commit.offset,
                    committed_leader_epoch=NO_LEADER_EPOCH if commit is None else commit.leader_epoch,
                    metadata="" if commit is None else commit.metadata,
                    error_code=refused.code(name, partition),
                )
                for partition, commit in partitions
            ],
        )
        for name, partitions in fetched
    ]


def _topics_of_one_group(
    fetched: FetchedOffsets, refused: Refusals, error_code: ErrorCode
) -> list[OffsetFetchResponse.OffsetFetchResponseTopic]:
    return [
        OffsetFetchResponse.OffsetFetchResponseTopic(
            name=name,
            partitions=[
                OffsetFetchResponse.OffsetFetchResponsePartition(
                    partition_index=partition,
                    committed_offset=NO_OFFSET if commit is None else commit.offset,
                    committed_leader_epoch=NO_LEADER_EPOCH if commit is None else commit.leader_epoch,
                    metadata="" if commit is None else commit.metadata,
                    error_code=refused.code(name, partition) or error_code,
                )
                for partition, commit in partitions
            ],
        )
        for name, partitions in fetched
    ]


ROUTE: Final = Route(api=API, request=OffsetFetchRequest, handle=handle)

"""OffsetFetch (key 9), v1-10.

v1-7 name one group, v8-10 several; an error of one group does not affect the others. Null topics (v2+) mean all
committed offsets of the group. A partition without a committed offset has offset -1, also when the group does not
exist. With ``require_stable``, a partition whose offset an open transaction may change has the error
UNSTABLE_OFFSET_COMMIT (KIP-447). v10 has topic ids instead of names. Requires DESCRIBE on the group and on each topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from klamm.broker.groups.offsets import NO_OFFSET
from klamm.broker.requests.checks import may_topic, require_coordinator, require_group
from klamm.broker.requests.offset_commits import topic_name
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from klamm.protocol.primitives import ZERO_UUID
from klamm.security.acls import AclOperation
from klamm.server.route import Route
from klamm.storage.metadata.changes import PutGroupOffset

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from uuid import UUID

    from klamm.broker.context import RequestContext
    from klamm.broker.groups.offset_coordinator import FetchedOffset

API: Final = Api(key=ApiKey.OFFSET_FETCH, min_version=1, max_version=10)
FIRST_VERSION_WITH_GROUPS: Final = 8
FIRST_VERSION_WITH_ERROR_CODE: Final = 2
FIRST_VERSION_WITH_TOPIC_IDS: Final = 10
NO_LEADER_EPOCH: Final = -1

Partition = TypeVar(
    "Partition", OffsetFetchResponse.OffsetFetchResponsePartition, OffsetFetchResponse.OffsetFetchResponsePartitions
)
"""Partition in a response of v1-7 or of v8-10."""


async def handle(request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
    """Return the committed offsets of each group."""
    if context.api_version < FIRST_VERSION_WITH_GROUPS:
        return await _answer_one_group(request, context)
    groups = []
    async for group in context.time_slice.over(request.groups):
        topics = None
        if group.topics is not None:
            topics = await context.time_slice.listed(_requested(topic, context) for topic in group.topics)
        try:
            require_group(context, AclOperation.DESCRIBE, group.group_id)
            context.services.groups.offsets.admit_fetch(group.group_id, group.member_id, group.member_epoch)
            fetched = await _fetch(group.group_id, topics, request, context)
        except KafkaApiError as error:
            groups.append(
                OffsetFetchResponse.OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.error_code)
            )
        else:
            groups.append(
                OffsetFetchResponse.OffsetFetchResponseGroup(
                    group_id=group.group_id, topics=await _topics(fetched, context)
                )
            )
    return OffsetFetchResponse(groups=groups)


async def _answer_one_group(request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
    topics = None
    if request.topics is not None:
        topics = await context.time_slice.listed(
            Requested(topic.name, ZERO_UUID, topic.partition_indexes) for topic in request.topics
        )
    error_code = ErrorCode.NONE
    try:
        fetched = await _fetch(request.group_id, topics, request, context)
    except KafkaApiError as error:
        error_code = error.error_code
        # v1 has error codes only in its partitions.
        has_group_error = context.api_version >= FIRST_VERSION_WITH_ERROR_CODE
        fetched = [] if has_group_error else [topic.failed(error_code) for topic in topics or ()]
    return OffsetFetchResponse(
        error_code=error_code,
        topics=[
            OffsetFetchResponse.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=await context.time_slice.listed(
                    _partition(OffsetFetchResponse.OffsetFetchResponsePartition, topic, index, commit)
                    for index, commit in topic.commits()
                ),
            )
            async for topic in context.time_slice.over(fetched)
        ],
    )


class Requested(NamedTuple):
    """Topic of a request, and the partitions whose offsets are requested."""

    name: str
    """Topic name; empty if the request has a topic id that no topic has."""
    topic_id: UUID
    """Topic id in the request; ZERO_UUID if the request has the name."""
    partitions: Sequence[int]

    def failed(self, error_code: ErrorCode) -> Fetched:
        """Return a result with the error code for every partition of this topic."""
        return Fetched(self.name, self.topic_id, self.partitions, error_code)


class Fetched(NamedTuple):
    """Topic and the results for its partitions."""

    name: str
    topic_id: UUID
    partitions: Sequence[int] | Sequence[tuple[int, FetchedOffset]]
    """Partitions with their committed offsets, or without them when all are denied."""
    error_code: ErrorCode = ErrorCode.NONE

    def commits(self) -> Iterator[tuple[int, FetchedOffset]]:
        """Iterate over partitions and committed offsets."""
        return ((item, None) if isinstance(item, int) else item for item in self.partitions)


def _requested(topic: OffsetFetchRequest.OffsetFetchRequestTopics, context: RequestContext) -> Requested:
    has_id = context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
    name = topic_name(topic.topic_id, context) if has_id else topic.name
    return Requested(name, topic.topic_id, topic.partition_indexes)


async def _fetch(
    group_id: str,
    topics: Sequence[Requested] | None,
    request: OffsetFetchRequest,
    context: RequestContext,
) -> list[Fetched]:
    """Return the results of a group's topics.

    In a request for all topics, those without DESCRIBE and those that were deleted meanwhile are left out. Topics with
    errors come last.
    """
    require_group(context, AclOperation.DESCRIBE, group_id)
    require_coordinator(group_id, context.node_id, context.services.cluster)
    slices = context.time_slice
    offsets = context.services.groups.offsets
    if topics is None:
        everything = await offsets.fetch(group_id, None, require_stable=request.require_stable, time_slice=slices)
        return [
            Fetched(name, topic.topic_id, commits)
            async for name, commits in slices.over(everything)
            if may_topic(context, AclOperation.DESCRIBE, name)
            and (topic := context.services.topics.get(name)) is not None
        ]
    has_ids = context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
    names = {topic.name for topic in topics if topic.name or not has_ids}
    allowed = {name async for name in slices.over(names) if may_topic(context, AclOperation.DESCRIBE, name)}
    permitted = await slices.listed(topic for topic in topics if topic.name in allowed)
    fetched = await offsets.fetch(
        group_id,
        await slices.listed((topic.name, topic.partitions) for topic in permitted),
        require_stable=request.require_stable,
        time_slice=slices,
    )
    seen = await slices.listed(
        Fetched(topic.name, topic.topic_id, commits) for topic, (_, commits) in zip(permitted, fetched, strict=True)
    )
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return seen + await slices.listed(
        topic.failed(denied if topic.name or not has_ids else ErrorCode.UNKNOWN_TOPIC_ID)
        for topic in topics
        if topic.name not in allowed
    )


async def _topics(
    fetched: Sequence[Fetched], context: RequestContext
) -> list[OffsetFetchResponse.OffsetFetchResponseTopics]:
    return [
        OffsetFetchResponse.OffsetFetchResponseTopics(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=await context.time_slice.listed(
                _partition(OffsetFetchResponse.OffsetFetchResponsePartitions, topic, index, commit)
                for index, commit in topic.commits()
            ),
        )
        async for topic in context.time_slice.over(fetched)
    ]


def _partition(kind: type[Partition], topic: Fetched, index: int, commit: FetchedOffset) -> Partition:
    if isinstance(commit, PutGroupOffset):
        return kind(
            partition_index=index,
            committed_offset=commit.offset,
            committed_leader_epoch=commit.leader_epoch,
            metadata=commit.metadata,
        )
    return kind(
        partition_index=index,
        committed_offset=NO_OFFSET,
        committed_leader_epoch=NO_LEADER_EPOCH,
        metadata="",
        error_code=topic.error_code if commit is None else ErrorCode.UNSTABLE_OFFSET_COMMIT,
    )


ROUTE: Final = Route(api=API, request=OffsetFetchRequest, handle=handle)

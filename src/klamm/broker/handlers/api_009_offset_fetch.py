"""OffsetFetch (key 9), v1-9.

v1-7 name one group, v8-9 several; an error of one group does not affect the others. Null topics (v2+) mean all
committed offsets of the group. A partition without a committed offset has offset -1, also when the group does not
exist. With ``require_stable``, a partition whose offset an open transaction may change has the error
UNSTABLE_OFFSET_COMMIT (KIP-447). Requires DESCRIBE on the group and on each topic.
Not implemented: topic ids (v10), which Kafka 4.1 does not offer either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from klamm.broker.groups.offsets import NO_OFFSET
from klamm.broker.groups.placement import require_coordinator
from klamm.broker.requests.checks import may_topic, require_group
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from klamm.security.acls import AclOperation
from klamm.server.route import Route
from klamm.storage.metadata.changes import PutGroupOffset

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from klamm.broker.context import RequestContext
    from klamm.broker.groups.commits import FetchedOffset

API: Final = Api(key=ApiKey.OFFSET_FETCH, min_version=1, max_version=9)
FIRST_VERSION_WITH_GROUPS: Final = 8
FIRST_VERSION_WITH_ERROR_CODE: Final = 2
NO_LEADER_EPOCH: Final = -1

Partition = TypeVar(
    "Partition", OffsetFetchResponse.OffsetFetchResponsePartition, OffsetFetchResponse.OffsetFetchResponsePartitions
)
"""Partition in a response of v1-7 or of v8-9."""


async def handle(request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
    """Return the committed offsets of each group."""
    if context.api_version < FIRST_VERSION_WITH_GROUPS:
        return await _answer_one_group(request, context)
    groups = []
    async for group in context.time_slice.over(request.groups):
        topics = None if group.topics is None else [(topic.name, topic.partition_indexes) for topic in group.topics]
        try:
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
    topics = None if request.topics is None else [(topic.name, topic.partition_indexes) for topic in request.topics]
    error_code = ErrorCode.NONE
    try:
        fetched = await _fetch(request.group_id, topics, request, context)
    except KafkaApiError as error:
        error_code = error.error_code
        # v1 has error codes only in its partitions.
        has_group_error = context.api_version >= FIRST_VERSION_WITH_ERROR_CODE
        fetched = [] if has_group_error else [Fetched(name, indexes, error_code) for name, indexes in topics or ()]
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


class Fetched(NamedTuple):
    """Topic and the results for its partitions."""

    name: str
    partitions: Sequence[int] | Sequence[tuple[int, FetchedOffset]]
    """Partitions with their committed offsets, or without them when all are denied."""
    error_code: ErrorCode = ErrorCode.NONE

    def commits(self) -> Iterator[tuple[int, FetchedOffset]]:
        """Iterate over partitions and committed offsets."""
        return ((item, None) if isinstance(item, int) else item for item in self.partitions)


async def _fetch(
    group_id: str,
    topics: Sequence[tuple[str, Sequence[int]]] | None,
    request: OffsetFetchRequest,
    context: RequestContext,
) -> list[Fetched]:
    """Return the results of a group's topics.

    In a request for all topics, those without DESCRIBE are left out.
    """
    require_group(context, AclOperation.DESCRIBE, group_id)
    require_coordinator(group_id, context.node_id, context.services.cluster.node_ids)
    slices = context.time_slice
    denied: set[str] = set()
    if topics is not None:
        names = {name for name, _ in topics}
        denied = {name async for name in slices.over(names) if not may_topic(context, AclOperation.DESCRIBE, name)}
    fetched = await context.services.groups.offsets.fetch(
        group_id,
        topics if topics is None or not denied else [topic for topic in topics if topic[0] not in denied],
        require_stable=request.require_stable,
        time_slice=slices,
    )
    seen = [
        Fetched(name, commits)
        async for name, commits in slices.over(fetched)
        if topics is not None or may_topic(context, AclOperation.DESCRIBE, name)
    ]
    hidden = [(name, indexes) for name, indexes in topics or () if name in denied]
    return seen + [Fetched(name, indexes, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for name, indexes in hidden]


async def _topics(
    fetched: Sequence[Fetched], context: RequestContext
) -> list[OffsetFetchResponse.OffsetFetchResponseTopics]:
    return [
        OffsetFetchResponse.OffsetFetchResponseTopics(
            name=topic.name,
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

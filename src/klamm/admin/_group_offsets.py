"""Committed offsets of groups: OffsetFetch, OffsetCommit and OffsetDelete requests of an admin client."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from klamm.admin.results import settle
from klamm.admin.types import OffsetAndMetadata, by_topic
from klamm.client.errors import RETRIABLE_CODES, api_error
from klamm.client.pool_coordinators import ask_coordinators
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from klamm.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from klamm.protocol.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from klamm.admin.results import ListGroupOffsetsResult, PerKeyResult
    from klamm.client.pool import ConnectionPool, Deadline

_LAST_WITH_TOPIC_NAMES: Final = 9
"""Last version with topic names. From version 10 on, OffsetFetch and OffsetCommit identify topics by id (KIP-848)."""
_FIRST_WITH_ALL_TOPICS: Final = 2
_FIRST_WITH_REQUIRE_STABLE: Final = 7
_FIRST_WITH_SEVERAL_GROUPS: Final = 8
_AGAIN_LATER: Final = RETRIABLE_CODES | {ErrorCode.REBALANCE_IN_PROGRESS}


async def list_all(
    pool: ConnectionPool,
    deadline: Deadline,
    *,
    groups: Mapping[str, Collection[TopicPartition] | None],
    require_stable: bool,
    result: ListGroupOffsetsResult,
) -> None:
    async def ask(node_id: int, group_ids: list[str], attempt: Deadline) -> list[str]:
        offered = await pool.offered_versions(attempt, node_id, looked_up=True)
        if offered.get(OffsetFetchRequest.API_KEY, (0, 0))[1] >= _FIRST_WITH_SEVERAL_GROUPS:
            answers = await fetch(node_id, group_ids, attempt)
        else:
            answers = [answer for one in group_ids for answer in await fetch(node_id, [one], attempt)]
        return [answer.group_id for answer in answers if not _settle_offsets(answer, result)]

    async def fetch(
        node_id: int, group_ids: list[str], attempt: Deadline
    ) -> list[OffsetFetchResponse.OffsetFetchResponseGroup]:
        response = await pool.send(
            _fetch_request({group_id: groups[group_id] for group_id in group_ids}, require_stable=require_stable),
            OffsetFetchResponse,
            deadline=attempt,
            node_id=node_id,
            looked_up=True,
            min_version=_FIRST_WITH_REQUIRE_STABLE if require_stable else _FIRST_WITH_ALL_TOPICS,
            max_version=_LAST_WITH_TOPIC_NAMES,
        )
        return response.groups or [_as_group(group_ids[0], response)]

    await ask_coordinators(pool, deadline, groups, ask, result.fail)


def _fetch_request(
    groups: Mapping[str, Collection[TopicPartition] | None], *, require_stable: bool
) -> OffsetFetchRequest:
    """Return a request for all versions: the groups, and the first one in the fields used before version 8."""
    first_id, first_partitions = next(iter(groups.items()))
    return OffsetFetchRequest(
        group_id=first_id,
        topics=None
        if first_partitions is None
        else [
            OffsetFetchRequest.OffsetFetchRequestTopic(name=name, partition_indexes=indexes)
            for name, indexes in by_topic(first_partitions).items()
        ],
        groups=[
            OffsetFetchRequest.OffsetFetchRequestGroup(
                group_id=group_id,
                topics=None
                if partitions is None
                else [
                    OffsetFetchRequest.OffsetFetchRequestTopics(name=name, partition_indexes=indexes)
                    for name, indexes in by_topic(partitions).items()
                ],
            )
            for group_id, partitions in groups.items()
        ],
        require_stable=require_stable,
    )


def _as_group(group_id: str, response: OffsetFetchResponse) -> OffsetFetchResponse.OffsetFetchResponseGroup:
    """Convert a response from before version 8 into the current form."""
    Partitions = OffsetFetchResponse.OffsetFetchResponsePartitions  # noqa: N806  # a class
    return OffsetFetchResponse.OffsetFetchResponseGroup(
        group_id=group_id,
        error_code=response.error_code,
        topics=[
            OffsetFetchResponse.OffsetFetchResponseTopics(
                name=topic.name,
                partitions=[
                    Partitions(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        committed_leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.metadata,
                        error_code=partition.error_code,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in response.topics
        ],
    )


def _settle_offsets(answer: OffsetFetchResponse.OffsetFetchResponseGroup, result: ListGroupOffsetsResult) -> bool:
    """Settle one group unless it must be retried. If one partition fails, its group fails."""
    codes = [answer.error_code, *(found.error_code for topic in answer.topics for found in topic.partitions)]
    if any(code in _AGAIN_LATER for code in codes):
        return False
    refused = next((code for code in codes if code != ErrorCode.NONE), ErrorCode.NONE)
    if refused != ErrorCode.NONE:
        result.fail(answer.group_id, api_error(refused, f"offsets of group {answer.group_id}"))
        return True
    offsets = {
        TopicPartition(topic.name, found.partition_index): OffsetAndMetadata(
            offset=found.committed_offset, leader_epoch=found.committed_leader_epoch, metadata=found.metadata or ""
        )
        for topic in answer.topics
        for found in topic.partitions
        if found.committed_offset >= 0
    }
    result.succeed(answer.group_id, offsets)
    return True


async def alter(
    pool: ConnectionPool,
    deadline: Deadline,
    *,
    group_id: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    result: PerKeyResult[TopicPartition, None],
) -> None:
    async def ask(node_id: int, _: list[str], attempt: Deadline) -> list[str]:
        response = await pool.send(
            _commit_request(group_id, offsets),
            OffsetCommitResponse,
            deadline=attempt,
            node_id=node_id,
            looked_up=True,
            max_version=_LAST_WITH_TOPIC_NAMES,
        )
        answers = [(topic.name, found) for topic in response.topics for found in topic.partitions]
        if any(found.error_code in _AGAIN_LATER for _, found in answers):
            return [group_id]
        for topic, found in answers:
            settle(result, TopicPartition(topic, found.partition_index), found.error_code)
        return []

    await ask_coordinators(pool, deadline, [group_id], ask, lambda _, error: result.fail_open(error))


def _commit_request(group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> OffsetCommitRequest:
    topics: dict[str, list[OffsetCommitRequest.OffsetCommitRequestPartition]] = defaultdict(list)
    for partition, commit in offsets.items():
        topics[partition.topic].append(
            OffsetCommitRequest.OffsetCommitRequestPartition(
                partition_index=partition.partition,
                committed_offset=commit.offset,
                committed_leader_epoch=commit.leader_epoch,
                committed_metadata=commit.metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=group_id,
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(name=name, partitions=partitions)
            for name, partitions in topics.items()
        ],
    )


async def delete(
    pool: ConnectionPool, deadline: Deadline, *, group_id: str, result: PerKeyResult[TopicPartition, None]
) -> None:
    Partition = OffsetDeleteRequest.OffsetDeleteRequestPartition  # noqa: N806  # a class
    request = OffsetDeleteRequest(
        group_id=group_id,
        topics=[
            OffsetDeleteRequest.OffsetDeleteRequestTopic(
                name=name, partitions=[Partition(partition_index=index) for index in indexes]
            )
            for name, indexes in by_topic(result.values()).items()
        ],
    )

    async def ask(node_id: int, _: list[str], attempt: Deadline) -> list[str]:
        response = await pool.send(request, OffsetDeleteResponse, deadline=attempt, node_id=node_id, looked_up=True)
        if response.error_code in RETRIABLE_CODES:
            return [group_id]
        if response.error_code != ErrorCode.NONE:
            result.fail_open(api_error(response.error_code, f"group {group_id}"))
        for topic in response.topics:
            for found in topic.partitions:
                settle(result, TopicPartition(topic.name, found.partition_index), found.error_code)
        return []

    await ask_coordinators(pool, deadline, [group_id], ask, lambda _, error: result.fail_open(error))

"""Committed offsets of groups: OffsetFetch, OffsetCommit and OffsetDelete requests of an admin client."""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.admin._calls import ask_coordinators
from klamm.admin.types import OffsetAndMetadata
from klamm.kafka_client.errors import RETRIABLE_CODES, RETRIABLE_COMMIT_CODES, api_error, raise_for_code
from klamm.kafka_client.pool.keyed_calls import KeyedCall, find_coordinators, result_of
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from klamm.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from klamm.protocol.types import TopicPartition, by_topic

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from klamm.admin.results import ListGroupOffsetsResult, PerKeyResult
    from klamm.kafka_client.pool.calls import Deadline
    from klamm.kafka_client.pool.pool import ConnectionPool
    from klamm.protocol.errors import KafkaApiError

_LAST_WITH_TOPIC_NAMES: Final = 9
"""Last version with topic names. From version 10 on, OffsetFetch and OffsetCommit identify topics by id (KIP-848)."""
_FIRST_WITH_ALL_TOPICS: Final = 2
_FIRST_WITH_REQUIRE_STABLE: Final = 7
_FIRST_WITH_SEVERAL_GROUPS: Final = 8
_Committed: TypeAlias = "Mapping[TopicPartition, OffsetAndMetadata]"
_Outcomes: TypeAlias = "Mapping[TopicPartition, KafkaApiError | None]"


async def list_all(
    pool: ConnectionPool,
    deadline: Deadline,
    *,
    groups: Mapping[str, Collection[TopicPartition] | None],
    require_stable: bool,
    result: ListGroupOffsetsResult,
) -> None:
    async def ask(
        node_id: int | None, group_ids: list[str], attempt: Deadline
    ) -> Mapping[str, _Committed | KafkaApiError]:
        offered = await pool.offered_versions(attempt, node_id, looked_up=True)
        if offered.get(OffsetFetchRequest.API_KEY, (0, 0))[1] >= _FIRST_WITH_SEVERAL_GROUPS:
            answers = await fetch(node_id, group_ids, attempt)
        else:
            answers = [answer for one in group_ids for answer in await fetch(node_id, [one], attempt)]
        return {answer.group_id: _committed(answer) for answer in answers}

    async def fetch(
        node_id: int | None, group_ids: list[str], attempt: Deadline
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

    await ask_coordinators("OffsetFetch", pool, deadline, ask, result)


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


def _committed(answer: OffsetFetchResponse.OffsetFetchResponseGroup) -> _Committed | KafkaApiError:
    """Return the offsets of a group. If one partition fails, its group fails; retriable codes come first."""
    codes = {answer.error_code, *(partition.error_code for topic in answer.topics for partition in topic.partitions)}
    rejected = sorted(codes - {ErrorCode.NONE}, key=lambda code: code not in RETRIABLE_CODES)
    if rejected:
        return api_error(rejected[0], f"offsets of group {answer.group_id}")
    return {
        TopicPartition(topic.name, partition.partition_index): OffsetAndMetadata(
            offset=partition.committed_offset,
            leader_epoch=partition.committed_leader_epoch,
            metadata=partition.metadata or "",
        )
        for topic in answer.topics
        for partition in topic.partitions
        if partition.committed_offset >= 0
    }


async def alter(
    pool: ConnectionPool,
    deadline: Deadline,
    *,
    group_id: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    result: PerKeyResult[TopicPartition, None],
) -> None:
    """Commit the offsets of a group without members, and complete ``result`` per partition."""

    async def ask(node_id: int | None, keys: list[TopicPartition], attempt: Deadline) -> _Outcomes:
        response = await pool.send(
            _commit_request(group_id, {partition: offsets[partition] for partition in keys}),
            OffsetCommitResponse,
            deadline=attempt,
            node_id=node_id,
            looked_up=True,
            max_version=_LAST_WITH_TOPIC_NAMES,
        )
        return _per_partition(response)

    call = KeyedCall(
        what="OffsetCommit",
        ask=ask,
        settle=result.settle,
        find=functools.partial(_find_one, pool, deadline, group_id),
        retriable=RETRIABLE_COMMIT_CODES,
    )
    await call.run(pool, deadline, offsets)


async def _find_one(
    pool: ConnectionPool, deadline: Deadline, group_id: str, partitions: list[TopicPartition]
) -> Mapping[TopicPartition, int | KafkaApiError]:
    """Return the coordinator of one group for all its partitions."""
    coordinators = await find_coordinators(pool, deadline, [group_id])
    return dict.fromkeys(partitions, coordinators[group_id]) if group_id in coordinators else {}


def _per_partition(response: OffsetCommitResponse | OffsetDeleteResponse) -> _Outcomes:
    outcomes: dict[TopicPartition, KafkaApiError | None] = {}
    for topic in response.topics:
        for answer in topic.partitions:
            partition = TopicPartition(topic.name, answer.partition_index)
            outcomes[partition] = result_of(answer.error_code, str(partition), None)
    return outcomes


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
    """Delete the committed offsets of a group for the partitions of the result, and settle them."""
    Partition = OffsetDeleteRequest.OffsetDeleteRequestPartition  # noqa: N806  # a class

    async def ask(node_id: int | None, keys: list[TopicPartition], attempt: Deadline) -> _Outcomes:
        request = OffsetDeleteRequest(
            group_id=group_id,
            topics=[
                OffsetDeleteRequest.OffsetDeleteRequestTopic(
                    name=name, partitions=[Partition(partition_index=index) for index in indexes]
                )
                for name, indexes in by_topic(keys).items()
            ],
        )
        response = await pool.send(request, OffsetDeleteResponse, deadline=attempt, node_id=node_id, looked_up=True)
        raise_for_code(response.error_code, f"group {group_id}")
        return _per_partition(response)

    find = functools.partial(_find_one, pool, deadline, group_id)
    call = KeyedCall(what="OffsetDelete", ask=ask, settle=result.settle, find=find, attempt_ms=deadline.limit_ms)
    await call.run(pool, deadline, result.values())

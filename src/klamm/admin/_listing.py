"""Listing of topics with their eligible leader replicas, of resources that have configs, and of groups."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from klamm.admin import _topics
from klamm.admin._calls import check_topic
from klamm.admin.types import GroupListing, PartitionDescription, TopicDescription
from klamm.kafka_client.errors import CLUSTER_ERRORS, FATAL_ERRORS, ConnectionLostError, api_error
from klamm.kafka_client.pool.keyed_calls import KeyedCall
from klamm.protocol.errors import ErrorCode, UnsupportedVersionError
from klamm.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from klamm.protocol.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse
from klamm.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from klamm.protocol.types import ResourceType

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping
    from typing import TypeGuard

    from klamm.admin.results import DescribeTopicsResult, GroupsByBroker
    from klamm.kafka_client.pool.calls import Deadline
    from klamm.kafka_client.pool.pool import ConnectionPool
    from klamm.protocol.errors import KafkaApiError

DEFAULT_PARTITION_LIMIT = 2_000
FIRST_LISTING_OF_ALL_KINDS = 1
"""First version of ListConfigResources for all resource types (KIP-1142). Version 0 has only client metrics
(KIP-714).
"""


async def describe_with_eligible_leaders(
    pool: ConnectionPool,
    deadline: Deadline,
    names: Collection[str],
    *,
    partition_limit: int,
    result: DescribeTopicsResult,
) -> None:
    """Describe topics by pages of DescribeTopicPartitions (KIP-966), or by Metadata if a broker lacks it.

    Brokers may differ in version while they are upgraded, so any page may reach a broker without this API.
    """

    async def ask(
        node_id: int | None, keys: list[str], attempt: Deadline
    ) -> Mapping[str, TopicDescription | KafkaApiError]:
        try:
            return await ask_pages(keys, attempt)
        except UnsupportedVersionError:
            return await _topics.request_descriptions(pool, node_id, keys, attempt)

    async def ask_pages(keys: list[str], attempt: Deadline) -> Mapping[str, TopicDescription | KafkaApiError]:
        errors: dict[str, KafkaApiError] = {}
        descriptions: dict[str, TopicDescription] = {}
        async for topic in _pages(pool, attempt, keys, partition_limit):
            if topic.error_code != ErrorCode.NONE:
                errors[str(topic.name)] = api_error(topic.error_code)
                continue
            name = str(topic.name)
            earlier = descriptions[name].partitions if name in descriptions else ()
            descriptions[name] = TopicDescription(
                name=name,
                topic_id=topic.topic_id,
                is_internal=topic.is_internal,
                partitions=tuple(
                    sorted((*earlier, *map(_partition, topic.partitions)), key=lambda partition: partition.partition)
                ),
            )
        return {**descriptions, **errors}

    call = KeyedCall(what="DescribeTopicPartitions", ask=ask, settle=result.settle, check=check_topic)
    await call.run(pool, deadline, names)


async def _pages(
    pool: ConnectionPool, deadline: Deadline, names: Collection[str], partition_limit: int
) -> AsyncIterator[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic]:
    """Yield topics with their partitions, page by page. A topic with many partitions appears on several pages."""
    cursor: DescribeTopicPartitionsRequest.Cursor | None = None
    wanted = sorted(names)  # the broker returns topics in the order of their names
    while wanted:
        response = await pool.send(
            DescribeTopicPartitionsRequest(
                topics=[DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in wanted],
                response_partition_limit=partition_limit,
                cursor=cursor,
            ),
            DescribeTopicPartitionsResponse,
            deadline=deadline,
        )
        for topic in response.topics:
            yield topic
        if response.next_cursor is None:
            return
        cursor = DescribeTopicPartitionsRequest.Cursor(
            topic_name=response.next_cursor.topic_name, partition_index=response.next_cursor.partition_index
        )
        wanted = [name for name in wanted if name >= cursor.topic_name]


def _partition(
    partition: DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition,
) -> PartitionDescription:
    return PartitionDescription(
        partition=partition.partition_index,
        leader=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        replicas=tuple(partition.replica_nodes),
        isr=tuple(partition.isr_nodes),
        eligible_leader_replicas=tuple(partition.eligible_leader_replicas or ()),
        last_known_elr=tuple(partition.last_known_elr or ()),
    )


async def list_config_resources(
    pool: ConnectionPool, deadline: Deadline, resource_type: ResourceType
) -> tuple[str, ...]:
    """Return the names of the resources of one type that have configs.

    Raises:
        UnsupportedVersionError: The broker is older than 3.7, or older than 4.1 for a type other than client metrics.
        KafkaApiError: The broker rejects the request.
    """
    response = await pool.send(
        ListConfigResourcesRequest(resource_types=[resource_type]),
        ListConfigResourcesResponse,
        deadline=deadline,
        min_version=0 if resource_type is ResourceType.CLIENT_METRICS else FIRST_LISTING_OF_ALL_KINDS,
    )
    pool.check(response)
    return tuple(
        sorted(
            resource.resource_name for resource in response.config_resources if resource.resource_type == resource_type
        )
    )


async def list_groups(pool: ConnectionPool, deadline: Deadline) -> GroupsByBroker:
    """Return the groups of every broker by its node id, or the broker's error.

    If a broker fails or loads its groups, all remaining brokers are asked again: they may have taken over its groups.

    Raises:
        ConnectionLostError: The cluster rejects the login or a certificate, or no broker responds.
        TimeoutError: No broker has named the others before the deadline.
    """
    answers: GroupsByBroker = {}

    async def attempt() -> None:
        nonlocal answers
        nodes = [node.id for node in (await _topics.describe_cluster(pool, deadline)).nodes]
        latest = dict(
            zip(nodes, await asyncio.gather(*(_groups_of(pool, deadline, node) for node in nodes)), strict=True)
        )
        failed = {node: answer for node, answer in latest.items() if _is_passing(answer)}
        # An attempt that the deadline cuts short must not replace the answers of an earlier one.
        answers = latest | {
            node: answers.get(node, error) if deadline.passed() else error for node, error in failed.items()
        }
        for error in failed.values():
            raise error

    try:
        await pool.until_answered(attempt, deadline, what="ListGroups")
    except (ConnectionLostError, TimeoutError):
        if not answers:
            raise
    return {
        node: TimeoutError(f"ListGroups: broker {node}: no response within {deadline.limit_ms} ms: {answer}")
        if _is_passing(answer)
        else answer
        for node, answer in answers.items()
    }


async def _groups_of(pool: ConnectionPool, deadline: Deadline, node_id: int) -> tuple[GroupListing, ...] | Exception:
    """Return the groups of one broker, or the error of one attempt."""
    try:
        response = await pool.send(
            ListGroupsRequest(), ListGroupsResponse, deadline=deadline, node_id=node_id, looked_up=True
        )
        pool.check(response)
    except CLUSTER_ERRORS as error:
        return error
    return tuple(
        GroupListing(
            group_id=group.group_id,
            protocol_type=group.protocol_type,
            state=group.group_state or None,
            group_type=group.group_type or None,
        )
        for group in response.groups
    )


def _is_passing(answer: tuple[GroupListing, ...] | Exception) -> TypeGuard[ConnectionError | TimeoutError]:
    """Return whether a broker did not respond, so that a later attempt may succeed."""
    return isinstance(answer, (ConnectionLostError, TimeoutError)) and not isinstance(answer, FATAL_ERRORS)

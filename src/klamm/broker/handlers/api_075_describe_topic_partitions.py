"""DescribeTopicPartitions (key 75), v0 (KIP-966).

Returns topics sorted by name, with at most ``response_partition_limit`` partitions per response (and no more than
``max.request.partition.size.limit``); a cursor names the next partition. Not implemented: eligible leader replicas are
always empty, because every replica is this process. Requires DESCRIBE on each topic; in a request for all topics the
others are left out.
"""

from __future__ import annotations

from heapq import merge
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.broker.cluster import NO_LEADER
from klamm.broker.requests.checks import authorized_operations, may_topic
from klamm.configs.names import INTERNAL_TOPICS, check_topic_name
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from klamm.security.acls import AclOperation, AclResourceType
from klamm.server.route import Route

if TYPE_CHECKING:
    from collections.abc import Iterable

    from klamm.broker.context import RequestContext
    from klamm.broker.topics.catalog import Topic

Answer: TypeAlias = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
API: Final = Api(key=ApiKey.DESCRIBE_TOPIC_PARTITIONS, min_version=0, max_version=0)
_SORTED_AT_ONCE: Final = 10_000
"""Number of names whose sorting takes some milliseconds."""


async def handle(request: DescribeTopicPartitionsRequest, context: RequestContext) -> DescribeTopicPartitionsResponse:
    """Return topics from the cursor on, until the limit is reached."""
    most = context.services.configs.int_value("max.request.partition.size.limit")
    left = max(1, min(request.response_partition_limit, most))
    cursor = request.cursor
    answers: list[Answer] = []
    async for name in context.time_slice.over(await _names(request, context)):
        if cursor is not None and name < cursor.topic_name:
            continue
        first = max(0, cursor.partition_index) if cursor is not None and name == cursor.topic_name else 0
        topic = context.services.topics.get(name)
        if not may_topic(context, AclOperation.DESCRIBE, name):
            # Kafka returns denied topics last, this broker in order of their names. They have no partitions, and reveal
            # nothing.
            if request.topics:
                answers.append(Answer(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name, partitions=[]))
            continue
        if left == 0:
            return _page(answers, name, first)
        if topic is None:
            if request.topics:  # in a request for all topics, it was deleted during a pause
                is_internal = name in INTERNAL_TOPICS
                answers.append(Answer(error_code=_missing(name), name=name, is_internal=is_internal, partitions=[]))
            continue
        last = min(len(topic.partitions), first + left)
        answers.append(_describe(topic, first, last, context))
        answers[-1].topic_authorized_operations = authorized_operations(context, AclResourceType.TOPIC, name)
        left -= max(0, last - first)
        if last < len(topic.partitions):
            return _page(answers, name, last)
    return DescribeTopicPartitionsResponse(topics=answers, next_cursor=None)


async def _names(request: DescribeTopicPartitionsRequest, context: RequestContext) -> Iterable[str]:
    """Return the topics' names in order. Many of them are sorted part by part, because one sort of all takes long."""
    if request.topics:
        names = list(set(await context.time_slice.listed(topic.name for topic in request.topics)))
        starts = range(0, len(names), _SORTED_AT_ONCE)
        parts = [sorted(names[start : start + _SORTED_AT_ONCE]) async for start in context.time_slice.over(starts)]
        return merge(*parts)
    return [topic.name for topic in context.services.topics.all()]


def _missing(name: str) -> ErrorCode:
    try:
        check_topic_name(name)
    except KafkaApiError as error:
        return error.error_code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _page(answers: list[Answer], topic: str, partition: int) -> DescribeTopicPartitionsResponse:
    cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=topic, partition_index=partition)
    return DescribeTopicPartitionsResponse(topics=answers, next_cursor=cursor)


def _describe(topic: Topic, first: int, last: int, context: RequestContext) -> Answer:
    cluster = context.services.cluster
    answer = Answer(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[
            DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition(
                partition_index=index,
                leader_id=cluster.leader(topic.partitions[index]),
                leader_epoch=cluster.leader_epoch,
                replica_nodes=list(topic.partitions[index]),
                isr_nodes=cluster.live_replicas(topic.partitions[index]),
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=cluster.offline_replicas(topic.partitions[index]),
            )
            for index in range(first, last)
        ],
    )
    offline = context.services.logs.offline_partitions(topic.topic_id)
    for partition in answer.partitions if offline else ():
        if partition.partition_index in offline:
            partition.leader_id = NO_LEADER
            partition.isr_nodes, partition.offline_replicas = partition.isr_nodes[:1], partition.replica_nodes
    return answer


ROUTE: Final = Route(api=API, request=DescribeTopicPartitionsRequest, handle=handle)

"""Metadata (key 3), v0-13.

Brokers and topics with their leaders. Topics are selected by name, by id (v10+), or all. A topic named in the request
that does not exist is created when ``auto.create.topics.enable`` and the request (v4+) allow it. Policy and quota apply
to such a creation as well; it requires CREATE on the cluster or the topic.
Requires DESCRIBE on a topic. In a request for all topics the others are left out. A topic requested by name is denied
whether it exists or not. Authorized operations (v8+) are returned on request.
Not implemented: offline replicas, because all replicas are this process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.cluster import NO_LEADER
from klamm.broker.requests.checks import (
    OPERATIONS_OMITTED,
    authorized_operations,
    cluster_operations,
    may_cluster,
    may_topic,
)
from klamm.broker.requests.internal_topics import ensure_internal_topic
from klamm.broker.requests.topic_creation import RESERVED_NAMES, TopicSpec, create_topic
from klamm.configs.names import CLUSTER_METADATA, INTERNAL_TOPICS, check_topic_name
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.primitives import ZERO_UUID
from klamm.security.acls import AclOperation, AclResourceType
from klamm.server.attempt import attempt
from klamm.server.route import Route

if TYPE_CHECKING:
    from uuid import UUID

    from klamm.broker.context import RequestContext
    from klamm.broker.topics.catalog import Topic

API: Final = Api(key=ApiKey.METADATA, min_version=0, max_version=13)
_NULL_MEANS_ALL_SINCE: Final = 1
_ASKS_FOR_CREATION_SINCE: Final = 4
_OPERATIONS_SINCE: Final = 8
_IDS_SINCE: Final = 12
_CLUSTER_OPERATIONS: Final = range(8, 11)
"""Versions with the authorized operations on the cluster; later DescribeCluster returns them."""
_NEVER_ON_DEMAND: Final = (RESERVED_NAMES - INTERNAL_TOPICS) | {CLUSTER_METADATA}
"""Reserved names, which are not created automatically."""


async def handle(request: MetadataRequest, context: RequestContext) -> MetadataResponse:
    """Return brokers and topics."""
    cluster = context.services.cluster
    wanted = request.topics
    if context.api_version < _NULL_MEANS_ALL_SINCE and not wanted:
        wanted = None
    if wanted is None:
        topics = [
            await _described(topic, context)
            async for topic in context.time_slice.over(context.services.topics.all())
            if may_topic(context, AclOperation.DESCRIBE, topic.name)
        ]
    elif context.api_version < _IDS_SINCE and any(
        topic.name is None or topic.topic_id != ZERO_UUID for topic in wanted
    ):
        # v10 and v11 have topic ids, but no null names in their responses, so a request by id is not allowed.
        topics = await context.time_slice.listed(
            _failed(ErrorCode.INVALID_REQUEST, name=topic.name or "", topic_id=topic.topic_id) for topic in wanted
        )
    else:
        may_create = request.allow_auto_topic_creation or context.api_version < _ASKS_FOR_CREATION_SINCE
        # As in Kafka, a topic named several times is returned once. It may have ten thousand partitions.
        once_each = {(topic.name, topic.topic_id): topic for topic in wanted}
        topics = [
            await _answer(topic, context, may_create=may_create)
            async for topic in context.time_slice.over(once_each.values())
        ]
    if request.include_topic_authorized_operations and context.api_version >= _OPERATIONS_SINCE:
        await _set_operations(topics, context)
    has_operations = request.include_cluster_authorized_operations and context.api_version in _CLUSTER_OPERATIONS
    return MetadataResponse(
        cluster_authorized_operations=cluster_operations(context) if has_operations else OPERATIONS_OMITTED,
        brokers=[
            MetadataResponse.MetadataResponseBroker(
                node_id=node.node_id, host=node.host, port=node.port, rack=node.rack
            )
            for node in cluster.nodes_at(context.session.listener)
        ],
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        topics=topics,
    )


async def _set_operations(topics: list[MetadataResponse.MetadataResponseTopic], context: RequestContext) -> None:
    async for topic in context.time_slice.over(topics):
        if topic.name is not None and topic.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            topic.topic_authorized_operations = authorized_operations(context, AclResourceType.TOPIC, topic.name)


async def _answer(
    wanted: MetadataRequest.MetadataRequestTopic, context: RequestContext, *, may_create: bool
) -> MetadataResponse.MetadataResponseTopic:
    if wanted.name is None or wanted.topic_id != ZERO_UUID:
        return await _answer_by_id(wanted.topic_id, context)
    name = wanted.name
    if not may_topic(context, AclOperation.DESCRIBE, name):
        return _failed(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name)
    topic = context.services.topics.get(name)
    if topic is not None:
        return await _described(topic, context)
    error_code = _creation_error(name, context, may_create=may_create)
    if error_code:
        return _failed(error_code, name=name)
    if name in INTERNAL_TOPICS:
        internal = await ensure_internal_topic(name, context.services)
        return (
            _failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name)
            if internal is None
            else await _described(internal, context)
        )
    return await _create(name, context)


async def _answer_by_id(topic_id: UUID, context: RequestContext) -> MetadataResponse.MetadataResponseTopic:
    topic = context.services.topics.by_id(topic_id)
    if topic is None:
        return _failed(ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
    if not may_topic(context, AclOperation.DESCRIBE, topic.name):
        return _failed(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=None, topic_id=topic_id)
    return await _described(topic, context)


def _creation_error(name: str, context: RequestContext, *, may_create: bool) -> ErrorCode:
    """Return the error because of which a missing topic is not created, NONE when it is created."""
    try:
        check_topic_name(name)
    except KafkaApiError as error:
        return error.error_code
    may_create = may_create and name not in _NEVER_ON_DEMAND
    if not (may_create and context.services.configs.broker_value("auto.create.topics.enable")):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not (may_cluster(context, AclOperation.CREATE) or may_topic(context, AclOperation.CREATE, name)):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ErrorCode.NONE


async def _create(name: str, context: RequestContext) -> MetadataResponse.MetadataResponseTopic:
    """Create a requested topic. Another request may create it at the same time."""
    denials = context.services.policies.denied_creations
    if (denial := denials.answer(name, context.author)) is not None:
        return _failed(denial, name=name)
    spec = TopicSpec(name=name, is_automatic=True)
    created, error = await attempt(lambda: create_topic(spec, context), api=API.key)
    if created is not None:
        return await _described(created, context)
    topic = context.services.topics.get(name)
    if topic is not None:
        return await _described(topic, context)
    if error.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED:
        # Clients do not expect this error here. As with Apache Kafka, the client retries until the topic may be
        # created.
        return _failed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name)
    return _failed(denials.answer(name, context.author) or error.error_code, name=name)


async def _described(topic: Topic, context: RequestContext) -> MetadataResponse.MetadataResponseTopic:
    cluster = context.services.cluster
    # A topic is created with up to 10,000 partitions, but may grow beyond.
    partitions = await context.time_slice.listed(
        MetadataResponse.MetadataResponsePartition(
            partition_index=index,
            error_code=ErrorCode.NONE if leader != NO_LEADER else ErrorCode.LEADER_NOT_AVAILABLE,
            leader_id=leader,
            leader_epoch=cluster.leader_epoch,
            replica_nodes=list(replicas),
            isr_nodes=cluster.live_replicas(replicas),
            offline_replicas=cluster.offline_replicas(replicas),
        )
        for index, replicas in enumerate(topic.partitions)
        for leader in (cluster.leader(replicas),)
    )
    response = MetadataResponse.MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=partitions,
    )
    for index in context.services.logs.offline_partitions(topic.topic_id):
        if not topic.has_partition(index):
            continue  # added during a pause
        partition = response.partitions[index]
        partition.error_code, partition.leader_id = ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER
        partition.isr_nodes, partition.offline_replicas = partition.isr_nodes[:1], partition.replica_nodes
    return response


def _failed(
    error_code: ErrorCode, *, name: str | None, topic_id: UUID = ZERO_UUID
) -> MetadataResponse.MetadataResponseTopic:
    return MetadataResponse.MetadataResponseTopic(
        error_code=error_code, name=name, topic_id=topic_id, is_internal=name in INTERNAL_TOPICS
    )


ROUTE: Final = Route(api=API, request=MetadataRequest, handle=handle)

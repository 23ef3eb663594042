"""Topics, partitions, offsets and cluster information: requests, and one outcome per key."""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.admin import _quorum
from klamm.admin._calls import check_topic, controller_change
from klamm.admin.types import (
    ClusterDescription,
    ConfigEntry,
    CreatedTopic,
    ListedOffset,
    NewPartitions,
    NewTopic,
    Node,
    PartitionDescription,
    TopicDescription,
    TopicListing,
)
from klamm.configs.values import config_text
from klamm.kafka_client.errors import RETRIABLE_LEADER_CODES, api_error
from klamm.kafka_client.pool.keyed_calls import KeyedCall, result_of
from klamm.policy.answers import PolicyOverride
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from klamm.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.types import ConfigSource, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from klamm.admin._calls import Value
    from klamm.admin.results import (
        CreatePartitionsResult,
        CreateTopicsResult,
        DeleteTopicsResult,
        DescribeTopicsResult,
        ListOffsetsResult,
        PerKeyResult,
    )
    from klamm.kafka_client.pool.calls import Deadline
    from klamm.kafka_client.pool.keyed_calls import Ask, Find
    from klamm.kafka_client.pool.pool import ConnectionPool
    from klamm.protocol.errors import KafkaApiError

FIRST_METADATA_WITHOUT_AUTO_CREATION = 4
CONSUMER_REPLICA_ID = -1
_FIRST_WITH_ISOLATION_LEVEL: Final = 2
_FIRST_WITH_SPEC: Final = {-3: 7, -4: 8, -5: 9, -6: 11}
"""First versions of ListOffsets with the largest timestamp (KIP-734), the earliest local offset (KIP-405), the latest
tiered offset (KIP-1005) and the earliest pending upload offset (KIP-1023). An older broker takes them for a timestamp.
"""
_Outcomes: TypeAlias = "Mapping[str, KafkaApiError | None]"


async def create(
    pool: ConnectionPool,
    deadline: Deadline,
    topics: Collection[NewTopic],
    *,
    validate_only: bool,
    result: CreateTopicsResult,
) -> None:
    """Send CreateTopics to the controller and settle the topics."""

    async def ask(
        node_id: int | None, keys: list[str], attempt: Deadline
    ) -> Mapping[str, CreatedTopic | KafkaApiError]:
        wanted = set(keys)
        request = CreateTopicsRequest(
            topics=[_creatable(topic) for topic in topics if topic.name in wanted], validate_only=validate_only
        )
        response = await pool.send(request, CreateTopicsResponse, deadline=attempt, node_id=node_id)
        return {
            topic.name: result_of(topic.error_code, topic.error_message, _created(topic)) for topic in response.topics
        }

    call = controller_change("CreateTopics", ask, result.settle, check=check_topic)
    await call.run(pool, deadline, result.values())


def _created(topic: CreateTopicsResponse.CreatableTopicResult) -> CreatedTopic:
    return CreatedTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        override=PolicyOverride.of(topic.error_message),
        configs={
            config.name: ConfigEntry(
                config.name,
                config.value,
                source=ConfigSource(config.config_source),
                is_sensitive=config.is_sensitive,
                is_read_only=config.read_only,
            )
            for config in topic.configs or ()
        },
    )


def _creatable(topic: NewTopic) -> CreateTopicsRequest.CreatableTopic:
    return CreateTopicsRequest.CreatableTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=[
            CreateTopicsRequest.CreatableReplicaAssignment(partition_index=partition, broker_ids=list(brokers))
            for partition, brokers in sorted(topic.replicas_assignments.items())
        ],
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(
                name=name, value=None if value is None else config_text(name, value)
            )
            for name, value in topic.configs.items()
        ],
    )


async def delete(
    pool: ConnectionPool, deadline: Deadline, names: Collection[str], *, result: DeleteTopicsResult
) -> None:
    """Send DeleteTopics to the controller and settle the topics."""

    async def ask(node_id: int | None, keys: list[str], attempt: Deadline) -> _Outcomes:
        still = set(keys)
        wanted = [name for name in names if name in still]
        request = DeleteTopicsRequest(
            topics=[DeleteTopicsRequest.DeleteTopicState(name=name) for name in wanted],
            topic_names=wanted,  # used in versions before 6
        )
        response = await pool.send(request, DeleteTopicsResponse, deadline=attempt, node_id=node_id)
        return {
            topic.name: result_of(topic.error_code, topic.error_message, None)
            for topic in response.responses
            if topic.name is not None
        }

    call = controller_change("DeleteTopics", ask, result.settle, check=check_topic)
    await call.run(pool, deadline, result.values())


async def grow(
    pool: ConnectionPool,
    deadline: Deadline,
    partitions: Mapping[str, NewPartitions],
    *,
    validate_only: bool,
    result: CreatePartitionsResult,
) -> None:
    """Send CreatePartitions to the controller and settle the topics."""

    async def ask(node_id: int | None, keys: list[str], attempt: Deadline) -> _Outcomes:
        request = CreatePartitionsRequest(
            topics=[
                CreatePartitionsRequest.CreatePartitionsTopic(
                    name=name, count=partitions[name].total_count, assignments=_assignments(partitions[name])
                )
                for name in keys
            ],
            validate_only=validate_only,
        )
        response = await pool.send(request, CreatePartitionsResponse, deadline=attempt, node_id=node_id)
        return {topic.name: result_of(topic.error_code, topic.error_message, None) for topic in response.results}

    call = controller_change("CreatePartitions", ask, result.settle)
    await call.run(pool, deadline, partitions)


def _assignments(new: NewPartitions) -> list[CreatePartitionsRequest.CreatePartitionsAssignment] | None:
    if new.new_assignments is None:
        return None
    return [
        CreatePartitionsRequest.CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in new.new_assignments
    ]


async def describe(
    pool: ConnectionPool,
    deadline: Deadline,
    names: Collection[str],
    *,
    is_current: bool = False,
    result: DescribeTopicsResult,
) -> None:
    """Describe the topics with one broker's metadata and settle them. This never creates a topic."""
    find = functools.partial(_quorum.find_current, pool, deadline, None) if is_current else None
    ask = functools.partial(request_descriptions, pool)
    call = KeyedCall(what="Metadata", ask=ask, settle=result.settle, find=find, check=check_topic)
    await call.run(pool, deadline, names)


async def request_descriptions(
    pool: ConnectionPool, node_id: int | None, names: list[str], attempt: Deadline
) -> Mapping[str, TopicDescription | KafkaApiError]:
    """Return descriptions of topics, or their errors, from one Metadata response."""
    response = await _metadata(pool, attempt, names, node_id=node_id)
    return {
        topic.name: result_of(topic.error_code, None, _description(topic.name, topic))
        for topic in response.topics
        if topic.name is not None
    }


async def list_all(
    pool: ConnectionPool, deadline: Deadline, *, include_internal: bool, is_current: bool
) -> Mapping[str, TopicListing]:
    """Return all topics that the principal may describe, by name."""
    if is_current:
        response = await _quorum.ask_current(
            pool, deadline, lambda node_id: _metadata(pool, deadline, None, node_id=node_id), what="Metadata"
        )
    else:
        response = await _metadata(pool, deadline, None)
    return {
        topic.name: TopicListing(name=topic.name, topic_id=topic.topic_id, is_internal=topic.is_internal)
        for topic in sorted(response.topics, key=lambda topic: topic.name or "")
        if topic.name is not None and (include_internal or not topic.is_internal)
    }


async def describe_cluster(pool: ConnectionPool, deadline: Deadline) -> ClusterDescription:
    """Return the cluster with its brokers, and the features that the responding broker reports."""
    response = await _metadata(pool, deadline, ())
    features, finalized = await pool.features(deadline)
    return ClusterDescription(
        cluster_id=response.cluster_id,
        controller_id=response.controller_id,
        nodes=tuple(
            Node(id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack)
            for broker in sorted(response.brokers, key=lambda broker: broker.node_id)
        ),
        features=features,
        finalized_features=finalized,
    )


async def list_offsets(
    pool: ConnectionPool,
    deadline: Deadline,
    specs: Mapping[TopicPartition, int],
    *,
    read_committed: bool,
    leaders: Mapping[TopicPartition, int],
    result: ListOffsetsResult,
) -> None:
    """Request offsets from the leader of each partition. A leader that moved is looked up again until the deadline."""

    async def ask(
        node_id: int | None, keys: list[TopicPartition], attempt: Deadline
    ) -> Mapping[TopicPartition, ListedOffset | KafkaApiError]:
        by_topic: dict[str, list[ListOffsetsRequest.ListOffsetsPartition]] = defaultdict(list)
        for partition in keys:
            by_topic[partition.topic].append(
                ListOffsetsRequest.ListOffsetsPartition(partition_index=partition.partition, timestamp=specs[partition])
            )
        request = ListOffsetsRequest(
            replica_id=CONSUMER_REPLICA_ID,
            isolation_level=int(read_committed),
            topics=[ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=some) for name, some in by_topic.items()],
        )
        response = await pool.send(
            request,
            ListOffsetsResponse,
            deadline=attempt,
            node_id=node_id,
            looked_up=True,
            min_version=max(
                _FIRST_WITH_ISOLATION_LEVEL if read_committed else 1,
                *(_FIRST_WITH_SPEC.get(specs[partition], 1) for partition in keys),
            ),
        )
        return {
            TopicPartition(topic.name, partition.partition_index): result_of(
                partition.error_code,
                f"{topic.name}-{partition.partition_index}",
                ListedOffset(
                    offset=partition.offset, timestamp=partition.timestamp, leader_epoch=partition.leader_epoch
                ),
            )
            for topic in response.topics
            for partition in topic.partitions
        }

    await ask_leaders("ListOffsets", pool, deadline, ask, leaders=leaders, result=result)


async def ask_leaders(
    what: str,
    pool: ConnectionPool,
    deadline: Deadline,
    ask: Ask[TopicPartition, Value],
    *,
    leaders: Mapping[TopicPartition, int],
    result: PerKeyResult[TopicPartition, Value],
) -> None:
    """Call the leader of each partition, and settle the partitions."""
    find = _leader_lookup(pool, deadline, leaders)
    call = KeyedCall(what=what, ask=ask, settle=result.settle, find=find, retriable=RETRIABLE_LEADER_CODES)
    await call.run(pool, deadline, result.values())


def _leader_lookup(
    pool: ConnectionPool, deadline: Deadline, leaders: Mapping[TopicPartition, int]
) -> Find[TopicPartition]:
    """Return a function that looks up leaders with a Metadata request, except those that the caller has looked up.

    A leader of the caller's is used once. A partition that has to be retried is looked up, since its leader has moved.
    """
    unused = dict(leaders)

    async def find(partitions: list[TopicPartition]) -> Mapping[TopicPartition, int | KafkaApiError]:
        places: dict[TopicPartition, int | KafkaApiError] = {
            partition: unused.pop(partition) for partition in partitions if partition in unused
        }
        if missing := [partition for partition in partitions if partition not in places]:
            response = await _metadata(pool, deadline, sorted({partition.topic for partition in missing}))
            places |= _leaders(response, missing)
        return places

    return find


def _leaders(
    response: MetadataResponse, wanted: Collection[TopicPartition]
) -> Mapping[TopicPartition, int | KafkaApiError]:
    """Return the leader of each partition. One without a leader at present has the error LEADER_NOT_AVAILABLE."""
    leaders: dict[TopicPartition, int | KafkaApiError] = {}
    for topic in response.topics:
        for answer in topic.partitions:
            if topic.name is not None:
                partition = TopicPartition(topic.name, answer.partition_index)
                leaders[partition] = result_of(
                    ErrorCode.LEADER_NOT_AVAILABLE if answer.leader_id < 0 else ErrorCode.NONE,
                    partition.name,
                    answer.leader_id,
                )
    errors = {topic.name: topic.error_code for topic in response.topics}
    return {
        partition: leaders[partition]
        if partition in leaders
        else api_error(errors.get(partition.topic, 0) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, partition.name)
        for partition in wanted
    }


async def _metadata(
    pool: ConnectionPool, deadline: Deadline, names: Collection[str] | None, *, node_id: int | None = None
) -> MetadataResponse:
    topics = None if names is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    return await pool.send(
        MetadataRequest(topics=topics, allow_auto_topic_creation=False),
        MetadataResponse,
        deadline=deadline,
        node_id=node_id,
        looked_up=node_id is not None,
        min_version=FIRST_METADATA_WITHOUT_AUTO_CREATION,
    )


def _description(name: str, topic: MetadataResponse.MetadataResponseTopic) -> TopicDescription:
    return TopicDescription(
        name=name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(
            PartitionDescription(
                partition=partition.partition_index,
                leader=partition.leader_id,
                leader_epoch=partition.leader_epoch,
                replicas=tuple(partition.replica_nodes),
                isr=tuple(partition.isr_nodes),
            )
            for partition in sorted(topic.partitions, key=lambda partition: partition.partition_index)
        ),
    )

"""Topics, partitions, offsets and cluster information: requests, and one outcome per key."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from klamm.admin.types import (
    ClusterDescription,
    CreatedTopic,
    ListedOffset,
    NewPartitions,
    NewTopic,
    Node,
    PartitionDescription,
    TopicDescription,
    TopicListing,
)
from klamm.client.errors import RETRIABLE_CODES, ConnectionLostError, api_error
from klamm.client.pool import CONTROLLER
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from klamm.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from klamm.admin.results import (
        CreatePartitionsResult,
        CreateTopicsResult,
        DeleteTopicsResult,
        DescribeTopicsResult,
        ListOffsetsResult,
    )
    from klamm.client.pool import ConnectionPool, Deadline

FIRST_METADATA_WITHOUT_AUTO_CREATION = 4
CONSUMER_REPLICA_ID = -1
_NO_LEADER: Final = -1


async def create(
    pool: ConnectionPool,
    deadline: Deadline,
    topics: Collection[NewTopic],
    *,
    validate_only: bool,
    result: CreateTopicsResult,
) -> None:
    """Send one CreateTopics request to the controller and settle its topics."""
    request = CreateTopicsRequest(
        topics=[_creatable(topic) for topic in topics], timeout_ms=deadline.left_ms(), validate_only=validate_only
    )
    response = await pool.send(
        request,
        CreateTopicsResponse,
        deadline=deadline,
        node_id=CONTROLLER,
        retry_on=lambda answer: _not_controller(topic.error_code for topic in answer.topics),
    )
    for topic in response.topics:
        if topic.error_code != ErrorCode.NONE:
            result.fail(topic.name, api_error(topic.error_code, topic.error_message))
            continue
        made = CreatedTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            num_partitions=topic.num_partitions,
            replication_factor=topic.replication_factor,
        )
        result.succeed(topic.name, made)


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
            CreateTopicsRequest.CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()
        ],
    )


async def delete(
    pool: ConnectionPool, deadline: Deadline, names: Collection[str], *, result: DeleteTopicsResult
) -> None:
    """Send one DeleteTopics request to the controller and settle its topics."""
    request = DeleteTopicsRequest(
        topics=[DeleteTopicsRequest.DeleteTopicState(name=name) for name in names],
        topic_names=list(names),  # name is used in versions before 6
        timeout_ms=deadline.left_ms(),
    )
    response = await pool.send(
        request,
        DeleteTopicsResponse,
        deadline=deadline,
        node_id=CONTROLLER,
        retry_on=lambda answer: _not_controller(topic.error_code for topic in answer.responses),
    )
    for topic in response.responses:
        if topic.name is None:
            continue
        if topic.error_code != ErrorCode.NONE:
            result.fail(topic.name, api_error(topic.error_code, topic.error_message))
        else:
            result.succeed(topic.name, None)


async def grow(
    pool: ConnectionPool,
    deadline: Deadline,
    partitions: Mapping[str, NewPartitions],
    *,
    validate_only: bool,
    result: CreatePartitionsResult,
) -> None:
    """Send one CreatePartitions request to the controller and settle its topics."""
    request = CreatePartitionsRequest(
        topics=[
            CreatePartitionsRequest.CreatePartitionsTopic(
                name=name, count=new.total_count, assignments=_assignments(new)
            )
            for name, new in partitions.items()
        ],
        timeout_ms=deadline.left_ms(),
        validate_only=validate_only,
    )
    response = await pool.send(
        request,
        CreatePartitionsResponse,
        deadline=deadline,
        node_id=CONTROLLER,
        retry_on=lambda answer: _not_controller(topic.error_code for topic in answer.results),
    )
    for topic in response.results:
        if topic.error_code != ErrorCode.NONE:
            result.fail(topic.name, api_error(topic.error_code, topic.error_message))
        else:
            result.succeed(topic.name, None)


def _assignments(new: NewPartitions) -> list[CreatePartitionsRequest.CreatePartitionsAssignment] | None:
    if new.new_assignments is None:
        return None
    return [
        CreatePartitionsRequest.CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in new.new_assignments
    ]


async def describe(
    pool: ConnectionPool, deadline: Deadline, names: Collection[str], *, result: DescribeTopicsResult
) -> None:
    """Describe the topics with one broker's metadata and settle them. This never creates a topic."""
    if not names:
        return
    response = await _metadata(pool, deadline, names)
    for topic in response.topics:
        if topic.name is None:
            continue
        if topic.error_code != ErrorCode.NONE:
            result.fail(topic.name, api_error(topic.error_code))
        else:
            result.succeed(topic.name, _description(topic))


async def list_all(pool: ConnectionPool, deadline: Deadline, *, include_internal: bool) -> Mapping[str, TopicListing]:
    """Return all topics that the principal may describe, by name."""
    response = await _metadata(pool, deadline, None)
    return {
        topic.name: TopicListing(name=topic.name, topic_id=topic.topic_id, is_internal=topic.is_internal)
        for topic in sorted(response.topics, key=lambda topic: topic.name or "")
        if topic.name is not None and (include_internal or not topic.is_internal)
    }


async def describe_cluster(pool: ConnectionPool, deadline: Deadline) -> ClusterDescription:
    """Return the cluster with its brokers and the features that the responding broker supports."""
    response = await _metadata(pool, deadline, ())
    return ClusterDescription(
        cluster_id=response.cluster_id,
        controller_id=response.controller_id,
        nodes=tuple(
            Node(id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack)
            for broker in sorted(response.brokers, key=lambda broker: broker.node_id)
        ),
        features=await pool.features(deadline),
    )


async def list_offsets(
    pool: ConnectionPool,
    deadline: Deadline,
    specs: Mapping[TopicPartition, int],
    *,
    read_committed: bool,
    result: ListOffsetsResult,
) -> None:
    """Request offsets from the leader of each partition. A leader that moved is looked up again until the deadline."""
    waiting = dict(specs)
    while waiting and not deadline.passed():
        response = await _metadata(pool, deadline, sorted({partition.topic for partition in waiting}))
        leaders = _leaders(response, waiting, result)
        by_leader: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
        for partition, leader in leaders.items():
            by_leader[leader][partition] = waiting[partition]
        answered: set[TopicPartition] = set(waiting) - set(leaders)
        for leader, asked in by_leader.items():
            # A failed leader may have a successor by now, which the next Metadata response reports.
            with contextlib.suppress(ConnectionLostError):
                answered |= await _offsets_of_leader(
                    pool, deadline, leader, asked, read_committed=read_committed, result=result
                )
        waiting = {partition: spec for partition, spec in specs.items() if partition in set(waiting) - answered}
        if waiting:
            await pool.pause(0.1)
    result.fail_open(TimeoutError(f"ListOffsets: no leader responded within {deadline.limit_ms} ms"), waiting)


def _leaders(
    response: MetadataResponse, wanted: Collection[TopicPartition], result: ListOffsetsResult
) -> dict[TopicPartition, int]:
    """Return the leader of each partition, -1 if it has none at present. Partitions that do not exist fail."""
    leaders: dict[TopicPartition, int] = {}
    for topic in response.topics:
        for partition in topic.partitions:
            if topic.name is not None:
                leaders[TopicPartition(topic.name, partition.partition_index)] = partition.leader_id
    errors = {topic.name: topic.error_code for topic in response.topics}
    found: dict[TopicPartition, int] = {}
    for wanted_one in wanted:
        if wanted_one in leaders:
            found[wanted_one] = leaders[wanted_one]
            continue
        code = errors.get(wanted_one.topic, 0) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if code in RETRIABLE_CODES:
            found[wanted_one] = _NO_LEADER
            continue
        result.fail(wanted_one, api_error(code, f"{wanted_one.topic}-{wanted_one.partition}"))
    return found


async def _offsets_of_leader(
    pool: ConnectionPool,
    deadline: Deadline,
    leader: int,
    specs: Mapping[TopicPartition, int],
    *,
    read_committed: bool,
    result: ListOffsetsResult,
) -> set[TopicPartition]:
    """Settle the partitions in a leader's response and return those that are settled."""
    if leader == _NO_LEADER:
        return set()
    by_topic: dict[str, list[ListOffsetsRequest.ListOffsetsPartition]] = defaultdict(list)
    for partition, spec in specs.items():
        by_topic[partition.topic].append(
            ListOffsetsRequest.ListOffsetsPartition(partition_index=partition.partition, timestamp=spec)
        )
    response = await pool.send(
        ListOffsetsRequest(
            replica_id=CONSUMER_REPLICA_ID,
            isolation_level=int(read_committed),
            topics=[ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=some) for name, some in by_topic.items()],
            timeout_ms=deadline.left_ms(),
        ),
        ListOffsetsResponse,
        deadline=deadline,
        node_id=leader,
        looked_up=True,
        min_version=7 if min(specs.values()) < MAX_TIMESTAMP_SPEC_ABOVE else 1,
    )
    settled: set[TopicPartition] = set()
    for topic in response.topics:
        for found in topic.partitions:
            partition = TopicPartition(topic.name, found.partition_index)
            if found.error_code in _LEADER_MOVED:
                continue
            settled.add(partition)
            if found.error_code != ErrorCode.NONE:
                result.fail(partition, api_error(found.error_code, f"{partition.topic}-{partition.partition}"))
            else:
                listed = ListedOffset(offset=found.offset, timestamp=found.timestamp, leader_epoch=found.leader_epoch)
                result.succeed(partition, listed)
    return settled


MAX_TIMESTAMP_SPEC_ABOVE = -2
"""Specs below this one (-3, the largest timestamp) require version 7 (KIP-734)."""
_LEADER_MOVED: Final = RETRIABLE_CODES | {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # Metadata has just named the partition
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
}


async def _metadata(pool: ConnectionPool, deadline: Deadline, names: Collection[str] | None) -> MetadataResponse:
    topics = None if names is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    return await pool.send(
        MetadataRequest(topics=topics, allow_auto_topic_creation=False),
        MetadataResponse,
        deadline=deadline,
        min_version=FIRST_METADATA_WITHOUT_AUTO_CREATION,
    )


def _description(topic: MetadataResponse.MetadataResponseTopic) -> TopicDescription:
    if topic.name is None:
        raise KafkaApiError("Metadata response: a topic has no name")
    return TopicDescription(
        name=topic.name,
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


def _not_controller(codes: Iterable[int]) -> int:
    return next((code for code in codes if code == ErrorCode.NOT_CONTROLLER), 0)

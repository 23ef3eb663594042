"""Blocking calls to the leader of a target partition: producer state, log tail, DeleteRecords."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.kafka_client.data.fetch import FetchLimits, WantedRecords
from klamm.kafka_client.data.records import fetch_once
from klamm.kafka_client.errors import ConnectionLostError, raise_for_code
from klamm.kafka_client.internal_topic import read_partition
from klamm.protocol.errors import ErrorCode, PolicyViolationError, error_name
from klamm.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from klamm.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from klamm.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.protocol.records import iter_batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.kafka_client.connection.connection import Connection
    from klamm.kafka_client.data.cluster import Cluster
    from klamm.protocol.types import PartitionTuple

_TIMEOUT_S: Final = 10.0
_DELETE_TIMEOUT_S: Final = 30.0
_LIMITS: Final = FetchLimits(max_bytes=8 * 1024 * 1024, partition_max_bytes=4 * 1024 * 1024, min_bytes=0, max_wait_ms=0)
_TAIL_OFFSETS: Final = 500
"""Number of offsets before the log end that are compared with the source."""
_TOPIC: Final = 2
_SET: Final = 0
_CLEANUP_POLICY: Final = "cleanup.policy"
_TIMESTAMP_TYPE: Final = "message.timestamp.type"


class NextSequence(NamedTuple):
    """State of a producer in the log of a partition."""

    producer_epoch: int
    next_sequence: int


def leader_of(cluster: Cluster, partition: PartitionTuple) -> Connection:
    """Return the connection to the leader of a partition.

    Raises:
        ConnectionLostError: It has no leader, or the leader is unavailable.
    """
    leader = cluster.leader(*partition)
    if leader is None:
        raise ConnectionLostError(f"{partition[0]}-{partition[1]} has no leader at present")
    return cluster.connection(leader)


def producer_state(cluster: Cluster, partition: PartitionTuple, producer_id: int) -> NextSequence | None:
    """Return the state of a producer in a partition. None: the broker has none.

    Raises:
        ConnectionLostError: The leader does not return it. The principal may lack READ on the topic.
    """
    topic, number = partition
    request = DescribeProducersRequest(
        topics=[DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[number])]
    )
    response = leader_of(cluster, partition).call(request, DescribeProducersResponse, timeout_s=_TIMEOUT_S)
    answer = response.topics[0].partitions[0]
    if answer.error_code != ErrorCode.NONE:
        raise ConnectionLostError(f"DescribeProducers of {topic}-{number}: {error_name(answer.error_code)}")
    for state in answer.active_producers:
        if state.producer_id == producer_id:
            return NextSequence(state.producer_epoch, (state.last_sequence + 1) & 0x7FFFFFFF)
    return None


def foreign_offset(cluster: Cluster, partition: PartitionTuple, offsets: range, producer_id: int) -> int | None:
    """Return the first offset among the last 500 that another producer wrote. None: there is none.

    Args:
        cluster: Target cluster.
        partition: Partition on the target.
        offsets: Offsets from the log start to the log end.
        producer_id: Producer id of the flow's partition.

    Raises:
        ConnectionLostError: The partition cannot be read now.
    """
    at = max(offsets.start, offsets.stop - _TAIL_OFFSETS)
    topic, number = partition
    while at < offsets.stop:
        wanted = WantedRecords(topic, cluster.topic_id(topic), number, at)
        connection = leader_of(cluster, partition)
        answer = next(fetch_once(connection, [wanted], _LIMITS, read_committed=False, timeout_s=_TIMEOUT_S), None)
        if answer is None or answer.error_code != ErrorCode.NONE:
            reason = "no answer" if answer is None else error_name(answer.error_code)
            raise ConnectionLostError(f"The end of {topic}-{number} cannot be read: {reason}")
        before = at
        for batch in iter_batches(answer.records, allow_partial_tail=True):
            if batch.producer_id != producer_id and batch.last_offset >= at:
                return max(batch.base_offset, at)
            at = max(at, batch.last_offset + 1)
        if at == before:
            return None  # compaction removed the rest
    return None


def differing_offset(
    source: tuple[Cluster, PartitionTuple, int], target: tuple[Cluster, PartitionTuple, range]
) -> int | None:
    """Return the first of the last 500 target offsets whose records differ on both clusters. None: all are equal.

    Offsets with a record on one side only do not count: compaction and retention work on each side alone.

    Args:
        source: Cluster, partition and log start offset of the source.
        target: Cluster, partition and offsets of the target.

    Raises:
        ConnectionLostError: A partition cannot be read now.
    """
    cluster, partition, bounds = target
    from_cluster, from_partition, source_start = source
    offsets = range(max(bounds.start, source_start, bounds.stop - _TAIL_OFFSETS), bounds.stop)
    if not offsets:
        return None
    ours = _contents(cluster, partition, offsets)
    theirs = _contents(from_cluster, from_partition, offsets)
    return next((offset for offset in sorted(ours.keys() & theirs.keys()) if ours[offset] != theirs[offset]), None)


def _contents(cluster: Cluster, partition: PartitionTuple, offsets: range) -> dict[int, tuple[object, ...]]:
    return {
        record.offset: (record.timestamp, record.key, record.value, record.headers)
        for records, _ in read_partition(cluster, partition, offsets)
        for record in records
        if record.offset in offsets
    }


def topics_with_log_append_time(cluster: Cluster, topics: Sequence[str], via: PartitionTuple) -> frozenset[str]:
    """Return the topics whose broker replaces timestamps. Topics whose configs the principal may not see are left out.

    Args:
        cluster: Target cluster.
        topics: Remote topics.
        via: Partition whose leader is asked.

    Raises:
        ConnectionLostError: The leader does not respond.
    """
    resources = [
        DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_TOPIC, resource_name=topic, configuration_keys=[_TIMESTAMP_TYPE]
        )
        for topic in topics
    ]
    request = DescribeConfigsRequest(resources=resources)
    response = leader_of(cluster, via).call(request, DescribeConfigsResponse, timeout_s=_TIMEOUT_S)
    return frozenset(
        result.resource_name
        for result in response.results
        for config in result.configs
        if config.name == _TIMESTAMP_TYPE and config.value == "LogAppendTime"
    )


def delete_before(cluster: Cluster, partition: PartitionTuple, offset: int) -> None:
    """Delete the records of a partition before an offset, also in a compacted topic.

    A topic with ``cleanup.policy=compact`` allows no DeleteRecords. Its policy is ``compact,delete`` for this call.

    Raises:
        ConnectionLostError: The leader does not respond.
        KafkaApiError: The target rejects it. The principal may lack DELETE or ALTER_CONFIGS on the topic.
    """
    try:
        _delete_records(cluster, partition, offset)
    except PolicyViolationError:
        _set_cleanup_policy(cluster, partition, "compact,delete")
        try:
            _delete_records(cluster, partition, offset)
        finally:
            _set_cleanup_policy(cluster, partition, "compact")


def _delete_records(cluster: Cluster, partition: PartitionTuple, offset: int) -> None:
    topic, number = partition
    request = DeleteRecordsRequest(
        topics=[
            DeleteRecordsRequest.DeleteRecordsTopic(
                name=topic,
                partitions=[DeleteRecordsRequest.DeleteRecordsPartition(partition_index=number, offset=offset)],
            )
        ],
        timeout_ms=int(_TIMEOUT_S * 1000),
    )
    response = leader_of(cluster, partition).call(request, DeleteRecordsResponse, timeout_s=_DELETE_TIMEOUT_S)
    raise_for_code(response.topics[0].partitions[0].error_code)


def _set_cleanup_policy(cluster: Cluster, partition: PartitionTuple, value: str) -> None:
    topic = partition[0]
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=_TOPIC,
        resource_name=topic,
        configs=[
            IncrementalAlterConfigsRequest.AlterableConfig(name=_CLEANUP_POLICY, config_operation=_SET, value=value)
        ],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    response = leader_of(cluster, partition).call(request, IncrementalAlterConfigsResponse, timeout_s=_TIMEOUT_S)
    raise_for_code(response.responses[0].error_code, response.responses[0].error_message)

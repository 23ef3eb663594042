"""Blocking calls to the leader of a target partition: producer states, configs, DeleteRecords."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.kafka_client.described import describe_configs_request, describe_producers_request, described_configs
from klamm.kafka_client.errors import ConnectionLostError, raise_for_code
from klamm.protocol.errors import ErrorCode, PolicyViolationError, error_name
from klamm.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from klamm.protocol.messages.describe_configs import DescribeConfigsResponse
from klamm.protocol.messages.describe_producers import DescribeProducersResponse
from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.protocol.types import MAX_SEQUENCE, ConfigOperation, ConfigSource, ResourceType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.kafka_client.connection.connection import Connection
    from klamm.kafka_client.data.cluster import Cluster
    from klamm.protocol.types import PartitionTuple

_TIMEOUT_S: Final = 10.0
_DELETE_TIMEOUT_S: Final = 30.0
_SET: Final = ConfigOperation.SET
_REMOVE: Final = ConfigOperation.DELETE
_OF_TOPIC: Final = ConfigSource.DYNAMIC_TOPIC_CONFIG
_CLEANUP_POLICY: Final = "cleanup.policy"
_DELETABLE: Final[Mapping[str, str | None]] = {
    _CLEANUP_POLICY: "compact,delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
}
"""Configs of a compacted topic whose records DeleteRecords may delete, and nothing else."""
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


def producer_states(
    cluster: Cluster, wanted: Mapping[PartitionTuple, int]
) -> dict[PartitionTuple, NextSequence | ConnectionLostError]:
    """Return the state of one producer in each of some partitions, or why it is unknown. Epoch 0: it has none.

    Args:
        cluster: Target cluster.
        wanted: Producer ids by partition.
    """
    states: dict[PartitionTuple, NextSequence | ConnectionLostError] = {}
    for leader, led in cluster.by_leader(wanted).items():
        if leader is None:
            states |= {(topic, at): ConnectionLostError(f"{topic}-{at} has no leader at present") for topic, at in led}
            continue
        request = describe_producers_request(led)
        try:
            response = cluster.connection(leader).call(request, DescribeProducersResponse, timeout_s=_TIMEOUT_S)
        except ConnectionLostError as error:
            states |= dict.fromkeys(led, error)
            continue
        for topic_answer in response.topics:
            for answer in topic_answer.partitions:
                partition = (topic_answer.name, answer.partition_index)
                states[partition] = _state_in(answer, partition, wanted[partition])
    return states


def _state_in(
    answer: DescribeProducersResponse.PartitionResponse, partition: PartitionTuple, producer_id: int
) -> NextSequence | ConnectionLostError:
    if answer.error_code != ErrorCode.NONE:
        topic, number = partition
        return ConnectionLostError(f"DescribeProducers of {topic}-{number}: {error_name(answer.error_code)}")
    for state in answer.active_producers:
        if state.producer_id == producer_id:
            return NextSequence(state.producer_epoch, (state.last_sequence + 1) & MAX_SEQUENCE)
    return NextSequence(0, 0)


def topics_with_log_append_time(cluster: Cluster, topics: Sequence[str], via: PartitionTuple) -> frozenset[str]:
    """Return the topics whose broker replaces timestamps. Topics whose configs the principal may not see are left out.

    Args:
        cluster: Target cluster.
        topics: Remote topics.
        via: Partition whose leader is asked.

    Raises:
        ConnectionLostError: The leader does not respond.
    """
    request = describe_configs_request(ResourceType.TOPIC, topics, [_TIMESTAMP_TYPE])
    response = leader_of(cluster, via).call(request, DescribeConfigsResponse, timeout_s=_TIMEOUT_S)
    values = described_configs(response)
    return frozenset(topic for topic, configs in values.items() if configs.get(_TIMESTAMP_TYPE) == "LogAppendTime")


def delete_before(cluster: Cluster, partition: PartitionTuple, offset: int) -> None:
    """Delete the records of a partition before an offset, also in a compacted topic.

    A topic with ``cleanup.policy=compact`` allows no DeleteRecords. Its policy is ``compact,delete`` for the call, with
    unlimited retention: if the configs are not restored, because the process or the target dies, no record is deleted.

    Raises:
        ConnectionLostError: The leader does not respond.
        KafkaApiError: The target rejects it. The principal may lack DELETE or ALTER_CONFIGS on the topic.
    """
    try:
        _delete_records(cluster, partition, offset)
    except PolicyViolationError:
        before = _own_configs(cluster, partition)
        _set_configs(cluster, partition, _DELETABLE)
        try:
            _delete_records(cluster, partition, offset)
        finally:
            _set_configs(cluster, partition, before)


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


def _own_configs(cluster: Cluster, partition: PartitionTuple) -> dict[str, str | None]:
    """Return the values that a compacted topic has for the configs in ``_DELETABLE``. None: not set on the topic."""
    unset = dict.fromkeys(_DELETABLE) | {_CLEANUP_POLICY: "compact"}
    request = describe_configs_request(ResourceType.TOPIC, [partition[0]], list(_DELETABLE))
    (result,) = leader_of(cluster, partition).call(request, DescribeConfigsResponse, timeout_s=_TIMEOUT_S).results
    own = {entry.name: entry.value if entry.config_source == _OF_TOPIC else None for entry in result.configs}
    if result.error_code or own == _DELETABLE:  # the principal may not see them, or another task has just set them
        return unset
    return unset | own


def _set_configs(cluster: Cluster, partition: PartitionTuple, values: Mapping[str, str | None]) -> None:
    """Set or, if the value is None, remove configs of a topic."""
    topic = partition[0]
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=ResourceType.TOPIC,
        resource_name=topic,
        configs=[
            IncrementalAlterConfigsRequest.AlterableConfig(
                name=name, config_operation=_REMOVE if value is None else _SET, value=value
            )
            for name, value in values.items()
        ],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    response = leader_of(cluster, partition).call(request, IncrementalAlterConfigsResponse, timeout_s=_TIMEOUT_S)
    raise_for_code(response.responses[0].error_code, response.responses[0].error_message)

"""Log directories of brokers: the replicas in them and the free disk space (KIP-113, KIP-827)."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from klamm.admin._calls import AdminCalls
from klamm.admin.results import PerKeyResult
from klamm.kafka_client.errors import api_error
from klamm.kafka_client.pool.rights import name_right
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from klamm.protocol.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from klamm.kafka_client.pool.calls import Deadline
    from klamm.kafka_client.pool.pool import ConnectionPool

_UNKNOWN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaInfo:
    """A replica in a log directory."""

    size: int
    """Size of its segments in bytes."""
    offset_lag: int
    """Number of records that the replica is behind; for a future replica, behind the current one. -1 if unknown."""
    is_future: bool
    """Whether the replica is moving here from another directory of the broker and will replace the current one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirDescription:
    """A log directory of a broker."""

    error: KafkaApiError | None
    """Reason why the directory cannot be described, for example that it is offline. None if there is no error."""
    replicas: Mapping[TopicPartition, ReplicaInfo]
    total_bytes: int | None
    """Size of its file system in bytes. None if the broker does not report it (before Kafka 3.3)."""
    usable_bytes: int | None
    """Free space of its file system in bytes. None if the broker does not report it (before Kafka 3.3)."""


class LogDirCalls(AdminCalls):
    """Admin calls for log directories."""

    def describe_log_dirs(
        self, broker_ids: Collection[int], *, timeout_ms: int | None = None
    ) -> PerKeyResult[int, Mapping[str, LogDirDescription]]:
        """Return, per broker, its log directories by path, with the replicas in each."""
        result: PerKeyResult[int, Mapping[str, LogDirDescription]] = PerKeyResult(broker_ids)
        for broker_id in result.values():
            work = functools.partial(_describe, broker_id=broker_id, result=result)
            self._start(result, work, keys=(broker_id,), timeout_ms=timeout_ms)
        return result


async def _describe(
    pool: ConnectionPool,
    deadline: Deadline,
    *,
    broker_id: int,
    result: PerKeyResult[int, Mapping[str, LogDirDescription]],
) -> None:
    response = await pool.send(
        DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse, deadline=deadline, node_id=broker_id
    )
    if response.results:
        result.succeed(broker_id, {log_dir.log_dir: _description(log_dir) for log_dir in response.results})
    else:  # before version 3 there is no error code, and only missing authorization empties the list of directories
        error = api_error(response.error_code or ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        name_right(error, "DescribeLogDirs", None, pool.security)
        result.fail(broker_id, error)


def _description(result: DescribeLogDirsResponse.DescribeLogDirsResult) -> LogDirDescription:
    return LogDirDescription(
        error=None if result.error_code == ErrorCode.NONE else api_error(result.error_code),
        replicas={
            TopicPartition(topic.name, partition.partition_index): ReplicaInfo(
                size=partition.partition_size, offset_lag=partition.offset_lag, is_future=partition.is_future_key
            )
            for topic in result.topics
            for partition in topic.partitions
        },
        total_bytes=None if result.total_bytes == _UNKNOWN else result.total_bytes,
        usable_bytes=None if result.usable_bytes == _UNKNOWN else result.usable_bytes,
    )

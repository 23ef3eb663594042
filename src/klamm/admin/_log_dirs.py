"""What brokers keep where, and how much room is left (KIP-113, KIP-827)."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from klamm.admin._calls import AdminCalls
from klamm.admin.results import PerKeyResult
from klamm.connections.errors import api_error
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from klamm.protocol.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from klamm.connections.pool import ConnectionPool, Deadline

_UNKNOWN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaInfo:
    """A replica in a directory."""

    size: int
    """Bytes of its segments."""
    offset_lag: int
    """How many records it is behind; of a future replica, behind the current one. -1: not known."""
    is_future: bool
    """It is on its way from another directory of that broker and will replace the replica there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirDescription:
    """A directory of a broker."""

    error: KafkaApiError | None
    """Why nothing can be said of it, for example that it is offline."""
    replicas: Mapping[TopicPartition, ReplicaInfo]
    total_bytes: int | None
    """Size of its file system; None: the broker does not tell (before Kafka 3.3)."""
    usable_bytes: int | None
    """What is left of it; None: as above."""


class LogDirCalls(AdminCalls):
    """The calls on directories."""

    def describe_log_dirs(
        self, broker_ids: Collection[int], *, timeout_ms: int | None = None
    ) -> PerKeyResult[int, Mapping[str, LogDirDescription]]:
        """Return, per broker, its directories by path with the replicas in each."""
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
        result.succeed(broker_id, {found.log_dir: _description(found) for found in response.results})
    else:  # before version 3 there is no code, and nothing else is a reason to leave out all directories
        result.fail(broker_id, api_error(response.error_code or ErrorCode.CLUSTER_AUTHORIZATION_FAILED))


def _description(found: DescribeLogDirsResponse.DescribeLogDirsResult) -> LogDirDescription:
    return LogDirDescription(
        error=None if found.error_code == ErrorCode.NONE else api_error(found.error_code),
        replicas={
            TopicPartition(topic.name, partition.partition_index): ReplicaInfo(
                size=partition.partition_size, offset_lag=partition.offset_lag, is_future=partition.is_future_key
            )
            for topic in found.topics
            for partition in topic.partitions
        },
        total_bytes=None if found.total_bytes == _UNKNOWN else found.total_bytes,
        usable_bytes=None if found.usable_bytes == _UNKNOWN else found.usable_bytes,
    )

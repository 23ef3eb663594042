"""Partition reassignments (KIP-455, from Kafka 2.4 on) and leader elections (KIP-183, KIP-460)."""

from __future__ import annotations

import functools
from collections import defaultdict
from enum import IntEnum
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.admin._calls import AdminCalls, check_partition
from klamm.admin.results import PerKeyResult
from klamm.kafka_client.pool.keyed_calls import KeyedCall, result_of
from klamm.kafka_client.pool.pool import CONTROLLER
from klamm.lazy_dataclass import dataclass
from klamm.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from klamm.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from klamm.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from klamm.protocol.types import TopicPartition, by_topic

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from klamm.kafka_client.pool.calls import Deadline, Outcome
    from klamm.kafka_client.pool.pool import ConnectionPool
    from klamm.protocol.errors import KafkaApiError

_FIRST_WITH_ELECTION_TYPE: Final = 1
_Outcomes: TypeAlias = "Mapping[TopicPartition, KafkaApiError | None]"


class ElectionType(IntEnum):
    """Wire values of ``election_type``."""

    PREFERRED = 0
    """Elect the first replica."""
    UNCLEAN = 1
    """Elect any replica if no in-sync replica is left. Records may be lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReassignment:
    """A reassignment in progress."""

    replicas: tuple[int, ...]
    """All replicas, including those being added or removed."""
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]


class ReassignmentCalls(AdminCalls):
    """Admin calls for replicas and partition leaders."""

    def list_partition_reassignments(
        self, partitions: Collection[TopicPartition] | None = None, *, timeout_ms: int | None = None
    ) -> Outcome[Mapping[TopicPartition, PartitionReassignment]]:
        """Return the reassignments in progress, for some partitions or, with None, for all."""
        return self._pool.submit(lambda deadline: _list(self._pool, deadline, partitions), timeout_ms=timeout_ms)

    def alter_partition_reassignments(
        self, reassignments: Mapping[TopicPartition, Sequence[int] | None], *, timeout_ms: int | None = None
    ) -> PerKeyResult[TopicPartition, None]:
        """Assign new replicas to partitions, the preferred leader first. None cancels a reassignment in progress.

        Raises:
            ValueError: A list of replicas is empty.
        """
        for partition, replicas in reassignments.items():
            if replicas is not None and not replicas:
                raise ValueError(f"{partition}: expected at least one replica, or None to cancel a reassignment")
        result: PerKeyResult[TopicPartition, None] = PerKeyResult(reassignments)
        work = functools.partial(_alter, reassignments=reassignments, result=result)
        self._start(result, work, timeout_ms=timeout_ms)
        return result

    def elect_leaders(
        self, election_type: ElectionType, partitions: Collection[TopicPartition], *, timeout_ms: int | None = None
    ) -> PerKeyResult[TopicPartition, None]:
        """Trigger leader elections. A partition that already has the right leader fails with ELECTION_NOT_NEEDED."""
        result: PerKeyResult[TopicPartition, None] = PerKeyResult(partitions)
        work = functools.partial(_elect, election_type=election_type, result=result)
        self._start(result, work, timeout_ms=timeout_ms)
        return result


async def _list(
    pool: ConnectionPool, deadline: Deadline, partitions: Collection[TopicPartition] | None
) -> Mapping[TopicPartition, PartitionReassignment]:
    Topics = ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics  # noqa: N806  # a class
    for partition in partitions or ():
        if (invalid := check_partition(partition)) is not None:
            raise invalid
    topics = (
        None
        if partitions is None
        else [Topics(name=name, partition_indexes=indexes) for name, indexes in by_topic(partitions).items()]
    )
    response = await pool.send(
        ListPartitionReassignmentsRequest(topics=topics),
        ListPartitionReassignmentsResponse,
        deadline=deadline,
        node_id=CONTROLLER,
    )
    pool.check(response)
    return {
        TopicPartition(topic.name, partition.partition_index): PartitionReassignment(
            replicas=tuple(partition.replicas),
            adding_replicas=tuple(partition.adding_replicas),
            removing_replicas=tuple(partition.removing_replicas),
        )
        for topic in response.topics
        for partition in topic.partitions
    }


async def _alter(
    pool: ConnectionPool,
    deadline: Deadline,
    *,
    reassignments: Mapping[TopicPartition, Sequence[int] | None],
    result: PerKeyResult[TopicPartition, None],
) -> None:
    async def ask(node_id: int | None, keys: list[TopicPartition], attempt: Deadline) -> _Outcomes:
        topics: dict[str, list[AlterPartitionReassignmentsRequest.ReassignablePartition]] = defaultdict(list)
        for partition in keys:
            replicas = reassignments[partition]
            topics[partition.topic].append(
                AlterPartitionReassignmentsRequest.ReassignablePartition(
                    partition_index=partition.partition, replicas=None if replicas is None else list(replicas)
                )
            )
        request = AlterPartitionReassignmentsRequest(
            topics=[
                AlterPartitionReassignmentsRequest.ReassignableTopic(name=name, partitions=some)
                for name, some in topics.items()
            ],
        )
        response = await pool.send(request, AlterPartitionReassignmentsResponse, deadline=attempt, node_id=node_id)
        pool.check(response)
        return {
            TopicPartition(topic.name, partition.partition_index): result_of(
                partition.error_code, partition.error_message, None
            )
            for topic in response.responses
            for partition in topic.partitions
        }

    call = KeyedCall(
        what="AlterPartitionReassignments",
        ask=ask,
        settle=result.settle,
        node_id=CONTROLLER,
        check=check_partition,
    )
    await call.run(pool, deadline, reassignments)


async def _elect(
    pool: ConnectionPool,
    deadline: Deadline,
    *,
    election_type: ElectionType,
    result: PerKeyResult[TopicPartition, None],
) -> None:
    Partitions = ElectLeadersRequest.TopicPartitions  # noqa: N806  # a class

    async def ask(node_id: int | None, keys: list[TopicPartition], attempt: Deadline) -> _Outcomes:
        request = ElectLeadersRequest(
            election_type=election_type,
            topic_partitions=[Partitions(topic=name, partitions=indexes) for name, indexes in by_topic(keys).items()],
        )
        response = await pool.send(
            request,
            ElectLeadersResponse,
            deadline=attempt,
            node_id=node_id,
            min_version=0 if election_type is ElectionType.PREFERRED else _FIRST_WITH_ELECTION_TYPE,
        )
        pool.check(response)
        return {
            TopicPartition(topic.topic, partition.partition_id): result_of(
                partition.error_code, partition.error_message, None
            )
            for topic in response.replica_election_results
            for partition in topic.partition_result
        }

    call = KeyedCall(what="ElectLeaders", ask=ask, settle=result.settle, node_id=CONTROLLER)
    await call.run(pool, deadline, result.values())

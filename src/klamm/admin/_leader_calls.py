"""Calls to partition leaders: producers (KIP-664) and raw record batches. Also the transactions of all coordinators."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final
from uuid import UUID

from klamm.admin import _topics
from klamm.admin._calls import NO_LEADERS, AdminCalls
from klamm.admin.results import PerKeyResult
from klamm.kafka_client.data.fetch import FetchLimits, WantedRecords, fetch_request, fetched_partitions, throttled_s
from klamm.kafka_client.described import describe_producers_request
from klamm.kafka_client.pool.keyed_calls import result_of
from klamm.kafka_client.pool.node import NotReadyError
from klamm.lazy_dataclass import dataclass
from klamm.protocol.messages.describe_producers import DescribeProducersResponse
from klamm.protocol.messages.fetch import FetchResponse
from klamm.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from klamm.protocol.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from klamm.kafka_client.data.fetch import FetchedPartition
    from klamm.kafka_client.pool.calls import Deadline, Outcome
    from klamm.kafka_client.pool.pool import ConnectionPool
    from klamm.protocol.errors import KafkaApiError

_LAST_WITH_TOPIC_NAMES: Final = 12
"""Last version of Fetch that identifies topics by name. Kafka 4 still serves it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveProducer:
    """An idempotent or transactional producer of which the leader of a partition keeps the state."""

    producer_id: int
    producer_epoch: int
    last_timestamp_ms: int
    """Timestamp of its last batch in milliseconds since the epoch; -1 if unknown."""
    transaction_start_offset: int | None
    """First offset of its open transaction in this partition. None if it has none."""


class LeaderCalls(AdminCalls):
    """Admin calls to the leaders of partitions, and about transactions."""

    def describe_producers(
        self,
        partitions: Collection[TopicPartition],
        *,
        leaders: Mapping[TopicPartition, int] = NO_LEADERS,
        timeout_ms: int | None = None,
    ) -> PerKeyResult[TopicPartition, tuple[ActiveProducer, ...]]:
        """Return the producers of partitions, except those without idempotence. Served from Kafka 2.8 on.

        Args:
            partitions: The partitions.
            leaders: As in ``list_offsets``.
            timeout_ms: Limit for this call in milliseconds. None means the client's own.
        """
        result: PerKeyResult[TopicPartition, tuple[ActiveProducer, ...]] = PerKeyResult(partitions)
        self._start(result, functools.partial(_producers, leaders=leaders, result=result), timeout_ms=timeout_ms)
        return result

    def list_transactions(self, *, timeout_ms: int | None = None) -> Outcome[Mapping[int, str]]:
        """Return the transactional id of each producer id that the coordinators know. Served from Kafka 3.0 on."""
        return self._pool.submit(functools.partial(_transactions, self._pool), timeout_ms=timeout_ms)

    def fetch_batches(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        max_bytes: int,
        partition_max_bytes: int,
        leaders: Mapping[TopicPartition, int] = NO_LEADERS,
        timeout_ms: int | None = None,
    ) -> PerKeyResult[TopicPartition, memoryview]:
        """Return raw record batches from an offset on, without waiting for new ones. The last batch may be truncated.

        Args:
            offsets: First wanted offset of each partition. The first batch may begin earlier.
            max_bytes: Limit for the response of each leader in bytes, and for those of the preferred read replicas
                that it names (KIP-392) together. Partitions that exceed it get no batches. The first batch of a
                response is returned whole, however large it is.
            partition_max_bytes: Limit per partition in bytes.
            leaders: As in ``list_offsets``.
            timeout_ms: Limit for this call in milliseconds. None means the client's own.
        """
        result: PerKeyResult[TopicPartition, memoryview] = PerKeyResult(offsets)
        limits = FetchLimits(max_bytes, partition_max_bytes, min_bytes=0, max_wait_ms=0)
        work = functools.partial(_batches, offsets=dict(offsets), limits=limits, leaders=leaders, result=result)
        self._start(result, work, timeout_ms=timeout_ms)
        return result


async def _producers(
    pool: ConnectionPool,
    deadline: Deadline,
    *,
    leaders: Mapping[TopicPartition, int],
    result: PerKeyResult[TopicPartition, tuple[ActiveProducer, ...]],
) -> None:
    async def ask(
        node_id: int | None, partitions: list[TopicPartition], attempt: Deadline
    ) -> Mapping[TopicPartition, tuple[ActiveProducer, ...] | KafkaApiError]:
        request = describe_producers_request(partitions)
        response = await pool.send(
            request, DescribeProducersResponse, deadline=attempt, node_id=node_id, looked_up=True
        )
        return {
            TopicPartition(topic.name, entry.partition_index): result_of(
                entry.error_code, entry.error_message, tuple(map(_state, entry.active_producers))
            )
            for topic in response.topics
            for entry in topic.partitions
        }

    await _topics.ask_leaders("DescribeProducers", pool, deadline, ask, leaders=leaders, result=result)


def _state(producer: DescribeProducersResponse.ProducerState) -> ActiveProducer:
    start = producer.current_txn_start_offset
    return ActiveProducer(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        last_timestamp_ms=producer.last_timestamp,
        transaction_start_offset=None if start < 0 else start,
    )


async def _transactions(pool: ConnectionPool, deadline: Deadline) -> Mapping[int, str]:
    cluster = await _topics.describe_cluster(pool, deadline)
    transactional_ids: dict[int, str] = {}
    for node in cluster.nodes:
        response = await pool.send(
            ListTransactionsRequest(), ListTransactionsResponse, deadline=deadline, node_id=node.id
        )
        pool.check(response)
        transactional_ids |= {state.producer_id: state.transactional_id for state in response.transaction_states}
    return transactional_ids


async def _batches(
    pool: ConnectionPool,
    deadline: Deadline,
    *,
    offsets: Mapping[TopicPartition, int],
    limits: FetchLimits,
    leaders: Mapping[TopicPartition, int],
    result: PerKeyResult[TopicPartition, memoryview],
) -> None:
    async def fetch(
        node_id: int | None, partitions: list[TopicPartition], attempt: Deadline, limits: FetchLimits
    ) -> list[FetchedPartition]:
        wanted = [
            WantedRecords(name, UUID(int=0), index, offsets[TopicPartition(name, index)]) for name, index in partitions
        ]
        response = await pool.send(
            fetch_request(wanted, limits, read_committed=False),
            FetchResponse,
            deadline=attempt,
            node_id=node_id,
            looked_up=True,
            max_version=_LAST_WITH_TOPIC_NAMES,
        )
        if throttled_s(response):  # the connection itself waits for this time before its next request
            raise NotReadyError("a quota does not allow the fetch now")
        return list(fetched_partitions(response, {}, with_topic_ids=False, read_committed=False))

    async def ask(
        node_id: int | None, partitions: list[TopicPartition], attempt: Deadline
    ) -> Mapping[TopicPartition, memoryview | KafkaApiError]:
        fetched = await fetch(node_id, partitions, attempt, limits)
        by_replica: dict[int, list[TopicPartition]] = {}
        for entry in fetched:
            if entry.preferred_read_replica >= 0:
                by_replica.setdefault(entry.preferred_read_replica, []).append(
                    TopicPartition(entry.topic, entry.partition)
                )
        for replica, some in by_replica.items():
            shared = limits._replace(max_bytes=limits.max_bytes // len(by_replica))
            fetched += await fetch(replica, some, attempt, shared)
        return {  # the result of a replica replaces that of the leader
            TopicPartition(entry.topic, entry.partition): result_of(entry.error_code, entry.topic, entry.records)
            for entry in fetched
        }

    await _topics.ask_leaders("Fetch", pool, deadline, ask, leaders=leaders, result=result)

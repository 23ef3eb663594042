"""Client for the transaction coordinator of one transactional id.

It uses the protocol that every Kafka from 0.11 on supports: AddPartitionsToTxn adds partitions, and the producer epoch
stays the same from one transaction to the next. Under the newer rules (KIP-890, ``transaction.version`` 2), each
transaction gets its own epoch. A request by the newer rules within an older transaction would succeed but write
nothing, so all versions here end before those rules.

``klamm.kafka_client.data.coordinator_calls`` lists the reactions to error codes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.kafka_client.data.batches import ProducerStamp
from klamm.kafka_client.data.coordinator_calls import CoordinatorCalls
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from klamm.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from klamm.protocol.types import CoordinatorType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from klamm.kafka_client.connection.connection import Connection
    from klamm.kafka_client.data.cluster import Cluster
    from klamm.protocol.types import PartitionTuple

_TIMEOUT_S: Final = 10.0
_PATIENCE_S: Final = 3.0
_LAST_INIT: Final = 4
_LAST_ADD: Final = 3
_LAST_END: Final = 4

_OF_A_PARTITION: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.OPERATION_NOT_ATTEMPTED}
)


class TransactionManager:
    """Calls for one transactional id. Thread-confined; they block for a few seconds at most.

    Every call may raise ``ConnectionLostError`` if no coordinator responds at present, and may then be retried.
    """

    def __init__(self, cluster: Cluster, transactional_id: str) -> None:
        self._transactional_id = transactional_id
        self._calls = CoordinatorCalls(cluster, transactional_id, CoordinatorType.TRANSACTION, patience_s=_PATIENCE_S)

    def init(self, *, timeout_ms: int) -> ProducerStamp:
        """Request a new producer epoch. This fences the previous producer of the id and ends its open transaction.

        Args:
            timeout_ms: Time in milliseconds after which the coordinator aborts an unfinished transaction.
        """
        request = InitProducerIdRequest(transactional_id=self._transactional_id, transaction_timeout_ms=timeout_ms)
        answers: list[InitProducerIdResponse] = []

        def ask(connection: Connection) -> list[int]:
            version = connection.version_of(InitProducerIdRequest, at_most=_LAST_INIT)
            answer = connection.call(request, InitProducerIdResponse, version=version, timeout_s=_TIMEOUT_S)
            answers.append(answer)
            return [answer.error_code]

        self._calls.until_answered(ask, "InitProducerId")
        return ProducerStamp(answers[-1].producer_id, answers[-1].producer_epoch, is_transactional=True)

    def add(self, identity: ProducerStamp, partitions: Iterable[PartitionTuple]) -> dict[PartitionTuple, int]:
        """Add partitions to the open transaction, or open one with them.

        Returns:
            Error codes of the partitions that cannot be added now. If there are any, no partition was added.

        Raises:
            TransactionLostError: The producer epoch is fenced.
        """
        by_topic: dict[str, list[int]] = {}
        for topic, partition in partitions:
            by_topic.setdefault(topic, []).append(partition)
        topic_class = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.producer_epoch,
            v3_and_below_topics=[topic_class(name=name, partitions=numbers) for name, numbers in by_topic.items()],
        )
        refused: dict[PartitionTuple, int] = {}

        def ask(connection: Connection) -> list[int]:
            version = connection.version_of(AddPartitionsToTxnRequest, at_most=_LAST_ADD)
            answer = connection.call(request, AddPartitionsToTxnResponse, version=version, timeout_s=_TIMEOUT_S)
            refused.clear()
            refused.update(_refused(answer))
            return [code for code in refused.values() if code not in _OF_A_PARTITION]

        self._calls.until_answered(ask, "AddPartitionsToTxn")
        return refused

    def commit(self, identity: ProducerStamp) -> None:
        """Commit the open transaction. Repeating the call after a lost response is safe.

        Raises:
            TransactionLostError: The producer epoch is fenced, or there is no such transaction.
        """
        request = EndTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            committed=True,
        )

        def ask(connection: Connection) -> list[int]:
            version = connection.version_of(EndTxnRequest, at_most=_LAST_END)
            return [connection.call(request, EndTxnResponse, version=version, timeout_s=_TIMEOUT_S).error_code]

        self._calls.until_answered(ask, "EndTxn")


def _refused(answer: AddPartitionsToTxnResponse) -> dict[PartitionTuple, int]:
    return {
        (topic.name, partition.partition_index): partition.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for partition in topic.results_by_partition
        if partition.partition_error_code != ErrorCode.NONE
    }

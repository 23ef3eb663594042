"""Talking to the broker that coordinates the transactions of one transactional id.

By the rules that every Kafka from 0.11 on knows: partitions are added by AddPartitionsToTxn, and the epoch stays from
one transaction to the next. The newer rules (KIP-890, ``transaction.version`` 2) give each transaction an epoch of its
own; a request of theirs among ours would be answered well and write nothing, so the versions here end before them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from klamm.client.batches import ProducerStamp
from klamm.client.cluster import DeniedError
from klamm.client.connection import ConnectionLostError
from klamm.protocol.errors import ErrorCode, error_name
from klamm.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from klamm.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from klamm.protocol.types import CoordinatorType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from klamm.client.cluster import Cluster
    from klamm.protocol.types import PartitionTuple

_TIMEOUT_S: Final = 10.0
_PATIENCE_S: Final = 3.0
_FIRST_PAUSE_S: Final = 0.002
_LAST_PAUSE_S: Final = 0.05
_LAST_INIT: Final = 4
_LAST_ADD: Final = 3
_LAST_END: Final = 4

_ELSEWHERE: Final = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})
_MARKERS_DUE: Final = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS})
_LATER: Final = _MARKERS_DUE | {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
_DENIED: Final = frozenset({ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED})
_OF_A_PARTITION: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.OPERATION_NOT_ATTEMPTED}
)


class TransactionLostError(Exception):
    """The open transaction will not be committed: what followed the last one is to be copied again."""


class TransactionManager:
    """The calls for one transactional id. Thread-confined; they block for a few seconds at most.

    Every call may raise ``ConnectionLostError``: nobody answers now, and the call may be repeated.
    """

    def __init__(self, cluster: Cluster, transactional_id: str) -> None:
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._node: int | None = None

    def init(self, *, timeout_ms: int) -> ProducerStamp:
        """Get a new epoch: whoever wrote with this id before can not any more, and what it left open is decided.

        Args:
            timeout_ms: after which the coordinator aborts a transaction that nobody ends.
        """
        request = InitProducerIdRequest(transactional_id=self._transactional_id, transaction_timeout_ms=timeout_ms)
        answers: list[InitProducerIdResponse] = []

        def ask(node: int) -> int:
            connection = self._cluster.connection(node)
            version = connection.version_of(InitProducerIdRequest, at_most=_LAST_INIT)
            answer = connection.call(request, InitProducerIdResponse, version=version, timeout_s=_TIMEOUT_S)
            answers.append(answer)
            return answer.error_code

        self._until_answered(ask, "InitProducerId")
        return ProducerStamp(answers[-1].producer_id, answers[-1].producer_epoch, is_transactional=True)

    def add(self, identity: ProducerStamp, partitions: Iterable[PartitionTuple]) -> dict[PartitionTuple, int]:
        """Add partitions to the open transaction, which opens one when none is.

        Returns:
            The error codes of those that can not be added now; when there are any, none was added.

        Raises:
            TransactionLostError: the epoch is not ours any more.
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

        def ask(node: int) -> int:
            connection = self._cluster.connection(node)
            version = connection.version_of(AddPartitionsToTxnRequest, at_most=_LAST_ADD)
            answer = connection.call(request, AddPartitionsToTxnResponse, version=version, timeout_s=_TIMEOUT_S)
            refused.clear()
            refused.update(_refused(answer))
            return next((code for code in refused.values() if code not in _OF_A_PARTITION), int(ErrorCode.NONE))

        self._until_answered(ask, "AddPartitionsToTxn")
        return refused

    def commit(self, identity: ProducerStamp) -> None:
        """Commit the open transaction. Repeated after a lost answer it does no harm.

        Raises:
            TransactionLostError: the epoch is not ours any more, or there is no such transaction.
        """
        request = EndTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            committed=True,
        )

        def ask(node: int) -> int:
            connection = self._cluster.connection(node)
            version = connection.version_of(EndTxnRequest, at_most=_LAST_END)
            return connection.call(request, EndTxnResponse, version=version, timeout_s=_TIMEOUT_S).error_code

        self._until_answered(ask, "EndTxn")

    def _until_answered(self, ask: Callable[[int], int], what: str) -> None:
        """Ask the coordinator until it has something else to say than "later"."""
        deadline = time.monotonic() + _PATIENCE_S
        pause_s = _FIRST_PAUSE_S
        while (code := self._ask_once(ask)) != ErrorCode.NONE:
            if code in _DENIED:
                raise DeniedError(f"{what} for {self._transactional_id}: {error_name(code)}")
            if code in _ELSEWHERE:
                self._node = None
            elif code not in _LATER:
                raise TransactionLostError(f"{what} for {self._transactional_id}: {error_name(code)}")
            if time.monotonic() >= deadline:
                why = " (the markers of the transaction before are not written yet)" if code in _MARKERS_DUE else ""
                raise ConnectionLostError(f"{what} for {self._transactional_id}: {error_name(code)}{why}")
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LAST_PAUSE_S)

    def _ask_once(self, ask: Callable[[int], int]) -> int:
        if self._node is None:
            self._node = self._cluster.coordinator(self._transactional_id, CoordinatorType.TRANSACTION)
        try:
            return ask(self._node)
        except ConnectionLostError:
            self._node = None
            raise


def _refused(answer: AddPartitionsToTxnResponse) -> dict[PartitionTuple, int]:
    return {
        (topic.name, partition.partition_index): partition.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for partition in topic.results_by_partition
        if partition.partition_error_code != ErrorCode.NONE
    }

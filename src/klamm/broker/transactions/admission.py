"""Checks that a partition belongs to the transaction of the producer that writes to it.

With ``transaction.version`` 2 (KIP-890) the client sends no AddPartitionsToTxn: the Produce request itself adds the
partition. Kafka's AddPartitionsToTxnManager sends this check to the coordinator over the network; here the coordinator
is in the same process. The check is skipped where the producer's transaction is already open in the partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.broker.groups.errors import CoordinatorNotAvailableError, NotCoordinatorError
from klamm.broker.transactions.model import (
    ConcurrentTransactionsError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionPartition,
)
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import ErrorCode, InvalidProducerEpochError, InvalidTxnStateError, KafkaApiError
from klamm.protocol.records import BATCH_OVERHEAD
from klamm.protocol.records.layout import FLAGS_AT, PRODUCER, PRODUCER_AT, TRANSACTIONAL
from klamm.protocol.types import ProducerIdentity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.broker.transactions.coordinator import TransactionCoordinator
    from klamm.server.time_slice import TimeSlice
    from klamm.storage.log import PartitionLog


class NotEnoughReplicasError(KafkaApiError):
    """Retriable error for older Produce versions. They retry on this code, but not on the code of the real reason."""

    error_code = ErrorCode.NOT_ENOUGH_REPLICAS


class CoordinatorLoadInProgressError(KafkaApiError):
    """Retriable error for older TxnOffsetCommit versions, for the same reason as ``NotEnoughReplicasError``."""

    error_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAbility:
    """Capabilities of one version of Produce or TxnOffsetCommit (Kafka's TransactionSupportedOperation)."""

    adds: bool
    """Whether a write adds its partition or group to the transaction (``transaction.version`` 2)."""
    knows_abortable: bool
    """Whether the version knows the error code TRANSACTION_ABORTABLE."""
    retriable: type[KafkaApiError]
    """Error class that makes an older client retry the request."""

    def translate(self, error: KafkaApiError) -> KafkaApiError:
        """Return the error that a client of this version receives for an error of the coordinator."""
        if isinstance(error, ProducerFencedError):
            return InvalidProducerEpochError(error.error_message)
        if isinstance(error, TransactionAbortableError) and not self.knows_abortable:
            return InvalidTxnStateError(error.error_message)
        if isinstance(error, ConcurrentTransactionsError) and not self.adds:
            return self.retriable(error.error_message)
        if isinstance(error, NotCoordinatorError | CoordinatorNotAvailableError):
            return self.retriable(error.error_message)
        return error


def is_transactional(records: memoryview) -> bool:
    """Return whether the header of a record batch has the transactional flag."""
    return len(records) > FLAGS_AT and bool(records[FLAGS_AT] & TRANSACTIONAL)


class ProduceAdmission:
    """The partitions of one transactional Produce request, checked against the transaction coordinator."""

    def __init__(self, coordinator: TransactionCoordinator, transactional_id: str, ability: ClientAbility) -> None:
        self._coordinator = coordinator
        self._transactional_id = transactional_id
        self._ability = ability
        self._failed: dict[ProducerIdentity, KafkaApiError] = {}
        """Errors of ``add``."""

    @property
    def begins_at_zero(self) -> bool:
        """Return whether sequence numbers restart at 0 with each transaction (``transaction.version`` 2)."""
        return self._ability.adds

    async def add(self, wanted: Sequence[tuple[PartitionLog, memoryview]], slices: TimeSlice) -> None:
        """Add the partitions to the transaction if the client leaves that to the broker (``transaction.version`` 2).

        ``check`` reports an error for each partition of the producer. It cannot detect the error itself: once the
        transaction has ended or the addition was rolled back, it would only find that the partition was not added. The
        client would then abort its transaction instead of retrying the request.
        """
        if not self._ability.adds:
            return
        by_producer: dict[ProducerIdentity, set[TransactionPartition]] = {}
        async for log, records in slices.over(wanted):
            producer = _producer(records)
            if producer is not None and not log.producers.has_open(*producer):
                by_producer.setdefault(producer, set()).add(TransactionPartition(log.topic_id, log.partition))
        for producer, partitions in by_producer.items():
            try:
                await self._coordinator.add(self._transactional_id, producer, partitions=partitions)
            except KafkaApiError as error:
                self._failed[producer] = error.with_traceback(None)  # it refers to this frame, and so to the request

    def check(self, log: PartitionLog, records: memoryview) -> bool:
        """Return whether the batch may open a transaction in the partition. The caller must append before it awaits.

        Raises:
            KafkaApiError: The partition does not belong to the producer's transaction, or could not be added to it,
                translated for the client's version.
        """
        producer = _producer(records)
        if producer is None or log.producers.has_open(*producer):
            return False
        if not self._ability.adds and not self._coordinator.verifies_partitions:
            return True
        failed = self._failed.get(producer)
        try:
            if failed is not None:
                raise type(failed)(failed.error_message)  # a new one: its traceback refers to this frame
            self._coordinator.verify(
                self._transactional_id, producer, TransactionPartition(log.topic_id, log.partition)
            )
        except KafkaApiError as error:
            if self._ability.translate(error) is error:
                raise  # "raise error from error" would make the error its own cause
            raise self._ability.translate(error) from error
        return True


def _producer(records: memoryview) -> ProducerIdentity | None:
    """Return the producer id and epoch of a batch; None if it is not transactional or too short to be a batch."""
    if len(records) < BATCH_OVERHEAD or not is_transactional(records):
        return None
    return ProducerIdentity(*PRODUCER.unpack_from(records, PRODUCER_AT)[:2])

"""Whether a partition belongs to the transaction of who writes to it; with KIP-890 writing adds it.

Kafka's AddPartitionsToTxnManager asks the coordinator over the network; ours is in the same process. A partition in
which the producer has its transaction open already is not asked about again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from klamm.broker.groups.errors import CoordinatorNotAvailableError, NotCoordinatorError
from klamm.broker.transactions.errors import (
    ConcurrentTransactionsError,
    ProducerFencedError,
    TransactionAbortableError,
)
from klamm.broker.transactions.model import TransactionPartition
from klamm.protocol.errors import ErrorCode, InvalidProducerEpochError, InvalidTxnStateError, KafkaApiError
from klamm.protocol.records import BATCH_OVERHEAD
from klamm.protocol.records.layout import FLAGS_AT, PRODUCER, PRODUCER_AT, TRANSACTIONAL
from klamm.protocol.types import ProducerIdentity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.broker.time_slice import TimeSlice
    from klamm.broker.transactions.coordinator import TransactionCoordinator
    from klamm.storage.log import PartitionLog


class NotEnoughReplicasError(KafkaApiError):
    """Old clients send again when they are told this, which they would not when told the real reason."""

    error_code = ErrorCode.NOT_ENOUGH_REPLICAS


class CoordinatorLoadInProgressError(KafkaApiError):
    """The same for commits of offsets."""

    error_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAbility:
    """What a version of Produce or TxnOffsetCommit can do (Kafka's TransactionSupportedOperation)."""

    adds: bool
    """Writing adds the partition to the transaction (``transaction.version`` 2)."""
    knows_abortable: bool
    """It understands TRANSACTION_ABORTABLE."""
    retriable: type[KafkaApiError]
    """What an older client is told when it is to send again."""

    def told(self, error: KafkaApiError) -> KafkaApiError:
        """Return what a client of this version is told instead of an error of the coordinator."""
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
    """Tell whether a batch says that it is part of a transaction."""
    return len(records) > FLAGS_AT and bool(records[FLAGS_AT] & TRANSACTIONAL)


class ProduceAdmission:
    """Asks the coordinator about the partitions of one transactional Produce request."""

    def __init__(self, coordinator: TransactionCoordinator, transactional_id: str, ability: ClientAbility) -> None:
        self._coordinator = coordinator
        self._transactional_id = transactional_id
        self._ability = ability

    @property
    def begins_at_zero(self) -> bool:
        """Whether sequences begin at 0 with each transaction, as clients of ``transaction.version`` 2 have it."""
        return self._ability.adds

    async def add(self, wanted: Sequence[tuple[PartitionLog, memoryview]], slices: TimeSlice) -> None:
        """Add partitions to the transaction where the client leaves that to the broker.

        What is refused is refused again, and then said, by ``check``.
        """
        if not self._ability.adds:
            return
        by_producer: dict[ProducerIdentity, set[TransactionPartition]] = {}
        async for log, records in slices.over(wanted):
            producer = _producer(records)
            if producer is not None and not _is_answered_by(log, producer):
                by_producer.setdefault(producer, set()).add(TransactionPartition(log.topic_id, log.partition))
        for producer, partitions in by_producer.items():
            try:
                await self._coordinator.add(self._transactional_id, producer, partitions=partitions)
            except KafkaApiError:
                continue

    def check(self, log: PartitionLog, records: memoryview) -> bool:
        """Tell whether the batch may open a transaction in the partition; the caller appends before it awaits anything.

        Raises:
            KafkaApiError: It may not.
        """
        producer = _producer(records)
        if producer is None or _is_answered_by(log, producer):
            return False
        if not self._ability.adds and not self._coordinator.verifies_partitions:
            return True
        try:
            self._coordinator.verify(
                self._transactional_id, producer, TransactionPartition(log.topic_id, log.partition)
            )
        except KafkaApiError as error:
            if self._ability.told(error) is error:
                raise  # its own cause would be a circle
            raise self._ability.told(error) from error
        return True


def _is_answered_by(log: PartitionLog, producer: ProducerIdentity) -> bool:
    """Tell whether the log knows by itself what to do: the transaction is open there, or the producer is fenced."""
    known_epoch = log.producers.epoch_of(producer.producer_id)
    return log.producers.has_open(*producer) or producer.producer_epoch < known_epoch


def _producer(records: memoryview) -> ProducerIdentity | None:
    """Return who wrote a batch; None when it is not transactional, or no batch."""
    if len(records) < BATCH_OVERHEAD or not is_transactional(records):
        return None
    return ProducerIdentity(*PRODUCER.unpack_from(records, PRODUCER_AT)[:2])

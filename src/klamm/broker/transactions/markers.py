"""Transaction markers: appending them to the partitions, and ending transactions that a power cut left open."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from klamm.broker.transactions.model import COORDINATOR_EPOCH, Transaction, TransactionPartition, TransactionState
from klamm.protocol.errors import (
    InvalidProducerEpochError,
    StorageError,
    TransactionCoordinatorFencedError,
)
from klamm.protocol.records import ControlType
from klamm.storage.log import append_marker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from klamm.broker.transactions import decisions
    from klamm.storage.log import LogManager, PartitionLog

logger = logging.getLogger(__name__)

_COMMITS: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT})


def write_markers(
    logs: LogManager, transaction: Transaction, now_ms: int, *, is_replay: bool = False
) -> Iterator[StorageError | None]:
    """Append the marker of a decided transaction to each of its partitions, one partition per step.

    Deleted topics are skipped. A rejected marker does not keep the other partitions from getting theirs.

    Args:
        logs: Log manager with the logs of all partitions.
        transaction: Decided transaction. The markers carry its epoch, which fences late writes of an older epoch.
        now_ms: Milliseconds since the epoch.
        is_replay: Whether some of the markers may already be in the logs.

    Yields:
        None, or the storage error of a partition whose marker has to be retried with ``is_replay``.
    """
    control_type = ControlType.COMMIT if transaction.state in _COMMITS else ControlType.ABORT
    producer_id, epoch = transaction.identity
    for wanted in sorted(transaction.partitions):
        try:
            log = _open(logs, wanted)
            if log is not None and not (is_replay and _has_marker(log, producer_id, epoch)):
                _write(log, control_type, producer_id, epoch, now_ms)
        except StorageError as error:
            yield error
        else:
            yield None


def _open(logs: LogManager, wanted: TransactionPartition) -> PartitionLog | None:
    try:
        return logs.get(wanted.topic_id, wanted.partition)
    except OSError as error:
        raise StorageError(f"Cannot open partition {wanted.partition} of {wanted.topic_id}: {error}") from error


def _has_marker(log: PartitionLog, producer_id: int, epoch: int) -> bool:
    return not log.producers.has_open(producer_id, log.producers.epoch_of(producer_id)) and (
        log.producers.epoch_of(producer_id) >= epoch
    )


def _write(log: PartitionLog, control_type: ControlType, producer_id: int, epoch: int, now_ms: int) -> None:
    try:
        append_marker(
            log,
            control_type,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=COORDINATOR_EPOCH,
            now_ms=now_ms,
        )
    except (InvalidProducerEpochError, TransactionCoordinatorFencedError) as error:
        # An administrator has already ended the transaction here (kafka-transactions.sh abort).
        logger.warning("Partition %s: the transaction marker is not written: %s", log.name, error)


def end_lost(
    log: PartitionLog, remembered: decisions.Decisions, owner_of: Callable[[int], Transaction | None], now_ms: int
) -> None:
    """End the transactions that are open in a log although they have ended: a power cut lost their markers.

    A remembered decision comes first: the same producer may have decided a later transaction the other way, and only
    the decision knows which transaction it is about. Without one, a transaction that belongs to no ongoing or
    undecided transaction is ended too. Otherwise the last stable offset would never advance, and readers with
    ``read_committed`` would wait forever. If the last transaction of the producer was committed and the epoch is the
    same, the open one is committed; any other is aborted.

    Call this before anything is appended to the log. A later batch of the same producer would join the open
    transaction, and might share its first offset with another decision.

    Args:
        log: The log.
        remembered: Remembered decisions.
        owner_of: Function that returns the transactional id of a producer id, None if there is none.
        now_ms: Milliseconds since the epoch.

    Raises:
        StorageError: The disk rejected a marker.
    """
    for producer_id, epoch in log.producers.open_producers():
        decision, owner = remembered.find(log, producer_id, epoch), owner_of(producer_id)
        if decision is None:
            if owner is None or (log.topic_id, log.partition) not in owner.partitions:
                _end_hanging(log, owner, producer_id, epoch, now_ms)
        elif not remembered.lacks_markers(decision):
            _end_decided(log, decision, producer_id, epoch, now_ms)


def _end_decided(
    log: PartitionLog, decision: decisions.TransactionDecision, producer_id: int, epoch: int, now_ms: int
) -> None:
    control_type = ControlType.COMMIT if decision.is_commit else ControlType.ABORT
    logger.info(
        "Producer %d: its transaction marker in partition %s was lost and is written again: %s",
        producer_id,
        log.name,
        control_type.name.lower(),
    )
    _write(log, control_type, producer_id, max(epoch, decision.marker_epoch), now_ms)


def _end_hanging(log: PartitionLog, transaction: Transaction | None, producer_id: int, epoch: int, now_ms: int) -> None:
    control_type = ControlType.ABORT
    if (
        transaction is not None
        and transaction.state is TransactionState.COMPLETE_COMMIT
        and _is_last(transaction, producer_id, epoch)
    ):
        control_type = ControlType.COMMIT
    marker_epoch = epoch
    if transaction is not None and transaction.producer_id == producer_id:
        marker_epoch = max(epoch, transaction.producer_epoch)
    logger.warning(
        "Producer %d: its open transaction in partition %s has no decision and is ended: %s",
        producer_id,
        log.name,
        control_type.name.lower(),
    )
    _write(log, control_type, producer_id, marker_epoch, now_ms)


def _is_last(transaction: Transaction, producer_id: int, epoch: int) -> bool:
    """Return whether the epoch is the one of the last ended transaction."""
    if producer_id != transaction.producer_id:
        return transaction.producer_epoch == 0
    return epoch == transaction.producer_epoch - (1 if transaction.bumps_epoch else 0)

"""Rules of transactions as pure functions: the current state and a request in, the new state or an error out.

The states and transitions are listed in ``model.TransactionState``. The rules are those of Kafka's
TransactionCoordinator and TransactionMetadata (KIP-98), with two additions:

- KIP-360: a producer may raise its own epoch after an error, by sending its current id and epoch in InitProducerId.
- KIP-890 (``transaction.version`` 2): the end of every transaction raises the epoch. A delayed request of one
  transaction then has an old epoch and cannot get into the next transaction.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from klamm.broker.transactions.model import (
    MAX_EPOCH,
    NO_TIME,
    ConcurrentTransactionsError,
    InvalidTransactionTimeoutError,
    ProducerFencedError,
    Transaction,
    TransactionAbortableError,
    TransactionPartition,
    TransactionState,
)
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import (
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTxnStateError,
)
from klamm.protocol.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from klamm.protocol.types import ProducerIdentity

MAX_GROUPS = 1_000
"""Largest number of groups in a transaction, so that a client that keeps adding groups cannot fill the disk."""
_ENDED = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}


_DECIDED = frozenset(_ENDED) | frozenset(_ENDED.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class EndDecision:
    """Outcome of an EndTxn request."""

    transaction: Transaction
    is_repeated: bool = False
    """Whether the transaction has already ended the same way, so that nothing changes."""


def check_id(transactional_id: str) -> None:
    """Reject an empty transactional id.

    Raises:
        InvalidRequestError: The transactional id is empty.
    """
    if not transactional_id:
        raise InvalidRequestError("The transactional id is empty")


def check_timeout(timeout_ms: int, max_timeout_ms: int) -> None:
    """Reject a transaction timeout that is not between 1 ms and ``transaction.max.timeout.ms``.

    Raises:
        InvalidTransactionTimeoutError: The timeout is not positive, or above ``transaction.max.timeout.ms``.
    """
    if not 0 < timeout_ms <= max_timeout_ms:
        raise InvalidTransactionTimeoutError(
            f"transaction.timeout.ms={timeout_ms} is not between 1 and transaction.max.timeout.ms={max_timeout_ms}"
        )


# -- InitProducerId


def needs_new_producer_id(transaction: Transaction | None, expected: ProducerIdentity | None) -> bool:
    """Return whether InitProducerId needs a new producer id: a new transactional id, or no epoch is left."""
    if transaction is None:
        return True
    is_at_rest = not transaction.state.is_ending and transaction.state is not TransactionState.ONGOING
    if not is_at_rest or not transaction.is_epoch_exhausted:
        return False
    if expected is None or expected.producer_epoch == transaction.producer_epoch:
        return True
    # A producer that was fenced with epoch 32766 resumes; no producer may receive epoch 32767.
    return transaction.producer_epoch > MAX_EPOCH and expected.producer_epoch == transaction.last_producer_epoch


def initialize(
    transaction: Transaction, *, expected: ProducerIdentity | None, timeout_ms: int, now_ms: int
) -> Transaction:
    """Return the state after InitProducerId. The epoch is raised, so the previous producer is fenced.

    A producer that sends its current id and epoch resumes after an error (KIP-360). If it repeats a request whose
    response it lost, it gets the same epoch again.

    Args:
        transaction: Current state. Not ONGOING: an ongoing transaction has to be aborted first (``fence``).
        expected: Current producer id and epoch as the producer knows them; None for a new producer.
        timeout_ms: Transaction timeout of the producer.
        now_ms: Milliseconds since the epoch.

    Raises:
        ProducerFencedError: A newer producer uses the transactional id.
        ConcurrentTransactionsError: The last transaction is still being ended.
    """
    check_expected(transaction, expected)
    if transaction.state.is_ending:
        raise ConcurrentTransactionsError("The last transaction is still being ended")
    epoch, last_epoch = _next_epoch(transaction, expected)
    return replace(
        transaction,
        producer_epoch=epoch,
        last_producer_epoch=last_epoch,
        previous_producer_id=transaction.producer_id,
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        partitions=frozenset(),
        groups=frozenset(),
        started_ms=NO_TIME,
        updated_ms=now_ms,
        bumps_epoch=False,
    )


def rotate(
    transaction: Transaction, new_producer_id: int, *, expected: ProducerIdentity | None, timeout_ms: int, now_ms: int
) -> Transaction:
    """Return the state after InitProducerId with a new producer id, because the epochs of the old id are exhausted.

    Raises:
        ProducerFencedError: A newer producer uses the transactional id.
    """
    check_expected(transaction, expected)
    return replace(
        initialize(
            replace(transaction, producer_epoch=NO_PRODUCER_EPOCH), expected=None, timeout_ms=timeout_ms, now_ms=now_ms
        ),
        producer_id=new_producer_id,
        producer_epoch=0,
        last_producer_epoch=expected.producer_epoch if expected is not None else NO_PRODUCER_EPOCH,
        previous_producer_id=transaction.producer_id,
    )


def check_expected(transaction: Transaction, expected: ProducerIdentity | None) -> None:
    """Reject a producer whose id is not the current one of the transactional id.

    Raises:
        ProducerFencedError: The producer id is outdated.
    """
    if (
        expected is None
        or transaction.producer_epoch == NO_PRODUCER_EPOCH
        or expected.producer_id == transaction.producer_id
    ):
        return
    # The previous producer id is accepted with its last epoch: the response with the new producer id may be lost.
    if expected.producer_id != transaction.previous_producer_id or expected.producer_epoch < MAX_EPOCH:
        raise ProducerFencedError(f"Producer id {expected.producer_id} is not the current one of this transactional id")


def _next_epoch(transaction: Transaction, expected: ProducerIdentity | None) -> tuple[int, int]:
    if expected is None:
        return transaction.producer_epoch + 1, NO_PRODUCER_EPOCH
    if transaction.producer_epoch in (NO_PRODUCER_EPOCH, expected.producer_epoch):
        return transaction.producer_epoch + 1, transaction.producer_epoch
    if expected.producer_epoch == transaction.last_producer_epoch:
        # A retry: the response with the new epoch was lost.
        return transaction.producer_epoch, transaction.last_producer_epoch
    raise ProducerFencedError(
        f"Epoch {expected.producer_epoch} is neither the current one, {transaction.producer_epoch}, nor the previous"
    )


# -- partitions and groups


def add(
    transaction: Transaction,
    producer: ProducerIdentity,
    *,
    partitions: AbstractSet[TransactionPartition] = frozenset(),
    groups: AbstractSet[str] = frozenset(),
    now_ms: int,
) -> Transaction:
    """Return the state with more partitions and groups. The first ones start the transaction.

    Returns ``transaction`` itself if it already contains all of them.

    Raises:
        InvalidProducerIdMappingError: The transactional id belongs to another producer id.
        ProducerFencedError: The producer epoch is not the current one.
        ConcurrentTransactionsError: The last transaction is still being ended.
        InvalidRequestError: The transaction would have more than ``MAX_GROUPS`` groups.
    """
    check_producer(transaction, producer)
    is_ongoing = transaction.state is TransactionState.ONGOING
    if len(transaction.groups | groups) > MAX_GROUPS:
        raise InvalidRequestError(f"A transaction can commit the offsets of at most {MAX_GROUPS} groups")
    if is_ongoing and partitions <= transaction.partitions and groups <= transaction.groups:
        return transaction
    return replace(
        transaction,
        state=TransactionState.ONGOING,
        partitions=transaction.partitions | partitions,
        groups=transaction.groups | groups,
        started_ms=transaction.started_ms if is_ongoing else now_ms,
        updated_ms=now_ms,
    )


def check_producer(transaction: Transaction, producer: ProducerIdentity) -> None:
    """Reject a producer that is not the current one, or whose last transaction is still being ended.

    Raises:
        InvalidProducerIdMappingError: The transactional id belongs to another producer id.
        ProducerFencedError: The producer epoch is not the current one.
        ConcurrentTransactionsError: The last transaction is still being ended.
    """
    if producer.producer_id != transaction.producer_id:
        raise InvalidProducerIdMappingError("The transactional id belongs to another producer id")
    if not _has_epoch(producer, transaction):
        raise ProducerFencedError(
            f"Epoch {producer.producer_epoch} is not the current one, {transaction.producer_epoch}"
        )
    if transaction.state.is_ending:
        raise ConcurrentTransactionsError("The last transaction is still being ended")


def _has_epoch(producer: ProducerIdentity, transaction: Transaction) -> bool:
    """Return whether a producer has the current epoch.

    Epoch 32767, the one after ``MAX_EPOCH``, is rejected even if it is current: no producer ever receives it. It only
    appears in markers that fence epoch 32766, and a transaction with it could not be fenced by a higher epoch.
    """
    return transaction.producer_epoch == producer.producer_epoch <= MAX_EPOCH


def verify(transaction: Transaction, producer: ProducerIdentity, wanted: TransactionPartition | str) -> None:
    """Check that a partition, or a group given by its id, was added to the producer's transaction.

    Raises:
        TransactionAbortableError: It was not added, or no transaction is ongoing.
        KafkaApiError: Errors of ``check_producer``.
    """
    check_producer(transaction, producer)
    added = transaction.groups if isinstance(wanted, str) else transaction.partitions
    if transaction.state is not TransactionState.ONGOING or wanted not in added:
        raise TransactionAbortableError("The partition was not added to the transaction")


# -- the end


def needs_next_producer_id(transaction: Transaction, *, bumps_epoch: bool) -> bool:
    """Return whether ``end`` needs a new producer id for the next transaction, because this end uses the last epoch."""
    return bumps_epoch and transaction.is_epoch_exhausted and not transaction.state.is_ending


def end(
    transaction: Transaction,
    producer: ProducerIdentity,
    *,
    is_commit: bool,
    bumps_epoch: bool,
    next_producer_id: int = NO_PRODUCER_ID,
    now_ms: int,
) -> EndDecision:
    """Decide a transaction on an EndTxn request.

    With ``bumps_epoch`` the end raises the epoch. A retry of the same EndTxn then carries the previous epoch (or, after
    the epochs were exhausted, the previous producer id), and is recognized by that.

    Args:
        transaction: Current state.
        producer: Producer id and epoch of the request.
        is_commit: True to commit, False to abort.
        bumps_epoch: Whether the client has ``transaction.version`` 2.
        next_producer_id: New producer id if ``needs_next_producer_id``, else -1.
        now_ms: Milliseconds since the epoch.

    Raises:
        InvalidProducerIdMappingError: The transactional id belongs to another producer id.
        ProducerFencedError: The producer epoch is not the current one.
        ConcurrentTransactionsError: The same end is in progress.
        InvalidTxnStateError: No transaction is ongoing, or the last one ended with the other outcome.
    """
    is_retry = bumps_epoch and _is_retry_of_end(transaction, producer)
    if producer.producer_id != transaction.producer_id and not is_retry:
        raise InvalidProducerIdMappingError("The transactional id belongs to another producer id")
    is_present = _has_epoch(producer, transaction) and not (bumps_epoch and transaction.state.is_ending)
    if not (is_present or (is_retry and transaction.state in _DECIDED)):
        raise ProducerFencedError(
            f"Epoch {producer.producer_epoch} is not the current one, {transaction.producer_epoch}"
        )
    began_ms = None
    if transaction.state is TransactionState.ONGOING:
        began_ms = transaction.started_ms
    elif _was_ended(transaction, is_commit=is_commit) and (is_retry or not bumps_epoch):
        if transaction.state.is_ending:
            raise ConcurrentTransactionsError("The transaction is still being ended")
        return EndDecision(transaction=transaction, is_repeated=True)
    elif bumps_epoch and not is_commit and not is_retry:
        began_ms = now_ms  # a delayed record must not get into the next transaction
    if began_ms is not None:
        prepared = _prepare(
            transaction,
            is_commit=is_commit,
            bumps_epoch=bumps_epoch,
            next_producer_id=next_producer_id,
            started_ms=began_ms,
            now_ms=now_ms,
        )
        return EndDecision(transaction=prepared)
    raise InvalidTxnStateError(
        f"A transaction in state {transaction.state.value} cannot be {'committed' if is_commit else 'aborted'}"
    )


def _is_retry_of_end(transaction: Transaction, producer: ProducerIdentity) -> bool:
    """Return whether a producer repeats the EndTxn that raised its epoch or replaced its producer id.

    If the last end did neither, the previous epoch or producer id is that of a producer fenced by InitProducerId.
    """
    if not transaction.bumps_epoch:
        return False
    if producer.producer_id == transaction.producer_id:
        return producer.producer_epoch + 1 == transaction.producer_epoch
    return (
        producer.producer_id == transaction.previous_producer_id
        and producer.producer_epoch == MAX_EPOCH
        and transaction.producer_epoch == 0
    )


def _was_ended(transaction: Transaction, *, is_commit: bool) -> bool:
    if is_commit:
        return transaction.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
    return transaction.state in (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT)


def _prepare(
    transaction: Transaction,
    *,
    is_commit: bool,
    bumps_epoch: bool,
    next_producer_id: int,
    started_ms: int,
    now_ms: int,
) -> Transaction:
    return replace(
        transaction,
        state=TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT,
        producer_epoch=transaction.producer_epoch + 1 if bumps_epoch else transaction.producer_epoch,
        last_producer_epoch=transaction.producer_epoch if bumps_epoch else transaction.last_producer_epoch,
        next_producer_id=next_producer_id if bumps_epoch else NO_PRODUCER_ID,
        started_ms=started_ms,
        updated_ms=now_ms,
        bumps_epoch=bumps_epoch,
    )


def fence(transaction: Transaction, *, now_ms: int) -> Transaction:
    """Return the state that aborts an ongoing transaction whose producer is replaced or exceeded its timeout.

    The epoch is raised, so the producer is fenced. Until another producer takes its place, the fenced producer may
    resume with InitProducerId, which returns the raised epoch (KIP-360, KIP-588).
    """
    return replace(
        transaction,
        state=TransactionState.PREPARE_ABORT,
        producer_epoch=transaction.producer_epoch + 1,
        last_producer_epoch=transaction.producer_epoch,
        next_producer_id=NO_PRODUCER_ID,
        updated_ms=now_ms,
        bumps_epoch=True,
    )


def complete(transaction: Transaction, *, now_ms: int) -> Transaction:
    """Return the state after every partition has received its marker."""
    has_next = transaction.bumps_epoch and transaction.next_producer_id != NO_PRODUCER_ID
    return replace(
        transaction,
        state=_ENDED[transaction.state],
        producer_id=transaction.next_producer_id if has_next else transaction.producer_id,
        producer_epoch=0 if has_next else transaction.producer_epoch,
        previous_producer_id=transaction.producer_id if has_next else transaction.previous_producer_id,
        next_producer_id=NO_PRODUCER_ID,
        partitions=frozenset(),
        groups=frozenset(),
        updated_ms=now_ms,
    )


# -- time


def is_timed_out(transaction: Transaction, now_ms: int, *, counted_from_ms: int = 0) -> bool:
    """Return whether an ongoing transaction exceeds its transaction timeout.

    Args:
        transaction: Current state.
        now_ms: Milliseconds since the epoch.
        counted_from_ms: Start of the broker. The time during which it was down does not count.
    """
    began = max(transaction.started_ms, counted_from_ms)
    return transaction.state is TransactionState.ONGOING and began + transaction.timeout_ms < now_ms


def is_expired(transaction: Transaction, now_ms: int, expiration_ms: int) -> bool:
    """Return whether a transactional id at rest is unused for ``transactional.id.expiration.ms``."""
    is_at_rest = transaction.state is not TransactionState.ONGOING and not transaction.state.is_ending
    return is_at_rest and transaction.updated_ms + expiration_ms <= now_ms

"""The rules of transactions as pure functions: what is known of a transactional id and a wish in, what follows out.

Those of Kafka's TransactionCoordinator and TransactionMetadata (KIP-98), with epochs that are raised to go on after an
error (KIP-360) and, for clients that know ``transaction.version`` 2, at the end of every transaction (KIP-890).
Beside the old rules these forbid that a late message of one transaction gets into the next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from klamm.broker.transactions.errors import (
    ConcurrentTransactionsError,
    InvalidTransactionTimeoutError,
    ProducerFencedError,
    TransactionAbortableError,
)
from klamm.broker.transactions.model import MAX_EPOCH, NO_TIME, Transaction, TransactionPartition, TransactionState
from klamm.protocol.errors import (
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTxnStateError,
)
from klamm.protocol.records import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from klamm.protocol.types import ProducerIdentity

MAX_GROUPS = 1_000
"""A client that only ever adds groups cannot fill the disk."""
_ENDED = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}


_DECIDED = frozenset(_ENDED) | frozenset(_ENDED.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class EndDecision:
    """What an EndTxn leads to."""

    transaction: Transaction
    is_repeated: bool = False
    """The transaction was ended that way before; nothing changes."""


def check_id(transactional_id: str) -> None:
    """Refuse an empty id.

    Raises:
        InvalidRequestError: As said.
    """
    if not transactional_id:
        raise InvalidRequestError("The transactional id is empty")


def check_timeout(timeout_ms: int, max_timeout_ms: int) -> None:
    """Refuse a timeout that is out of bounds.

    Raises:
        InvalidTransactionTimeoutError: Not above 0, or above ``transaction.max.timeout.ms``.
    """
    if not 0 < timeout_ms <= max_timeout_ms:
        raise InvalidTransactionTimeoutError(
            f"transaction.timeout.ms={timeout_ms} is not between 1 and transaction.max.timeout.ms={max_timeout_ms}"
        )


# -- InitProducerId


def needs_new_producer_id(known: Transaction | None, expected: ProducerIdentity | None) -> bool:
    """Tell whether ``initialize`` needs a producer id that nobody has: a new transactional id, or no epoch is left."""
    if known is None:
        return True
    is_at_rest = not known.state.is_ending and known.state is not TransactionState.ONGOING
    return (
        is_at_rest
        and known.is_epoch_exhausted
        and (expected is None or expected.producer_epoch == known.producer_epoch)
    )


def initialize(known: Transaction, *, expected: ProducerIdentity | None, timeout_ms: int, now_ms: int) -> Transaction:
    """Let a producer begin, or go on after an error when it says who it was: whoever was there before is fenced.

    Args:
        known: Not ongoing: such a transaction has to be aborted first (``fence``).
        expected: What the producer believes to be; None when it is new.
        timeout_ms: How long its transactions may take.
        now_ms: Milliseconds since the epoch.

    Raises:
        ProducerFencedError: Somebody else has begun since.
        ConcurrentTransactionsError: The last transaction is just being ended.
    """
    check_expected(known, expected)
    if known.state.is_ending:
        raise ConcurrentTransactionsError("The last transaction is being ended")
    epoch, last_epoch = _next_epoch(known, expected)
    return replace(
        known,
        producer_epoch=epoch,
        last_producer_epoch=last_epoch,
        previous_producer_id=known.producer_id,
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        partitions=frozenset(),
        groups=frozenset(),
        started_ms=NO_TIME,
        updated_ms=now_ms,
        bumps_epoch=False,
    )


def rotate(
    known: Transaction, new_producer_id: int, *, expected: ProducerIdentity | None, timeout_ms: int, now_ms: int
) -> Transaction:
    """Like ``initialize``, with a new producer id, since the epochs of the old one are used up.

    Raises:
        ProducerFencedError: Somebody else has begun since.
    """
    check_expected(known, expected)
    return replace(
        initialize(
            replace(known, producer_epoch=NO_PRODUCER_EPOCH), expected=None, timeout_ms=timeout_ms, now_ms=now_ms
        ),
        producer_id=new_producer_id,
        producer_epoch=0,
        last_producer_epoch=known.producer_epoch if expected is not None else NO_PRODUCER_EPOCH,
        previous_producer_id=known.producer_id,
    )


def check_expected(known: Transaction, expected: ProducerIdentity | None) -> None:
    """Refuse a producer that is not who it believes to be.

    Raises:
        ProducerFencedError: As said.
    """
    if expected is None or known.producer_epoch == NO_PRODUCER_EPOCH or expected.producer_id == known.producer_id:
        return
    # It may have missed the answer that gave it a new id.
    if expected.producer_id != known.previous_producer_id or expected.producer_epoch < MAX_EPOCH:
        raise ProducerFencedError(f"Producer id {expected.producer_id} is not the present one of this transactional id")


def _next_epoch(known: Transaction, expected: ProducerIdentity | None) -> tuple[int, int]:
    if expected is None:
        return known.producer_epoch + 1, NO_PRODUCER_EPOCH
    if known.producer_epoch in (NO_PRODUCER_EPOCH, expected.producer_epoch):
        return known.producer_epoch + 1, known.producer_epoch
    if expected.producer_epoch == known.last_producer_epoch:
        # It asks again: the answer was lost.
        return known.producer_epoch, known.last_producer_epoch
    raise ProducerFencedError(
        f"Epoch {expected.producer_epoch} is neither the present one, {known.producer_epoch}, nor the one before"
    )


# -- partitions and groups


def add(
    known: Transaction,
    producer: ProducerIdentity,
    *,
    partitions: AbstractSet[TransactionPartition] = frozenset(),
    groups: AbstractSet[str] = frozenset(),
    now_ms: int,
) -> Transaction:
    """Take partitions and groups into the transaction, which begins with the first ones; returns ``known`` if all are.

    Raises:
        InvalidProducerIdMappingError: The transactional id belongs to another producer id.
        ProducerFencedError: Another epoch is the present one.
        ConcurrentTransactionsError: The last transaction is just being ended.
        InvalidRequestError: More groups than a transaction may have.
    """
    check_producer(known, producer)
    is_ongoing = known.state is TransactionState.ONGOING
    if len(known.groups | groups) > MAX_GROUPS:
        raise InvalidRequestError(f"A transaction commits offsets of at most {MAX_GROUPS} groups")
    if is_ongoing and partitions <= known.partitions and groups <= known.groups:
        return known
    return replace(
        known,
        state=TransactionState.ONGOING,
        partitions=known.partitions | partitions,
        groups=known.groups | groups,
        started_ms=known.started_ms if is_ongoing else now_ms,
        updated_ms=now_ms,
    )


def check_producer(known: Transaction, producer: ProducerIdentity) -> None:
    """Refuse who is not the present producer, or comes while a transaction is being ended.

    Raises:
        InvalidProducerIdMappingError: The transactional id belongs to another producer id.
        ProducerFencedError: Another epoch is the present one.
        ConcurrentTransactionsError: As said.
    """
    if producer.producer_id != known.producer_id:
        raise InvalidProducerIdMappingError("The transactional id belongs to another producer id")
    if not _has_epoch(producer, known):
        raise ProducerFencedError(f"Epoch {producer.producer_epoch} is not the present one, {known.producer_epoch}")
    if known.state.is_ending:
        raise ConcurrentTransactionsError("The last transaction is being ended")


def _has_epoch(producer: ProducerIdentity, known: Transaction) -> bool:
    """Tell whether a producer has the present epoch.

    The one behind the last is nobody's: markers that fence the last one have it. A transaction with it could not be
    fenced any more.
    """
    return known.producer_epoch == producer.producer_epoch <= MAX_EPOCH


def verify(known: Transaction, producer: ProducerIdentity, wanted: TransactionPartition | str) -> None:
    """Check that a partition, or a group by its id, was added to the producer's transaction.

    Raises:
        TransactionAbortableError: It was not.
        KafkaApiError: As of ``check_producer``.
    """
    check_producer(known, producer)
    added = known.groups if isinstance(wanted, str) else known.partitions
    if known.state is not TransactionState.ONGOING or wanted not in added:
        raise TransactionAbortableError("The partition was not added to the transaction")


# -- the end


def needs_next_producer_id(known: Transaction, *, bumps_epoch: bool) -> bool:
    """Tell whether ``end`` needs a producer id to go on with, since the end takes the last epoch."""
    return bumps_epoch and known.is_epoch_exhausted and not known.state.is_ending


def end(
    known: Transaction,
    producer: ProducerIdentity,
    *,
    is_commit: bool,
    bumps_epoch: bool,
    next_producer_id: int = NO_PRODUCER_ID,
    now_ms: int,
) -> EndDecision:
    """Decide a transaction as its producer wishes.

    Args:
        known: Present state.
        producer: Who asks.
        is_commit: Whether to commit; else abort.
        bumps_epoch: The client knows ``transaction.version`` 2.
        next_producer_id: One that nobody has, where ``needs_next_producer_id``.
        now_ms: Milliseconds since the epoch.

    Raises:
        InvalidProducerIdMappingError: The transactional id belongs to another producer id.
        ProducerFencedError: Another epoch is the present one.
        ConcurrentTransactionsError: The same end is under way.
        InvalidTxnStateError: There is no transaction, or it was ended the other way.
    """
    is_retry = bumps_epoch and _is_retry_of_end(known, producer)
    if producer.producer_id != known.producer_id and not is_retry:
        raise InvalidProducerIdMappingError("The transactional id belongs to another producer id")
    is_present = _has_epoch(producer, known) and not (bumps_epoch and known.state.is_ending)
    if not (is_present or (is_retry and known.state in _DECIDED)):
        raise ProducerFencedError(f"Epoch {producer.producer_epoch} is not the present one, {known.producer_epoch}")
    began_ms = None
    if known.state is TransactionState.ONGOING:
        began_ms = known.started_ms
    elif _was_ended(known, is_commit=is_commit) and (is_retry or not bumps_epoch):
        if known.state.is_ending:
            raise ConcurrentTransactionsError("The transaction is being ended")
        return EndDecision(transaction=known, is_repeated=True)
    elif bumps_epoch and not is_commit and not is_retry:
        began_ms = now_ms  # what the client has sent may be lost: its next transaction gets an epoch of its own
    if began_ms is not None:
        prepared = _prepare(
            known,
            is_commit=is_commit,
            bumps_epoch=bumps_epoch,
            next_producer_id=next_producer_id,
            started_ms=began_ms,
            now_ms=now_ms,
        )
        return EndDecision(transaction=prepared)
    raise InvalidTxnStateError(
        f"A transaction in state {known.state.value} cannot be {'committed' if is_commit else 'aborted'}"
    )


def _is_retry_of_end(known: Transaction, producer: ProducerIdentity) -> bool:
    """Tell whether a producer asks again for the end that raised its epoch, or gave it another id."""
    if producer.producer_id == known.producer_id:
        return producer.producer_epoch + 1 == known.producer_epoch
    return (
        producer.producer_id == known.previous_producer_id
        and producer.producer_epoch == MAX_EPOCH
        and known.producer_epoch == 0
    )


def _was_ended(known: Transaction, *, is_commit: bool) -> bool:
    if is_commit:
        return known.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
    return known.state in (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT)


def _prepare(
    known: Transaction,
    *,
    is_commit: bool,
    bumps_epoch: bool,
    next_producer_id: int,
    started_ms: int,
    now_ms: int,
) -> Transaction:
    return replace(
        known,
        state=TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT,
        producer_epoch=known.producer_epoch + 1 if bumps_epoch else known.producer_epoch,
        last_producer_epoch=known.producer_epoch if bumps_epoch else known.last_producer_epoch,
        next_producer_id=next_producer_id if bumps_epoch else NO_PRODUCER_ID,
        started_ms=started_ms,
        updated_ms=now_ms,
        bumps_epoch=bumps_epoch,
    )


def fence(known: Transaction, *, now_ms: int) -> Transaction:
    """Abort an ongoing transaction whose producer is replaced, or is too slow.

    As long as nobody has taken its place it may go on by asking for the next epoch (KIP-360, KIP-588).
    """
    return replace(
        known,
        state=TransactionState.PREPARE_ABORT,
        producer_epoch=known.producer_epoch + 1,
        last_producer_epoch=known.producer_epoch,
        next_producer_id=NO_PRODUCER_ID,
        updated_ms=now_ms,
        bumps_epoch=True,
    )


def complete(known: Transaction, *, now_ms: int) -> Transaction:
    """Take note that every partition has its marker."""
    has_next = known.bumps_epoch and known.next_producer_id != NO_PRODUCER_ID
    return replace(
        known,
        state=_ENDED[known.state],
        producer_id=known.next_producer_id if has_next else known.producer_id,
        producer_epoch=0 if has_next else known.producer_epoch,
        previous_producer_id=known.producer_id if has_next else known.previous_producer_id,
        next_producer_id=NO_PRODUCER_ID,
        partitions=frozenset(),
        groups=frozenset(),
        updated_ms=now_ms,
    )


# -- time


def is_timed_out(known: Transaction, now_ms: int, *, counted_from_ms: int = 0) -> bool:
    """Tell whether a transaction has taken longer than its producer asked for.

    Args:
        known: Present state.
        now_ms: Milliseconds since the epoch.
        counted_from_ms: When the broker started: a producer cannot be blamed for the time before.
    """
    began = max(known.started_ms, counted_from_ms)
    return known.state is TransactionState.ONGOING and began + known.timeout_ms < now_ms


def is_expired(known: Transaction, now_ms: int, expiration_ms: int) -> bool:
    """Tell whether nobody has used a transactional id for ``transactional.id.expiration.ms``."""
    is_at_rest = known.state is not TransactionState.ONGOING and not known.state.is_ending
    return is_at_rest and known.updated_ms + expiration_ms <= now_ms

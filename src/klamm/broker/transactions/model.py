"""The state of a transactional id, its stored form (readable JSON), and the errors of the transaction coordinator."""

from __future__ import annotations

import json
from dataclasses import field
from enum import Enum
from typing import Any, Final, NamedTuple
from uuid import UUID

from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from klamm.protocol.types import ProducerIdentity
from klamm.storage.errors import DAMAGED_VALUE

NO_TIME: Final = -1
MAX_EPOCH: Final = 32_766
"""Largest epoch given to a producer. 32767 (the largest int16) is reserved for fencing a producer with 32766."""
COORDINATOR_EPOCH: Final = 0
"""Always 0: coordinators never move between processes, since all broker ids belong to this process."""


class TransactionState(Enum):
    """States of a transactional id; the values appear in ListTransactions and DescribeTransactions.

    "At rest" means EMPTY, COMPLETE_COMMIT or COMPLETE_ABORT. TV2 is a client with ``transaction.version`` 2 (KIP-890).

        from             event                                      to               producer epoch
        (unknown id)     InitProducerId                             EMPTY            0, new producer id
        at rest          InitProducerId                             EMPTY            + 1 (or new producer id, epoch 0)
        at rest          partition or group added                   ONGOING          same
        ONGOING          partition or group added                   ONGOING          same
        ONGOING          EndTxn                                     PREPARE_x        same; TV2: + 1
        ONGOING          InitProducerId, or transaction timeout     PREPARE_ABORT    + 1 (fences the producer)
        at rest          EndTxn abort from TV2                      PREPARE_ABORT    + 1 (no partition, no marker)
        PREPARE_x        every partition has its marker             COMPLETE_x       same (or next producer id, epoch 0)
        at rest          unused for transactional.id.expiration.ms  (removed)

    In PREPARE_x, InitProducerId, additions and a repeated EndTxn are rejected with CONCURRENT_TRANSACTIONS. At rest, an
    EndTxn that repeats the last one succeeds without a change (the client lost the response; with TV2 it has the
    previous epoch). Except for the abort in the table, any other EndTxn is rejected with INVALID_TXN_STATE.
    ``rules.py`` implements these transitions.
    """

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    """Never used: an expired id is removed at once."""
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    """Never used: fencing and the decision to abort are a single step here."""

    @property
    def is_ending(self) -> bool:
        """Return whether the outcome is decided, but some partition may lack its marker."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


class TransactionPartition(NamedTuple):
    """A partition of a topic id. A topic that was deleted and created again has no part in old transactions."""

    topic_id: UUID
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A transactional id with its producer and its current or last transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    """-1 until a producer has received the id."""
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """Previous epoch. A producer with it may retry a request whose response it lost. -1: no producer may."""
    previous_producer_id: int = NO_PRODUCER_ID
    """Previous producer id, kept for the same retries."""
    next_producer_id: int = NO_PRODUCER_ID
    """Producer id to use once the transaction is complete, because the epochs are exhausted. -1: keep the id."""
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TransactionPartition] = field(default_factory=frozenset)
    groups: frozenset[str] = field(default_factory=frozenset)
    """Groups whose offsets are committed with the transaction."""
    started_ms: int = NO_TIME
    """Start of the current transaction, or of the last one if none is ongoing. Milliseconds since the epoch."""
    updated_ms: int
    """Time of the last change, milliseconds since the epoch. The expiration of an unused id counts from here."""
    bumps_epoch: bool = False
    """Whether the last end raised the epoch (``transaction.version`` 2, KIP-890, or fencing)."""

    @property
    def identity(self) -> ProducerIdentity:
        """Producer id and epoch of the current producer."""
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def is_epoch_exhausted(self) -> bool:
        """Return whether the producer has the last epoch that can still be fenced."""
        return self.producer_epoch >= MAX_EPOCH


class InvalidTransactionTimeoutError(KafkaApiError):
    """The transaction timeout is not positive, or above ``transaction.max.timeout.ms``."""

    error_code = ErrorCode.INVALID_TRANSACTION_TIMEOUT


class ConcurrentTransactionsError(KafkaApiError):
    """The previous transaction of the transactional id is still being ended. Retriable after a short wait."""

    error_code = ErrorCode.CONCURRENT_TRANSACTIONS


class ProducerFencedError(KafkaApiError):
    """A newer producer uses the transactional id."""

    error_code = ErrorCode.PRODUCER_FENCED


class TransactionAbortableError(KafkaApiError):
    """The transaction cannot be committed. The producer may abort it and continue (KIP-890)."""

    error_code = ErrorCode.TRANSACTION_ABORTABLE


class TransactionalIdNotFoundError(KafkaApiError):
    """The transactional id is unknown."""

    error_code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


_PLAIN = (
    "producer_id",
    "producer_epoch",
    "last_producer_epoch",
    "previous_producer_id",
    "next_producer_id",
    "timeout_ms",
    "started_ms",
    "updated_ms",
    "bumps_epoch",
)


def to_payload(transaction: Transaction) -> bytes:
    """Return the stored form of a transactional id; ``from_payload`` reverses it."""
    facts: dict[str, Any] = {"state": transaction.state.value}
    facts |= {name: getattr(transaction, name) for name in _PLAIN}
    facts["partitions"] = [[item.topic_id.hex, item.partition] for item in sorted(transaction.partitions)]
    facts["groups"] = sorted(transaction.groups)
    return json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def from_payload(transactional_id: str, payload: bytes) -> Transaction:
    """Return the transactional id of a stored form.

    Raises:
        ValueError: The payload is damaged or of another format.
    """
    try:
        facts = json.loads(payload)
        return Transaction(
            transactional_id=transactional_id,
            state=TransactionState(facts["state"]),
            partitions=frozenset(TransactionPartition(UUID(hex=topic), index) for topic, index in facts["partitions"]),
            groups=frozenset(facts["groups"]),
            **{name: facts[name] for name in _PLAIN},
        )
    except DAMAGED_VALUE as error:
        raise ValueError(f"Stored transactional id {transactional_id!r} cannot be read: {error!r}") from error

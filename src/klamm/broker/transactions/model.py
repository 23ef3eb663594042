"""The state of a transactional id."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.protocol.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from klamm.protocol.types import ProducerIdentity

if TYPE_CHECKING:
    from uuid import UUID

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

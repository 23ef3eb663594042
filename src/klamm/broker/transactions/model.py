"""What the coordinator knows of a transactional id."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.protocol.records import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from klamm.protocol.types import ProducerIdentity

if TYPE_CHECKING:
    from uuid import UUID

NO_TIME: Final = -1
MAX_EPOCH: Final = 32_766
"""The largest epoch that a producer is given; the one above is only there to fence it (32767 is the largest int16)."""
COORDINATOR_EPOCH: Final = 0
"""Coordinators never move: every broker id is this process."""


class TransactionState(Enum):
    """States of a transactional id; the values are what ListTransactions and DescribeTransactions show."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    """Never seen: an id that has expired is gone at once."""
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    """Never seen either: fencing and aborting are one step here."""

    @property
    def is_ending(self) -> bool:
        """It is decided how the transaction ends, but not every partition has its marker."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


class TransactionPartition(NamedTuple):
    """A partition of a topic by id: one made anew under the same name has no part in old transactions."""

    topic_id: UUID
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A transactional id: its producer, and its last or present transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    """-1 as long as no producer was told the id."""
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """The epoch before, of a producer that may ask again since it missed the answer; -1 means none may."""
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer id before, for the same reason."""
    next_producer_id: int = NO_PRODUCER_ID
    """The id to go on with when the present transaction has its markers, since its epochs are used up; -1: the same."""
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TransactionPartition] = field(default_factory=frozenset)
    groups: frozenset[str] = field(default_factory=frozenset)
    """Groups whose offsets are committed with the transaction."""
    started_ms: int = NO_TIME
    """Milliseconds since the epoch; of the last transaction when it has ended."""
    updated_ms: int
    """Of the last change of state: an id that nobody uses expires from here on."""
    bumps_epoch: bool = False
    """The last end raised the epoch (transaction.version 2, KIP-890)."""

    @property
    def identity(self) -> ProducerIdentity:
        """Who may go on."""
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def is_epoch_exhausted(self) -> bool:
        """No epoch is left for a producer that could be fenced."""
        return self.producer_epoch >= MAX_EPOCH

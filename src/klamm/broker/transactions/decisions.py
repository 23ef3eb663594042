"""Decisions of ended transactions, remembered until their markers are as durable as the records that they end.

A marker goes to the page cache; with ``flush.messages=1`` the records before it are on disk earlier. A power cut then
leaves the records open in the log, while their producer may have gone on to its next transaction. So each decision is
stored together with the offset at which the transaction begins in each partition, in the commit that makes the decision
durable. It is forgotten when the markers lie below the recovery points of all these partitions. A start that finds an
open transaction compares its first offset with the remembered decisions before anything else is done with it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from klamm.broker.transactions.model import Transaction, TransactionPartition, TransactionState
from klamm.storage.changes import DropDecision, PutDecision
from klamm.storage.log.producers import NO_OFFSET

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from klamm.storage.changes import Change
    from klamm.storage.log import PartitionLog

logger = logging.getLogger(__name__)

_NEVER: Final = 2**63
_SLICE: Final = 256
"""Decisions that are looked at before other requests are served."""
_PLAIN: Final = ("transactional_id", "producer_id", "data_epoch", "marker_epoch", "has_own_epoch", "is_commit")
_UNKNOWN: Final = -2
"""In place of a first offset: the log could not be opened when the transaction was decided."""


class Store(Protocol):
    """The part of the metadata store that decisions need."""

    def submit(self, changes: Sequence[Change], /) -> asyncio.Future[None]:
        """Queue changes; the future is done when they are on disk."""
        ...

    def load_decisions(self) -> list[PutDecision]:
        """Return the stored decisions, ascending by number."""
        ...


class Logs(Protocol):
    """The part of the log manager that decisions need."""

    was_clean: bool
    """Whether the run before ended in order, with everything on disk."""

    def get(self, topic_id: UUID, partition: int, /) -> PartitionLog | None:
        """Return the log of a partition."""
        ...

    async def flush(self, log: PartitionLog, /) -> None:
        """Make a log durable up to its present end."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """How a transaction ended, and where it lies."""

    number: int
    """Ascending in the order of the decisions."""
    transactional_id: str
    producer_id: int
    data_epoch: int
    """The epoch of the records."""
    marker_epoch: int
    has_own_epoch: bool
    """No other transaction has ``data_epoch``: the end raised the epoch (KIP-890)."""
    is_commit: bool
    first_offsets: Mapping[TransactionPartition, int]
    """The first offset of the transaction in each partition in which it wrote anything."""

    def ends(self, partition: TransactionPartition, first_offset: int, epoch: int) -> bool:
        """Return whether an open transaction of the same producer is the one that was decided."""
        first = self.first_offsets.get(partition)
        is_of_epoch = epoch == self.data_epoch and self.has_own_epoch
        return first is not None and (first in (first_offset, _UNKNOWN) or is_of_epoch)


class Decisions:
    """All decisions whose markers may be lost in a power cut. Confined to one event loop.

    Args:
        store: The metadata store.
        logs: The logs of all partitions.
    """

    def __init__(self, store: Store, logs: Logs) -> None:
        self._store = store
        self._logs = logs
        self._known: dict[int, Decision] = {}
        self._ends: dict[int, dict[TransactionPartition, int]] = {}
        """The offset behind the marker in each partition, of decisions whose markers are written."""
        self._pending: dict[str, int] = {}
        """The decisions whose markers are not written yet, by transactional id."""
        self._number = 0

    def __len__(self) -> int:
        """Count the decisions that are remembered."""
        return len(self._known)

    def load(self, is_ending: Callable[[str], bool]) -> None:
        """Take the decisions from the store.

        Args:
            is_ending: Returns whether the last transaction of a transactional id lacks markers.

        Raises:
            ValueError: A stored decision cannot be read.
        """
        written, self._ends, self._pending = self._ends, {}, {}
        self._known = {row.number: _from_payload(row) for row in self._store.load_decisions()}
        self._number = max(self._number, *self._known, 0)
        latest = {decision.transactional_id: number for number, decision in self._known.items()}
        for number, decision in self._known.items():
            name = decision.transactional_id
            if latest[name] == number and is_ending(name):
                self._pending[name] = number
            elif number in written:
                self._ends[number] = written[number]

    def forget_written(self) -> None:
        """Forget every decision whose markers are written: the run before has left all logs on disk."""
        self._forget(tuple(self._known.keys() - self._pending.values()))

    def all_written(self) -> None:
        """Note that the logs have every marker of a decision that was loaded; those of ``_pending`` follow."""
        for number in self._known.keys() - self._pending.values() - self._ends.keys():
            self._ends[number] = self._present_ends(self._known[number])

    def note(self, prepared: Transaction) -> Sequence[Change]:
        """Remember a decision; return the changes to be submitted with it. One without records needs no memory.

        Args:
            prepared: The decided transaction, of which no marker is written yet.
        """
        firsts = {}
        for partition in prepared.partitions:
            first = self._first_offset(partition, prepared.producer_id)
            if first != NO_OFFSET:
                firsts[partition] = first
        if not firsts:
            return ()
        self._number += 1
        decision = Decision(
            number=self._number,
            transactional_id=prepared.transactional_id,
            producer_id=prepared.producer_id,
            data_epoch=prepared.last_producer_epoch if prepared.bumps_epoch else prepared.producer_epoch,
            marker_epoch=prepared.producer_epoch,
            has_own_epoch=prepared.bumps_epoch,
            is_commit=prepared.state is TransactionState.PREPARE_COMMIT,
            first_offsets=firsts,
        )
        self._known[decision.number] = decision
        self._pending[decision.transactional_id] = decision.number
        return (PutDecision(number=decision.number, payload=_to_payload(decision)),)

    def markers_written(self, transactional_id: str) -> None:
        """Note that all markers of the last transaction of a transactional id are in the logs."""
        number = self._pending.pop(transactional_id, None)
        if number is not None:
            self._ends[number] = self._present_ends(self._known[number])

    def find(self, log: PartitionLog, producer_id: int, epoch: int) -> Decision | None:
        """Return how the transaction was decided that a producer has open in a log, None when it is not remembered."""
        partition = TransactionPartition(log.topic_id, log.partition)
        first = log.producers.open_offset_of(producer_id)
        found = None
        for decision in self._known.values():
            if decision.producer_id == producer_id and decision.ends(partition, first, epoch):
                if decision.first_offsets[partition] == first:
                    return decision
                found = decision
        return found

    async def settle(self) -> None:
        """Make the markers durable that are written, and forget their decisions.

        A log that cannot be made durable keeps its own decisions and no others.
        """
        waiting: dict[TransactionPartition, int] = {}
        for ends in self._ends.values():  # ascending, so the last end of each partition stays
            waiting.update(ends)
        for partition, end in waiting.items():
            if not self._is_durable(partition, end):
                await self._flush(partition)
        settled = []
        for index, (number, ends) in enumerate(tuple(self._ends.items())):
            if index % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            if all(self._is_durable(partition, end) for partition, end in ends.items()):
                settled.append(number)
        self._forget(settled)

    def _forget(self, numbers: Sequence[int]) -> None:
        dropped = [number for number in numbers if self._known.pop(number, None) is not None]
        for number in dropped:
            self._ends.pop(number, None)
        if dropped:
            changes = [DropDecision(number=number) for number in dropped]
            # Nobody waits for this: a start would only look at the same logs again.
            self._store.submit(changes).add_done_callback(_retrieve)

    async def _flush(self, partition: TransactionPartition) -> None:
        try:
            log = self._logs.get(*partition)
            if log is not None:
                await self._logs.flush(log)
        except OSError as error:
            logger.debug("The markers in partition %d of %s are not durable yet: %s", *reversed(partition), error)

    def _is_durable(self, partition: TransactionPartition, end: int) -> bool:
        """Return whether a partition is on disk up to an offset; one of a deleted topic needs no decision any more."""
        try:
            log = self._logs.get(*partition)
        except OSError:
            return False
        return log is None or log.recovery_point >= end

    def _first_offset(self, partition: TransactionPartition, producer_id: int) -> int:
        try:
            log = self._logs.get(*partition)
        except OSError:
            return _UNKNOWN
        return NO_OFFSET if log is None else log.producers.open_offset_of(producer_id)

    def _present_ends(self, decision: Decision) -> dict[TransactionPartition, int]:
        ends = {}
        for partition in decision.first_offsets:
            try:
                log = self._logs.get(*partition)
            except OSError:
                ends[partition] = _NEVER
            else:
                ends[partition] = 0 if log is None else log.end_offset
        return ends


def _retrieve(change: asyncio.Future[None]) -> None:
    """Take an error that nobody waits for; the store has reported it."""
    if not change.cancelled():
        change.exception()


def _to_payload(decision: Decision) -> bytes:
    facts = {name: getattr(decision, name) for name in _PLAIN}
    by_topic: dict[UUID, list[int]] = {}
    for (topic_id, partition), first in decision.first_offsets.items():
        by_topic.setdefault(topic_id, []).extend((partition, first))
    facts["first_offsets"] = {topic_id.hex: numbers for topic_id, numbers in by_topic.items()}
    return json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _from_payload(row: PutDecision) -> Decision:
    try:
        facts = json.loads(row.payload)
        return Decision(
            number=row.number,
            first_offsets={
                TransactionPartition(UUID(hex=topic), partition): first
                for topic, numbers in facts["first_offsets"].items()
                for partition, first in zip(numbers[::2], numbers[1::2], strict=True)
            },
            **{name: facts[name] for name in _PLAIN},
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"Stored decision {row.number} of a transaction cannot be read: {error!r}") from error

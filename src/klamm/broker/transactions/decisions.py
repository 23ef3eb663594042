"""Decisions of ended transactions, kept until their markers are as durable as the records that they end.

The problem: a COMMIT or ABORT marker first goes to the page cache. With ``flush.messages=1`` the records before it are
on disk earlier. A power cut can then lose the marker and keep the records. After the restart the transaction is open in
the log, while its producer may already have decided its next transaction differently.

The solution: each decision is stored with the first offset of the transaction in each partition, in the same commit of
the metadata store that makes the decision durable. It is dropped when its markers are below the recovery point of each
of these partitions. If a log that has been opened contains an open transaction, its first offset is compared with the
remembered decisions before the log is used for anything else.

Life of a decision:

    note             decided; submitted with the transaction's PREPARE_* state      (_known and _pending)
    markers_written  all markers are appended; their end offsets are noted          (_known and _ends)
    settle           flushes the logs whose recovery point is below a marker
    _forget          all markers are durable: the decision is dropped
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final
from uuid import UUID

from klamm.broker.transactions.model import Transaction, TransactionPartition, TransactionState
from klamm.lazy_dataclass import dataclass
from klamm.server.time_slice import TimeSlice
from klamm.storage.errors import DAMAGED_VALUE
from klamm.storage.log.producers import NO_OFFSET
from klamm.storage.metadata.changes import DropDecision, PutDecision

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence

    from klamm.storage.log import LogManager, PartitionLog
    from klamm.storage.metadata.changes import Change
    from klamm.storage.metadata.store import MetadataStore

logger = logging.getLogger(__name__)

_NEVER: Final = 2**63
"""Placeholder for an end offset: the log could not be opened, or still lacks a marker."""
_PLAIN: Final = ("transactional_id", "producer_id", "data_epoch", "marker_epoch", "has_own_epoch", "is_commit")
_UNKNOWN: Final = -2
"""Placeholder for a first offset: the log could not be opened when the transaction was decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDecision:
    """The outcome of one transaction and its first offset in each partition."""

    number: int
    """Sequence number; later decisions have larger numbers."""
    transactional_id: str
    producer_id: int
    data_epoch: int
    """Producer epoch of the records."""
    marker_epoch: int
    has_own_epoch: bool
    """Whether no other transaction uses ``data_epoch``, because the end raised the epoch (KIP-890)."""
    is_commit: bool
    first_offsets: Mapping[TransactionPartition, int]
    """First offset of the transaction in each partition that has records of it."""

    def ends(self, partition: TransactionPartition, first_offset: int, epoch: int) -> bool:
        """Return whether this decision is about the open transaction of the same producer in a partition.

        Args:
            partition: Partition in which the transaction is open.
            first_offset: First offset of the open transaction there.
            epoch: Producer epoch of the open transaction.
        """
        first = self.first_offsets.get(partition)
        # After a crash that shortened the log, a later transaction may have the same first offset, so the epoch counts.
        if first is None or epoch != self.data_epoch:
            return False
        return self.has_own_epoch or first in (first_offset, _UNKNOWN)


class Decisions:
    """All decisions whose markers a power cut could still lose. Used on one event loop only.

    Args:
        store: The metadata store.
        logs: The logs of all partitions.
    """

    def __init__(self, store: MetadataStore, logs: LogManager) -> None:
        self._store = store
        self._logs = logs
        self._decisions: dict[int, TransactionDecision] = {}
        self._ends: dict[int, dict[TransactionPartition, int]] = {}
        """For decisions with written markers: the end offset of each partition's log after its marker."""
        self._pending: dict[str, int] = {}
        """Decisions whose markers are not all written, by transactional id."""
        self._number = 0

    def __len__(self) -> int:
        """Return the number of remembered decisions."""
        return len(self._decisions)

    def load(self, is_ending: Callable[[str], bool]) -> None:
        """Load the decisions from the store.

        Args:
            is_ending: Function that returns whether a transactional id's last transaction still lacks markers.

        Raises:
            ValueError: A stored decision cannot be read.
        """
        written, self._ends, self._pending = self._ends, {}, {}
        self._decisions = {row.number: decision_from_payload(row) for row in self._store.load_decisions()}
        self._number = max(self._number, *self._decisions, 0)
        latest = {decision.transactional_id: number for number, decision in self._decisions.items()}
        for number, decision in self._decisions.items():
            name = decision.transactional_id
            if latest[name] == number and is_ending(name):
                self._pending[name] = number
            elif number in written:
                self._ends[number] = written[number]

    def forget_written(self) -> None:
        """Drop every decision whose markers are written.

        Call this only after a clean shutdown, which left all logs on disk.
        """
        self._forget(tuple(self._decisions.keys() - self._pending.values()))

    def all_written(self) -> None:
        """Record that the logs contain the markers of all loaded decisions, except those in ``_pending``."""
        for number in self._decisions.keys() - self._pending.values() - self._ends.keys():
            self._ends[number] = self._present_ends(self._decisions[number])

    def note(self, prepared: Transaction) -> Change:
        """Remember a decision, and return the change to submit with it.

        Even a transaction without records is remembered, until the next ``settle``. Otherwise a start that finds the
        transaction incomplete would take the previous decision of the transactional id for the one that still lacks
        markers, and would not write a lost marker of that previous decision again.

        Args:
            prepared: The decided transaction. None of its markers is written yet.
        """
        firsts = {}
        for partition in prepared.partitions:
            first = self._first_offset(partition, prepared.producer_id)
            if first != NO_OFFSET:
                firsts[partition] = first
        self._number += 1
        decision = TransactionDecision(
            number=self._number,
            transactional_id=prepared.transactional_id,
            producer_id=prepared.producer_id,
            data_epoch=prepared.last_producer_epoch if prepared.bumps_epoch else prepared.producer_epoch,
            marker_epoch=prepared.producer_epoch,
            has_own_epoch=prepared.bumps_epoch,
            is_commit=prepared.state is TransactionState.PREPARE_COMMIT,
            first_offsets=firsts,
        )
        self._decisions[decision.number] = decision
        self._pending[decision.transactional_id] = decision.number
        return PutDecision(number=decision.number, payload=_to_payload(decision))

    def lacks_markers(self, decision: TransactionDecision) -> bool:
        """Return whether the markers of a decision are still to be written by the coordinator for the first time."""
        return self._pending.get(decision.transactional_id) == decision.number

    def markers_written(self, transactional_id: str) -> None:
        """Record that all markers of a transactional id's last transaction are in the logs."""
        number = self._pending.pop(transactional_id, None)
        if number is not None:
            self._ends[number] = self._present_ends(self._decisions[number])

    def find(self, log: PartitionLog, producer_id: int, epoch: int) -> TransactionDecision | None:
        """Return the decision about a producer's open transaction in a log; None if no decision is remembered.

        A decision with the same first offset is preferred to one that only matches by epoch.
        """
        partition = TransactionPartition(log.topic_id, log.partition)
        first = log.producers.open_offset_of(producer_id)
        newest = None
        for decision in self._decisions.values():
            if decision.producer_id == producer_id and decision.ends(partition, first, epoch):
                if decision.first_offsets[partition] == first:
                    return decision
                newest = decision
        return newest

    async def settle(self) -> None:
        """Make the written markers durable, and drop their decisions.

        A log that cannot be opened or flushed keeps only the decisions that concern it.
        """
        await self._note_missing_ends()
        waiting: dict[TransactionPartition, int] = {}
        for ends in self._ends.values():  # in ascending order, so the last end offset of each partition wins
            waiting.update(ends)
        for partition, end in waiting.items():
            if end != _NEVER and not self._is_durable(partition, end):
                await self._flush(partition)
        settled = []
        async for number, ends in TimeSlice().over(tuple(self._ends.items())):
            if all(self._is_durable(partition, end) for partition, end in ends.items()):
                settled.append(number)
        self._forget(settled)

    def _forget(self, numbers: Sequence[int]) -> None:
        dropped = [number for number in numbers if self._decisions.pop(number, None) is not None]
        for number in dropped:
            self._ends.pop(number, None)
        if dropped:
            changes = [DropDecision(number=number) for number in dropped]
            # Not awaited: if this is lost, the next start only compares the same logs again.
            self._store.submit(changes).add_done_callback(_consume_error)

    async def _flush(self, partition: TransactionPartition) -> None:
        try:
            log = self._logs.get(*partition)
            if log is not None:
                await self._logs.flush(log)
        except OSError as error:
            logger.debug(
                "Partition %d of topic %s: its transaction markers are not durable yet: %s", *reversed(partition), error
            )

    def _is_durable(self, partition: TransactionPartition, end: int) -> bool:
        """Return whether a partition is on disk up to an offset. True for a deleted topic, which needs no decision."""
        if end == _NEVER:
            return False
        try:
            log = self._logs.get(*partition)
        except OSError:
            return False
        return log is None or log.recovery_point >= end

    async def _note_missing_ends(self) -> None:
        """Note the ends of logs that could not be opened when their markers were written or found."""
        unopened = {partition for ends in self._ends.values() for partition, end in ends.items() if end == _NEVER}
        present = {partition: self._present_end(partition) async for partition in TimeSlice().over(unopened)}
        for ends in self._ends.values() if present else ():
            ends.update({name: present.get(name, _NEVER) for name, end in ends.items() if end == _NEVER})

    def _first_offset(self, partition: TransactionPartition, producer_id: int) -> int:
        try:
            log = self._logs.get(*partition)
        except OSError:
            return _UNKNOWN
        return NO_OFFSET if log is None else log.producers.open_offset_of(producer_id)

    def _present_ends(self, decision: TransactionDecision) -> dict[TransactionPartition, int]:
        return {partition: self._present_end(partition) for partition in decision.first_offsets}

    def _present_end(self, partition: TransactionPartition) -> int:
        try:
            log = self._logs.get(*partition)
        except OSError:
            return _NEVER
        return 0 if log is None else log.end_offset


def _consume_error(change: asyncio.Future[None]) -> None:
    """Consume the error of a change that is not awaited; the store has already logged it."""
    if not change.cancelled():
        change.exception()


def _to_payload(decision: TransactionDecision) -> bytes:
    facts = {name: getattr(decision, name) for name in _PLAIN}
    by_topic: dict[UUID, list[int]] = {}
    for (topic_id, partition), first in decision.first_offsets.items():
        by_topic.setdefault(topic_id, []).extend((partition, first))
    facts["first_offsets"] = {topic_id.hex: numbers for topic_id, numbers in by_topic.items()}
    return json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def decision_from_payload(row: PutDecision) -> TransactionDecision:
    """Return the decision of a stored form.

    Raises:
        ValueError: The payload is damaged or of another format.
    """
    try:
        facts = json.loads(row.payload)
        return TransactionDecision(
            number=row.number,
            first_offsets={
                TransactionPartition(UUID(hex=topic), partition): first
                for topic, numbers in facts["first_offsets"].items()
                for partition, first in zip(numbers[::2], numbers[1::2], strict=True)
            },
            **{name: facts[name] for name in _PLAIN},
        )
    except DAMAGED_VALUE as error:
        raise ValueError(f"Stored decision {row.number} of a transaction cannot be read: {error!r}") from error

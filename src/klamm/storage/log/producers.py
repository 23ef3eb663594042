"""State of idempotent and transactional producers in a partition (KIP-98, Kafka's ProducerStateManager).

Unlike Kafka's snapshots, the snapshot here contains the whole window of five batches, so that a retried batch is
recognized as a duplicate after a restart too.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

from klamm.protocol.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from klamm.protocol.records import NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP
from klamm.protocol.records.layout import CONTROL, TRANSACTIONAL
from klamm.protocol.types import MAX_SEQUENCE
from klamm.storage.log.files import fsync_path, read_small, write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from klamm.protocol.records import ControlRecord, RecordBatch
    from klamm.storage.log.segment import BatchHead

logger = logging.getLogger(__name__)

WINDOW: Final = 5
"""Batches per producer that are recognized as duplicates: the number that a producer may have in flight."""
SNAPSHOT: Final = "klamm-producers.json"
PREVIOUS_SNAPSHOT: Final = "klamm-producers-previous.json"
"""An earlier snapshot, all of whose offsets are on disk. A power cut may leave the log shorter than the newest one."""
NO_OFFSET: Final = -1
NO_COORDINATOR: Final = -1
UNUSABLE: Final = -1
"""Instead of a snapshot's offset: the snapshot cannot be used, and the whole log has to be read."""
_CRC_PREFIX: Final = '{{"crc":"{:08x}",'
"""Start of the snapshot file, with the checksum of the text behind it."""
_CRC_PREFIX_SIZE: Final = len(_CRC_PREFIX.format(0))


class AppendedBatch(NamedTuple):
    """Sequence numbers, offsets and largest timestamp of an appended batch, as it is in the log."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int = NO_TIMESTAMP


class ProducerState:
    """The last batches of one producer and the time of its last write (broker clock, milliseconds since the epoch)."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp", "last_used_ms")

    def __init__(self, epoch: int, last_used_ms: int) -> None:
        self.epoch = epoch
        self.last_used_ms = last_used_ms
        self.last_timestamp = NO_TIMESTAMP
        """Largest timestamp of the last batch, or the timestamp of the last marker."""
        self.coordinator_epoch = NO_COORDINATOR
        """Epoch of the transaction coordinator that wrote the last marker; -1 without a marker."""
        self.batches: deque[AppendedBatch] = deque(maxlen=WINDOW)

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record; -1 if this epoch has written none."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def begin_epoch(self, epoch: int) -> None:
        """Continue with ``epoch``. With a new epoch, sequence numbers restart."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()


class ProducerStates:
    """All producers of one partition. Used on the event loop only."""

    def __init__(self, partition: str) -> None:
        self._partition = partition
        self._states: dict[int, ProducerState] = {}
        self._has_snapshot = False
        self._snapshot_offset = 0
        """Offset of the newest snapshot."""
        self._open: dict[int, int] = {}
        """First offset of each producer's open transaction, by producer id, in ascending order of the offsets."""

    def __len__(self) -> int:
        """Return the number of known producers."""
        return len(self._states)

    def last_offsets(self) -> list[int]:
        """Return the last offset of each producer's last batch."""
        return [state.batches[-1].last_offset for state in self._states.values() if state.batches]

    def marker_epochs(self) -> dict[int, int]:
        """Return the epochs of producers of which only a marker is known. The marker fences their older epochs."""
        return {producer_id: state.epoch for producer_id, state in self._states.items() if not state.batches}

    def items(self) -> Iterator[tuple[int, ProducerState]]:
        """Iterate over producer ids and their states."""
        return iter(self._states.items())

    def epoch_of(self, producer_id: int) -> int:
        """Return the newest epoch of a producer, -1 if it is unknown."""
        state = self._states.get(producer_id)
        return -1 if state is None else state.epoch

    # -- transactions

    @property
    def first_open_offset(self) -> int:
        """First offset of the oldest open transaction; ``NO_OFFSET`` if none is open."""
        return next(iter(self._open.values())) if self._open else NO_OFFSET

    def open_offset_of(self, producer_id: int) -> int:
        """Return the first offset of a producer's open transaction; ``NO_OFFSET`` if it has none."""
        return self._open.get(producer_id, NO_OFFSET)

    def has_open(self, producer_id: int, epoch: int) -> bool:
        """Return whether a producer has an open transaction here that started in this epoch."""
        return producer_id in self._open and self._states[producer_id].epoch == epoch

    def open_producers(self) -> tuple[tuple[int, int], ...]:
        """Return the id and epoch of each producer with an open transaction."""
        return tuple((producer_id, self._states[producer_id].epoch) for producer_id in self._open)

    def check_transaction(self, batch: RecordBatch, *, is_verified: bool) -> None:
        """Reject a batch that does not match its producer's open transaction, or the lack of one.

        Args:
            batch: Batch with a producer id.
            is_verified: Whether the coordinator has confirmed that the partition belongs to the producer's transaction.

        Raises:
            InvalidTxnStateError: A non-transactional batch while a transaction is open, or a transactional batch
                without an open or verified transaction.
        """
        is_open = batch.producer_id in self._open
        if not batch.is_transactional:
            if is_open:
                raise InvalidTxnStateError(
                    f"Expected transactional write from producer {batch.producer_id} in {self._partition}"
                )
        elif not is_verified and not (is_open and self._states[batch.producer_id].epoch == batch.producer_epoch):
            raise InvalidTxnStateError(
                f"Record was not part of an ongoing transaction of producer {batch.producer_id} in {self._partition}"
            )

    def check_marker(self, producer_id: int, epoch: int, coordinator_epoch: int) -> None:
        """Reject a marker of an outdated producer or coordinator.

        Raises:
            InvalidProducerEpochError: A newer epoch of the producer is known.
            TransactionCoordinatorFencedError: A newer epoch of the coordinator is known.
        """
        state = self._states.get(producer_id)
        if state is None:
            return
        if epoch < state.epoch:
            raise self._stale_epoch(producer_id, epoch, state)
        if coordinator_epoch < state.coordinator_epoch:
            raise TransactionCoordinatorFencedError(
                f"Invalid coordinator epoch for producerId {producer_id} in {self._partition}:"
                f" {coordinator_epoch} (zombie), {state.coordinator_epoch} (current)"
            )

    def ended(self, producer_id: int, epoch: int, *, coordinator_epoch: int, timestamp: int, now_ms: int) -> int:
        """Record a marker. Return the first offset of the transaction that it ends, ``NO_OFFSET`` if there is none."""
        state = self._states.get(producer_id)
        if state is None:
            state = self._states[producer_id] = ProducerState(epoch, now_ms)
        state.begin_epoch(epoch)
        state.coordinator_epoch = coordinator_epoch
        state.last_timestamp, state.last_used_ms = timestamp, now_ms
        return self._open.pop(producer_id, NO_OFFSET)

    # -- sequences

    def duplicate_of(self, batch: RecordBatch, *, begins_at_zero: bool = False) -> AppendedBatch | None:
        """Check the epoch and sequence of a batch. Return the batch that it duplicates, or None if it is new.

        An unknown producer may start with any sequence, because its earlier batches may be deleted. With
        ``transaction.version`` 2 this cannot be the reason: each transaction has a new epoch and starts with sequence
        0.

        Args:
            batch: Batch with a producer id.
            begins_at_zero: Whether the batch belongs to a transaction of ``transaction.version`` 2 (KIP-890).

        Raises:
            InvalidProducerEpochError: The producer is fenced: a newer epoch has written.
            OutOfOrderSequenceError: There is a gap, or a new epoch does not start with 0.
        """
        state = self._states.get(batch.producer_id)
        if state is None:
            if begins_at_zero and batch.base_sequence != 0:
                raise OutOfOrderSequenceError(
                    f"Invalid sequence number for producer {batch.producer_id} in {self._partition}:"
                    f" {batch.base_sequence} (incoming seq. number). Expected sequence 0 for transactions v2"
                    " idempotent producers when no state exists."
                )
            return None
        if batch.producer_epoch == state.epoch:
            last_sequence = batch.last_sequence
            for appended in state.batches:
                if appended.base_sequence == batch.base_sequence and appended.last_sequence == last_sequence:
                    return appended
            expected = 0 if state.last_sequence == MAX_SEQUENCE else state.last_sequence + 1
        elif batch.producer_epoch < state.epoch:
            raise self._stale_epoch(batch.producer_id, batch.producer_epoch, state)
        else:
            expected = 0
        if batch.base_sequence != expected:
            raise OutOfOrderSequenceError(
                f"Out of order sequence number for producer {batch.producer_id} in {self._partition}:"
                f" {batch.base_sequence} (incoming seq. number), {expected - 1} (current end sequence number)"
            )
        return None

    def _stale_epoch(self, producer_id: int, epoch: int, state: ProducerState) -> InvalidProducerEpochError:
        return InvalidProducerEpochError(
            f"Epoch of producer {producer_id} in {self._partition} is {epoch},"
            f" which is smaller than the last seen epoch {state.epoch}"
        )

    def appended(self, batch: RecordBatch, base_offset: int, timestamp: int, now_ms: int) -> None:
        """Record a batch that was appended at ``base_offset`` with ``timestamp`` as its largest timestamp."""
        entry = AppendedBatch(
            batch.base_sequence, batch.last_sequence, base_offset, base_offset + batch.last_offset_delta, timestamp
        )
        self._remember(batch.producer_id, batch.producer_epoch, entry, now_ms)
        if batch.is_transactional and batch.producer_id not in self._open:
            self._open[batch.producer_id] = base_offset

    def replay(self, head: BatchHead, now_ms: int, marker: ControlRecord | None = None) -> int:
        """Record a batch that was read from the log by a recovery.

        Args:
            head: Header of the batch.
            now_ms: Current time, milliseconds since the epoch.
            marker: Marker in a control batch; None for other batches, and for one that compaction has emptied.

        Returns:
            First offset of the transaction that a marker ends; ``NO_OFFSET`` for any other batch.
        """
        if head.producer_id == NO_PRODUCER_ID:
            return NO_OFFSET
        if head.attributes & CONTROL:
            if marker is None:
                return NO_OFFSET
            return self.ended(
                head.producer_id,
                head.producer_epoch,
                coordinator_epoch=marker.coordinator_epoch,
                timestamp=head.max_timestamp,
                now_ms=now_ms,
            )
        if head.base_sequence >= 0:
            last_sequence = (head.base_sequence + head.last_offset - head.base_offset) & MAX_SEQUENCE
            entry = AppendedBatch(
                head.base_sequence, last_sequence, head.base_offset, head.last_offset, head.max_timestamp
            )
            self._remember(head.producer_id, head.producer_epoch, entry, now_ms)
            if head.attributes & TRANSACTIONAL:
                self._open.setdefault(head.producer_id, head.base_offset)
        return NO_OFFSET

    def _remember(self, producer_id: int, epoch: int, entry: AppendedBatch, now_ms: int) -> None:
        state = self._states.get(producer_id)
        if state is None:
            state = self._states[producer_id] = ProducerState(epoch, now_ms)
        state.begin_epoch(epoch)
        state.batches.append(entry)
        state.last_timestamp, state.last_used_ms = entry.timestamp, now_ms

    def expire(self, before_ms: int) -> None:
        """Remove producers without an open transaction that have not written since ``before_ms``."""
        old = [key for key, state in self._states.items() if state.last_used_ms < before_ms and key not in self._open]
        for producer_id in old:
            del self._states[producer_id]

    def clear(self) -> None:
        """Remove all producers."""
        self._states.clear()
        self._open.clear()

    # -- snapshot file

    def save(self, directory: Path, offset: int, *, recovery_point: int = 0, durable: bool = False) -> None:
        """Write the snapshot of all producers at ``offset``. Without producers, the files are removed.

        Args:
            directory: Partition directory.
            offset: End offset of the log.
            recovery_point: Offset below which the log is on disk. A snapshot of this or a lower offset becomes the
                previous one, for the case that a power cut takes records before the new one.
            durable: Whether to wait for the disk. The log is on disk up to ``offset``, and all earlier snapshots are
                invalid.
        """
        path, previous = directory / SNAPSHOT, directory / PREVIOUS_SNAPSHOT
        if durable or (self._has_snapshot and not self._states):
            previous.unlink(missing_ok=True)
        if not self._states:
            if self._has_snapshot:
                path.unlink(missing_ok=True)
                self._has_snapshot = False
            if durable:
                fsync_path(directory)
            return
        producers = [
            [
                producer_id,
                state.epoch,
                state.last_used_ms,
                list(state.batches),
                state.last_timestamp,
                state.coordinator_epoch,
                self._open.get(producer_id, NO_OFFSET),
            ]
            for producer_id, state in self._states.items()
        ]
        if self._has_snapshot and not durable and self._snapshot_offset <= recovery_point:
            with suppress(FileNotFoundError):  # an earlier attempt to write the new one failed after this
                path.replace(previous)
        text = json.dumps({"version": 4, "offset": offset, "producers": producers}, separators=(",", ":"))[1:]
        self._has_snapshot, self._snapshot_offset = True, offset
        write_atomically(path, _CRC_PREFIX.format(crc32(text.encode())) + text, durable=durable)

    def load(self, directory: Path, end_offset: int) -> int | None:
        """Read the newest snapshot that can be used.

        Returns:
            The offset of the snapshot; None without a file; ``UNUSABLE`` if the files are damaged or ahead of the log,
            which is logged.

        Raises:
            OSError: A file cannot be read, or an unusable one cannot be replaced by the previous one.
        """
        self._has_snapshot = True
        saved = self._load(directory / SNAPSHOT, end_offset)
        if saved in {None, UNUSABLE} and (earlier := self._load(directory / PREVIOUS_SNAPSHOT, end_offset)) is not None:
            saved = earlier
            if saved != UNUSABLE:
                # Once the log is long enough again, a later start would trust the other one.
                (directory / PREVIOUS_SNAPSHOT).replace(directory / SNAPSHOT)
                fsync_path(directory)
        self._snapshot_offset = saved or 0
        return saved

    def _load(self, path: Path, end_offset: int) -> int | None:
        try:
            stored = _checked(read_small(path))
            offset = int(stored["offset"])
            for producer_id, epoch, last_used_ms, batches, timestamp, coordinator_epoch, first in stored["producers"]:
                state = self._states[producer_id] = ProducerState(epoch, last_used_ms)
                state.batches.extend(AppendedBatch(*batch) for batch in batches)  # no timestamp before version 4
                state.last_timestamp, state.coordinator_epoch, self._open[producer_id] = (
                    timestamp,
                    coordinator_epoch,
                    first,
                )
            self._open = {
                key: first for key, first in sorted(self._open.items(), key=lambda item: item[1]) if first != NO_OFFSET
            }
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            logger.warning("%s cannot be used, the producer state is rebuilt from the log: %s", path, error)
            self.clear()
            return UNUSABLE
        if offset > end_offset:
            logger.warning(
                "%s is ahead of the log, which ends at %d: the producer state is rebuilt from the log", path, end_offset
            )
            self.clear()
            return UNUSABLE
        return offset


def _checked(text: str) -> Any:
    """Parse a snapshot file.

    Raises:
        ValueError: The file is damaged.
    """
    if text[:_CRC_PREFIX_SIZE] != _CRC_PREFIX.format(crc32(text[_CRC_PREFIX_SIZE:].encode())):
        raise ValueError("wrong checksum")
    return json.loads(text)

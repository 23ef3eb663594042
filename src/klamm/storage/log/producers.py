"""What a partition knows of idempotent producers (KIP-98, Kafka's ProducerStateManager).

Unlike Kafka's snapshots, ours keep the whole window of five batches, so that a batch that is sent again is
recognised after a restart as well.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.protocol.errors import InvalidProducerEpochError, OutOfOrderSequenceError
from klamm.protocol.records import NO_PRODUCER_ID
from klamm.storage.log.files import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from klamm.protocol.records import RecordBatch
    from klamm.storage.log.segment import BatchHead

logger = logging.getLogger(__name__)

WINDOW: Final = 5
"""Batches per producer that are recognised when they come again: what a producer may have in flight."""
SNAPSHOT: Final = "klamm-producers.json"
_MAX_SEQUENCE: Final = 2**31 - 1


class AppendedBatch(NamedTuple):
    """A batch that is in the log."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


class ProducerState:
    """The last batches of one producer, and when it wrote last (milliseconds since the epoch, the broker's clock)."""

    __slots__ = ("batches", "epoch", "last_used_ms")

    def __init__(self, epoch: int, last_used_ms: int) -> None:
        self.epoch = epoch
        self.last_used_ms = last_used_ms
        self.batches: deque[AppendedBatch] = deque(maxlen=WINDOW)


class ProducerStates:
    """All producers of one partition. Loop-confined."""

    def __init__(self, partition: str) -> None:
        self._partition = partition
        self._states: dict[int, ProducerState] = {}

    def __len__(self) -> int:
        """Count the producers that are known."""
        return len(self._states)

    def last_offsets(self) -> list[int]:
        """Return where the last batch of each producer ends."""
        return [state.batches[-1].last_offset for state in self._states.values()]

    def duplicate_of(self, batch: RecordBatch) -> AppendedBatch | None:
        """Check the epoch and sequence of a batch; returns the one that it repeats, or None when it is new.

        An unknown producer may begin at any sequence: its earlier batches may have been deleted.

        Raises:
            InvalidProducerEpochError: A newer epoch of the producer has written: this one is fenced.
            OutOfOrderSequenceError: There is a gap, or a new epoch does not begin at 0.
        """
        state = self._states.get(batch.producer_id)
        if state is None:
            return None
        if batch.producer_epoch == state.epoch:
            last_sequence = batch.last_sequence
            for known in state.batches:
                if known.base_sequence == batch.base_sequence and known.last_sequence == last_sequence:
                    return known
            expected = 0 if state.batches[-1].last_sequence == _MAX_SEQUENCE else state.batches[-1].last_sequence + 1
        elif batch.producer_epoch < state.epoch:
            raise InvalidProducerEpochError(
                f"Epoch of producer {batch.producer_id} in {self._partition} is {batch.producer_epoch},"
                f" which is smaller than the last seen epoch {state.epoch}"
            )
        else:
            expected = 0
        if batch.base_sequence != expected:
            raise OutOfOrderSequenceError(
                f"Out of order sequence number for producer {batch.producer_id} in {self._partition}:"
                f" {batch.base_sequence} (incoming seq. number), {expected - 1} (current end sequence number)"
            )
        return None

    def appended(self, batch: RecordBatch, base_offset: int, now_ms: int) -> None:
        """Remember a batch that was written at ``base_offset``."""
        entry = AppendedBatch(
            batch.base_sequence, batch.last_sequence, base_offset, base_offset + batch.last_offset_delta
        )
        self._remember(batch.producer_id, batch.producer_epoch, entry, now_ms)

    def replay(self, head: BatchHead, now_ms: int) -> None:
        """Remember a batch that was found in the log."""
        if head.producer_id == NO_PRODUCER_ID or head.base_sequence < 0:
            return
        last_sequence = (head.base_sequence + head.last_offset - head.base_offset) & _MAX_SEQUENCE
        entry = AppendedBatch(head.base_sequence, last_sequence, head.base_offset, head.last_offset)
        self._remember(head.producer_id, head.producer_epoch, entry, now_ms)

    def _remember(self, producer_id: int, epoch: int, entry: AppendedBatch, now_ms: int) -> None:
        state = self._states.get(producer_id)
        if state is None or state.epoch != epoch:
            state = self._states[producer_id] = ProducerState(epoch, now_ms)
        state.batches.append(entry)
        state.last_used_ms = now_ms

    def expire(self, before_ms: int) -> None:
        """Forget producers that wrote nothing since ``before_ms`` (``producer.id.expiration.ms``)."""
        for producer_id in [key for key, state in self._states.items() if state.last_used_ms < before_ms]:
            del self._states[producer_id]

    def clear(self) -> None:
        """Forget all."""
        self._states.clear()

    # -- keeping them over a restart

    def save(self, directory: Path, offset: int) -> None:
        """Write what is known of the log below ``offset``; without any producer the file goes."""
        path = directory / SNAPSHOT
        if not self._states:
            path.unlink(missing_ok=True)
            return
        producers = [
            [producer_id, state.epoch, state.last_used_ms, list(state.batches)]
            for producer_id, state in self._states.items()
        ]
        text = json.dumps({"version": 1, "offset": offset, "producers": producers}, separators=(",", ":"))
        write_atomically(path, text, durable=False)

    def load(self, directory: Path, end_offset: int) -> int | None:
        """Read what ``save`` wrote.

        Returns:
            The offset up to which it holds; None without a file; -1 when the file is damaged or ahead of the log,
            which is told and not raised.
        """
        path = directory / SNAPSHOT
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            offset = int(stored["offset"])
            for producer_id, epoch, last_used_ms, batches in stored["producers"]:
                state = ProducerState(epoch, last_used_ms)
                state.batches.extend(AppendedBatch(*batch) for batch in batches)
                self._states[producer_id] = state
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            logger.warning("%s is not used, producers are taken from the log: %s", path, error)
            self.clear()
            return -1
        if offset > end_offset:
            logger.warning(
                "%s is ahead of the log, which ends at %d: producers are taken from the log", path, end_offset
            )
            self.clear()
            return -1
        return offset

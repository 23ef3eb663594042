"""State of one partition that is mirrored with equal offsets. No I/O."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from klamm.kafka_client.data.batches import ProducerStamp
from klamm.mirror.copy.partition import PartitionCopy
from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.replay.runs import FILLERS_PER_BATCH, filler_batch, hole, is_hole, writes_of
from klamm.protocol.types import TopicPartition

if TYPE_CHECKING:
    from klamm.mirror.copy.batch import Outgoing, SkippedOffsets

_MAX_FILLER_BATCHES: Final = 5
MAX_MARKERS: Final = 10_000
"""Most markers in one request."""


class ReplayCopy(PartitionCopy):
    """Copy of one partition whose records keep their source offsets. Confined to the copier's thread.

    ``acked_offset`` is a source offset and a target offset: everything before it is written. ``pending`` holds dense
    batches and holes (``runs``). Three rules keep every write at its offset:

    - A batch carries the partition's producer id, its epoch in the log and the next sequence. A broker appends it only
      directly behind its predecessor, and never twice. So several batches may be in flight.
    - A marker fills one offset of a hole. It is not conditional, so nothing else is in flight with it. The last marker
      of a hole is sent alone, so that a late request of a dead writer never fills the whole rest of a hole.
    - The first marker of a writer carries the epoch of its incarnation, which is higher than any before. From then on a
      broker rejects the batches and markers of all earlier writers.

    After any failure the copy is discarded, and a new one begins at the log end of the target.
    """

    __slots__ = (
        "barrier_until",
        "failure",
        "filler_timestamp",
        "fillers_until",
        "has_fenced",
        "is_first_of_topic",
        "is_in_doubt",
        "is_unproven",
        "max_bytes",
        "sent_markers",
        "stamp_of_markers",
    )

    def __init__(
        self,
        copy_of: PartitionCopy,
        *,
        producer: ProducerStamp,
        next_sequence: int,
        incarnation: int,
        is_unproven: bool,
        max_bytes: int = sys.maxsize,
    ) -> None:
        """Begin at the log end of the target.

        Args:
            copy_of: Partition and start offset, with the leader epoch before it.
            producer: Producer id of the partition, with its epoch in the log of the target.
            next_sequence: Sequence number that the target expects of that producer.
            incarnation: Epoch of this writer's markers. Not less than the epoch in the log.
            is_unproven: Whether a marker of an earlier writer may still arrive.
            max_bytes: Size in bytes above which batches are split.
        """
        super().__init__(
            copy_of.partition_id,
            start_offset=copy_of.acked_offset,
            committed=False,
            leader_epoch=copy_of.last_fetched_epoch,
        )
        self.producer = producer
        self.sequence = next_sequence
        self.stamp_of_markers = ProducerStamp(producer.producer_id, incarnation)
        self.has_fenced = producer.producer_epoch == incarnation
        """Whether a marker of this incarnation is in the log, so that earlier writers are fenced."""
        self.is_unproven = is_unproven
        self.barrier_until = 0.0
        """Time of the copier's clock at which a marker for a single missing offset may be sent. 0: not set yet."""
        self.max_bytes = max_bytes
        self.sent_markers = 0
        """Number of markers in flight."""
        self.failure = ""
        """Why the copy must be discarded. Empty: it need not."""
        self.is_in_doubt = False
        """Whether the next copy needs a new incarnation: a marker may still arrive, or another writer is active."""
        self.is_first_of_topic = False
        """Whether the id of the source topic has to be stored."""
        self.fillers_until = -1
        """Log start offset of the source up to which fillers are written first. -1: none are written."""
        self.filler_timestamp = -1

    @property
    def remote(self) -> TopicPartition:
        """Remote topic and partition number."""
        return TopicPartition(self.partition_id.remote_topic, self.partition_id.partition)

    def begin_with_fillers(self, until: int, timestamp: int) -> None:
        """Write fillers first, up to the log start of the source. Nothing is fetched before they are deleted.

        Args:
            until: Log start offset of the source.
            timestamp: Timestamp of the fillers in milliseconds since the epoch.
        """
        self.fillers_until, self.filler_timestamp = until, timestamp
        self.fetch_offset = self.committed_offset = until
        self.is_held = True

    def queue_fillers(self) -> None:
        """Queue batches of fillers, at most five at a time."""
        position = self.acked_offset
        for queue in (self.in_flight, self.pending):
            position = queue[-1].next_offset if queue else position
        while position < self.fillers_until and len(self.pending) + len(self.in_flight) < _MAX_FILLER_BATCHES:
            count = min(FILLERS_PER_BATCH, self.fillers_until - position)
            self._append(filler_batch(position, count, self.filler_timestamp), self.filler_timestamp)
            position += count

    @property
    def has_written_fillers(self) -> bool:
        """Return whether all fillers are on the target, so that they can be deleted."""
        return 0 <= self.fillers_until == self.acked_offset

    def end_fillers(self) -> None:
        """Start to copy: the fillers are deleted."""
        self.fillers_until = -1
        self.is_held = False

    def enqueue(self, item: Outgoing | SkippedOffsets, now_ms: float) -> None:
        """Queue records, or offsets without records, split as the target accepts them."""
        for each in writes_of(item, self.fetch_offset, max_bytes=self.max_bytes):
            if is_hole(each):
                self._append_hole(each.next_offset)
            else:
                self._append(each, now_ms)

    def _append_hole(self, next_offset: int) -> None:
        if self.pending and is_hole(self.pending[-1]):
            self.pending[-1].next_offset = next_offset
        else:
            self.pending.append(hole(next_offset))

    def skip_to(self, offset: int) -> None:
        """Continue at a later source offset. The offsets in between become a hole."""
        self._append_hole(offset)
        self.fetch_offset = offset

    @property
    def is_settled(self) -> bool:
        """Return whether all fetched records are on the target and their source offset is committed."""
        return self.fillers_until < 0 and not self.sent_markers and super().is_settled

    @property
    def is_idle(self) -> bool:
        """Return whether there is nothing to send and nothing whose outcome is to be awaited."""
        return self.fillers_until < 0 and not (self.sent_markers or self.failure) and super().is_idle

    def can_send(self, now: float) -> bool:
        """Return whether the next batch may be sent."""
        is_blocked = self.sent_markers or self.failure or (self.pending and is_hole(self.pending[0]))
        return not is_blocked and super().can_send(now)

    def markers_due(self, now: float) -> int:
        """Return how many markers may be sent now. The caller sends them in one request and sets ``sent_markers``."""
        is_blocked = self.in_flight or self.sent_markers or self.failure or self.state is CopyState.STOPPED
        if is_blocked or now < self.retry_at or not self.pending or not is_hole(self.pending[0]):
            return 0
        missing = self.missing
        return 1 if missing == 1 or not self.has_fenced else min(missing - 1, MAX_MARKERS)

    @property
    def needs_barrier(self) -> bool:
        """Return whether a late marker of an earlier writer could fill the single offset that is missing."""
        return self.is_unproven and not self.has_fenced and self.missing == 1

    @property
    def missing(self) -> int:
        """Number of offsets that the first pending hole still lacks."""
        return self.pending[0].next_offset - self.acked_offset

    def filled(self, end_offset: int) -> None:
        """Record the log end of the target after markers.

        Args:
            end_offset: Offset after the markers, at most the end of the hole.
        """
        self.sent_markers = 0
        self.is_unproven = False
        if not self.has_fenced:
            self.has_fenced = True
            self.producer, self.sequence = self.stamp_of_markers, 0
        self.acked_offset = self._ahead_offset = end_offset
        self._epochs.forget_before(end_offset)
        if self.missing == 0:
            self.pending.popleft()
        if self.state is CopyState.WAITING:
            self.state, self.reason = CopyState.COPYING, ""

    def acknowledge(self, outgoing: Outgoing) -> None:
        """Record that the target has a batch."""
        self.is_unproven = False
        super().acknowledge(outgoing)

    def fail(self, reason: str, *, in_doubt: bool) -> None:
        """Send nothing more. The copy is discarded once nothing is in flight.

        Args:
            reason: Cause, shown in the status.
            in_doubt: Whether the next copy needs a new incarnation.
        """
        self.failure = self.failure or reason
        self.is_in_doubt |= in_doubt

    def discard(self, outgoing: Outgoing) -> None:
        """Drop a batch in flight that failed or whose outcome is unknown."""
        self.in_flight.remove(outgoing)
        outgoing.release()

"""One partition on its way: what was fetched, what is in flight, what is acknowledged. No I/O."""

from __future__ import annotations

import sys
import time
from collections import deque
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.mirror.copy.batch import MAX_IN_FLIGHT, Outgoing, outgoing_of
from klamm.mirror.copy.epochs import FetchedEpochs
from klamm.mirror.copy.refreshing import backoff_s
from klamm.mirror.record_ages import RecentAges
from klamm.mirror.source_offsets import SourceOffset
from klamm.protocol.types import MAX_SEQUENCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.client.batches import ProducerStamp
    from klamm.client.buffers import FrameBuffer
    from klamm.protocol.types import AbortedTransaction

_NEVER: Final = float("-inf")
_SMOOTHING: Final = 8
_KNOWN_FOR_MS: Final = 600_000
"""Brokers forget a producer after a day without a batch (``producer.id.expiration.ms``), or what they are set to."""


class CopyState(StrEnum):
    """Where the copying of a partition stands."""

    COPYING = "COPYING"
    WAITING = "WAITING"
    """Something is away; tried again until it is back."""
    STOPPED = "STOPPED"
    """Going on would lose or double records; needs somebody."""


class PartitionId(NamedTuple):
    """A partition of the source, and the topic on the target that gets its records."""

    topic: str
    partition: int
    remote_topic: str


class PartitionCopy:
    """The state of one partition. Thread-confined to its copier."""

    __slots__ = (
        "_ahead_offset",
        "_epochs",
        "_largest_joined",
        "_proven_at_ms",
        "_put_back_count",
        "_source_failures",
        "_target_failures",
        "acked_offset",
        "batch_bytes",
        "bytes_copied",
        "committed_offset",
        "end_offset",
        "fetch_offset",
        "in_flight",
        "lane",
        "last_timestamp",
        "next_base_offset",
        "partition_id",
        "pending",
        "pending_bytes",
        "producer",
        "producer_lost",
        "reason",
        "record_ages",
        "records_copied",
        "replication_ages",
        "retry_at",
        "retrying",
        "sequence",
        "state",
        "too_large",
    )

    def __init__(
        self, partition_id: PartitionId, *, start_offset: int, committed: bool, leader_epoch: int = -1
    ) -> None:
        """Begin at an offset.

        Args:
            partition_id: which partition.
            start_offset: the first source offset to copy.
            committed: whether the positions topic says so already.
            leader_epoch: of the source's batch before ``start_offset``; -1: not known.
        """
        self.partition_id = partition_id
        self._epochs = FetchedEpochs(leader_epoch)
        self.fetch_offset = start_offset
        self.acked_offset = start_offset
        """Everything before it is on the target."""
        self.committed_offset = start_offset if committed else -1
        """What the positions topic says."""
        self.end_offset = -1
        """The source's high watermark (last stable offset under read_committed); -1: not known yet."""
        self.pending: deque[Outgoing] = deque()
        self.in_flight: deque[Outgoing] = deque()
        self.lane = 0
        """On which of the connections to its leader it is written to."""
        self.batch_bytes = 0
        """Of the last batches on the average; 0: there was none."""
        self.pending_bytes = 0
        self.producer: ProducerStamp | None = None
        self.sequence = 0
        self._proven_at_ms = _NEVER
        """When the target last acknowledged a batch of this producer: it knows then which sequence is due."""
        self.retrying = False
        """A batch failed: nothing new goes out until all in flight are answered, so that the order stays."""
        self.retry_at = 0.0
        self._source_failures = self._target_failures = 0
        """In a row."""
        self.producer_lost = False
        """The target forgot our producer: a new one is needed once nothing is in flight."""
        self.too_large = False
        """The first batch is to be split once nothing is in flight."""
        self._put_back_count = 0
        """How many at the front of ``pending`` were in flight before."""
        self._ahead_offset = -1
        """What a batch reached that was acknowledged although one before it was put back."""
        self._largest_joined = sys.maxsize
        """Less once the target has called a batch too large: what is halved again had better not be joined."""
        self.next_base_offset = 0
        """The target's offset after what it acknowledged; only followed in transactions."""
        self.state = CopyState.COPYING
        self.reason = ""
        self.records_copied = 0
        self.bytes_copied = 0
        self.last_timestamp = -1
        self.record_ages = RecentAges()
        """How old records are when they are fetched."""
        self.replication_ages = RecentAges()
        """How old records are when the target has them."""

    def take(
        self,
        records: memoryview,
        memory: FrameBuffer,
        aborted: Sequence[AbortedTransaction] | None,
        *,
        join_up_to: int = 0,
        is_far: bool = False,
    ) -> None:
        """Queue what a fetch brought; small batches are joined to larger ones of up to so many bytes.

        Compressed ones are only if the target is far.

        Raises:
            CorruptBatchError: the source's bytes are damaged; what stands before them is queued.
        """
        now_ms = _now_ms()
        join_up_to = min(join_up_to, self._largest_joined)
        found = outgoing_of(records, memory, self.fetch_offset, aborted, join_up_to=join_up_to, is_far=is_far)
        for each in found:
            self._epochs.begin(self.fetch_offset, each.leader_epoch)
            if isinstance(each, Outgoing):
                self._append(each, now_ms)
            else:
                self._skip_to(each.next_offset)
            self.fetch_offset = each.next_offset

    def _append(self, outgoing: Outgoing, now_ms: float) -> None:
        _observe(self.record_ages, outgoing, now_ms)
        self.pending.append(outgoing)
        self.pending_bytes += len(outgoing.view)

    def _skip_to(self, next_offset: int) -> None:
        """Count a batch that is left out as done as soon as everything before it is."""
        if self.pending:
            self.pending[-1].next_offset = next_offset
        elif self.in_flight:
            self.in_flight[-1].next_offset = next_offset
        else:
            self.acked_offset = next_offset

    def skip_to(self, offset: int) -> None:
        """Go on at a later offset, as if all before it were mirrored once what was fetched is."""
        self._skip_to(offset)
        self.fetch_offset = offset
        self._epochs.begin(offset - 1, -1)

    def rewind(self, position: SourceOffset) -> None:
        """Go on at an earlier offset, which becomes the position. Only for a copy that ``is_settled``."""
        self.fetch_offset = self.acked_offset = position.next_offset
        self.committed_offset = self.end_offset = self._ahead_offset = -1
        self._epochs = FetchedEpochs(position.leader_epoch)

    @property
    def is_settled(self) -> bool:
        """Tell whether all that was fetched is on the target, and the positions topic says so."""
        return not (self.pending or self.in_flight) and self.committed_offset == self.acked_offset

    @property
    def position(self) -> SourceOffset:
        """What the positions topic is to say."""
        return SourceOffset(self.acked_offset, self._epochs.before(self.acked_offset))

    @property
    def last_fetched_epoch(self) -> int:
        """Leader epoch of the source's batch before ``fetch_offset``; -1: not known."""
        return self._epochs.before(self.fetch_offset)

    def fetched(self, *, end_offset: int) -> None:
        """Note an answer of the source without an error."""
        self.end_offset = end_offset
        self._source_failures = 0
        if self.state is CopyState.WAITING and not self.retrying:
            self.state, self.reason = CopyState.COPYING, ""

    @property
    def is_caught_up(self) -> bool:
        """Tell whether everything that the source was known to hold is fetched."""
        return 0 <= self.end_offset <= self.fetch_offset

    def can_send(self, now: float) -> bool:
        """Tell whether the next batch may go out."""
        return (
            bool(self.pending)
            and len(self.in_flight) < self._max_in_flight()
            and self.state is not CopyState.STOPPED
            and (not self.retrying or not self.in_flight)
            and now >= self.retry_at
        )

    def _max_in_flight(self) -> int:
        """Send one batch alone while the target may not know the producer.

        A broker takes any sequence of a producer that it does not know. Were the first batch refused because the
        broker does not lead the partition yet, it could take the second, and the first after it.
        """
        return MAX_IN_FLIGHT if _now_ms() - self._proven_at_ms < _KNOWN_FOR_MS else 1

    def next_batch(self, fresh: ProducerStamp) -> Outgoing:
        """Return the next batch, stamped and counted as in flight.

        Args:
            fresh: the producer for a partition that has none.
        """
        if self.producer is None:
            self.producer, self.sequence = fresh, 0
            self._proven_at_ms = _NEVER
        self.retrying = False
        outgoing = self.pending.popleft()
        size = len(outgoing.view)
        self.batch_bytes += (size - self.batch_bytes) // _SMOOTHING if self.batch_bytes else size
        self._put_back_count = max(0, self._put_back_count - 1)
        self.pending_bytes -= size
        if outgoing.producer != self.producer:
            outgoing.stamp(self.producer, self.sequence)
            self.sequence = (self.sequence + outgoing.record_count) & MAX_SEQUENCE
        self.in_flight.append(outgoing)
        return outgoing

    def acknowledge(self, outgoing: Outgoing) -> None:
        """Count a batch as done."""
        self.in_flight.remove(outgoing)
        self._target_failures = 0
        if outgoing.producer == self.producer:
            self._proven_at_ms = _now_ms()
        self._ahead_offset = max(self._ahead_offset, outgoing.next_offset)
        if not self._put_back_count:
            self.acked_offset = self._ahead_offset
        self.records_copied += outgoing.record_count
        self.bytes_copied += len(outgoing.view)
        self.last_timestamp = max(self.last_timestamp, outgoing.max_timestamp)
        _observe(self.replication_ages, outgoing, _now_ms())
        outgoing.release()
        self._epochs.forget_before(self.acked_offset)
        if self.state is CopyState.WAITING and not self.retrying:
            self.state, self.reason = CopyState.COPYING, ""

    def put_back(self, outgoing: Outgoing, reason: str, *, retry_at: float) -> None:
        """Queue a batch again that was refused or whose fate is not known; its place and its sequence stay.

        Called in the order of sending when several come back.
        """
        self.in_flight.remove(outgoing)
        self.pending.insert(self._put_back_count, outgoing)
        self._put_back_count += 1
        self.pending_bytes += len(outgoing.view)
        self.retrying = True
        self.wait(reason, retry_at=retry_at)

    def wait(self, reason: str, *, retry_at: float) -> None:
        """Say what is missing, and until when nothing is tried."""
        if self.state is not CopyState.STOPPED:
            self.state, self.reason = CopyState.WAITING, reason
            self.retry_at = max(self.retry_at, retry_at)

    def source_failed(self, reason: str, now: float) -> float:
        """Wait for the source, longer after each failure in a row; returns when to try again."""
        self._source_failures += 1
        retry_at = now + backoff_s(self._source_failures)
        self.wait(reason, retry_at=retry_at)
        return retry_at

    def target_failed(self, reason: str, now: float, *outgoing: Outgoing) -> float:
        """Wait for the target, longer after each failure in a row; returns when to try again.

        Args:
            reason: What went wrong.
            now: By the clock of the copier.
            outgoing: A batch that failed, which is queued again. Those behind it that fail with it count once.
        """
        if not self.retrying:
            self._target_failures += 1
        retry_at = now + backoff_s(max(1, self._target_failures))
        for each in outgoing:
            self.put_back(each, reason, retry_at=retry_at)
        self.wait(reason, retry_at=retry_at)
        return retry_at

    def stop(self, reason: str) -> None:
        """End the copying of this partition, loudly."""
        self.state, self.reason = CopyState.STOPPED, reason
        self.drop_pending()

    def drop_pending(self) -> None:
        """Forget what was fetched but not sent; a later fetch brings it again."""
        while self.pending:
            self.pending.popleft().release()
        self.pending_bytes = self._put_back_count = 0
        if self.in_flight:
            self.fetch_offset = self.in_flight[-1].next_offset
        else:
            self.fetch_offset = self.acked_offset

    def renew_producer(self) -> None:
        """Forget the producer: its state is lost on the target. Called when nothing is in flight."""
        self.producer = None

    def split_first(self) -> bool:
        """Halve the first batch, which the target calls too large; False when it holds one record only."""
        first = self.pending[0]
        halves = first.halves()
        if halves is None:
            return False
        self.pending.popleft()
        self.pending.extendleft(reversed(halves))
        self.pending_bytes += sum(len(half.view) for half in halves) - len(first.view)
        self._largest_joined = min(self._largest_joined, len(first.view) // 2)
        first.release()
        return True

    @property
    def figures(self) -> tuple[object, ...]:
        """All that progress is made of, to be compared: while it is the same, ages apart, there is nothing new."""
        return (
            self.acked_offset,
            self.committed_offset,
            self.end_offset,
            self.state,
            self.reason,
            self.records_copied,
            self.record_ages.count,
        )

    @property
    def is_undecided(self) -> bool:
        """Tell whether something was sent of which is not known whether the target has it."""
        return bool(self._put_back_count)

    @property
    def lag(self) -> int | None:
        """Offsets between what is on the target and the source's end; None: not known yet."""
        return None if self.end_offset < 0 else max(0, self.end_offset - self.acked_offset)


def _observe(ages: RecentAges, outgoing: Outgoing, now_ms: float) -> None:
    ages.observe(
        now_ms,
        first_timestamp=outgoing.first_timestamp,
        max_timestamp=outgoing.max_timestamp,
        count=outgoing.record_count,
    )


def _now_ms() -> float:
    return time.time() * 1000

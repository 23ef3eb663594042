"""State of one mirrored partition: fetched, in-flight and acknowledged batches. No I/O."""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.mirror.copy.batch import MAX_IN_FLIGHT, Outgoing, outgoing_of
from klamm.mirror.progress.partition_progress import CopyState, RecentAges
from klamm.mirror.records.source_offsets import SourceOffset
from klamm.protocol.types import MAX_SEQUENCE
from klamm.retries import backoff_s

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from klamm.kafka_client.connection.buffers import FrameBuffer
    from klamm.kafka_client.data.batches import ProducerStamp
    from klamm.mirror.copy.batch import SkippedOffsets
    from klamm.protocol.types import AbortedTransaction

logger = logging.getLogger(__name__)

_ALL_EVERY_S: Final = 300.0
_FIRST_BACKOFF_S: Final = 0.2
_LAST_BACKOFF_S: Final = 1.0
"""Kafka's default of ``retry.backoff.max.ms``."""


class TopicRefreshes:
    """Metadata refreshes that are due in one cluster: all topics every 5 minutes, failing topics soon."""

    def __init__(self) -> None:
        self._all_at = 0.0
        self._at: dict[str, float] = {}

    def want(self, topic: str, at: float) -> None:
        """Schedule the refresh of a topic. The earliest requested time applies."""
        self._at[topic] = min(at, self._at.get(topic, at))

    def due(self, topics: Iterable[str], now: float) -> list[str]:
        """Return the topics to refresh now.

        Args:
            topics: All mirrored topics. Read only when all of them are due.
            now: Time of the clock that ``want`` uses, in seconds.
        """
        if now >= self._all_at:
            return sorted(set(topics))
        return sorted(topic for topic, at in self._at.items() if now >= at)

    def done(self, topics: Collection[str], now: float) -> None:
        """Record that the metadata of the due topics were requested."""
        if now >= self._all_at:
            self._all_at = now + _ALL_EVERY_S
        for topic in topics:
            self._at.pop(topic, None)


UNKNOWN_EPOCH = -1
_BEGINNING = -1
_KEPT_EPOCHS: Final = 32
"""Leader epochs of copied batches that are kept for each partition."""


class _Entry(NamedTuple):
    """Leader epoch and the offset of its first batch."""

    first_offset: int
    leader_epoch: int


class FetchedEpochs:
    """Leader epochs of the batches up to the last fetched one: those since the last copied one, and some before.

    They reveal that the log of the source was truncated. After an unclean leader election, a partition holds other
    records at offsets that were already read. Offsets alone do not show this, because the new leader may have appended
    beyond them. Kafka numbers the leaders of each partition: the fetch request carries the epoch of the last batch that
    was read, the broker compares it with its own epoch history and answers at which offset the two logs diverge
    (KIP-320, KIP-595).
    """

    __slots__ = ("entries",)

    def __init__(self, leader_epoch: int = UNKNOWN_EPOCH) -> None:
        """Start after a batch.

        Args:
            leader_epoch: Leader epoch of that batch. -1: unknown.
        """
        self.entries = [_Entry(_BEGINNING, leader_epoch)]

    def begin(self, first_offset: int, leader_epoch: int) -> None:
        """Record a fetched batch. Entries of later offsets are removed, because those offsets are fetched again."""
        entries = self.entries
        while len(entries) > 1 and entries[-1].first_offset >= first_offset:
            entries.pop()
        if entries[-1].leader_epoch != leader_epoch:
            entries.append(_Entry(first_offset, leader_epoch))

    def before(self, offset: int) -> int:
        """Return the leader epoch of the last batch before an offset. -1: unknown."""
        return next(
            (entry.leader_epoch for entry in reversed(self.entries) if entry.first_offset < offset), UNKNOWN_EPOCH
        )

    def common_end(self, leader_epoch: int, end_offset: int) -> tuple[int, int]:
        """Return up to which offset, and with which leader epoch, the fetched batches may be those of the source.

        The source may have an epoch that was never fetched, after two unclean leader elections. Then the epoch before
        that was fetched is returned, and the next fetch shows whether the source has all of that one, as for a replica
        (KIP-595). All fetched epochs may be unknown to the source. Then everything is fetched again that was fetched
        with a known epoch.

        Args:
            leader_epoch: Largest leader epoch of the source up to that of the last fetched batch.
            end_offset: Offset at which it ends on the source.
        """
        fetched_end = end_offset
        for entry in reversed(self.entries):
            if 0 <= entry.leader_epoch <= leader_epoch:
                return min(fetched_end, end_offset), entry.leader_epoch
            fetched_end = entry.first_offset
        if self.entries[0].leader_epoch == UNKNOWN_EPOCH and len(self.entries) > 1:
            return min(self.entries[1].first_offset, end_offset), UNKNOWN_EPOCH
        return end_offset, leader_epoch  # it was fetched by an earlier process, or too long ago

    def rewind(self, offset: int, leader_epoch: int) -> None:
        """Resume after a batch before an offset, which has this leader epoch. -1: unknown."""
        entries = self.entries
        while len(entries) > 1 and entries[-1].first_offset >= offset:
            entries.pop()
        if entries[-1].leader_epoch != leader_epoch:
            self.entries = [_Entry(_BEGINNING, leader_epoch)]

    def forget_before(self, offset: int) -> None:
        """Remove entries that are needed for earlier offsets only, but the latest ones."""
        entries = self.entries
        while len(entries) > _KEPT_EPOCHS and entries[1].first_offset < offset:
            del entries[0]


_NEVER: Final = float("-inf")
_SMOOTHING: Final = 8
_KNOWN_FOR_MS: Final = 600_000
"""Time in milliseconds after an acknowledgement during which the target surely knows the producer.

Brokers expire idle producers after ``producer.id.expiration.ms`` (one day by default, but it can be set lower).
"""


class PartitionId(NamedTuple):
    """Source partition and its remote topic on the target."""

    topic: str
    partition: int
    remote_topic: str


class PartitionCopy:
    """Copy of one partition. Confined to the copier's thread.

    Source offsets, in increasing order: ``committed_offset``, ``acked_offset``, ``fetch_offset``, ``end_offset``.

    A batch passes through these places:

    - ``take`` appends it to ``pending`` and advances ``fetch_offset``.
    - ``next_batch`` stamps it with producer id, epoch and sequence and moves it to ``in_flight``: at most five batches,
      and one while the target may not know the producer.
    - ``acknowledge`` removes it and advances ``acked_offset``. ``put_back`` returns it to the front of ``pending``
      instead.

    Retries keep the order and the sequence numbers. After one batch fails, ``retrying`` blocks all sends until every
    batch in flight is answered. The failed batches return to the front of ``pending`` in their old order
    (``_put_back_count`` is their number) and keep their stamp, so that a broker that did append one recognizes the
    duplicate. A batch behind a failed one may be acknowledged first. Its offset is kept in ``_ahead_offset``, and
    becomes ``acked_offset`` when the batches before it are acknowledged too.
    """

    __slots__ = (
        "_ahead_offset",
        "_epochs",
        "_is_abandoned",
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
        "is_held",
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
        """Start at a source offset.

        Args:
            partition_id: Source partition and remote topic.
            start_offset: First source offset to copy.
            committed: Whether the offsets topic holds ``start_offset`` already.
            leader_epoch: Leader epoch of the source batch before ``start_offset``. -1: unknown.
        """
        self.partition_id = partition_id
        self._epochs = FetchedEpochs(leader_epoch)
        self.fetch_offset = start_offset
        self.acked_offset = start_offset
        """Source offset before which all records are on the target."""
        self.committed_offset = start_offset if committed else -1
        """Source offset that is committed to the offsets topic. -1: none."""
        self.end_offset = -1
        """High watermark of the source (last stable offset under read_committed). -1: not known yet."""
        self.pending: deque[Outgoing] = deque()
        self.in_flight: deque[Outgoing] = deque()
        self.lane = 0
        """Index of the producing connection to the leader."""
        self.batch_bytes = 0
        """Moving average of the batch size in bytes. 0: no batch was sent yet."""
        self.pending_bytes = 0
        self.producer: ProducerStamp | None = None
        self.sequence = 0
        self._proven_at_ms = _NEVER
        """Wall clock in milliseconds when the target last acknowledged a batch of this producer. Since then the broker
        knows which sequence comes next.
        """
        self.is_held = self.retrying = False
        """``is_held``: whether nothing is fetched until all fetched records are settled. ``retrying``: whether a batch
        failed. To keep the order, nothing is sent until all batches in flight are answered.
        """
        self.retry_at = 0.0
        self._source_failures = self._target_failures = 0
        """Number of failures in a row."""
        self.producer_lost = False
        """Whether the target lost the producer's state. A new producer id is used once nothing is in flight."""
        self.too_large = False
        """Whether the first pending batch has to be split once nothing is in flight."""
        self._put_back_count = 0
        """Number of batches at the front of ``pending`` that were in flight before."""
        self._is_abandoned = False
        """Whether the partition stopped before the outcome of all sent batches was known."""
        self._ahead_offset = -1
        """Source offset after the furthest acknowledged batch, even if an earlier batch has to be resent."""
        self._largest_joined = sys.maxsize
        """Largest size in bytes of a joined batch. Lowered after a split: a larger one would be rejected again."""
        self.next_base_offset = 0
        """Target offset after the last acknowledged batch. Maintained in transactions only."""
        self.state = CopyState.COPYING
        self.reason = ""
        self.records_copied = 0
        self.bytes_copied = 0
        self.last_timestamp = -1
        self.record_ages = RecentAges()
        """Ages of records when they are fetched."""
        self.replication_ages = RecentAges()
        """Ages of records when the target acknowledges them."""

    def take(
        self,
        records: memoryview,
        memory: FrameBuffer,
        aborted: Sequence[AbortedTransaction] | None,
        *,
        join_up_to: int = 0,
        is_far: bool = False,
    ) -> None:
        """Queue the batches of a fetch response.

        Args:
            records: Record batches of this partition in the response.
            memory: Frame buffer that holds them.
            aborted: Aborted transactions of the response. None under read_uncommitted.
            join_up_to: Largest size in bytes to which small batches are joined. 0: no batches are joined.
            is_far: Whether the round trip to the target is so long that compressed batches are joined too.

        Raises:
            CorruptBatchError: A batch of the source is damaged. All batches before it are queued.
        """
        now_ms = _now_ms()
        join_up_to = min(join_up_to, self._largest_joined)
        batches = outgoing_of(records, memory, self.fetch_offset, aborted, join_up_to=join_up_to, is_far=is_far)
        for each in batches:
            self._epochs.begin(self.fetch_offset, each.leader_epoch)
            self.enqueue(each, now_ms)
            self.fetch_offset = each.next_offset

    def enqueue(self, item: Outgoing | SkippedOffsets, now_ms: float) -> None:
        """Queue records, or offsets without records, for the target."""
        if isinstance(item, Outgoing):
            self._append(item, now_ms)
        else:
            self._skip_to(item.next_offset)

    def _append(self, outgoing: Outgoing, now_ms: float) -> None:
        _observe(self.record_ages, outgoing, now_ms)
        self.pending.append(outgoing)
        self.pending_bytes += len(outgoing.view)

    def _skip_to(self, next_offset: int) -> None:
        """Count a dropped batch as copied as soon as everything before it is."""
        last = (*islice(reversed(self.pending), 1), *islice(reversed(self.in_flight), 1))
        if last:  # in flight may be batches behind those that were put back
            max(last, key=lambda batch: batch.next_offset).next_offset = next_offset
        else:
            self.acked_offset = next_offset

    def skip_to(self, offset: int) -> None:
        """Continue at a later offset. The offsets in between count as copied once all queued batches are."""
        self._skip_to(offset)
        self.fetch_offset = offset
        self._epochs.begin(offset - 1, -1)

    def can_rewind(self, source_offset: SourceOffset) -> bool:
        """Return whether copying may resume at an earlier source offset if records may be lost."""
        return True

    def rewind(self, source_offset: SourceOffset) -> None:
        """Resume at an earlier source offset. Only allowed while ``is_settled``."""
        self.fetch_offset = self.acked_offset = source_offset.next_offset
        self.committed_offset = self.end_offset = self._ahead_offset = -1
        self._epochs.rewind(*source_offset)

    def common_end(self, leader_epoch: int, end_offset: int) -> SourceOffset:
        """Return where to resume if the log of the source diverges. See ``FetchedEpochs.common_end``."""
        return SourceOffset(*self._epochs.common_end(leader_epoch, end_offset))

    @property
    def is_settled(self) -> bool:
        """Return whether all fetched records are on the target and their source offset is committed."""
        return not (self.pending or self.in_flight) and self.committed_offset == self.acked_offset

    @property
    def source_offset(self) -> SourceOffset:
        """Source offset and leader epoch to commit to the offsets topic."""
        return SourceOffset(self.acked_offset, self._epochs.before(self.acked_offset))

    @property
    def last_fetched_epoch(self) -> int:
        """Leader epoch of the source batch before ``fetch_offset``. -1: unknown."""
        return self._epochs.before(self.fetch_offset)

    def fetched(self, *, end_offset: int) -> None:
        """Record a fetch response without an error.

        Args:
            end_offset: High watermark of the source (last stable offset under read_committed).
        """
        self.end_offset = end_offset
        self._source_failures = 0
        if self.state is CopyState.WAITING and not self.retrying:
            self.state, self.reason = CopyState.COPYING, ""

    @property
    def is_caught_up(self) -> bool:
        """Return whether everything up to the last known end offset is fetched."""
        return 0 <= self.end_offset <= self.fetch_offset

    def can_send(self, now: float) -> bool:
        """Return whether the next batch may be sent.

        Args:
            now: Time of the copier's clock in seconds.
        """
        return (
            bool(self.pending)
            and len(self.in_flight) < self._max_in_flight()
            and self.state is not CopyState.STOPPED
            and (not self.retrying or not self.in_flight)
            and now >= self.retry_at
        )

    def _max_in_flight(self) -> int:
        """Return how many batches may be in flight: one while the target may not know the producer.

        A broker accepts any first sequence of an unknown producer. If it rejected the first batch because it was not
        the leader yet, it could accept the second batch and then the retried first one after it, out of order.
        """
        return MAX_IN_FLIGHT if _now_ms() - self._proven_at_ms < _KNOWN_FOR_MS else 1

    def next_batch(self, fresh: ProducerStamp) -> Outgoing:
        """Stamp the next pending batch, move it to ``in_flight`` and return it.

        Args:
            fresh: Producer id and epoch to use if the partition has none. A transactional one is always used.
        """
        if self.producer is None or (fresh.is_transactional and self.producer != fresh):
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
        """Record that the target has a batch, and advance ``acked_offset`` unless an earlier batch has to be resent."""
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

    def put_back(self, outgoing: Outgoing, reason: str, *, retry_at: float, in_doubt: bool = True) -> None:
        """Requeue a batch that failed or whose outcome is unknown. It keeps its place and its sequence.

        Batches that failed before it may be behind it: then they wait to be sent again.

        Args:
            outgoing: Batch in flight.
            reason: Cause, shown in the status.
            retry_at: Time of the copier's clock in seconds before which nothing is sent.
            in_doubt: Whether the target may have appended the batch.
        """
        self.in_flight.remove(outgoing)
        outgoing.is_in_doubt |= in_doubt
        before = islice(self.pending, self._put_back_count)
        self.pending.insert(sum(each.next_offset < outgoing.next_offset for each in before), outgoing)
        self._put_back_count += 1
        self.pending_bytes += len(outgoing.view)
        self.retrying = True
        self.wait(reason, retry_at=retry_at)

    def wait(self, reason: str, *, retry_at: float) -> None:
        """Change the state to WAITING.

        Args:
            reason: Cause, shown in the status.
            retry_at: Time of the copier's clock in seconds before which nothing is sent or fetched.
        """
        if self.state is not CopyState.STOPPED:
            self.state, self.reason = CopyState.WAITING, reason
            self.retry_at = max(self.retry_at, retry_at)

    def source_failed(self, reason: str, now: float) -> float:
        """Wait for the source, with a backoff that grows with each failure in a row. Return the time of the retry."""
        self._source_failures += 1
        retry_at = now + backoff_s(self._source_failures - 1, _FIRST_BACKOFF_S, _LAST_BACKOFF_S)
        self.wait(reason, retry_at=retry_at)
        return retry_at

    def target_failed(self, reason: str, now: float, *outgoing: Outgoing, in_doubt: bool = True) -> float:
        """Wait for the target, with a backoff that grows with each failure in a row. Return the time of the retry.

        Args:
            reason: Cause, shown in the status.
            now: Time of the copier's clock in seconds.
            outgoing: Failed batch to requeue. Batches behind it that fail for the same cause count as one failure.
            in_doubt: Whether the target may have appended the batch.
        """
        if not self.retrying:
            self._target_failures += 1
        retry_at = now + backoff_s(max(0, self._target_failures - 1), _FIRST_BACKOFF_S, _LAST_BACKOFF_S)
        for each in outgoing:
            self.put_back(each, reason, retry_at=retry_at, in_doubt=in_doubt)
        self.wait(reason, retry_at=retry_at)
        return retry_at

    def stop(self, reason: str) -> None:
        """Change the state to STOPPED and drop all pending batches."""
        self.state, self.reason = CopyState.STOPPED, reason
        while self.pending:
            self._abandon(self.pending.popleft())
        self.pending_bytes = self._put_back_count = 0
        if self.in_flight:
            self.fetch_offset = self.in_flight[-1].next_offset
        else:
            self.fetch_offset = self.acked_offset

    def abandon(self, outgoing: Outgoing, *, in_doubt: bool) -> None:
        """Discard a batch in flight that the target rejected after the partition stopped.

        Args:
            outgoing: Rejected batch.
            in_doubt: Whether the target may have appended it nevertheless.
        """
        self.in_flight.remove(outgoing)
        outgoing.is_in_doubt |= in_doubt
        self._abandon(outgoing)

    def _abandon(self, outgoing: Outgoing) -> None:
        self._is_abandoned |= outgoing.is_in_doubt
        outgoing.release()

    def doubt_producer(self) -> None:
        """Send one batch at a time until the next acknowledgement. A recreated topic does not know the producer."""
        self._proven_at_ms = _NEVER

    def renew_producer(self) -> None:
        """Discard the producer id, because the target lost its state. Call it only with nothing in flight."""
        self.producer = None

    def split_first(self) -> bool:
        """Split the first pending batch, which the target rejects as too large. Return False for a single record."""
        first = self.pending[0]
        halves = first.halves()
        if halves is None:
            return False
        self.pending.popleft()
        self.pending.extendleft(reversed(halves))
        self._put_back_count += 1
        self.pending_bytes += sum(len(half.view) for half in halves) - len(first.view)
        self._largest_joined = min(self._largest_joined, len(first.view) // 2)
        first.release()
        return True

    @property
    def figures(self) -> tuple[object, ...]:
        """Values on which the reported progress depends, record ages excepted. Equal values mean unchanged progress."""
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
    def is_idle(self) -> bool:
        """Return whether there is nothing to send and nothing whose outcome is to be awaited."""
        return not (self.pending or self.in_flight or self._is_abandoned)

    @property
    def is_target_failing(self) -> bool:
        """Return whether sending has failed since the last acknowledgement."""
        return bool(self._target_failures)

    @property
    def is_undecided(self) -> bool:
        """Return whether a sent batch has an unknown outcome: the target may or may not have it.

        It remains so if the partition stops before the outcome is known.
        """
        return self._is_abandoned or bool(self._put_back_count)


def stop_and_log(copy: PartitionCopy, flow: str, reason: str) -> None:
    """Change the state of a partition to STOPPED and log the reason as an error.

    Args:
        copy: Partition to stop.
        flow: Name of the flow, for the log message.
        reason: Cause, and what an operator can do about it.
    """
    copy.stop(reason)
    partition = copy.partition_id
    logger.error("%s: %s-%d stops: %s", flow, partition.topic, partition.partition, reason)


def _observe(ages: RecentAges, outgoing: Outgoing, now_ms: float) -> None:
    ages.observe(
        now_ms,
        first_timestamp=outgoing.first_timestamp,
        max_timestamp=outgoing.max_timestamp,
        count=outgoing.record_count,
    )


def _now_ms() -> float:
    return time.time() * 1000

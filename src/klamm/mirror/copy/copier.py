"""Loop that copies some partitions of one flow: fetch, stamp, produce, commit source offsets. One thread.

One iteration (``Copier._turn``) runs these steps in this order:

1. Advance the shard transaction (exactly once only). First, so that a complete transaction is committed even while the
   source cluster is unavailable.
2. Start partitions that have no copy yet (``Start``), then send fetches. Both are left out while the copier drains.
3. Send queued batches.
4. Wait for socket events for at most 0.1 s and process the responses.
5. Requeue what was in flight on broken or silent connections (``sweep``).
6. Collect the source offsets that the writer thread has committed. Queue the next ones when they are due.

Errors and their effect:

====================================  ================================================================================
Error                                 Effect
====================================  ================================================================================
one partition fails (no leader, or a  That partition waits with a backoff of 0.2 to 1 s. The others continue, as long
retriable error code)                 as the waiting ones leave room in the buffer.
ConnectionLostError of one broker     The partitions fetched from it or produced to it wait, and their metadata are
                                      refreshed. A broker that does not respond is tried again after a growing pause
                                      (``CopyCluster``).
ConnectionLostError, UnsupportedVersionError  All partitions wait, and steps 1 to 3 are skipped for 0.1 to 5 s.
or ProtocolError of an iteration
TransactionLostError                  Everything since the last commit is discarded. The copier connects again, fences
                                      the shard and resumes at the committed source offsets.
====================================  ================================================================================

To end, the copier stops fetching and waits up to 20 s until nothing is in flight and no transaction is open. Then it
commits the source offsets a last time.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.connection import wait_for_events
from klamm.kafka_client.errors import ConnectionLostError, TransactionLostError
from klamm.mirror.copy.copy_cluster import CopyCluster
from klamm.mirror.copy.fetcher import Fetcher, FetchThrottle
from klamm.mirror.copy.offset_sync_writer import SyncWriter
from klamm.mirror.copy.producer import CopyProducer, InFlightLimit
from klamm.mirror.copy.source_offset_store import SourceOffsetStore, SourceOffsetWriter
from klamm.mirror.copy.start import Start
from klamm.mirror.copy.transactions import HeldUpError, ShardTransactions
from klamm.mirror.progress.partition_progress import STARTING, CopyState, PartitionProgress
from klamm.protocol.errors import ProtocolError, UnsupportedVersionError
from klamm.protocol.primitives import ZERO_UUID
from klamm.retries import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from uuid import UUID

    from klamm.kafka_client.connection.connection import Pollable
    from klamm.mirror.copy.batch import Outgoing
    from klamm.mirror.copy.partition import PartitionCopy, PartitionId
    from klamm.mirror.copy.settings import CopySettings

logger = logging.getLogger(__name__)

_FIRST_BACKOFF_S: Final = 0.1
_LAST_BACKOFF_S: Final = 5.0
_IDLE_WAIT_S: Final = 0.1
_DRAIN_S: Final = 20.0
_WIND_DOWN_S: Final = 1.0
"""Seconds before the end of a claim in which the copier fetches nothing, so that it can still write source offsets."""
_LOOK_EVERY_S: Final = 5.0
"""Seconds after which the remote topics of STOPPED partitions are looked up again."""
_START_EVERY_S: Final = 0.5
_MAX_START_BACKOFF_S: Final = 2.0

_FAR_S: Final = 0.005
"""Round trip from which on the target counts as far, in seconds. At this round trip, five batches of 16 KiB in flight
limit a partition to 16 MB/s.
"""


class ClaimLostError(Exception):
    """Another process may mirror the flow by now, so this one must not write to the target any more."""


class _CachedRow(NamedTuple):
    """Cached progress of a partition, with the time until which it is valid."""

    made_of: object
    row: PartitionProgress
    made_ms: float
    until_ms: float
    """Wall clock in milliseconds at which the record ages change even if nothing else does."""


class Copier:
    """Copier of some partitions of one flow. Confined to one thread. ``run`` may be called again after it returned."""

    def __init__(
        self,
        settings: CopySettings,
        partitions: Iterable[PartitionId],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self.throttle = FetchThrottle()
        """Limit of the bytes per second that this copier fetches."""
        self.claimed_until = math.inf
        """Monotonic time in seconds after which the copier sends nothing. Another thread sets later times."""
        self.paused: frozenset[str] = frozenset()
        """Source topics whose records are not fetched. Fetched records are still copied. Another thread may replace it.
        """
        self.promoted: Mapping[str, str] = MappingProxyType({})
        """Source topics to promote, as PROMOTED or FAILED_OVER. Only a ``ReplicaCopier`` does it. Another thread may
        replace it.
        """
        self.demoted: frozenset[str] = frozenset()
        """Source topics to take back if brokers lead their remote topics. Only a ``ReplicaCopier`` does it. Another
        thread may replace it.
        """
        self.restarts: Mapping[str, int] = MappingProxyType({})
        """Number of restarts of source topics. STOPPED partitions start again when it changes. Another thread may
        replace it.
        """
        self._restarts: Mapping[str, int] = self.restarts
        self._pool = BufferPool(max_free_bytes=settings.buffer_bytes)
        self._unstarted = dict.fromkeys(partitions, STARTING)
        self._before: dict[PartitionId, PartitionProgress] = {}
        """Last progress of partitions that are being restarted, so that their counters continue."""
        self._starts_again = False
        """Whether a partition that was copied with the current producer id waits to be started again."""
        self._copies: dict[tuple[str, int], PartitionCopy] = {}
        self._active: dict[tuple[str, int], PartitionCopy] = {}
        """Partitions with batches to send or requests in flight. Idle partitions are left out, so they cost nothing per
        loop iteration.
        """
        self._cached: dict[tuple[str, int], _CachedRow] = {}
        """Last reported progress of each partition."""
        self._small = BufferPool(max_free_bytes=0)
        """Buffers of the connections for source offsets and offset syncs, which belong to the writer thread."""
        self._syncs = None if settings.syncs is None else SyncWriter(settings.syncs, self._small, flow=settings.flow)
        self._backoff = Backoff(_FIRST_BACKOFF_S, _LAST_BACKOFF_S)
        self._lost_backoff = Backoff(_FIRST_BACKOFF_S, _LAST_BACKOFF_S)
        self._not_before = 0.0
        self._source_offsets_due = 0.0
        self._in_flight_limit = InFlightLimit()
        """Limit of the producer, kept when a lost transaction replaces it."""
        self._held_up_by = ""
        """Why the last transaction was lost, if unacknowledged partitions held it up. Empty otherwise."""
        self._remote_ids: dict[PartitionId, UUID] = {}
        """Id of the remote topic with which each partition was started last."""
        self._look_due = 0.0
        self._start_due = 0.0
        self._start_backoff = Backoff(_START_EVERY_S, _MAX_START_BACKOFF_S)
        self._connect()

    def _connect(self) -> None:
        """Create the connections and everything else that is replaced after a lost transaction."""
        settings = self._settings
        self._source = CopyCluster(settings.source, self._pool, self._clock)
        self._target = CopyCluster(settings.target, self._pool, self._clock)
        self._store = SourceOffsetStore(
            settings.target,
            self._small,
            topic=settings.source_offsets_topic,
            source_alias=settings.source_alias,
            connector=settings.connector,
        )
        self._source_offset_writer = SourceOffsetWriter(
            self._store, self._syncs, flow=settings.flow, may_write=lambda: self._may_write
        )
        self._transactions: ShardTransactions | None = None
        if settings.transactions is not None:
            self._transactions = ShardTransactions(
                settings.transactions,
                self._store,
                source_offsets_interval_s=settings.source_offsets_interval_s,
                on_acknowledged=self._acknowledged,
                clock=self._clock,
            )
        self._fetcher = Fetcher(
            settings,
            self._source,
            self._copies,
            self._active,
            self._clock,
            on_recreated=self._recreated,
            target_is_far=lambda: _FAR_S <= self._target.round_trip_s < math.inf,
            throttle=self.throttle,
        )
        self._producer = self._new_producer()

    def _new_producer(self) -> CopyProducer:
        settings = self._settings
        return CopyProducer(
            settings,
            self._target,
            self._copies,
            self._active,
            self._clock,
            on_acknowledged=self._acknowledged,
            transactions=self._transactions,
            limit=self._in_flight_limit,
        )

    def assign(self, partitions: Sequence[PartitionId]) -> bool:
        """Copy these partitions from now on. Return False if only a new copier can. Call it between two runs."""
        _ = partitions
        return False

    def run(self, should_end: Callable[[], bool], report: Callable[[], None] = lambda: None) -> None:
        """Copy until ``should_end`` returns True. Then drain requests in flight and commit the source offsets.

        Args:
            should_end: Called once per loop iteration, at least ten times per second.
            report: Called once per loop iteration to publish progress.

        Raises:
            ClaimLostError: ``claimed_until`` has passed and ``should_end`` returned True. Close the copier.
        """
        deadline: float | None = None
        while True:
            if deadline is None and should_end():
                deadline = self._clock() + _DRAIN_S
            now = self._clock()  # right before the requests of this iteration: the process may have been suspended
            left_s = self.claimed_until - now
            if left_s <= 0:
                # Keep everything in memory: if no other process mirrors the flow before the claim is held again, the
                # copier continues, and nothing is copied twice.
                if deadline is not None:
                    raise ClaimLostError
                report()
                time.sleep(_IDLE_WAIT_S)
                continue
            is_ending = deadline is not None or left_s < _WIND_DOWN_S
            if is_ending:
                self._source_offsets_due = min(self._source_offsets_due, now + _WIND_DOWN_S / 4)
            self._turn(now, ending=is_ending)
            report()
            if deadline is not None and (not self._is_busy or now >= deadline):
                break
        self._collect_source_offsets(wait=True)
        if not self._may_write:
            raise ClaimLostError
        self._begin_source_offsets()
        self._collect_source_offsets(wait=True)

    @property
    def _may_write(self) -> bool:
        """Return whether the claim is held now. Check it right before a write: any step may block for longer."""
        return self._clock() < self.claimed_until

    @property
    def _is_busy(self) -> bool:
        return self._producer.busy or not (self._transactions is None or self._transactions.is_idle)

    def _turn(self, now: float, *, ending: bool) -> None:
        try:
            if now >= self._not_before:
                # First, so that a complete transaction is committed even while the source is unavailable.
                self._drive_transactions(now, ending=ending)
            if now >= self._not_before and not ending:
                self.restart_stopped()
                self._start_more(now)
                self._fetcher.pause(self.paused)
                self._fetcher.send(now)
            if now >= self._not_before and self._may_write:
                self._producer.send(now)
            due_in_s = _IDLE_WAIT_S if self._transactions is None else self._transactions.due_in_s(now)
            self._poll(min(due_in_s, self.throttle.wait_s(now) or _IDLE_WAIT_S))
            self._fetcher.sweep(now)
            self._producer.sweep(now)
            self._collect_source_offsets()
            syncs_are_full = self._syncs is not None and self._syncs.is_full
            is_due = now >= self._source_offsets_due or syncs_are_full
            if is_due and not self._source_offset_writer.is_busy and self._may_write:
                self._begin_source_offsets()
        except (ConnectionLostError, UnsupportedVersionError, ProtocolError) as error:
            self.back_off(self._clock(), str(error))  # the failed call may have blocked
        except TransactionLostError as error:
            if isinstance(error, HeldUpError):
                self._note_held_up(error)
            self._begin_again(self._clock(), str(error))
        else:
            if now >= self._not_before:
                self._backoff.reset()

    def back_off(self, now: float, reason: str) -> None:
        """Delay the next attempt; until then, all partitions report the reason."""
        if self._held_up_by:
            # The target cannot end that transaction before these partitions accept its markers. Until then it rejects
            # InitProducerId (CONCURRENT_TRANSACTIONS), so the message names the cause.
            reason = f"{reason}. Before that, {self._held_up_by}"
        logger.info("%s waits: %s", self._settings.flow, reason)
        self._fetcher.sweep(now)
        self._producer.sweep(now)
        for partition_id in self._unstarted:
            self._unstarted[partition_id] = reason
        self._not_before = now + self._backoff.next_s()
        for copy in self._copies.values():
            copy.wait(reason, retry_at=self._not_before)
        self._fetcher.ask_for_all()

    def _begin_again(self, now: float, reason: str) -> None:
        """Discard everything since the last commit and restart from the source offsets on the target."""
        logger.warning("%s: a transaction is lost and its records are copied again: %s", self._settings.flow, reason)
        self._before |= {copy.partition_id: row for copy, row in zip(self._copies.values(), self._rows(), strict=True)}
        self._unstarted |= dict.fromkeys((copy.partition_id for copy in self._copies.values()), reason)
        self._copies.clear()
        self._active.clear()
        self._disconnect()
        self._connect()
        self._start_due = self._not_before = now + self._lost_backoff.next_s()

    def _recreated(self, keys: Iterable[tuple[str, int]]) -> None:
        """Restart partitions whose topic id changed on the source.

        ``Start`` compares the id with the one stored on the target and decides whether to stop or to copy from the
        beginning.
        """
        for key in keys:
            self._discard(key, self._copies[key], f"{key[0]} was deleted and created again on the source")

    def restart_stopped(self) -> None:
        """Start the STOPPED partitions of topics that an operator restarted since the last call."""
        before, self._restarts = self._restarts, self.restarts
        if before is self._restarts:
            return
        for key, copy in list(self._copies.items()):
            topic, _ = key
            if copy.state is CopyState.STOPPED and before.get(topic) != self._restarts.get(topic):
                self._restart(key, copy)

    def _restart(self, key: tuple[str, int], copy: PartitionCopy) -> None:
        """Start a STOPPED partition again."""
        self._start_again(key, copy, "restarted by an operator")

    def _discard(self, key: tuple[str, int], copy: PartitionCopy, reason: str) -> None:
        """Stop a copy and start the partition again."""
        self._start_again(key, copy, reason)
        copy.stop(reason)

    def _start_again(self, key: tuple[str, int], copy: PartitionCopy, reason: str) -> None:
        """Forget a copy, so that the partition is started again.

        With transactions, the producer drops it from the active ones once it is idle. Until then it counts for the open
        transaction, which must not be committed if the target may have a batch of it without its source offset.
        """
        self._starts_again = True
        self._before[copy.partition_id] = self._progress(copy, time.time() * 1000)
        self._unstarted[copy.partition_id] = reason
        del self._copies[key]
        if self._transactions is None:
            self._active.pop(key, None)

    def _drive_transactions(self, now: float, *, ending: bool) -> None:
        if self._transactions is None:
            return
        was_idle = self._transactions.is_idle
        self._transactions.drive(
            self._copies.values(), self._active.values(), now, busy=self._producer.busy, ending=ending
        )
        if self._transactions.is_idle and not was_idle:
            self._lost_backoff.reset()
            self._in_flight_limit.grow()
            self._held_up_by = ""

    def _note_held_up(self, error: HeldUpError) -> None:
        self._held_up_by = str(error)
        if error.is_slow:
            self._in_flight_limit.shrink()

    def _start_more(self, now: float) -> None:
        if self._transactions is not None and not self._transactions.is_idle:
            return
        if now >= self._look_due:
            self._look_due = now + _LOOK_EVERY_S
            self._start_recreated()
        if not self._unstarted or now < self._start_due:
            return
        if self._source_offset_writer.is_busy:
            return  # an offset of the deleted topic must not be written after those of the new one
        self._start_due = now + self._start_backoff.next_s()
        if self._starts_again:
            self._producer.renew_identity()
            self._starts_again = False
        start = self._new_start()
        waiting = dict(self._unstarted)
        self._unstarted = {}
        try:
            for copy in start.copies(list(waiting)):
                self.add(copy)
        finally:
            started = {copy.partition_id for copy in self._copies.values()}
            self._unstarted = {
                partition_id: start.reasons.get(partition_id, reason)
                for partition_id, reason in waiting.items()
                if partition_id not in started
            }
        if len(self._unstarted) < len(waiting):
            self._start_backoff.reset()

    def _start_recreated(self) -> None:
        """Start the STOPPED partitions again whose remote topic was deleted and is another one now."""
        stopped = [
            (key, copy)
            for key, copy in self._copies.items()
            if copy.state is CopyState.STOPPED and self._starts_with_new_remote_topic(copy)
        ]
        if stopped:
            self._target.refresh({copy.partition_id.remote_topic for _, copy in stopped})
        for key, copy in stopped:
            remote_topic = copy.partition_id.remote_topic
            if self._target.topic_id(remote_topic) not in (ZERO_UUID, self._remote_ids[copy.partition_id]):
                self._start_again(key, copy, f"{remote_topic} was deleted and created again on the target")

    def _starts_with_new_remote_topic(self, copy: PartitionCopy) -> bool:
        """Return whether a STOPPED partition starts again once its remote topic is another one."""
        _ = copy
        return True

    def _new_start(self) -> Start:
        return Start(self._settings, self._source, self._target, self._store, self._transactions)

    def add(self, copy: PartitionCopy) -> None:
        """Start to copy a partition."""
        topic, partition, _ = partition_id = copy.partition_id
        if (before := self._before.pop(partition_id, None)) is not None:
            copy.records_copied, copy.bytes_copied = before.records, before.bytes
            copy.last_timestamp = before.last_timestamp
        self._copies[topic, partition] = copy
        if not copy.is_idle:
            self._active[topic, partition] = copy
        self._remote_ids[partition_id] = self._target.topic_id(partition_id.remote_topic)
        self._fetcher.add((topic, partition), self._source.topic_id(topic))

    def _poll(self, due_in_s: float) -> None:
        connections = self._open_connections()
        if not connections:
            time.sleep(_IDLE_WAIT_S)
            return
        for connection, events in wait_for_events(connections, min(due_in_s, _IDLE_WAIT_S)):
            connection.drive(events)

    def _open_connections(self) -> Sequence[Pollable]:
        return [*self._source.connections(), *self._target.connections()]

    def _acknowledged(self, partition_id: PartitionId, outgoing: Outgoing, base_offset: int) -> None:
        if self._syncs is not None:
            self._syncs.acknowledged(partition_id, outgoing, base_offset)

    def _begin_source_offsets(self) -> None:
        """Queue changed source offsets and due offset syncs for the writer thread.

        ``_collect_source_offsets`` collects the result.
        """
        self._source_offsets_due = self._clock() + self._settings.source_offsets_interval_s
        moved = self._copies.items() if self._transactions is None else ()
        self._source_offset_writer.begin(
            {key: copy.source_offset for key, copy in moved if copy.acked_offset > copy.committed_offset}
        )

    def _collect_source_offsets(self, *, wait: bool = False) -> None:
        for key, source_offset in self._source_offset_writer.collect(wait=wait).items():
            if (copy := self._copies.get(key)) is not None:
                copy.committed_offset = source_offset.next_offset

    def progress(self) -> Sequence[PartitionProgress]:
        """Return the progress of each partition. Rows that did not change are the same objects as in the last call."""
        return [
            *self._rows(),
            *(self._unstarted_row(partition_id, reason) for partition_id, reason in self._unstarted.items()),
        ]

    def _rows(self) -> list[PartitionProgress]:
        now_ms = time.time() * 1000
        return [self._row(key, copy, now_ms) for key, copy in self._copies.items()]

    def _row(self, key: tuple[str, int], copy: PartitionCopy, now_ms: float) -> PartitionProgress:
        made_of = copy.figures, key[0] in self.paused
        cached = self._cached.get(key)
        if cached is None or cached.made_of != made_of or not cached.made_ms <= now_ms < cached.until_ms:
            row = self._progress(copy, now_ms)
            until_ms = min(copy.record_ages.holds_until_ms, copy.replication_ages.holds_until_ms)
            cached = self._cached[key] = _CachedRow(made_of, row, now_ms, until_ms)
        return cached.row

    def _progress(self, copy: PartitionCopy, now_ms: float) -> PartitionProgress:
        is_paused = copy.partition_id.topic in self.paused and copy.state is not CopyState.STOPPED
        return PartitionProgress(
            flow=self._settings.flow,
            topic=copy.partition_id.topic,
            partition=copy.partition_id.partition,
            remote_topic=copy.partition_id.remote_topic,
            next_offset=copy.acked_offset if self._transactions is None else copy.committed_offset,
            end_offset=copy.end_offset,
            records=copy.records_copied,
            bytes=copy.bytes_copied,
            last_timestamp=copy.last_timestamp,
            state=CopyState.PAUSED if is_paused else copy.state,
            reason="" if is_paused else copy.reason,
            record_age=copy.record_ages.summary(now_ms),
            replication_latency=copy.replication_ages.summary(now_ms),
        )

    def _unstarted_row(self, partition_id: PartitionId, reason: str) -> PartitionProgress:
        key, made_of = partition_id[:2], (reason, self._before.get(partition_id))
        cached = self._cached.get(key)
        if cached is None or cached.made_of != made_of:
            cached = self._cached[key] = _CachedRow(
                made_of, self._not_started(partition_id, *made_of), -math.inf, math.inf
            )
        return cached.row

    def _not_started(
        self, partition_id: PartitionId, reason: str, before: PartitionProgress | None
    ) -> PartitionProgress:
        if before is not None:
            return replace(before, state=CopyState.WAITING, reason=reason)
        return PartitionProgress(
            flow=self._settings.flow,
            topic=partition_id.topic,
            partition=partition_id.partition,
            remote_topic=partition_id.remote_topic,
            next_offset=-1,
            end_offset=-1,
            records=0,
            bytes=0,
            last_timestamp=-1,
            state=CopyState.WAITING,
            reason=reason,
        )

    def close(self) -> None:
        """Close all connections. The next copier sends batches in flight again."""
        self._disconnect()
        if self._syncs is not None:
            self._syncs.close()

    def _disconnect(self) -> None:
        self._source_offset_writer.close()
        self._source.close()
        self._target.close()
        self._store.close()

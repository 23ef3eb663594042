"""Fetching half of a copier: sends fetch requests and queues the responses per partition.

A broker answers the requests of one connection in order, so each leader gets three connections ("lanes"):

==================  =================================================================================================
Lane                Fetches
==================  =================================================================================================
CAUGHT_UP           Partitions read to their end, in one incremental fetch session (KIP-227). The broker holds the
                    request until records arrive (``fetch.max.wait.ms``). On a shared lane, a partition that lags
                    would wait for this long poll.
BEHIND_EVEN, _ODD   Partitions that lag, by parity of the partition number, without a session and with a wait of at
                    most 20 ms. While the response of one lane is processed, the other's is on its way. A quiet
                    partition does not wait behind the megabytes of a busy one.
==================  =================================================================================================

A partition is in exactly one place: in ``_behind`` or in the session of one leader. A new partition starts in
``_behind``. It joins the session once it is caught up and the session has no request in flight. It returns to
``_behind`` when a response leaves it behind the end, when its queue is full, when it waits after an error, when it is
to be fetched from another node, or when the session ends. A STOPPED partition, or one of a paused topic, is removed.

These answers mean that the source lost records. They stop the partition unless ``klamm.on.source.loss=continue``:

- OFFSET_OUT_OF_RANGE below the log start: records were purged before they were mirrored. Resumes at the log start.
- OFFSET_OUT_OF_RANGE above the log end: the source lost records that were mirrored. Resumes at the log start.
- A diverging epoch (KIP-595): as above, after an unclean leader election. Resumes where the logs diverge.
"""

from __future__ import annotations

import logging
from collections import Counter
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.kafka_client.data import cluster as clusters
from klamm.kafka_client.data.fetch import (
    LAST_VERSION,
    TOPIC_IDS_FROM,
    EpochEnd,
    FetchedPartition,
    FetchSessionHandler,
    Key,
    WantedRecords,
    fetch_request,
    fetched_partitions,
)
from klamm.kafka_client.errors import ConnectionLostError
from klamm.mirror.copy.partition import PartitionCopy, TopicRefreshes, stop_and_log
from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.records.source_offsets import SourceOffset
from klamm.protocol.codec import encode
from klamm.protocol.errors import CorruptBatchError, ErrorCode, error_name
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from uuid import UUID

    from klamm.kafka_client.connection.buffers import FrameBuffer
    from klamm.kafka_client.connection.connection import Connection
    from klamm.kafka_client.data.cluster import Cluster
    from klamm.kafka_client.data.fetch import FetchLimits
    from klamm.mirror.copy.settings import CopySettings

_CAPACITY_S: Final = 0.5
"""Most credit that an idle copier saves, in seconds at the limit. It must exceed the round trip to the source, because
a fetch gets no more than the credit at the time it is sent.
"""
_QUANTUM_S: Final = 0.05
"""Least credit for a fetch, in seconds at the limit. Limits the fetches per second, so that a slow copier neither spins
nor sends one fetch per byte.
"""


class FetchThrottle:
    """Token bucket of one copier.

    The credit is kept in seconds at the limit, so that a new limit also applies to debts. A broker returns at least one
    batch, however small the fetch, so the credit may become negative; the next fetches wait until it is paid back. The
    average rate is therefore the limit, also with batches larger than the bucket.

    ``limit`` may be set by any thread. Everything else is confined to the copier's thread.
    """

    def __init__(self) -> None:
        self.limit: int | None = None
        """Bytes per second, at least 1. None: no limit."""
        self._credit_s = 0.0
        self._at: float | None = None
        """Time until which credit was added. None: the limit was not in use before."""

    def wait_s(self, now: float) -> float:
        """Return the seconds until the next fetch may be sent. 0: now."""
        if self.limit is None:
            self._at = None
            return 0.0
        earned = 0.0 if self._at is None else now - self._at
        self._credit_s = 0.0 if self._at is None else min(_CAPACITY_S, self._credit_s + earned)
        self._at = now
        return max(0.0, _QUANTUM_S - self._credit_s)

    def largest(self, max_bytes: int, fetches: int) -> int:
        """Return the size limit of one of several fetches that share the credit: at least 1, at most ``max_bytes``."""
        if self.limit is None:
            return max_bytes
        return max(1, min(max_bytes, int(self._credit_s * self.limit) // fetches))

    def charge(self, size: int) -> None:
        """Take the credit for fetched bytes."""
        if self.limit is not None:
            self._credit_s -= size / self.limit


logger = logging.getLogger(__name__)

_ANSWERS_OF_STALE_BROKERS: Final = 30
"""UNKNOWN_LEADER_EPOCH in a row, about one per second, after which a lower epoch is not that of a stale broker."""
_SHORT_WAIT_MS: Final = 20
"""Longest wait of a fetch on a BEHIND lane that finds no records."""
_SESSION_LOST: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
ON_LOSS_KEY: Final = "klamm.on.source.loss"
"""Property that decides whether to continue when source records are lost permanently."""
_OR_TRUNCATE: Final = f", or let {ON_LOSS_KEY}=continue truncate its replicas"


class _Lane(IntEnum):
    """Index of a connection to a leader.

    ``Cluster.list_offsets`` uses connection 0, and must not wait behind a long poll.
    """

    BEHIND_EVEN = 0
    BEHIND_ODD = 1
    CAUGHT_UP = 2

    @classmethod
    def of_behind(cls, partition: int) -> _Lane:
        """Return the lane on which a partition that lags is fetched."""
        return cls.BEHIND_ODD if partition % 2 else cls.BEHIND_EVEN


class _Sent(NamedTuple):
    """Fetch request in flight."""

    connection: Connection
    keys: frozenset[Key] = frozenset()
    """Partitions in the request. Empty for a fetch session."""
    is_limited: bool = False
    """Whether the throttle counts the response. One that was requested before the limit was set does not count."""


class Fetcher:
    """Fetcher of the partitions of a copier. Confined to the copier's thread.

    The cost of a send depends on the partitions that lag and on the responses, not on the number of partitions that are
    caught up: a fetch session names each of those to the broker only once.
    """

    def __init__(
        self,
        settings: CopySettings,
        source: Cluster,
        copies: Mapping[Key, PartitionCopy],
        active: dict[Key, PartitionCopy],
        clock: Callable[[], float],
        *,
        on_recreated: Callable[[Collection[Key]], None],
        target_is_far: Callable[[], bool],
        throttle: FetchThrottle,
    ) -> None:
        """Create a fetcher without partitions.

        Args:
            settings: Settings of the flow.
            source: Cluster to fetch from.
            copies: Partitions by source topic and partition number. Owned by the copier.
            active: Partitions with batches to send or in flight. Shared with the producer; the fetcher adds partitions
                that got records.
            clock: Monotonic clock in seconds.
            on_recreated: Called with partitions whose source topics were deleted and created again.
            target_is_far: Returns whether the round trip to the target is so long that joining compressed batches pays.
            throttle: Limit of the fetched bytes.
        """
        self._throttle = throttle
        self._settings = settings
        self._on_recreated = on_recreated
        self._target_is_far = target_is_far
        self._source = source
        self._copies = copies
        self._active = active
        self._clock = clock
        self._in_flight: dict[tuple[int, _Lane], _Sent] = {}
        self._behind: dict[Key, None] = {}
        """Partitions outside fetch sessions, as an ordered set."""
        self._paused: frozenset[str] = frozenset()
        self._sessions: dict[int, FetchSessionHandler] = {}
        """Fetch session with the caught-up partitions of each leader, by node id."""
        self._turn = 0
        self._nearest: dict[Key, int] = {}
        """Node id of the preferred read replica that the leader named (KIP-392). Empty without ``client.rack``."""
        self._topic_ids: dict[Key, UUID] = {}
        self._unknown_epochs: Counter[Key] = Counter()
        """Answers with UNKNOWN_LEADER_EPOCH in a row."""
        self._refreshes = TopicRefreshes()

    def add(self, key: Key, topic_id: UUID) -> None:
        """Start to fetch a partition, for as long as its topic keeps this topic id.

        Other partitions of the topic may have been started with another id, before it was created again.
        """
        for session in self._sessions.values():
            session.forget(key)
        self._behind[key] = None
        if topic_id != ZERO_UUID:
            self._topic_ids[key] = topic_id

    def topic_id(self, key: Key) -> UUID:
        """Return the topic id with which a partition was started; zero if the source has none."""
        return self._topic_ids.get(key, ZERO_UUID)

    def pause(self, topics: frozenset[str]) -> None:
        """Fetch nothing of these source topics from now on. All other topics are fetched."""
        if topics == self._paused:
            return
        self._paused = topics
        for session in self._sessions.values():
            for key in session:
                if key[0] in topics:
                    session.forget(key)
        in_sessions = {key for session in self._sessions.values() for key in session}
        self._behind = dict.fromkeys(key for key in self._copies if key not in in_sessions)

    def ask_for_all(self) -> None:
        """End all fetch sessions, so that the next responses cover every partition, not only changed ones."""
        for leader in list(self._sessions):
            self._end_session(leader)

    def _end_session(self, leader: int) -> None:
        if (session := self._sessions.pop(leader, None)) is not None:
            self._behind |= dict.fromkeys(session)

    def send(self, now: float) -> None:
        """Send one fetch on each free lane, for the partitions with room in their queue.

        Raises:
            ConnectionLostError: The source cluster is unavailable.
        """
        if not self._copies:
            return
        self._refresh(now)
        if sum(copy.pending_bytes for copy in self._active.values()) >= self._settings.buffer_bytes:
            return
        if self._throttle.wait_s(now) > 0:
            return
        behind = self._wanted(now)
        limits = self._limits(len(self._in_flight) + len(behind) + len(self._sessions))
        for (leader, lane), wanted in behind.items():
            try:
                self._send_behind(leader, lane, wanted, limits)
            except ConnectionLostError as error:
                self._lose(leader, [(entry.topic, entry.partition) for entry in wanted], error)
        for leader, session in list(self._sessions.items()):
            if session and (leader, _Lane.CAUGHT_UP) not in self._in_flight:
                try:
                    self._send_session(leader, session, limits)
                except ConnectionLostError as error:
                    self._lose(leader, list(session), error)

    def _limits(self, fetches: int) -> FetchLimits:
        limits = self._settings.fetch_limits
        return limits._replace(max_bytes=self._throttle.largest(limits.max_bytes, max(1, fetches)))

    def _lose(self, leader: int, keys: Collection[Key], error: ConnectionLostError) -> None:
        """Let the partitions that are fetched from a node wait. Refresh their metadata: their leader may have moved."""
        now = self._clock()  # the attempt to connect may have blocked
        self._end_session(leader)
        self._forget_nearest(leader)
        for key in keys:
            self._failed(key, f"source: {error}", now)

    def _failed(self, key: Key, reason: str, now: float) -> None:
        """Let a partition wait, and refresh the metadata of its topic before the retry."""
        if (copy := self._copies.get(key)) is not None:
            self._refreshes.want(key[0], copy.source_failed(reason, now))

    def _refresh(self, now: float) -> None:
        topics = self._refreshes.due((topic for topic, _ in self._copies), now)
        if not topics:
            return
        self._source.refresh(topics)
        self._refreshes.done(topics, now)
        # The preferred read replica may have changed.
        self._nearest = {key: node for key, node in self._nearest.items() if key[0] not in topics}
        topic_ids = {topic: topic_id for topic in topics if (topic_id := self._source.topic_id(topic)) != ZERO_UUID}
        recreated = []
        for key, copy in self._copies.items():
            present = topic_ids.get(key[0])
            if present is None or copy.state is CopyState.STOPPED:
                continue
            if self._topic_ids.setdefault(key, present) != present:
                recreated.append(key)
        if recreated:
            self._on_recreated(recreated)
        for leader, session in self._sessions.items():
            for key in session:
                if self._fetch_from(key) != leader:
                    session.forget(key)
                    self._behind[key] = None

    def _wanted(self, now: float) -> dict[tuple[int, _Lane], list[WantedRecords]]:
        """Return the lagging partitions to fetch, by leader and lane. Move caught-up ones to the sessions."""
        out: dict[tuple[int, _Lane], list[WantedRecords]] = {}
        keys = list(self._behind)
        in_flight = frozenset[Key]().union(*(sent.keys for sent in self._in_flight.values()))
        # A broker fills the response in the order of the request: rotate it, so that each partition comes first in
        # turn.
        self._turn += 1
        for at in range(len(keys)):
            key = keys[(self._turn + at) % len(keys)]
            if key in in_flight:
                continue
            copy = self._copies.get(key)
            if copy is None or copy.state is CopyState.STOPPED or key[0] in self._paused:
                del self._behind[key]
                continue
            leader = self._leader(copy, now) if self._has_room(copy, now) else None
            if leader is None:
                continue
            wanted = self._next_records(copy)
            if copy.is_caught_up and (leader, _Lane.CAUGHT_UP) not in self._in_flight:
                self._sessions.setdefault(leader, FetchSessionHandler()).want(wanted)
                del self._behind[key]
            elif (leader, lane := _Lane.of_behind(key[1])) not in self._in_flight:
                # A caught-up partition is fetched with the lagging ones until the session can accept it.
                out.setdefault((leader, lane), []).append(wanted)
        return out

    def _next_records(self, copy: PartitionCopy) -> WantedRecords:
        topic, partition, _ = copy.partition_id
        last_epoch = copy.last_fetched_epoch
        leader_epoch = self._source.leader_epoch(topic, partition)
        topic_id = self._topic_ids.get((topic, partition), ZERO_UUID)
        # Without topic ids (before Kafka 2.8), a lower epoch is all that shows that a topic was created again.
        is_another = topic_id == ZERO_UUID and self._unknown_epochs[topic, partition] >= _ANSWERS_OF_STALE_BROKERS
        if leader_epoch >= 0 and not is_another:
            # A broker with stale metadata may have named a former leader. Sending the newer epoch of the records that
            # were read makes that leader answer UNKNOWN_LEADER_EPOCH. With its own epoch, it would report these records
            # as diverging.
            leader_epoch = max(leader_epoch, last_epoch)
        return WantedRecords(topic, topic_id, partition, copy.fetch_offset, leader_epoch, last_epoch)

    def _leader(self, copy: PartitionCopy, now: float) -> int | None:
        leader = self._fetch_from(copy.partition_id[:2])
        if leader is None:
            self._failed(copy.partition_id[:2], "no leader on the source", now)
        return leader

    def _fetch_from(self, key: Key) -> int | None:
        """Return the preferred read replica if the leader named one (KIP-392), else the leader."""
        return self._nearest.get(key, self._source.leader(*key))

    def _forget_nearest(self, node: int) -> None:
        """Fetch from the leader again where it had named this node as preferred read replica."""
        self._nearest = {key: nearest for key, nearest in self._nearest.items() if nearest != node}

    def _has_room(self, copy: PartitionCopy, now: float) -> bool:
        if copy.is_held and not copy.is_settled:
            return False
        return now >= copy.retry_at and copy.pending_bytes < self._settings.fetch_limits.partition_max_bytes

    def _send_behind(self, leader: int, lane: _Lane, wanted: list[WantedRecords], limits: FetchLimits) -> None:
        limits = limits._replace(max_wait_ms=min(limits.max_wait_ms, _SHORT_WAIT_MS))
        request = fetch_request(wanted, limits, read_committed=self._settings.read_committed)
        names = {entry.topic_id: entry.topic for entry in wanted}
        offsets = {(entry.topic, entry.partition): entry.fetch_offset for entry in wanted}

        def on_response(response: FetchResponse, memory: FrameBuffer, version: int) -> None:
            if self._is_rejected(response, offsets):
                return
            for fetched in self._partitions(response, names, version):
                self._take(fetched, offsets[fetched.topic, fetched.partition], memory)

        self._submit((leader, lane), request, names, on_response, keys=frozenset(offsets))

    def _send_session(self, leader: int, session: FetchSessionHandler, limits: FetchLimits) -> None:
        request = session.request(limits, read_committed=self._settings.read_committed)

        def on_response(response: FetchResponse, memory: FrameBuffer, version: int) -> None:
            if self._sessions.get(leader) is not session:
                return
            if self._is_rejected(response, session):
                session.reset()
                return
            session.answered(response.session_id)
            for fetched in self._partitions(response, session.names, version):
                key = (fetched.topic, fetched.partition)
                if key in session:
                    self._take(fetched, session.offset(key), memory)
                    self._settle(session, leader, key)

        self._submit((leader, _Lane.CAUGHT_UP), request, session.names, on_response)

    def _settle(self, session: FetchSessionHandler, leader: int, key: Key) -> None:
        """Keep a partition in its session after a response, or move it back to the lagging ones."""
        copy = self._copies.get(key)
        goes_on = copy is not None and copy.state is not CopyState.STOPPED and self._fetch_from(key) == leader
        if copy is not None and goes_on and copy.is_caught_up and self._has_room(copy, self._clock()):
            session.want(self._next_records(copy))
            return
        session.forget(key)
        self._behind[key] = None

    def _submit(
        self,
        lane: tuple[int, _Lane],
        request: FetchRequest,
        names: Mapping[UUID, str],
        on_response: Callable[[FetchResponse, FrameBuffer, int], None],
        *,
        keys: frozenset[Key] = frozenset(),
    ) -> None:
        connection = self._source.connection(*lane)
        with_ids = ZERO_UUID not in names
        version = connection.version_of(FetchRequest, at_most=LAST_VERSION if with_ids else TOPIC_IDS_FROM - 1)

        def answered(response: FetchResponse, memory: FrameBuffer) -> None:
            sent = self._in_flight.pop(lane, None)
            if sent is not None and sent.is_limited:
                self._throttle.charge(_size(response))
            on_response(response, memory, version)

        self._in_flight[lane] = _Sent(connection, keys, is_limited=self._throttle.limit is not None)
        connection.submit(FetchRequest, version, [encode(request, version)], FetchResponse, answered)
        connection.write()

    def _partitions(
        self, response: FetchResponse, names: Mapping[UUID, str], version: int
    ) -> Iterator[FetchedPartition]:
        return fetched_partitions(
            response,
            names,
            with_topic_ids=version >= TOPIC_IDS_FROM,
            read_committed=self._settings.read_committed,
        )

    def _is_rejected(self, response: FetchResponse, keys: Iterable[Key]) -> bool:
        """Return whether the broker rejected the whole fetch, and let its partitions wait.

        After the loss of a fetch session they do not wait: the next request opens a new one.
        """
        if response.error_code == ErrorCode.NONE:
            return False
        name = error_name(response.error_code)
        logger.info("%s: the source rejected a fetch: %s", self._settings.flow, name)
        if response.error_code not in _SESSION_LOST:
            now = self._clock()
            for key in keys:
                self._failed(key, f"the source rejected a fetch: {name}", now)
            self.ask_for_all()
        return True

    def _take(self, fetched: FetchedPartition, requested_offset: int, memory: FrameBuffer) -> None:
        key = (fetched.topic, fetched.partition)
        copy = self._copies.get(key)
        if copy is None or copy.state is CopyState.STOPPED or copy.fetch_offset != requested_offset:
            return  # the partition was restarted at another offset in between
        if fetched.preferred_read_replica >= 0:
            self._nearest[key] = fetched.preferred_read_replica
            return
        if key in self._nearest and not _is_final(fetched, requested_offset):
            del self._nearest[key]
            copy.source_failed("a replica near the mirror does not have the next records", self._clock())
            return
        if fetched.error_code != ErrorCode.NONE:
            self._rejected(copy, fetched.error_code, self._clock())
            return
        self._unknown_epochs.pop(key, None)
        if fetched.diverging is not None:
            self._diverged(copy, fetched.diverging, fetched.log_start_offset, self._clock())
            return
        self._queue(copy, fetched, memory)
        if copy.pending:
            self._active[key] = copy

    def _queue(self, copy: PartitionCopy, fetched: FetchedPartition, memory: FrameBuffer) -> None:
        """Queue the fetched batches. A damaged one stops the partition.

        The batches before it are copied and their source offset is committed first. Then the fetch is repeated, and
        gets the same answer if the damage is in the log of the source.
        """
        copy.is_held = False
        copy.fetched(end_offset=fetched.end_offset)
        try:
            is_far = self._target_is_far()
            copy.take(fetched.records, memory, fetched.aborted, join_up_to=self._settings.join_up_to, is_far=is_far)
        except CorruptBatchError as error:
            if copy.is_settled:
                stop_and_log(copy, self._settings.flow, f"a batch of the source is damaged: {error}")
            else:
                copy.is_held = True

    def _rejected(self, copy: PartitionCopy, error_code: int, now: float) -> None:
        if error_code == ErrorCode.UNKNOWN_LEADER_EPOCH:
            self._unknown_epochs[copy.partition_id[:2]] += 1
        if error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(copy, now)
            return
        self._failed(copy.partition_id[:2], f"the source rejected a fetch: {error_name(error_code)}", now)

    def _out_of_range(self, copy: PartitionCopy, now: float) -> None:
        key = (copy.partition_id.topic, copy.partition_id.partition)
        first = self._source.list_offsets([key], clusters.EARLIEST).get(key)
        end = self._source.list_offsets([key], clusters.LATEST).get(key)
        if first is None or end is None:
            self._failed(key, "the source did not report its log start and end offsets", now)
        elif copy.fetch_offset < first and self._settings.continue_after_loss:
            logger.warning(
                "%s: %s-%d: offsets %d to %d were purged on the source before they were mirrored; resuming at %d",
                self._settings.flow, *key, copy.fetch_offset, first - 1, first,
            )  # fmt: skip
            copy.skip_to(first)
        elif copy.fetch_offset < first:
            stop_and_log(
                copy,
                self._settings.flow,
                f"offset {copy.fetch_offset} is no longer available: the source holds {first} to {end}. Records were "
                f"purged before they were mirrored. {ON_LOSS_KEY}=continue resumes at {first}",
            )
        else:
            # A broker does not reject an offset up to its log end. The log was shorter when it answered and has grown
            # since.
            loss = (
                f"the source lost records that were mirrored: it rejected offset {copy.fetch_offset} as out of range, "
                f"and holds {first} to {end} now"
            )
            self._lost(copy, loss, SourceOffset(first), now)

    def _diverged(self, copy: PartitionCopy, leader: EpochEnd, log_start: int, now: float) -> None:
        """Handle a log that diverges from the records that were read, as after an unclean leader election.

        A broker that has no epoch up to the last fetched one, as after the loss of its disks, does not say so. It
        returns that epoch, and as its end the start of its own first epoch (``LeaderEpochFileCache.endOffsetFor``),
        which is its log start. The end of an epoch that it has is after its log start.
        """
        has_common_epoch = leader.leader_epoch < copy.last_fetched_epoch or 0 <= log_start < leader.end_offset
        go_on_at = SourceOffset(leader.end_offset)
        if has_common_epoch:
            go_on_at = copy.common_end(leader.leader_epoch, leader.end_offset)
        go_on_at = go_on_at._replace(next_offset=min(go_on_at.next_offset, copy.fetch_offset))
        loss = (
            f"the source lost records that were mirrored, as after an unclean leader election: its log diverges at "
            f"offset {go_on_at.next_offset} from what was read up to offset {copy.fetch_offset} of leader epoch "
            f"{copy.last_fetched_epoch}{'' if has_common_epoch else ', and it has no leader epoch in common'}"
        )
        self._lost(copy, loss, go_on_at, now)

    def _lost(self, copy: PartitionCopy, loss: str, go_on_at: SourceOffset, now: float) -> None:
        """Stop the partition, or resume at an earlier offset if ``klamm.on.source.loss=continue``.

        Both wait until all fetched records are on the target and their source offset is committed, so that none of them
        is copied twice. Until then the fetch is repeated and gets the same answer.
        """
        topic, partition, remote_topic = copy.partition_id
        if not copy.is_settled:
            copy.source_failed(loss, now)
        elif self._settings.replay is not None or not copy.can_rewind(go_on_at):
            stop_and_log(
                copy,
                self._settings.flow,
                f"{loss}. {remote_topic} cannot have the same offsets any more: delete it to mirror the topic again"
                f"{_OR_TRUNCATE if self._settings.replica is not None and go_on_at.leader_epoch >= 0 else ''}",
            )
        elif self._settings.continue_after_loss:
            logger.warning(
                "%s: %s-%d: %s; resuming at %d, %s",
                self._settings.flow, topic, partition, loss, go_on_at.next_offset,
                f"after the records that {remote_topic} holds" if self._settings.replica is None
                else f"where the replicas of {remote_topic} are truncated",
            )  # fmt: skip
            copy.rewind(go_on_at)
        else:
            at = go_on_at.next_offset
            stop_and_log(
                copy,
                self._settings.flow,
                f"{loss}. {ON_LOSS_KEY}=continue resumes at {at}, after the records that {remote_topic} holds",
            )

    def sweep(self, now: float) -> None:
        """Drop fetches whose connection broke, and close connections without progress (``request.timeout.ms``)."""
        limit_s = self._settings.source.max_silence_s
        for (leader, lane), sent in list(self._in_flight.items()):
            is_silent = not sent.connection.closed and sent.connection.silent_s(now) > limit_s
            if is_silent:
                sent.connection.close()
            if not sent.connection.closed:
                continue
            del self._in_flight[leader, lane]
            keys: Iterable[Key] = sent.keys
            if lane is _Lane.CAUGHT_UP:
                keys = list(self._sessions.get(leader, ()))
            for topic in {topic for topic, _ in keys}:
                self._refreshes.want(topic, now)
            self._forget_nearest(leader)
            if lane is _Lane.CAUGHT_UP:
                self._end_session(leader)
            if is_silent:
                reason = f"no byte from node {leader} of the source for {limit_s:g} s after a fetch"
                logger.warning("%s: %s; the fetch is repeated", self._settings.flow, reason)
                for key in keys:
                    self._failed(key, reason, now)


def _size(response: FetchResponse) -> int:
    """Return the bytes of all records in a response."""
    return sum(len(entry.records or b"") for topic in response.responses for entry in topic.partitions)


def _is_final(fetched: FetchedPartition, requested_offset: int) -> bool:
    """Return whether the leader would give the same answer as this follower.

    A follower that lags rejects offsets that the leader has, or reports the end of its own log as a divergence.
    """
    lags_behind = fetched.end_offset < requested_offset
    return fetched.error_code == ErrorCode.NONE and not (fetched.diverging is not None and lags_behind)

"""The fetching half of a copier: answers are queued per partition.

Each leader is asked on three lanes, since it answers what comes on one connection in order. What is caught up waits for
new records on one: else a partition that is behind would stand still as long as a fetch waits for one that is at its
end, and a quiet one would wait for the megabytes of a busy one. What is behind is fetched on two others: while the
answer of one is worked off, that of the other is on its way.
"""

from __future__ import annotations

import logging
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.client import cluster as clusters
from klamm.client.connection import Connection, ConnectionLostError
from klamm.client.fetch import (
    LAST_VERSION,
    TOPIC_IDS_FROM,
    EpochEnd,
    FetchedPartition,
    WantedRecords,
    fetch_request,
    fetched_partitions,
)
from klamm.client.fetch_sessions import FetchSessionHandler, Key
from klamm.mirror.copy.partition import CopyState, PartitionCopy
from klamm.mirror.copy.refreshing import TopicRefreshes
from klamm.mirror.source_offsets import SourceOffset
from klamm.protocol.codec import encode
from klamm.protocol.errors import CorruptBatchError, ErrorCode, error_name
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from uuid import UUID

    from klamm.client.buffers import FrameBuffer
    from klamm.client.cluster import Cluster
    from klamm.mirror.copy.settings import CopySettings

logger = logging.getLogger(__name__)

_LATE_S: Final = 40.0
_SHORT_WAIT_MS: Final = 20
"""How long a lane of what is behind may be taken by a fetch that finds nothing."""
_SESSION_LOST: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
ON_LOSS_KEY: Final = "klamm.on.source.loss"
"""The key that says whether to go on where records of the source are gone for good."""


class _Lane(IntEnum):
    """One of the connections to a leader."""

    CAUGHT_UP = 0
    BEHIND_EVEN = 1
    BEHIND_ODD = 2

    @classmethod
    def of_behind(cls, partition: int) -> _Lane:
        """Return where a partition that is behind is fetched."""
        return cls.BEHIND_ODD if partition % 2 else cls.BEHIND_EVEN


class _Sent(NamedTuple):
    """A fetch in flight."""

    connection: Connection
    at: float
    keys: frozenset[Key] = frozenset()
    """Empty for a session."""


class Fetcher:
    """Keeps the partitions of a copier supplied. Thread-confined to it.

    What it costs to send goes by the partitions that are behind, and by the answers that come, not by the partitions
    that are caught up: of those a broker is told once, in a session.
    """

    def __init__(
        self,
        settings: CopySettings,
        source: Cluster,
        copies: Mapping[Key, PartitionCopy],
        active: dict[Key, PartitionCopy],
        clock: Callable[[], float],
        *,
        on_recreated: Callable[[str], None],
        target_is_far: Callable[[], bool],
    ) -> None:
        """Make one.

        Args:
            settings: of the flow.
            source: where to fetch from.
            copies: the partitions, by topic and number.
            active: those of them that have something to send or to be answered; what is fetched is added.
            clock: seconds that never go back.
            on_recreated: called with a topic of the source that was deleted and created again.
            target_is_far: tells whether compressed batches are worth joining.
        """
        self._settings = settings
        self._on_recreated = on_recreated
        self._target_is_far = target_is_far
        self._source = source
        self._copies = copies
        self._active = active
        self._clock = clock
        self._in_flight: dict[tuple[int, _Lane], _Sent] = {}
        self._behind: dict[Key, None] = {}
        """All partitions that are in no session."""
        self._sessions: dict[int, FetchSessionHandler] = {}
        """What is caught up, by leader."""
        self._turn = 0
        self._nearest: dict[Key, int] = {}
        """Replicas that leaders have named as nearer than themselves. Empty without ``client.rack``."""
        self._topic_ids: dict[str, UUID] = {}
        self._refreshes = TopicRefreshes()

    def add(self, key: Key, topic_id: UUID) -> None:
        """Fetch a partition from now on, and only while its topic has this id."""
        for session in self._sessions.values():
            session.forget(key)
        self._behind[key] = None
        if topic_id != ZERO_UUID:
            self._topic_ids[key[0]] = topic_id

    def ask_for_all(self) -> None:
        """Hear of every partition again, not only of those where something changes."""
        for leader in list(self._sessions):
            self._end_session(leader)

    def _end_session(self, leader: int) -> None:
        if (session := self._sessions.pop(leader, None)) is not None:
            self._behind |= dict.fromkeys(session)

    def send(self, now: float) -> None:
        """Send a fetch on each free lane to a leader of partitions that have room.

        Raises:
            ConnectionLostError: the source is away.
        """
        if not self._copies:
            return
        self._refresh(now)
        if sum(copy.pending_bytes for copy in self._active.values()) >= self._settings.buffer_bytes:
            return
        for (leader, lane), wanted in self._wanted(now).items():
            try:
                self._send_behind(leader, lane, wanted, now)
            except ConnectionLostError as error:
                self._lose(leader, [(entry.topic, entry.partition) for entry in wanted], error, now)
        for leader, session in list(self._sessions.items()):
            if session and (leader, _Lane.CAUGHT_UP) not in self._in_flight:
                try:
                    self._send_session(leader, session, now)
                except ConnectionLostError as error:
                    self._lose(leader, list(session), error, now)

    def _lose(self, leader: int, keys: Collection[Key], error: ConnectionLostError, now: float) -> None:
        """Only what is fetched from a node waits for it; its partitions may have new leaders soon."""
        self._end_session(leader)
        self._forget_nearest(leader)
        for key in keys:
            self._failed(key, f"source: {error}", now)

    def _failed(self, key: Key, reason: str, now: float) -> None:
        """Let a partition wait, and ask for its topic's metadata by then."""
        if (copy := self._copies.get(key)) is not None:
            self._refreshes.want(key[0], copy.source_failed(reason, now))

    def _refresh(self, now: float) -> None:
        topics = self._refreshes.due((topic for topic, _ in self._copies), now)
        if not topics:
            return
        self._source.refresh(topics)
        self._refreshes.done(topics, now)
        # A nearer replica may have come, or be gone.
        self._nearest = {key: node for key, node in self._nearest.items() if key[0] not in topics}
        for topic in topics:
            topic_id = self._source.topic_id(topic)
            if topic_id != ZERO_UUID and self._topic_ids.setdefault(topic, topic_id) != topic_id:
                self._on_recreated(topic)
        for leader, session in self._sessions.items():
            for key in session:
                if self._fetch_from(key) != leader:
                    session.forget(key)
                    self._behind[key] = None

    def _stop(self, copy: PartitionCopy, reason: str) -> None:
        copy.stop(reason)
        partition = copy.partition_id
        logger.error("%s: %s-%d stops: %s", self._settings.flow, partition.topic, partition.partition, reason)

    def _wanted(self, now: float) -> dict[tuple[int, _Lane], list[WantedRecords]]:
        """Return what is behind and may be asked for, by leader and lane; what has caught up joins the sessions."""
        out: dict[tuple[int, _Lane], list[WantedRecords]] = {}
        keys = list(self._behind)
        asked = frozenset[Key]().union(*(sent.keys for sent in self._in_flight.values()))
        # Brokers fill an answer in the order asked for: everybody comes first in turn.
        self._turn += 1
        for at in range(len(keys)):
            key = keys[(self._turn + at) % len(keys)]
            if key in asked:
                continue
            copy = self._copies.get(key)
            if copy is None or copy.state is CopyState.STOPPED:
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
                # What has just caught up goes with the others until a session can take it.
                out.setdefault((leader, lane), []).append(wanted)
        return out

    def _next_records(self, copy: PartitionCopy) -> WantedRecords:
        topic, partition, _ = copy.partition_id
        last_epoch = copy.last_fetched_epoch
        leader_epoch = self._source.leader_epoch(topic, partition)
        if leader_epoch >= 0:
            # A broker with old metadata may have named a leader that is none any more. What was read of its successor
            # tells so: it answers UNKNOWN_LEADER_EPOCH then, and not that these records never were.
            leader_epoch = max(leader_epoch, last_epoch)
        topic_id = self._topic_ids.get(topic, ZERO_UUID)
        return WantedRecords(topic, topic_id, partition, copy.fetch_offset, leader_epoch, last_epoch)

    def _leader(self, copy: PartitionCopy, now: float) -> int | None:
        leader = self._fetch_from(copy.partition_id[:2])
        if leader is None:
            self._failed(copy.partition_id[:2], "no leader on the source", now)
        return leader

    def _fetch_from(self, key: Key) -> int | None:
        """Return the node to fetch from: the leader, unless it has named a replica that is nearer (KIP-392)."""
        return self._nearest.get(key, self._source.leader(*key))

    def _forget_nearest(self, node: int) -> None:
        """Ask the leaders again that had named a replica."""
        self._nearest = {key: nearest for key, nearest in self._nearest.items() if nearest != node}

    def _has_room(self, copy: PartitionCopy, now: float) -> bool:
        return now >= copy.retry_at and copy.pending_bytes < self._settings.fetch_limits.partition_max_bytes

    def _send_behind(self, leader: int, lane: _Lane, wanted: list[WantedRecords], now: float) -> None:
        limits = self._settings.fetch_limits
        limits = limits._replace(max_wait_ms=min(limits.max_wait_ms, _SHORT_WAIT_MS))
        request = fetch_request(wanted, limits, read_committed=self._settings.read_committed)
        names = {entry.topic_id: entry.topic for entry in wanted}
        offsets = {(entry.topic, entry.partition): entry.fetch_offset for entry in wanted}

        def on_response(response: FetchResponse, memory: FrameBuffer, version: int) -> None:
            if self._is_refused(response, offsets):
                return
            for fetched in self._partitions(response, names, version):
                self._take(fetched, offsets[fetched.topic, fetched.partition], memory)

        self._submit((leader, lane), request, names, on_response, now, keys=frozenset(offsets))

    def _send_session(self, leader: int, session: FetchSessionHandler, now: float) -> None:
        request = session.request(self._settings.fetch_limits, read_committed=self._settings.read_committed)

        def on_response(response: FetchResponse, memory: FrameBuffer, version: int) -> None:
            if self._sessions.get(leader) is not session:
                return
            if self._is_refused(response, session):
                session.reset()
                return
            session.answered(response.session_id)
            for fetched in self._partitions(response, session.names, version):
                key = (fetched.topic, fetched.partition)
                if key in session:
                    self._take(fetched, session.offset(key), memory)
                    self._settle(session, leader, key)

        self._submit((leader, _Lane.CAUGHT_UP), request, session.names, on_response, now)

    def _settle(self, session: FetchSessionHandler, leader: int, key: Key) -> None:
        """Decide whether a partition that the session told something of stays in it."""
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
        now: float,
        *,
        keys: frozenset[Key] = frozenset(),
    ) -> None:
        connection = self._source.connection(*lane)
        with_ids = ZERO_UUID not in names
        version = connection.version_of(FetchRequest, at_most=LAST_VERSION if with_ids else TOPIC_IDS_FROM - 1)

        def answered(response: FetchResponse, memory: FrameBuffer) -> None:
            self._in_flight.pop(lane, None)
            on_response(response, memory, version)

        self._in_flight[lane] = _Sent(connection, now, keys)
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

    def _is_refused(self, response: FetchResponse, keys: Iterable[Key]) -> bool:
        """Tell whether a whole fetch was refused; only the loss of a session is nothing to wait for."""
        if response.error_code == ErrorCode.NONE:
            return False
        name = error_name(response.error_code)
        logger.info("%s: a fetch was refused: %s", self._settings.flow, name)
        if response.error_code not in _SESSION_LOST:
            now = self._clock()
            for key in keys:
                self._failed(key, f"the source refuses a fetch: {name}", now)
            self.ask_for_all()
        return True

    def _take(self, fetched: FetchedPartition, asked: int, memory: FrameBuffer) -> None:
        key = (fetched.topic, fetched.partition)
        copy = self._copies.get(key)
        if copy is None or copy.state is CopyState.STOPPED or copy.fetch_offset != asked:
            return  # it begins elsewhere by now
        if fetched.preferred_read_replica >= 0:
            self._nearest[key] = fetched.preferred_read_replica
            return
        if key in self._nearest and not _is_final(fetched, asked):
            del self._nearest[key]
            copy.source_failed("a replica near the mirror does not have the next records", self._clock())
            return
        if fetched.error_code != ErrorCode.NONE:
            self._refused(copy, fetched.error_code, self._clock())
            return
        if fetched.diverging is not None:
            self._diverged(copy, fetched.diverging, self._clock())
            return
        self._queue(copy, fetched, memory)
        if copy.pending:
            self._active[key] = copy

    def _queue(self, copy: PartitionCopy, fetched: FetchedPartition, memory: FrameBuffer) -> None:
        copy.fetched(end_offset=fetched.end_offset)
        try:
            is_far = self._target_is_far()
            copy.take(fetched.records, memory, fetched.aborted, join_up_to=self._settings.join_up_to, is_far=is_far)
        except CorruptBatchError as error:
            self._stop(copy, f"the source's bytes are damaged: {error}")

    def _refused(self, copy: PartitionCopy, error_code: int, now: float) -> None:
        if error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(copy, now)
            return
        self._failed(copy.partition_id[:2], f"the source refuses a fetch: {error_name(error_code)}", now)

    def _out_of_range(self, copy: PartitionCopy, now: float) -> None:
        key = (copy.partition_id.topic, copy.partition_id.partition)
        first = self._source.list_offsets([key], clusters.EARLIEST).get(key)
        end = self._source.list_offsets([key], clusters.LATEST).get(key)
        if first is None or end is None:
            self._failed(key, "the source does not tell which offsets it holds", now)
        elif copy.fetch_offset < first and self._settings.continue_after_loss:
            logger.warning(
                "%s: %s-%d: offsets %d to %d were purged on the source before they were mirrored; going on at %d",
                self._settings.flow, *key, copy.fetch_offset, first - 1, first,
            )  # fmt: skip
            copy.skip_to(first)
        elif copy.fetch_offset < first:
            self._stop(
                copy,
                f"offset {copy.fetch_offset} is not there any more: the source holds {first} to {end}. Records were "
                f"purged before they were mirrored. {ON_LOSS_KEY}=continue goes on at {first}",
            )
        else:
            # A log does not refuse an offset up to its end. It was shorter when it was asked, and grew since.
            what = (
                f"the source lost records that were mirrored: it refused offset {copy.fetch_offset} as out of range, "
                f"and holds {first} to {end} now"
            )
            self._lost(copy, what, SourceOffset(first), now)

    def _diverged(self, copy: PartitionCopy, leader: EpochEnd, now: float) -> None:
        """Treat a log that has other records than were read before, as after an unclean leader election."""
        offset = min(leader.end_offset, copy.fetch_offset)
        what = (
            f"the source lost records that were mirrored, as after an unclean leader election: its log parts at offset "
            f"{offset} from what was read up to offset {copy.fetch_offset} of leader epoch {copy.last_fetched_epoch}"
        )
        self._lost(copy, what, SourceOffset(offset, leader.leader_epoch), now)

    def _lost(self, copy: PartitionCopy, what: str, go_on_at: SourceOffset, now: float) -> None:
        """Stop, or go on at an earlier position if the file says so.

        Both wait until all records that were fetched before are on the target with their position, so that none of
        them is copied again. Until then the fetch is repeated, and answered in the same way.
        """
        topic, partition, remote_topic = copy.partition_id
        if not copy.is_settled:
            copy.source_failed(what, now)
        elif self._settings.continue_after_loss:
            logger.warning(
                "%s: %s-%d: %s; going on at %d, behind what %s holds",
                self._settings.flow, topic, partition, what, go_on_at.next_offset, remote_topic,
            )  # fmt: skip
            copy.rewind(go_on_at)
        else:
            at = go_on_at.next_offset
            self._stop(copy, f"{what}. {ON_LOSS_KEY}=continue goes on at {at}, behind what {remote_topic} holds")

    def sweep(self, now: float) -> None:
        """Forget fetches whose connection broke or which were never answered."""
        for (leader, lane), sent in list(self._in_flight.items()):
            if now - sent.at > _LATE_S:
                sent.connection.close()
            if not sent.connection.closed:
                continue
            del self._in_flight[leader, lane]
            asked: Iterable[Key] = sent.keys
            if lane is _Lane.CAUGHT_UP:
                asked = self._sessions.get(leader, ())
            for topic in {topic for topic, _ in asked}:
                self._refreshes.want(topic, now)
            self._forget_nearest(leader)
            if lane is _Lane.CAUGHT_UP:
                self._end_session(leader)


def _is_final(fetched: FetchedPartition, asked: int) -> bool:
    """Return whether the leader would answer as a follower did.

    A follower that lags behind refuses an offset that the leader has, or takes the end of its own log for a divergence.
    """
    lags_behind = fetched.end_offset < asked
    return fetched.error_code == ErrorCode.NONE and not (fetched.diverging is not None and lags_behind)

"""Incremental fetch sessions (KIP-227): a consumer sends its partitions once, and later only the changes.

How the epoch of a request selects the action:

    session_epoch   action
    0               closes the named session, and opens a new one if there is room; otherwise a full fetch without one
    -1              closes the named session; a full fetch without a session
    n > 0           incremental fetch in the session, whose epoch must be n; the next one is n + 1 (1 after 2^31 - 1)

A session keeps its partitions in the order in which they are served. A partition that returned records moves to the
end, so that ``max_bytes`` cannot starve any partition. If all slots are used, a new session evicts the least recently
used one, provided that it is idle for ``EVICTION_MS``.

Sessions are limited, because a client may name any number of partitions, also those of topics that do not exist. A
fetch that would open a session beyond a limit is served without one. A session that would grow beyond a limit is
closed, and its client, which gets FETCH_SESSION_ID_NOT_FOUND, sends a full fetch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.configs.names import MAX_TOPIC_NAME_LENGTH
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import ErrorCode
from klamm.protocol.primitives import ZERO_UUID
from klamm.server.fetch_response import TOPIC_IDS_SINCE, new_session_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from uuid import UUID

    from klamm.protocol.messages.fetch import FetchRequest
    from klamm.server.time_slice import TimeSlice

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
EVICTION_MS: Final = 120_000
"""Idle time in milliseconds after which a session may be evicted for a new one."""
MAX_SESSION_PARTITIONS: Final = 100_000
"""Maximum number of partitions in a session; each takes about 250 bytes of memory."""
MAX_PARTITIONS: Final = 1_000_000
"""Maximum number of partitions in all sessions together."""
_MAX_EPOCH: Final = 2**31 - 1

PartitionKey: TypeAlias = "tuple[UUID | str, int]"


class FetchPartition:
    """A partition that a client fetches, with the offsets last sent to it (-1: none yet)."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "last_fetched_epoch",
        "max_bytes",
        "partition",
        "sent_high_watermark",
        "sent_log_start_offset",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str, topic_id: UUID, wanted: FetchRequest.FetchPartition) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = wanted.partition
        self.sent_high_watermark = -1
        self.sent_log_start_offset = -1
        self.fetch_offset = wanted.fetch_offset
        self.max_bytes = wanted.partition_max_bytes
        self.current_leader_epoch = wanted.current_leader_epoch
        self.last_fetched_epoch = wanted.last_fetched_epoch

    @property
    def key(self) -> PartitionKey:
        """Topic id (topic name in versions without ids) and partition."""
        return (self.topic_id if self.topic_id != ZERO_UUID else self.topic, self.partition)

    def update_from(self, other: FetchPartition) -> None:
        """Copy the fetch offset, size limit and epochs of a newer request."""
        self.fetch_offset = other.fetch_offset
        self.max_bytes = other.max_bytes
        self.current_leader_epoch = other.current_leader_epoch
        self.last_fetched_epoch = other.last_fetched_epoch


@dataclass(slots=True, kw_only=True)
class FetchSession:
    """One client's partitions, in the order in which they are served. Owned by ``FetchSessions``."""

    session_id: int
    epoch: int
    """Epoch that the next request must have."""
    uses_topic_ids: bool
    partitions: dict[PartitionKey, FetchPartition]
    used_ms: int

    def move_to_end(self, partition: FetchPartition) -> None:
        """Move a partition that returned records to the end of the order."""
        if self.partitions.pop(partition.key, None) is not None:
            self.partitions[partition.key] = partition


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPlan:
    """The partitions that one Fetch request reads, and its session."""

    error_code: ErrorCode = ErrorCode.NONE
    session: FetchSession | None = None
    """None if the request is outside of a session."""
    is_incremental: bool = False
    """Whether unchanged partitions are left out of the response."""
    partitions: Sequence[FetchPartition] = ()


class FetchSessions:
    """All fetch sessions of the broker. Used on the event loop only."""

    def __init__(self, *, now_ms: Callable[[], int], max_sessions: int = 1000) -> None:
        """Start without sessions.

        Args:
            now_ms: Monotonic clock in milliseconds.
            max_sessions: ``max.incremental.fetch.session.cache.slots``; 0 disables sessions.
        """
        self._now_ms = now_ms
        self._max_sessions = max_sessions
        self._sessions: dict[int, FetchSession] = {}
        self._turn = 0

    def __len__(self) -> int:
        """Return the number of sessions."""
        return len(self._sessions)

    def get(self, session_id: int) -> FetchSession | None:
        """Return a session; None if it does not exist."""
        return self._sessions.get(session_id)

    def close(self, session_id: int) -> None:
        """Close a session, if it exists."""
        self._sessions.pop(session_id, None)

    async def plan(
        self, request: FetchRequest, version: int, named: Sequence[FetchPartition], time_slice: TimeSlice
    ) -> FetchPlan:
        """Return the partitions that a request reads, and advance its session by one epoch.

        Args:
            request: The Fetch request.
            version: Version of the request.
            named: Partitions in the request, as ``named_partitions`` yields them.
            time_slice: Time slice of the request.
        """
        if request.session_epoch in {INITIAL_EPOCH, FINAL_EPOCH}:
            self.close(request.session_id)
            return await self._full(request, version, named, time_slice)
        session = self._sessions.get(request.session_id)
        if session is None:
            return FetchPlan(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            return FetchPlan(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != (version >= TOPIC_IDS_SINCE):
            return FetchPlan(error_code=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        return await self._incremental(request, session, named, time_slice)

    async def _full(
        self, request: FetchRequest, version: int, named: Sequence[FetchPartition], time_slice: TimeSlice
    ) -> FetchPlan:
        if request.session_epoch == INITIAL_EPOCH and named and not _has_long_name(request):
            partitions: dict[PartitionKey, FetchPartition] = {}
            async for partition in time_slice.over(named):
                partitions[partition.key] = partition
            if self._make_room(len(partitions)):
                session = FetchSession(
                    session_id=new_session_id(self._sessions),
                    epoch=1,
                    uses_topic_ids=version >= TOPIC_IDS_SINCE,
                    partitions=partitions,
                    used_ms=self._now_ms(),
                )
                self._sessions[session.session_id] = session
                return FetchPlan(session=session, partitions=named)
        # No session keeps the order of the partitions, so each request starts at another one.
        self._turn += 1
        start = self._turn % len(named) if named else 0
        return FetchPlan(partitions=[*named[start:], *named[:start]])

    async def _incremental(
        self, request: FetchRequest, session: FetchSession, named: Sequence[FetchPartition], time_slice: TimeSlice
    ) -> FetchPlan:
        # Before the first pause, so that another request of the same epoch is rejected.
        session.epoch = 1 if session.epoch == _MAX_EPOCH else session.epoch + 1
        session.used_ms = self._now_ms()
        # The dict is in order of use, least recently used first, for eviction.
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        before = len(session.partitions)
        async for partition in time_slice.over(named):
            cached = session.partitions.setdefault(partition.key, partition)
            if cached is not partition:
                cached.update_from(partition)
        for forgotten in request.forgotten_topics_data:
            name = forgotten.topic_id if forgotten.topic_id != ZERO_UUID else forgotten.topic
            async for index in time_slice.over(forgotten.partitions):
                session.partitions.pop((name, index), None)
        if not session.partitions:
            self.close(session.session_id)
            return FetchPlan()
        has_grown = len(session.partitions) > before
        if _has_long_name(request) or (has_grown and not self._fits(session)):
            self.close(session.session_id)
            return FetchPlan(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return FetchPlan(session=session, is_incremental=True, partitions=list(session.partitions.values()))

    def _fits(self, session: FetchSession) -> bool:
        return len(session.partitions) <= MAX_SESSION_PARTITIONS and self._partition_count() <= MAX_PARTITIONS

    def _partition_count(self) -> int:
        return sum(len(session.partitions) for session in self._sessions.values())

    def _make_room(self, partition_count: int) -> bool:
        """Return whether there is room for a new session. Sessions that are idle for long are evicted for it."""
        if partition_count > MAX_SESSION_PARTITIONS:
            return False
        total = self._partition_count() + partition_count
        while len(self._sessions) >= self._max_sessions or total > MAX_PARTITIONS:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or self._now_ms() - oldest.used_ms <= EVICTION_MS:
                return False
            total -= len(oldest.partitions)
            self.close(oldest.session_id)
        return True


def _has_long_name(request: FetchRequest) -> bool:
    """Return whether a request names a topic that cannot exist, because its name is longer than Kafka allows."""
    return any(len(topic.topic) > MAX_TOPIC_NAME_LENGTH for topic in request.topics)


def named_partitions(request: FetchRequest) -> Iterable[FetchPartition]:
    """Yield the partitions in a Fetch request."""
    for topic in request.topics:
        for wanted in topic.partitions:
            yield FetchPartition(topic.topic, topic.topic_id, wanted)

"""Incremental fetch sessions (KIP-227): a consumer sends its partitions once, and later only the changes.

How the epoch of a request selects the action:

    session_epoch   action
    0               closes the named session, and opens a new one if there is room; otherwise a full fetch without one
    -1              closes the named session; a full fetch without a session
    n > 0           incremental fetch in the session, whose epoch must be n; the next one is n + 1 (1 after 2^31 - 1)

A session keeps its partitions in the order in which they are served. A partition that returned records moves to the
end, so that ``max_bytes`` cannot starve any partition. If all slots are used, a new session evicts the least recently
used one, provided that it is idle for ``EVICTION_MS``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import ErrorCode
from klamm.protocol.primitives import ZERO_UUID
from klamm.server.fetch_response import TOPIC_IDS_SINCE, new_session_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from uuid import UUID

    from klamm.protocol.messages.fetch import FetchRequest

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
EVICTION_MS: Final = 120_000
"""Idle time in milliseconds after which a session may be evicted for a new one."""
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

    def plan(self, request: FetchRequest, version: int, named: Sequence[FetchPartition]) -> FetchPlan:
        """Return the partitions that a request reads, and advance its session by one epoch.

        Args:
            request: The Fetch request.
            version: Version of the request.
            named: Partitions in the request, as ``named_partitions`` yields them.
        """
        if request.session_epoch in {INITIAL_EPOCH, FINAL_EPOCH}:
            self.close(request.session_id)
            return self._full(request, version, named)
        session = self._sessions.get(request.session_id)
        if session is None:
            return FetchPlan(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            return FetchPlan(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != (version >= TOPIC_IDS_SINCE):
            return FetchPlan(error_code=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        return self._incremental(request, session, named)

    def _full(self, request: FetchRequest, version: int, named: Sequence[FetchPartition]) -> FetchPlan:
        partitions = list(named)
        if request.session_epoch == INITIAL_EPOCH and partitions and self._make_room():
            session = FetchSession(
                session_id=new_session_id(self._sessions),
                epoch=1,
                uses_topic_ids=version >= TOPIC_IDS_SINCE,
                partitions={partition.key: partition for partition in partitions},
                used_ms=self._now_ms(),
            )
            self._sessions[session.session_id] = session
            return FetchPlan(session=session, partitions=partitions)
        # No session keeps the order of the partitions, so each request starts at another one.
        self._turn += 1
        start = self._turn % len(partitions) if partitions else 0
        return FetchPlan(partitions=partitions[start:] + partitions[:start])

    def _incremental(self, request: FetchRequest, session: FetchSession, named: Sequence[FetchPartition]) -> FetchPlan:
        for partition in named:
            cached = session.partitions.setdefault(partition.key, partition)
            if cached is not partition:
                cached.update_from(partition)
        for forgotten in request.forgotten_topics_data:
            name = forgotten.topic_id if forgotten.topic_id != ZERO_UUID else forgotten.topic
            for index in forgotten.partitions:
                session.partitions.pop((name, index), None)
        if not session.partitions:
            del self._sessions[session.session_id]
            return FetchPlan()
        session.epoch = 1 if session.epoch == _MAX_EPOCH else session.epoch + 1
        session.used_ms = self._now_ms()
        # The dict is in order of use, least recently used first, for eviction.
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        return FetchPlan(session=session, is_incremental=True, partitions=list(session.partitions.values()))

    def _make_room(self) -> bool:
        if len(self._sessions) < self._max_sessions:
            return True
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or self._now_ms() - oldest.used_ms <= EVICTION_MS:
            return False
        del self._sessions[oldest.session_id]
        return True


def named_partitions(request: FetchRequest) -> Iterable[FetchPartition]:
    """Yield the partitions in a Fetch request."""
    for topic in request.topics:
        for wanted in topic.partitions:
            yield FetchPartition(topic.topic, topic.topic_id, wanted)

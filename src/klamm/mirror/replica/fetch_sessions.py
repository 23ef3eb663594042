"""Incremental fetch sessions of followers (KIP-227), in which an idle partition costs nothing. No I/O.

A session notes which of its partitions may have a new answer: those that a request names, and those of which the leader
reports news. Only these are looked at, so neither a request nor the end of its wait depends on the number of idle
partitions.

A partition is left out of an incremental response if its leader has no answer yet, or if it has no records and the
follower knows its high watermark. The response that opens a session, and one without a session, names every partition:
otherwise a follower discards the response.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from klamm.mirror.replica.leader_partition import LeaderPartition, Presence
from klamm.protocol.errors import ErrorCode
from klamm.server.fetch_response import PartitionRead, new_session_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from klamm.protocol.messages.fetch import FetchRequest

_FINAL_EPOCH: Final = -1
_MAX_EPOCH: Final = 2**31 - 1
MAX_SESSIONS: Final = 1000

Key = tuple["UUID", int]
"""Topic id and partition number."""


class _Entry:
    """A partition in a session."""

    __slots__ = ("_sent", "key", "leader", "session", "wanted")

    def __init__(self, session: FollowerSession, key: Key, leader: LeaderPartition | None) -> None:
        self.session = session
        self.key = key
        self.leader = leader
        self.wanted: FetchRequest.FetchPartition
        self._sent: tuple[int, int] | None = None
        """High watermark and log start offset that the follower knows."""

    def read(self, max_bytes: int) -> PartitionRead | None:
        """Return the current answer. None: there is none yet."""
        if self.leader is None:
            return self.failed()  # the metadata of this broker may be behind those of the follower
        return self.leader.fetch(self.session.node_id, self.wanted, max_bytes, self.session.presence)

    def failed(self) -> PartitionRead:
        """Return the answer after which Kafka's followers retry a second later."""
        topic_id, partition = self.key
        return PartitionRead(
            topic="", topic_id=topic_id, partition=partition, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER
        )

    def is_news(self, answer: PartitionRead) -> bool:
        """Return whether the follower has to get the answer, and note that it does."""
        before, self._sent = self._sent, (answer.high_watermark, answer.log_start_offset)
        return bool(answer.error_code or answer.records or answer.diverging_epoch or before != self._sent)


class FollowerSession:
    """Partitions that one fetcher thread of a follower fetches. Used on the event loop only."""

    def __init__(self, session_id: int, node_id: int, now: float) -> None:
        self.session_id = session_id
        """0: the request has no session."""
        self.node_id = node_id
        self.epoch = 1
        """Epoch that the next request must have."""
        self.presence = Presence(now)
        self.entries: dict[Key, _Entry] = {}
        self._changed: dict[Key, _Entry] = {}
        """Partitions that may have a new answer, in the order in which they are served."""
        self.news = asyncio.Event()
        """Set when a partition was added to those."""

    def mark(self, entry: _Entry) -> None:
        """Look at a partition again."""
        self._changed[entry.key] = entry
        self.news.set()

    def first_answers(self, max_bytes: int) -> list[PartitionRead]:
        """Return an answer for every partition."""
        self.news.clear()
        out = []
        for key, entry in self.entries.items():
            answer = (entry.read(max_bytes) if max_bytes > 0 else None) or entry.failed()
            entry.is_news(answer)
            max_bytes -= len(answer.records)
            self._changed.pop(key, None)
            out.append(answer)
        return out

    def answers(self, max_bytes: int) -> list[PartitionRead]:
        """Return the answers that are news for the follower."""
        self.news.clear()
        out = []
        for key, entry in list(self._changed.items()):
            if max_bytes <= 0:
                break
            answer = entry.read(max_bytes)
            if answer is None:
                continue  # still undecided at the next request
            del self._changed[key]
            if entry.is_news(answer):
                max_bytes -= len(answer.records)
                out.append(answer)
        return out


class FollowerSessions:
    """All fetch sessions of followers. Used on the event loop only.

    Args:
        find: Returns the leader of a partition; None if klamm does not know the partition.
    """

    def __init__(self, find: Callable[[UUID, int], LeaderPartition | None]) -> None:
        self._find = find
        self._sessions: dict[int, FollowerSession] = {}
        self._watching: dict[LeaderPartition, set[_Entry]] = {}
        """Sessions' entries by partition."""

    def __len__(self) -> int:
        """Return the number of sessions."""
        return len(self._sessions)

    def on_news(self, leader: LeaderPartition) -> None:
        """Wake the followers that wait for news of a partition."""
        for entry in self._watching.get(leader, ()):
            entry.session.mark(entry)

    def open(self, request: FetchRequest, node_id: int, now: float) -> FollowerSession:
        """Return the session of a full request: a new one, or one for this request only."""
        self._drop(request.session_id)
        session = FollowerSession(0, node_id, now)
        if request.session_epoch != _FINAL_EPOCH and request.topics:
            if len(self._sessions) >= MAX_SESSIONS:
                self._drop(next(iter(self._sessions)))
            session.session_id = new_session_id(self._sessions)
            self._sessions[session.session_id] = session
        self._name(session, request)
        return session

    def resume(self, request: FetchRequest, node_id: int, now: float) -> FollowerSession | ErrorCode:
        """Return the session of an incremental request, with its changes; an error code if it does not exist."""
        session = self._sessions.get(request.session_id)
        if session is None or session.node_id != node_id:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != request.session_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        session.epoch = 1 if session.epoch == _MAX_EPOCH else session.epoch + 1
        session.presence.at = now
        for topic in request.forgotten_topics_data:
            for index in topic.partitions:
                if (entry := session.entries.pop((topic.topic_id, index), None)) is not None:
                    self._unwatch(entry)
        self._name(session, request)
        return session

    def _name(self, session: FollowerSession, request: FetchRequest) -> None:
        session.presence.replica_epoch = request.replica_state.replica_epoch
        for key, wanted in _named(request):
            entry = session.entries.get(key)
            leader = self._find(*key)
            if entry is None or entry.leader is not leader:
                if entry is not None:
                    self._unwatch(entry)
                entry = session.entries[key] = _Entry(session, key, leader)
                if leader is not None and session.session_id:
                    self._watching.setdefault(leader, set()).add(entry)
            entry.wanted = wanted
            session.mark(entry)

    def _unwatch(self, entry: _Entry) -> None:
        leader, session = entry.leader, entry.session
        session._changed.pop(entry.key, None)
        if leader is None:
            return
        leader.leave(session.node_id, session.presence)
        watching = self._watching.get(leader, set())
        watching.discard(entry)
        if not watching:
            self._watching.pop(leader, None)

    def _drop(self, session_id: int) -> None:
        if (session := self._sessions.pop(session_id, None)) is not None:
            for entry in session.entries.values():
                self._unwatch(entry)


def _named(request: FetchRequest) -> Iterator[tuple[Key, FetchRequest.FetchPartition]]:
    for topic in request.topics:
        for wanted in topic.partitions:
            yield (topic.topic_id, wanted.partition), wanted

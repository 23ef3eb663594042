"""Fetch sessions of followers: what a response names, and what is looked at for it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from klamm.mirror.replica import fetch_sessions
from klamm.mirror.replica.fetch_sessions import FollowerSession, FollowerSessions
from klamm.mirror.replica.leader_partition import LeaderPartition, Leadership
from klamm.mirror.replica.window import UNKNOWN_EPOCH
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.fetch import FetchRequest
from tests.support.replicas import MAX_BYTES, SourceLog, copy_once

if TYPE_CHECKING:
    import pytest

NOW = 100.0
TOPIC_ID = UUID(int=7)
NODE = 1


class Leaders:
    """Partitions of one topic, each with one replica and its own source."""

    def __init__(self, count: int) -> None:
        self.sessions = FollowerSessions(lambda _, index: self.partitions.get(index))
        self.partitions = {index: self._leader(index) for index in range(count)}
        self.sources = [SourceLog() for _ in range(count)]
        self.reads = 0
        self.now = NOW
        for index, source in enumerate(self.sources):
            self.partitions[index].begin(source.log_start, source.end)

    def _leader(self, index: int) -> LeaderPartition:
        leader = LeaderPartition("t", TOPIC_ID, index, on_news=self.sessions.on_news)
        alone = frozenset({NODE})
        leader.lead(Leadership(leader_epoch=3, partition_epoch=0, replicas=alone, live=alone), NOW)
        read = leader.fetch

        def counted(*args: object) -> object:
            self.reads += 1
            return read(*args)  # type: ignore[arg-type]

        leader.fetch = counted  # type: ignore[method-assign, assignment]
        return leader

    def produce(self, index: int) -> None:
        self.sources[index].produce(2)
        copy_once(self.sources[index], self.partitions[index], self.now)

    def open(self, *indexes: int) -> FollowerSession:
        return self.sessions.open(request(0, *((index, 0) for index in indexes)), NODE, self.now)

    def resume(self, session: FollowerSession, *offsets: tuple[int, int], forgotten: tuple[int, ...] = ()) -> list[int]:
        """Return the partitions in the response."""
        resumed = self.sessions.resume(
            request(session.epoch, *offsets, session_id=session.session_id, forgotten=forgotten), NODE, self.now
        )
        assert resumed is session
        return [answer.partition for answer in session.answers(MAX_BYTES)]


def test_diverging_epoch_is_news() -> None:
    leaders = Leaders(1)
    leader = leaders.partitions[0]
    leader.may_lose = True
    leaders.produce(0)
    session = leaders.open(0)
    assert leaders.resume(session, (0, 2)) == [0]
    copy_once(leaders.sources[0], leader, NOW)
    assert leader.tail is not None

    leader.truncate(leader.tail, UNKNOWN_EPOCH, (0, 1), NOW)

    (answer,) = session.answers(MAX_BYTES)
    assert (answer.diverging_epoch, answer.error_code, answer.high_watermark) == ((0, 1), ErrorCode.NONE, 1)
    assert leaders.resume(session, (0, 2)) == [0]  # also with the high watermark that the follower knows


def request(
    epoch: int, *offsets: tuple[int, int], session_id: int = 0, forgotten: tuple[int, ...] = ()
) -> FetchRequest:
    return FetchRequest(
        session_id=session_id,
        session_epoch=epoch,
        topics=[
            FetchRequest.FetchTopic(
                topic_id=TOPIC_ID,
                partitions=[
                    FetchRequest.FetchPartition(
                        partition=index,
                        fetch_offset=offset,
                        current_leader_epoch=3,
                        partition_max_bytes=MAX_BYTES,
                        log_start_offset=0,
                    )
                    for index, offset in offsets
                ],
            )
        ],
        forgotten_topics_data=[FetchRequest.ForgottenTopic(topic_id=TOPIC_ID, partitions=list(forgotten))],
    )


def test_session_id_of_another_session_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = iter([4, 4, 4, 6])
    monkeypatch.setattr("klamm.server.fetch_response.secrets.randbelow", lambda _: next(draws))
    leaders = Leaders(1)
    assert [leaders.open(0).session_id, leaders.open(0).session_id] == [5, 7]
    assert len(leaders.sessions) == 2


def test_i6_first_response_names_every_partition_even_without_an_answer() -> None:
    leaders = Leaders(2)
    del leaders.partitions[1]
    undecided = LeaderPartition("t", TOPIC_ID, 2)
    leaders.partitions[2] = undecided

    answers = leaders.open(0, 1, 2).first_answers(MAX_BYTES)

    assert [(answer.partition, answer.error_code) for answer in answers] == [
        (0, ErrorCode.NONE),
        (1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (2, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ]


def test_response_within_a_session_names_partitions_with_news_only() -> None:
    leaders = Leaders(3)
    session = leaders.open(0, 1, 2)
    session.first_answers(MAX_BYTES)
    leaders.produce(1)

    assert leaders.resume(session) == [1]
    assert leaders.resume(session, (1, 2)) == [1]  # its high watermark has advanced
    assert leaders.resume(session) == []


def test_idle_partitions_are_not_looked_at() -> None:
    leaders = Leaders(500)
    session = leaders.open(*range(500))
    session.first_answers(MAX_BYTES)
    leaders.resume(session)
    leaders.reads = 0

    for _ in range(10):
        leaders.resume(session)
    leaders.produce(7)
    leaders.resume(session)

    assert leaders.reads == 1


def test_follower_is_present_in_all_partitions_of_its_session() -> None:
    leaders = Leaders(2)
    session = leaders.open(0, 1)
    session.first_answers(MAX_BYTES)
    leaders.now += 60

    leaders.resume(session, forgotten=(1,))
    leaders.now += 60
    leaders.resume(session)

    assert leaders.partitions[0].silent(leaders.now, 30) == frozenset()
    assert leaders.partitions[1].silent(leaders.now, 30) == {NODE}


def test_follower_stays_present_when_an_earlier_session_of_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "MAX_SESSIONS", 2)
    leaders = Leaders(2)
    leaders.produce(0)
    earlier = leaders.open(0)
    earlier.first_answers(MAX_BYTES)
    present = leaders.open(0)  # the follower has restarted
    present.first_answers(MAX_BYTES)
    leaders.open(1).first_answers(MAX_BYTES)  # there are too many sessions, so the oldest one ends
    # when
    leaders.now += 60
    leaders.resume(present)
    # then
    assert len(leaders.sessions) == 2
    assert leaders.partitions[0].silent(leaders.now, 30) == frozenset()


def test_partitions_beyond_the_size_limit_come_next() -> None:
    leaders = Leaders(3)
    session = leaders.open(0, 1, 2)
    session.first_answers(MAX_BYTES)
    for index in range(3):
        leaders.produce(index)
    leaders.sessions.resume(request(1, session_id=session.session_id), NODE, NOW)

    assert [answer.partition for answer in session.answers(1)] == [0]
    assert leaders.resume(session, (0, 2)) == [1, 2, 0]


def test_unknown_sessions_get_kafkas_error_codes() -> None:
    leaders = Leaders(1)
    session = leaders.open(0)
    codes = [
        leaders.sessions.resume(request(1, session_id=session.session_id + 1), NODE, NOW),
        leaders.sessions.resume(request(2, session_id=session.session_id), NODE, NOW),
        leaders.sessions.resume(request(1, session_id=session.session_id), NODE + 1, NOW),
    ]

    assert codes == [
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ]


def test_full_fetch_ends_the_session_it_names() -> None:
    leaders = Leaders(1)
    session = leaders.open(0)
    leaders.sessions.open(request(-1, (0, 0), session_id=session.session_id), NODE, NOW)

    assert len(leaders.sessions) == 0


def test_news_wake_the_waiting_fetch() -> None:
    leaders = Leaders(2)
    session = leaders.open(0, 1)
    session.first_answers(MAX_BYTES)
    leaders.resume(session)
    assert not session.news.is_set()

    leaders.produce(1)

    assert session.news.is_set()

from __future__ import annotations

import logging
import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from klamm.kafka_client.errors import ConnectionLostError
from klamm.mirror.records.internal_topic import ControlConnection, TopicGoneError
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.topics.claims import Claimant, FlowClaim
from klamm.mirror.topics.heartbeats import Heartbeats
from klamm.protocol.records import Record
from tests.support.mirror_fakes import FakeCluster, rejection

if TYPE_CHECKING:
    from collections.abc import Sequence

FILE = {"clusters": "A,B", "A.bootstrap.servers": "a:1", "B.bootstrap.servers": "b:1", "A->B.enabled": "true"}
PAIRS = {pair.name: pair for pair in parse_settings(FILE).heartbeats}


class Topic(ControlConnection):
    """The topic of heartbeats, in memory."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.is_gone = False
        self.hidden = 0
        """Number of the last records that an open transaction hides."""
        self.finds_timestamps = True
        self.finds_end = True
        self.reads: list[int] = []
        """First offset of each read."""

    def exists(self) -> bool:
        """Return whether the metadata have the topic."""
        return not self.is_gone

    def write(self, topic: str, records: Sequence[Record]) -> None:
        assert topic == "heartbeats"
        self.records += records

    def end_offsets(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(partitions, len(self.records)) if self.finds_end else {}

    def offset_at(self, topic: str, timestamp_ms: int) -> int | None:
        if not self.finds_timestamps:
            return None
        return next((at for at, record in enumerate(self.records) if record.timestamp >= timestamp_ms), -1)

    def read(self, topic: str, from_offset: int) -> tuple[list[Record], int]:
        if self.is_gone:
            raise TopicGoneError(topic)
        self.reads.append(from_offset)
        end = len(self.records) - self.hidden
        return [self.records[at]._replace(offset=at) for at in range(from_offset, end)], end


class TopicOn(Topic):
    """The topic of heartbeats on a cluster, on which it can be deleted and created."""

    def __init__(self, target: FakeCluster) -> None:
        super().__init__()
        self._target = target

    def exists(self) -> bool:
        if "heartbeats" not in self._target.topics:
            self.records.clear()
        return "heartbeats" in self._target.topics

    def write(self, topic: str, records: Sequence[Record]) -> None:
        if not self.exists():
            raise ConnectionLostError("Partition 0 of heartbeats does not exist or has no leader at present")
        super().write(topic, records)

    def end_offsets(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return super().end_offsets(partitions) if self.exists() else {}

    def read(self, topic: str, from_offset: int) -> tuple[list[Record], int]:
        self.is_gone = not self.exists() or from_offset > len(self.records)
        return super().read(topic, from_offset)


class Clock:
    """Monotonic clock of all processes of a test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Process:
    """A mirror of one flow."""

    def __init__(
        self,
        topic: Topic,
        clock: Clock,
        host: str,
        *,
        flow: str = "A->B",
        target: FakeCluster | None = None,
        identity: str = "",
    ) -> None:
        self.claim = FlowClaim(clock=clock)
        self.link = Link(topic)
        instance = f"{host}, process 1, ab"
        self.claimant = Claimant(
            flow, instance, self.link, self.claim, interval_s=1.0, identity=identity, clock=clock, now=clock
        )
        self.heartbeats = Heartbeats(
            PAIRS[flow], target or FakeCluster(), self.link, claimant=self.claimant, clock=clock, now=clock
        )
        self.beat = self.heartbeats.beat


class Link(ControlConnection):
    """Connection of one process to the topic."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self.error: Exception | None = None

    @property
    def cluster(self) -> Any:
        """Cluster with the metadata."""
        return SimpleNamespace(topics={"heartbeats"} if self._topic.exists() else ())

    def _check(self) -> None:
        if self.error is not None:
            raise self.error

    def write(self, topic: str, records: Sequence[Record]) -> None:
        self._check()
        self._topic.write(topic, records)

    def end_offsets(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        self._check()
        return self._topic.end_offsets(partitions)

    def offset_at(self, topic: str, timestamp_ms: int) -> int | None:
        self._check()
        return self._topic.offset_at(topic, timestamp_ms)

    def read(self, topic: str, from_offset: int) -> tuple[list[Record], int]:
        self._check()
        return self._topic.read(topic, from_offset)


@pytest.fixture
def topic() -> Topic:
    return Topic()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_first_process_holds_flow_and_second_stands_by(topic: Topic, clock: Clock) -> None:
    first, second = Process(topic, clock, "here"), Process(topic, clock, "there")
    for _ in range(20):
        assert first.beat()
        assert second.beat()
        clock.now += 1
    assert first.claim.left_s == pytest.approx(3.0)
    assert not second.claim.is_held
    assert second.claim.holder == "here, process 1"
    assert len(topic.records) == 20, "a process that stands by writes no heartbeat"


@pytest.mark.parametrize("behind_s", [0.0, -3.0, 3.0])
def test_valid_claim_before_many_heartbeats_of_other_pairs_is_found(
    topic: Topic, clock: Clock, behind_s: float
) -> None:
    # given
    first, second = Process(topic, clock, "here"), Process(topic, clock, "there")
    first.beat()
    clock.now += 5
    timestamp = int(clock.now * 1000)
    topic.records[0] = topic.records[0]._replace(timestamp=timestamp - int((5 + behind_s) * 1000))
    topic.records += [Record(key=b"k", value=b"v", timestamp=timestamp)] * 1100
    # when
    second.beat()
    # then
    assert not second.claim.is_held
    assert second.claim.holder == "here, process 1"


@pytest.mark.parametrize("missing", ["finds_end", "finds_timestamps"])
def test_flow_is_not_claimed_while_the_start_of_valid_claims_is_unknown(
    topic: Topic, clock: Clock, missing: str
) -> None:
    # given
    topic.records += [Record(key=b"k", value=b"v", timestamp=0)] * 3
    process = Process(topic, clock, "here")
    setattr(topic, missing, False)
    # when
    process.beat()
    clock.now += 6
    process.beat()
    # then
    assert not process.claim.is_held
    assert process.claim.problem.endswith("the leader of heartbeats does not respond")
    assert not topic.reads
    # and
    setattr(topic, missing, True)
    process.beat()
    assert process.claim.is_held


def test_long_log_without_valid_claim_is_read_from_near_its_end(topic: Topic, clock: Clock) -> None:
    # given
    first = Process(topic, clock, "here")
    topic.records += [Record(key=b"k", value=b"v", timestamp=0)] * 100_000
    # when
    first.beat()
    # then
    assert first.claim.is_held
    assert topic.reads[0] == 99_000


def test_standby_takes_over_after_last_claim_has_ended(topic: Topic, clock: Clock) -> None:
    first, second = Process(topic, clock, "here"), Process(topic, clock, "there")
    first.beat()
    second.beat()
    clock.now += 5.4
    second.beat()
    assert not second.claim.is_held
    clock.now += 0.2
    second.beat()
    assert second.claim.is_held


def test_holder_stops_before_standby_begins(topic: Topic, clock: Clock) -> None:
    first, second = Process(topic, clock, "here"), Process(topic, clock, "there")
    first.beat()
    second.beat()
    clock.now += 4.0
    assert not first.claim.is_held
    second.beat()
    assert not second.claim.is_held


def test_released_flow_is_taken_over_at_once(topic: Topic, clock: Clock) -> None:
    first, second = Process(topic, clock, "here"), Process(topic, clock, "there")
    first.beat()
    second.beat()
    second.heartbeats.release()
    assert len(topic.records) == 1, "a process that stands by has nothing to release"
    first.heartbeats.release()
    second.beat()
    assert second.claim.is_held


def test_suspended_holder_stands_by_when_it_resumes(topic: Topic, clock: Clock) -> None:
    first, second = Process(topic, clock, "here"), Process(topic, clock, "there")
    first.beat()
    second.beat()
    clock.now += 6
    second.beat()
    first.beat()
    assert second.claim.is_held
    assert not first.claim.is_held
    assert first.claim.holder == "there, process 1"


def test_suspended_holder_notices_claim_taken_and_released(topic: Topic, clock: Clock) -> None:
    first, second = Process(topic, clock, "here"), Process(topic, clock, "there")
    first.beat()
    second.beat()
    clock.now += 6
    second.beat()
    second.heartbeats.release()
    first.beat()
    assert first.claim.is_held
    assert first.claim.times_taken == 2


def test_recreated_topic_counts_as_taken_over(topic: Topic, clock: Clock) -> None:
    first = Process(topic, clock, "here")
    first.beat()
    topic.is_gone = True
    clock.now += 6
    assert not first.beat()
    topic.is_gone = False
    topic.records.clear()
    assert first.beat()
    assert first.claim.times_taken == 2


def test_deleted_topic_is_created_again_and_flow_claimed(clock: Clock) -> None:
    """Claims of an earlier process of this host were read, so the flow is never mirrored without a claim."""
    target = FakeCluster()
    topic = TopicOn(target)
    earlier = Process(topic, clock, "here before", target=target)
    earlier.beat()
    earlier.heartbeats.release()
    active, standby = Process(topic, clock, "here", target=target), Process(topic, clock, "there", target=target)
    for _ in range(3):
        active.beat()
        standby.beat()
        clock.now += 1
    del target.topics["heartbeats"]
    outcomes = []
    for _ in range(20):
        outcomes.append((active.beat(), standby.beat()))
        assert not standby.claim.is_held
        clock.now += 0.5
    assert not all(outcomes[0])
    assert outcomes[-1] == (True, True)
    assert len(target.created) == 2
    assert active.claim.is_held
    assert standby.claim.holder == "here, process 1"


def _with_deleted_topic(clock: Clock) -> tuple[FakeCluster, Process]:
    """Return a target without its heartbeats topic, and a process that claimed the flow there after an earlier one."""
    target = FakeCluster()
    topic = TopicOn(target)
    earlier, active = (Process(topic, clock, host, target=target) for host in ("here before", "here"))
    earlier.beat()
    earlier.heartbeats.release()
    active.beat()
    del target.topics["heartbeats"]
    return target, active


def test_single_process_claims_flow_in_topic_that_was_deleted(clock: Clock) -> None:
    target, active = _with_deleted_topic(clock)
    for _ in range(10):
        active.beat()
        clock.now += 1
    assert active.claim.is_held
    assert active.claim.times_taken == 2, "claims in the deleted topic may have been missed"
    assert len(target.created) == 2


def test_deleted_topic_that_cannot_be_created_again_is_reported(clock: Clock) -> None:
    target, active = _with_deleted_topic(clock)
    target.rejects["heartbeats"] = rejection("TOPIC_AUTHORIZATION_FAILED")
    for _ in range(10):
        active.beat()
        clock.now += 1
    assert not active.claim.is_held
    assert "heartbeats could not be created with" in active.claim.problem


def test_late_renewal_of_suspended_holder_has_no_effect(topic: Topic, clock: Clock) -> None:
    first, second, third = (Process(topic, clock, host) for host in ("here", "there", "elsewhere"))
    first.beat()
    late = topic.records[0]
    second.beat()
    clock.now += 6
    second.beat()
    topic.records.append(late)
    third.beat()
    assert third.claim.holder == "there, process 1"


def test_of_two_claims_at_the_same_time_the_first_wins(topic: Topic, clock: Clock) -> None:
    """A process may be suspended after it has read that nobody holds the flow, and write its claim much later."""
    first, second, third = (Process(topic, clock, host) for host in ("here", "there", "elsewhere"))
    claims = [(each, each.claimant.headers()) for each in (first, second)]
    for each, headers in claims:
        assert headers is not None
        each.link.write("heartbeats", [Record(key=b"k", value=b"v", timestamp=0, headers=headers)])
        each.claimant.confirm(clock.now)
    assert (first.claim.is_held, second.claim.is_held) == (True, False)
    for each in (second, third):
        each.beat()
        assert each.claim.holder == "here, process 1"
    for _ in range(10):
        clock.now += 1
        first.beat()
        assert first.claim.is_held
        second.beat()
        assert not second.claim.is_held


def test_claim_without_effect_does_not_mislead_a_process_that_missed_the_first(topic: Topic, clock: Clock) -> None:
    """The claim before it may be too far back to read."""
    first, second, third = (Process(topic, clock, host) for host in ("here", "there", "elsewhere"))
    headers = second.claimant.headers()
    assert headers is not None
    first.beat()
    second.link.write("heartbeats", [Record(key=b"k", value=b"v", timestamp=0, headers=headers)])
    topic.records[0] = topic.records[0]._replace(headers=())
    for _ in range(10):
        third.beat()
        assert not third.claim.is_held
        clock.now += 1
        first.beat()
        assert first.claim.is_held


def test_holder_without_target_claims_again_later(topic: Topic, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    first = Process(topic, clock, "here")
    first.beat()
    first.link.error = ConnectionLostError("b:1 does not answer")
    clock.now += 3
    assert not first.beat()
    assert first.claim.is_held
    clock.now += 2
    assert not first.beat()
    assert not first.claim.is_held
    assert first.claim.problem == ""
    clock.now += 5
    assert not first.beat()
    assert "b:1 does not answer" in first.claim.problem
    first.link.error = None
    assert first.beat()
    assert first.claim.is_held
    assert first.claim.times_taken == 1, "no other process mirrored the flow, so the tasks continue"
    assert "A->B: copying was interrupted, because no heartbeat was acknowledged for 4 s" in caplog.text


def test_hidden_claims_are_waited_for(topic: Topic, clock: Clock) -> None:
    first, second = Process(topic, clock, "here"), Process(topic, clock, "there")
    first.beat()
    topic.hidden = 1
    assert not second.beat()
    assert not second.claim.is_held
    topic.hidden = 0
    assert second.beat()
    assert second.claim.holder == "here, process 1"


@pytest.mark.parametrize("reason", ["heartbeats: TOPIC_AUTHORIZATION_FAILED", "INVALID_REPLICATION_FACTOR"])
def test_rejected_heartbeats_leave_flow_unclaimed(
    topic: Topic, clock: Clock, caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    first = Process(topic, clock, "here")
    first.link.error = ConnectionLostError(reason)
    first.beat()
    assert first.claim.left_s == math.inf
    assert next(record.getMessage() for record in caplog.records if record.levelno == logging.WARNING) == (
        f"A->B: a second process that mirrors this flow would not stand by, but copy the same records: {reason}"
    )


def test_unreadable_topic_leaves_flow_unclaimed_with_heartbeats(topic: Topic, clock: Clock) -> None:
    first = Process(topic, clock, "here")
    topic.is_gone = True
    assert not first.beat()
    assert not first.claim.is_held
    clock.now += 5
    assert first.beat()
    assert first.claim.left_s == math.inf
    assert [record.headers for record in topic.records] == [()]


def test_rejected_standby_never_mirrors_unclaimed(topic: Topic, clock: Clock) -> None:
    first, second = Process(topic, clock, "here"), Process(topic, clock, "there")
    first.beat()
    second.beat()
    second.link.error = ConnectionLostError("TOPIC_AUTHORIZATION_FAILED")
    clock.now += 60
    assert not second.beat()
    assert not second.claim.is_held


def test_flows_are_claimed_independently(topic: Topic, clock: Clock) -> None:
    first, back = Process(topic, clock, "here"), Process(topic, clock, "there", flow="B->A")
    first.beat()
    back.beat()
    assert first.claim.is_held
    assert back.claim.is_held


def test_flows_of_one_name_with_other_identities_are_claimed_independently(topic: Topic, clock: Clock) -> None:
    # given
    first = Process(topic, clock, "here.example.com", identity="1111")
    other = Process(topic, clock, "there", identity="2222")
    standby = Process(topic, clock, "away", identity="1111")
    # when
    for _ in range(20):
        for process in (first, other, standby):
            process.beat()
        clock.now += 1
    # then
    assert [process.claim.is_held for process in (first, other, standby)] == [True, True, False]
    assert standby.claim.holder == "here.example.com, process 1"
    # when
    clock.now += 6
    other.beat()
    standby.beat()
    # then
    assert (other.claim.is_held, standby.claim.is_held) == (True, True)


@pytest.mark.parametrize(("first", "second"), [("", "2222"), ("2222", "2222")])
def test_process_of_an_older_klamm_and_a_newer_one_stand_by_for_each_other(
    topic: Topic, clock: Clock, first: str, second: str
) -> None:
    """The older one has no identity, so its claim counts for all flows of the name."""
    holder, standby = (
        Process(topic, clock, "here", identity=first),
        Process(topic, clock, "there", identity=second),
    )
    holder.beat()
    standby.beat()
    assert (holder.claim.is_held, standby.claim.is_held) == (True, False)
    (record,) = topic.records
    flow, *others = bytes(dict(record.headers)["klamm.mirror.claim"] or b"").decode().split("\n")
    assert (flow, len(others)) == ("A->B", 3), "what an older klamm reads"


def test_heartbeat_without_claim_is_ignored(topic: Topic, clock: Clock) -> None:
    Heartbeats(PAIRS["A->B"], FakeCluster(), topic).beat()
    for value in (b"", b"A->B\nx\n-1\n5500", b"A->B\nx\n1", b"\xff"):
        record = Record(key=b"k", value=b"v", timestamp=0, headers=(("klamm.mirror.claim", value),))
        topic.records.append(record)
    first = Process(topic, clock, "here")
    first.beat()
    assert first.claim.is_held

"""The fetcher of a copier over connections in memory, with a clock of the test: each answer of a source as a row."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, cast
from uuid import UUID

import pytest

from klamm.kafka_client.data.batches import ProducerStamp
from klamm.kafka_client.errors import ConnectionLostError
from klamm.mirror.copy.fetcher import Fetcher, FetchThrottle
from klamm.mirror.copy.partition import PartitionCopy, PartitionId
from klamm.mirror.progress.partition_progress import CopyState
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.fetch import FetchResponse
from klamm.protocol.primitives import ZERO_UUID
from klamm.protocol.records import Record, encode_batch
from tests.support.copiers import copy_settings
from tests.support.fake_data_path import Asked, FakeSource

if TYPE_CHECKING:
    from klamm.kafka_client.data.cluster import Cluster

T_ID = UUID(int=7)
OTHER_ID = UUID(int=8)
EVEN, ODD, CAUGHT_UP = 0, 1, 2
LEADER, NEXT_LEADER, REPLICA = 1, 2, 3


class Rig:
    """A fetcher of the topic ``t``, which node 1 leads."""

    def __init__(self, *partitions: int, continue_after_loss: bool = False, start: int = 0, epoch: int = -1) -> None:
        self.now = 0.0
        self.source = FakeSource(leaders={"t": LEADER}, topic_ids={"t": T_ID})
        self.recreated: list[tuple[str, int]] = []
        self.copies = {
            ("t", n): PartitionCopy(PartitionId("t", n, "A.t"), start_offset=start, committed=True, leader_epoch=epoch)
            for n in partitions
        }
        self.active: dict[tuple[str, int], PartitionCopy] = {}
        self.throttle = FetchThrottle()
        self.continue_after_loss = continue_after_loss
        self.request_timeout_s = 30.0
        self.fetcher = self.new_fetcher(T_ID)

    def new_fetcher(self, topic_id: UUID) -> Fetcher:
        """Return a fetcher of all partitions of a topic with this id."""
        settings = copy_settings("a:1", "b:1", alias="A", continue_after_loss=self.continue_after_loss)
        source = replace(settings.source, request_timeout_s=self.request_timeout_s)
        fetcher = Fetcher(
            replace(settings, source=source),
            cast("Cluster", self.source),
            self.copies,
            self.active,
            lambda: self.now,
            on_recreated=self.recreated.extend,
            target_is_far=lambda: False,
            throttle=self.throttle,
        )
        for key in self.copies:
            fetcher.add(key, topic_id)
        return fetcher

    @property
    def copy(self) -> PartitionCopy:
        return self.copies["t", 0]

    def send(self, *, after_s: float = 0.0) -> list[Asked]:
        """Let the fetcher send, and return the requests."""
        self.now += after_s
        self.fetcher.send(self.now)
        return self.source.take_asked()

    def caught_up(self, *, session_id: int = 5) -> Asked:
        """Bring all partitions into the session. Return the request of the session that is in flight."""
        for fetch in self.send():
            fetch.answer(empty(fetch, end=self.copy.fetch_offset))
        (session,) = self.send()
        session.answer(FetchResponse(session_id=session_id, responses=[]))
        (session,) = self.send()
        return session


def partitions_of(fetch: Asked) -> list[int]:
    return [each.partition for topic in fetch.request.topics for each in topic.partitions]


def response(*partitions: FetchResponse.PartitionData, session_id: int = 0) -> FetchResponse:
    topic = FetchResponse.FetchableTopicResponse(topic_id=T_ID, topic="t", partitions=list(partitions))
    return FetchResponse(session_id=session_id, responses=[topic])


def part(
    index: int = 0, *, end: int = 0, records: bytes = b"", error: int = 0, **more: Any
) -> FetchResponse.PartitionData:
    return FetchResponse.PartitionData(
        partition_index=index,
        error_code=error,
        high_watermark=end,
        last_stable_offset=end,
        records=records,
        aborted_transactions=None,
        **more,
    )


def empty(fetch: Asked, *, end: int = 0) -> FetchResponse:
    return response(*(part(index, end=end) for index in partitions_of(fetch)))


def batch(base_offset: int, count: int = 1, *, value: bytes = b"v") -> bytes:
    return bytes(encode_batch([Record(key=None, value=value, offset=base_offset + n) for n in range(count)]))


def test_lagging_partitions_are_fetched_by_parity_without_session() -> None:
    rig = Rig(0, 1, 2)
    even, odd = rig.send()
    assert (even.lane, odd.lane) == (EVEN, ODD)
    assert (sorted(partitions_of(even)), partitions_of(odd)) == ([0, 2], [1])
    assert (even.request.session_epoch, even.request.max_wait_ms) == (-1, 20)
    assert rig.send() == []  # one request per lane


def test_caught_up_partitions_share_fetch_session_and_long_poll() -> None:
    rig = Rig(0, 1)
    for fetch in rig.send():
        fetch.answer(empty(fetch))
    (first,) = rig.send()
    assert (first.lane, first.request.session_epoch, sorted(partitions_of(first))) == (CAUGHT_UP, 0, [0, 1])
    assert first.request.max_wait_ms == 50  # that of the settings
    first.answer(FetchResponse(session_id=9, responses=[]))
    (second,) = rig.send()
    assert (second.request.session_id, second.request.session_epoch, partitions_of(second)) == (9, 1, [])


def test_lagging_partitions_rotate_in_request() -> None:
    rig = Rig(0, 2, 4)
    firsts = set()
    for _ in range(3):
        (fetch,) = rig.send()
        firsts.add(partitions_of(fetch)[0])
        fetch.answer(empty(fetch, end=100))
    assert firsts == {0, 2, 4}


def test_partition_leaves_session_while_it_lags() -> None:
    rig = Rig(0)
    session = rig.caught_up()
    session.answer(response(part(end=10, records=batch(0, 3)), session_id=5))
    assert rig.active == {("t", 0): rig.copy}
    assert (rig.copy.fetch_offset, rig.copy.end_offset, len(rig.copy.pending)) == (3, 10, 1)
    (behind,) = rig.send()
    assert (behind.lane, behind.request.topics[0].partitions[0].fetch_offset) == (EVEN, 3)


def test_partition_with_full_queue_is_not_fetched() -> None:
    rig = Rig(0)
    (fetch,) = rig.send()
    fetch.answer(response(part(end=10, records=batch(0, value=bytes(2**20)))))
    assert rig.send() == []
    rig.copy.next_batch(ProducerStamp(7, 0))
    assert [partitions_of(each) for each in rig.send()] == [[0]]


@pytest.mark.parametrize(
    ("error", "is_new_session"),
    [
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, True),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, True),
        (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, True),
        (ErrorCode.UNKNOWN_SERVER_ERROR, False),
    ],
)
def test_lost_session_is_reopened_at_once_and_other_errors_back_off(error: ErrorCode, *, is_new_session: bool) -> None:
    rig = Rig(0)
    session = rig.caught_up()
    session.answer(FetchResponse(error_code=error, responses=[]))
    fetches = rig.send()
    assert [each.request.session_epoch for each in fetches] == ([0] if is_new_session else [])
    assert rig.copy.state is (CopyState.COPYING if is_new_session else CopyState.WAITING)
    if not is_new_session:
        assert error.name in rig.copy.reason
        (again,) = rig.send(after_s=1.0)
        assert (again.request.session_epoch, partitions_of(again)) == (0, [0])


def test_not_leader_error_refreshes_metadata_and_fetches_from_new_leader() -> None:
    rig = Rig(0)
    (fetch,) = rig.send()
    rig.source.refreshed.clear()
    fetch.answer(response(part(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)))
    assert (rig.copy.state, rig.send()) == (CopyState.WAITING, [])
    rig.source.leaders["t"] = NEXT_LEADER
    (fetch,) = rig.send(after_s=0.3)
    assert (rig.source.refreshed, fetch.node) == ([["t"]], NEXT_LEADER)
    fetch.answer(empty(fetch))
    assert rig.copy.state is CopyState.COPYING


def test_consecutive_failures_back_off_up_to_one_second() -> None:
    rig = Rig(0)
    waits = []
    for _ in range(5):
        (fetch,) = rig.send(after_s=1.0)
        fetch.answer(response(part(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)))
        waits.append(round(rig.copy.retry_at - rig.now, 1))
    assert waits == [0.2, 0.4, 0.8, 1.0, 1.0]


def test_partition_waits_from_the_end_of_an_attempt_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    rig = Rig(0)

    def block(*_: int) -> NoReturn:
        rig.now += 15.0
        raise ConnectionLostError("h:1: timed out")

    monkeypatch.setattr(rig.source, "connection", block)
    # when
    rig.send()
    # then
    assert (rig.now, rig.copy.retry_at) == (15.0, 15.2)
    assert rig.copy.reason == "source: h:1: timed out"


def test_session_partitions_follow_their_leader() -> None:
    rig = Rig(0)
    rig.caught_up()
    rig.source.leaders["t"] = NEXT_LEADER
    fetches = rig.send(after_s=301.0)  # all metadata are refreshed every five minutes
    assert [(each.node, partitions_of(each)) for each in fetches] == [(NEXT_LEADER, [0])]


def test_partition_without_leader_waits_with_reason() -> None:
    rig = Rig(0)
    rig.source.leaders["t"] = None
    assert rig.send() == []
    assert (rig.copy.state, rig.copy.reason) == (CopyState.WAITING, "no leader on the source")


def test_recreated_topic_is_reported() -> None:
    rig = Rig(0)
    rig.send()
    rig.source.topic_ids["t"] = OTHER_ID
    rig.send(after_s=301.0)
    assert rig.recreated == [("t", 0)]


def test_recreated_topic_without_topic_id_is_fetched_with_its_own_epoch_after_a_while() -> None:
    """Before Kafka 2.8 a lower epoch is all that shows it. Its log end or epoch then shows the loss."""
    # given
    rig = Rig(0, start=50, epoch=5)
    rig.fetcher = rig.new_fetcher(ZERO_UUID)
    rig.source.topic_ids["t"] = ZERO_UUID
    rig.source.epochs["t"] = 0
    # when
    epochs = []
    for _ in range(31):
        (fetch,) = rig.send(after_s=2)
        epochs.append(fetch.request.topics[0].partitions[0].current_leader_epoch)
        fetch.answer(response(part(error=ErrorCode.UNKNOWN_LEADER_EPOCH)))
    # then
    assert epochs == [5] * 30 + [0]


def test_recreated_topic_is_reported_for_partitions_with_the_former_id() -> None:
    rig = Rig(0, 2)
    rig.source.topic_ids["t"] = OTHER_ID
    rig.fetcher.add(("t", 2), OTHER_ID)
    topics = [topic for fetch in rig.send() for topic in fetch.request.topics]
    partitions = {topic.topic_id: [entry.partition for entry in topic.partitions] for topic in topics}
    assert partitions == {T_ID: [0], OTHER_ID: [2]}
    assert rig.recreated == [("t", 0)]


@pytest.mark.parametrize("continues", [False, True], ids=["stop", "continue"])
def test_purged_records_stop_partition_or_are_skipped(caplog: pytest.LogCaptureFixture, *, continues: bool) -> None:
    rig = Rig(0, continue_after_loss=continues, start=10)
    rig.source.log_start, rig.source.log_end = 40, 90
    (fetch,) = rig.send()
    with caplog.at_level(logging.WARNING):
        fetch.answer(response(part(error=ErrorCode.OFFSET_OUT_OF_RANGE)))
    if continues:
        assert (rig.copy.fetch_offset, rig.copy.state) == (40, CopyState.COPYING)
        assert "offsets 10 to 39 were purged" in caplog.text
    else:
        assert rig.copy.state is CopyState.STOPPED
        assert rig.copy.reason.startswith("offset 10 is no longer available: the source holds 40 to 90.")
        assert rig.send() == []


@pytest.mark.parametrize("continues", [False, True], ids=["stop", "continue"])
def test_log_end_before_source_offset_is_source_loss(*, continues: bool) -> None:
    rig = Rig(0, continue_after_loss=continues, start=100)
    rig.source.log_start, rig.source.log_end = 5, 60
    (fetch,) = rig.send()
    fetch.answer(response(part(error=ErrorCode.OFFSET_OUT_OF_RANGE)))
    assert rig.copy.state is (CopyState.COPYING if continues else CopyState.STOPPED)
    assert (rig.copy.fetch_offset == 5) is continues


def test_source_loss_is_decided_after_fetched_records_are_acknowledged() -> None:
    """Otherwise records that are in flight would be copied twice after a rewind."""
    rig = Rig(0, continue_after_loss=True, start=100)
    rig.source.log_end = 60
    rig.copy.committed_offset = 90
    (fetch,) = rig.send()
    fetch.answer(response(part(error=ErrorCode.OFFSET_OUT_OF_RANGE)))
    assert (rig.copy.state, rig.copy.fetch_offset) == (CopyState.WAITING, 100)
    rig.copy.committed_offset = 100
    (fetch,) = rig.send(after_s=1.0)
    fetch.answer(response(part(error=ErrorCode.OFFSET_OUT_OF_RANGE)))
    assert rig.copy.fetch_offset == 0


def test_diverging_epoch_rewinds_to_divergence_offset() -> None:
    rig = Rig(0, continue_after_loss=True, start=100, epoch=4)
    rig.source.epochs["t"] = 6
    (fetch,) = rig.send()
    wanted = fetch.request.topics[0].partitions[0]
    assert (wanted.current_leader_epoch, wanted.last_fetched_epoch) == (6, 4)
    diverging = FetchResponse.EpochEndOffset(epoch=3, end_offset=70)
    fetch.answer(response(part(end=120, diverging_epoch=diverging)))
    assert (rig.copy.fetch_offset, rig.copy.last_fetched_epoch) == (70, 3)


def test_epoch_that_was_never_fetched_is_compared_with_the_one_before() -> None:
    """The leader of epoch 2 was away while 3 led, as the one of 3 while 2 led. Both were elected uncleanly.

    Offsets 5 to 14 of epoch 2 were never fetched: 5 to 9 were of epoch 1, the others of 3.
    """
    rig = Rig(0, continue_after_loss=True, start=20)
    for first_offset, epoch in ((0, 1), (10, 3)):
        rig.copy._epochs.begin(first_offset, epoch)
    rig.copy._epochs.forget_before(20)
    for epoch, end_offset, resumes_at in ((2, 15, (10, 1)), (1, 5, (5, 1))):
        (fetch,) = rig.send(after_s=1.0)
        assert fetch.request.topics[0].partitions[0].last_fetched_epoch == rig.copy.last_fetched_epoch
        # when
        diverging = FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end_offset)
        fetch.answer(response(part(end=30, diverging_epoch=diverging, log_start_offset=0)))
        # then
        assert (rig.copy.fetch_offset, rig.copy.last_fetched_epoch) == resumes_at
        rig.copy.committed_offset = rig.copy.acked_offset


@pytest.mark.parametrize(("end_offset", "last_epoch"), [(70, 4), (20, -1)], ids=["common", "not common"])
def test_epoch_that_the_source_does_not_have_ends_at_its_log_start(end_offset: int, last_epoch: int) -> None:
    """LeaderEpochFileCache.endOffsetFor of an epoch before all that it has."""
    rig = Rig(0, continue_after_loss=True, start=100, epoch=4)
    (fetch,) = rig.send()
    diverging = FetchResponse.EpochEndOffset(epoch=4, end_offset=end_offset)
    fetch.answer(response(part(end=120, diverging_epoch=diverging, log_start_offset=20)))
    assert (rig.copy.fetch_offset, rig.copy.last_fetched_epoch) == (end_offset, last_epoch)


def test_stale_metadata_does_not_lower_fetched_epoch() -> None:
    rig = Rig(0, start=100, epoch=9)
    rig.source.epochs["t"] = 6
    (fetch,) = rig.send()
    assert fetch.request.topics[0].partitions[0].current_leader_epoch == 9


def test_preferred_read_replica_is_used_until_it_fails() -> None:
    """KIP-392."""
    rig = Rig(0)
    (fetch,) = rig.send()
    fetch.answer(response(part(end=10, preferred_read_replica=REPLICA)))
    (fetch,) = rig.send()
    assert fetch.node == REPLICA
    fetch.answer(response(part(error=ErrorCode.OFFSET_OUT_OF_RANGE)))
    assert rig.copy.state is CopyState.WAITING  # a follower that lags is no loss
    (fetch,) = rig.send(after_s=0.3)
    assert fetch.node == LEADER


def test_unavailable_preferred_read_replica_is_dropped() -> None:
    rig = Rig(0)
    (fetch,) = rig.send()
    fetch.answer(response(part(end=10, preferred_read_replica=REPLICA)))
    rig.send()
    rig.source.connections[REPLICA, EVEN].closed = True
    rig.fetcher.sweep(rig.now)
    (fetch,) = rig.send()
    assert fetch.node == LEADER


def test_response_for_outdated_offset_is_dropped() -> None:
    rig = Rig(0)
    (fetch,) = rig.send()
    rig.copy.skip_to(7)
    fetch.answer(response(part(end=10, records=batch(0, 3))))
    assert (rig.copy.fetch_offset, len(rig.copy.pending)) == (7, 0)


def test_corrupt_batch_stops_only_its_partition() -> None:
    rig = Rig(0, 2)
    (fetch,) = rig.send()
    damaged = bytearray(batch(0))
    damaged[-1] ^= 1
    fetch.answer(response(part(end=9, records=bytes(damaged)), part(2, end=9, records=batch(0))))
    assert rig.copies["t", 0].state is CopyState.STOPPED
    assert "a batch of the source is damaged" in rig.copies["t", 0].reason
    assert rig.copies["t", 2].fetch_offset == 1


def test_batches_before_corrupt_one_are_copied() -> None:
    # given
    rig = Rig(0)
    damaged = bytearray(batch(1))
    damaged[-1] ^= 1
    (fetch,) = rig.send()
    # when
    fetch.answer(response(part(end=9, records=batch(0) + bytes(damaged))))
    # then
    assert (rig.copy.state, rig.copy.fetch_offset, len(rig.copy.pending)) == (CopyState.COPYING, 1, 1)
    assert not rig.send(after_s=5.0), "nothing is fetched behind the damage meanwhile"
    # when
    outgoing = rig.copy.next_batch(ProducerStamp(1, 0))
    rig.copy.acknowledge(outgoing)
    rig.copy.committed_offset = 1
    (fetch,) = rig.send()
    fetch.answer(response(part(end=9, records=bytes(damaged))))
    # then
    assert (rig.copy.state, rig.copy.acked_offset) == (CopyState.STOPPED, 1)


def test_corruption_in_transit_is_fixed_by_refetch() -> None:
    rig = Rig(0)
    damaged = bytearray(batch(1))
    damaged[-1] ^= 1
    (fetch,) = rig.send()
    fetch.answer(response(part(end=2, records=batch(0) + bytes(damaged))))
    rig.copy.acknowledge(rig.copy.next_batch(ProducerStamp(1, 0)))
    rig.copy.committed_offset = 1
    # when
    (fetch,) = rig.send()
    fetch.answer(response(part(end=2, records=batch(1))))
    # then
    assert (rig.copy.state, rig.copy.fetch_offset) == (CopyState.COPYING, 2)


def test_fetch_without_progress_for_the_request_timeout_waits_with_reason(caplog: pytest.LogCaptureFixture) -> None:
    # given
    rig = Rig(0)
    rig.send()
    rig.source.connections[LEADER, EVEN].silence_s = 41.0
    # when
    rig.fetcher.sweep(rig.now)
    # then
    reason = "no byte from node 1 of the source for 40 s after a fetch"
    assert (rig.copy.state, rig.copy.reason, rig.send()) == (CopyState.WAITING, reason, [])
    assert f"A->B: {reason}; the fetch is repeated" in caplog.text
    assert [partitions_of(each) for each in rig.send(after_s=0.3)] == [[0]]


def test_fetch_session_without_progress_lets_its_partitions_wait() -> None:
    # given
    rig = Rig(0, 1)
    rig.caught_up()
    rig.source.connections[LEADER, CAUGHT_UP].silence_s = 41.0
    # when
    rig.fetcher.sweep(rig.now)
    # then
    assert {copy.state for copy in rig.copies.values()} == {CopyState.WAITING}
    (session,) = rig.send(after_s=0.3)
    assert sorted(partitions_of(session)) == [0, 1]


def test_slow_fetch_is_not_repeated_while_bytes_arrive() -> None:
    # given
    rig = Rig(0)
    rig.send()
    # when
    rig.now += 300.0
    rig.fetcher.sweep(rig.now)
    # then
    assert (rig.copy.state, rig.send()) == (CopyState.COPYING, [])


def test_request_timeout_of_consumer_limits_the_silence_after_a_fetch() -> None:
    # given
    rig = Rig(0)
    rig.request_timeout_s = 120.0
    rig.fetcher = rig.new_fetcher(T_ID)
    rig.send()
    # when
    rig.source.connections[LEADER, EVEN].silence_s = 129.0
    rig.fetcher.sweep(rig.now)
    # then
    assert rig.copy.state is CopyState.COPYING
    # when
    rig.source.connections[LEADER, EVEN].silence_s = 131.0
    rig.fetcher.sweep(rig.now)
    # then
    assert rig.copy.reason == "no byte from node 1 of the source for 130 s after a fetch"


def test_new_session_after_lost_connection_names_all_partitions() -> None:
    rig = Rig(0, 1)
    rig.caught_up()
    rig.source.connections[LEADER, CAUGHT_UP].closed = True
    rig.fetcher.sweep(rig.now)
    (session,) = rig.send()
    assert (session.request.session_id, session.request.session_epoch) == (0, 0)
    assert sorted(partitions_of(session)) == [0, 1]


def test_response_of_ended_session_is_dropped() -> None:
    rig = Rig(0)
    session = rig.caught_up()
    rig.fetcher.ask_for_all()
    session.answer(response(part(end=10, records=batch(0, 3)), session_id=5))
    assert (rig.copy.fetch_offset, len(rig.copy.pending)) == (0, 0)


def test_partition_added_again_leaves_session() -> None:
    rig = Rig(0)
    rig.caught_up()
    rig.fetcher.add(("t", 0), T_ID)
    assert [each.lane for each in rig.send()] == [EVEN]


def test_old_brokers_get_topic_names() -> None:
    rig = Rig(0)
    rig.source.version = 11
    (fetch,) = rig.send()
    assert (fetch.version, fetch.request.topics[0].topic) == (11, "t")
    fetch.answer(response(part(end=10, records=batch(0, 3))))
    assert rig.copy.fetch_offset == 3


def test_throttle_limits_bytes_over_all_partitions_of_copier() -> None:
    rig = Rig(0, 1, 2, 3)
    rig.throttle.limit = 1_000_000
    content = batch(0, value=b"v" * 10_000)
    copied = 0
    while rig.now < 10.0:
        for fetch in rig.send(after_s=0.005):
            assert fetch.request.max_bytes <= 500_000
            entries = []
            room = fetch.request.max_bytes
            for index in partitions_of(fetch):
                offset = rig.copies["t", index].fetch_offset
                records = batch(offset, value=b"v" * 10_000) if room > 0 else b""
                room -= len(content)
                copied += len(records)
                entries.append(part(index, end=offset + 1000, records=records))
            fetch.answer(response(*entries))
        for copy in rig.copies.values():
            while copy.pending:
                copy.pending.popleft()
            copy.pending_bytes = 0
    assert copied == pytest.approx(10_000_000, rel=0.1)


def test_response_of_fetch_before_limit_is_not_charged() -> None:
    rig = Rig(0)
    (fetch,) = rig.send()
    rig.throttle.limit = 1
    fetch.answer(response(part(end=9, records=batch(0))))
    rig.throttle.wait_s(rig.now)
    assert rig.throttle.wait_s(rig.now) == pytest.approx(0.05)


def test_paused_topic_is_not_fetched_until_it_is_resumed() -> None:
    rig = Rig(0, 1)
    session = rig.caught_up()
    rig.fetcher.pause(frozenset({"t"}))
    session.answer(response(part(end=10, records=batch(0, 3)), session_id=5))
    assert rig.copy.fetch_offset == 0  # the broker was told to forget the partition
    assert [partitions_of(fetch) for fetch in rig.send(after_s=1.0)] == []
    rig.fetcher.pause(frozenset())
    assert sorted(number for fetch in rig.send() for number in partitions_of(fetch)) == [0, 1]


def test_lagging_partition_is_paused_after_fetch_in_flight() -> None:
    rig = Rig(0)
    (fetch,) = rig.send()
    rig.fetcher.pause(frozenset({"t", "others"}))
    fetch.answer(response(part(end=10, records=batch(0, 3))))
    assert (rig.copy.fetch_offset, rig.send(after_s=1.0)) == (3, [])
    rig.fetcher.pause(frozenset({"others"}))
    (fetch,) = rig.send()
    assert fetch.request.topics[0].partitions[0].fetch_offset == 3


MB = 1_000_000
SECONDS = 10
FETCH_BYTES = 8 * MB


def fetch_for(throttle: FetchThrottle, seconds: float, *, batch: int, now: float = 0.0) -> tuple[int, int]:
    """Fetch whenever the throttle allows it, always whole batches and at least one. Return bytes and loop iterations.

    The clock moves as in the copier: by the time that it waits for sockets, in whole milliseconds.
    """
    end, copied, turns = now + seconds, 0, 0
    while now < end:
        turns += 1
        wait_s = throttle.wait_s(now)
        if wait_s > 0:
            now += math.ceil(min(wait_s, 0.1) * 1000) / 1000
            continue
        size = max(1, throttle.largest(FETCH_BYTES, 1) // batch) * batch
        throttle.charge(size)
        copied += size
        now += 0.001
    return copied, turns


@pytest.mark.parametrize("batch", [100, 16_384, MB // 8])
@pytest.mark.parametrize("limit", [MB, 20 * MB, 200 * MB])
def test_average_is_within_ten_percent_over_ten_seconds(limit: int, batch: int) -> None:
    throttle = FetchThrottle()
    throttle.limit = limit
    copied, _ = fetch_for(throttle, SECONDS, batch=batch)
    assert copied == pytest.approx(limit * SECONDS, rel=0.1)


def test_idle_time_gives_half_a_second_of_credit_at_most() -> None:
    throttle = FetchThrottle()
    throttle.limit = MB
    throttle.wait_s(0.0)
    throttle.wait_s(3600.0)
    assert throttle.largest(FETCH_BYTES, 1) == MB // 2


def test_batch_larger_than_limit_delays_next_fetch() -> None:
    throttle = FetchThrottle()
    throttle.limit = 1000
    copied, turns = fetch_for(throttle, 100, batch=16_384)
    assert copied == pytest.approx(100_000, abs=16_384)
    assert turns < 1100  # one per 0.1 s


def test_throttled_copier_does_not_spin() -> None:
    throttle = FetchThrottle()
    throttle.limit = 20 * MB
    _, turns = fetch_for(throttle, SECONDS, batch=100)
    assert turns <= SECONDS * 2 * 20 + 2  # a wait and a fetch, twenty times a second


def test_new_limit_applies_at_once() -> None:
    throttle = FetchThrottle()
    throttle.limit = MB
    fetch_for(throttle, SECONDS, batch=100)
    throttle.limit = 5 * MB
    copied, _ = fetch_for(throttle, SECONDS, batch=100, now=float(SECONDS))
    assert copied == pytest.approx(5 * MB * SECONDS, rel=0.1)


def test_lower_limit_does_not_prolong_earlier_debt() -> None:
    throttle = FetchThrottle()
    throttle.limit = 100 * MB
    throttle.wait_s(0.0)
    throttle.charge(8 * MB)
    throttle.limit = 1000
    assert throttle.wait_s(0.0) == pytest.approx(0.13)


def test_unlimited_throttle_delays_no_fetch() -> None:
    throttle = FetchThrottle()
    throttle.charge(FETCH_BYTES)
    assert (throttle.wait_s(0.0), throttle.largest(FETCH_BYTES, 3)) == (0.0, FETCH_BYTES)

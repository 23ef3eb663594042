"""Pace of the promotions of a copier that is connected to nothing."""

from __future__ import annotations

import threading
import time
from concurrent.futures import wait
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest.mock import MagicMock
from uuid import UUID

import pytest

from klamm.admin import TopicPartition
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.errors import ConnectionLostError
from klamm.kraft.image import NO_LEADER, BrokerEndpoint
from klamm.mirror.copy.equal_offsets import ReplicaSettings
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.copy.source_offset_store import StoredSourceOffsets
from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.records.source_offsets import EpochFloor, SourceOffset, StoredPromotion
from klamm.mirror.replica import source_logs
from klamm.mirror.replica.copier import ReplicaCopier, _Change
from klamm.mirror.replica.errors import PromotionError, PromotionWaitsError
from klamm.mirror.replica.leader_partition import FIRST_FETCH_S, LeaderPartition, Leadership, Presence, ReplicaProgress
from klamm.mirror.replica.promotion import EndedTransactions, HandedOver
from klamm.mirror.replica.source_logs import SourceLogs
from klamm.mirror.replica.start import ReplicaCopy
from klamm.mirror.replica.window import Window
from klamm.server.listeners import Address
from tests.support.copiers import copy_settings
from tests.support.replicas import FakeMember, image_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KLAMM = 9
REMOTE = TopicPartition("A.orders", 0)
_NOWHERE = "127.0.0.1:1"


class Clock:
    """Time of the copier."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def copier(clock: Clock) -> Iterator[ReplicaCopier]:
    endpoint = BrokerEndpoint(name="PLAINTEXT", host="127.0.0.1", port=1, security_protocol="PLAINTEXT")
    replica = ReplicaSettings(
        node_id=KLAMM,
        controllers=ConnectionSettings(bootstrap_servers=(), client_id="replica"),
        listeners=(endpoint,),
        bind=(Address(host="127.0.0.1", port=1),),
    )
    member = FakeMember(image_of("A.orders", UUID(int=7), KLAMM, (1, 2, 3)), KLAMM)
    partitions = [PartitionId("orders", 0, "A.orders")]
    settings = copy_settings(_NOWHERE, _NOWHERE, alias="A")
    copier = ReplicaCopier(settings, replica, partitions, new_member=lambda: member, clock=clock)
    copier.node.member = member
    copier.promoted = {"orders": "FAILED_OVER"}
    yield copier
    copier.close()
    copier.node._loop.close()  # it has never run


def waiting(copier: ReplicaCopier) -> dict[str, str]:
    """Return the topics that are not promoted or demoted yet, with the reason."""
    return {topic: change.reason for topic, change in copier._changes.items() if change.reason}


def attempts(copier: ReplicaCopier, clock: Clock, error: Exception, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the times in seconds at which a copier tries to hand a topic over in a minute, which fails."""
    begin, times = clock.now, list[float]()

    def hand_over(*_: object, **__: object) -> None:
        times.append(clock.now - begin)
        raise error

    monkeypatch.setattr(copier._promotion, "hand_over", hand_over)
    monkeypatch.setattr(copier._store, "read", StoredSourceOffsets)
    while clock.now < begin + 60:
        copier._change_leaders(clock.now)
        clock.now += 0.5
    return times


def test_failed_promotion_is_tried_again_after_longer_and_longer_pauses(
    copier: ReplicaCopier, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = attempts(copier, clock, PromotionError("replica 2 is slow"), monkeypatch)

    assert times == [0, 0.5, 1.5, 3.5, 7.5, 15.5, 31.5]
    copier.promoted = {}
    copier._change_leaders(clock.now)
    copier.promoted = {"orders": "FAILED_OVER"}
    assert attempts(copier, clock, PromotionError("replica 2 is slow"), monkeypatch)[:2] == [0.5, 1.0]


def test_promotion_that_seals_nothing_is_tried_again_soon(
    copier: ReplicaCopier, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = attempts(copier, clock, PromotionWaitsError("replica 2 is not live"), monkeypatch)

    assert len(times) == 120


@pytest.mark.parametrize("is_finished", [True, False])
@pytest.mark.parametrize("topic_id", [UUID(int=7), UUID(int=8)])
def test_finished_promotion_and_one_of_another_topic_id_are_not_repeated(
    copier: ReplicaCopier,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    topic_id: UUID,
    *,
    is_finished: bool,
) -> None:
    aborts = list[object]()

    def end_transactions(ends: object) -> None:
        aborts.append(ends)
        raise PromotionError("broker 1 is away")

    stored = StoredSourceOffsets(
        offsets={("orders", 0): 2}, promotions={"orders": StoredPromotion(topic_id, is_finished)}
    )
    monkeypatch.setattr(copier._store, "read", lambda: stored)
    monkeypatch.setattr(copier._promotion, "is_handed_over", lambda _: True)
    monkeypatch.setattr(copier._promotion, "end_transactions", end_transactions)
    copier.node._by_name["A.orders", 0] = LeaderPartition("A.orders", UUID(int=7), 0)

    copier._change_leaders(clock.now)

    is_left_alone = is_finished or topic_id != UUID(int=7)
    assert aborts == ([] if is_left_alone else [{("A.orders", 0): 3}])
    (row,) = copier.progress()
    assert (row.state is CopyState.PROMOTED) == is_left_alone
    assert ("created again" in row.reason) == (topic_id != UUID(int=7))


def test_replicas_that_klamm_may_have_rejected_are_named(copier: ReplicaCopier) -> None:
    nodes, leader = frozenset({1, 2}), LeaderPartition("A.orders", UUID(int=7), 0)
    led_since = time.monotonic() - FIRST_FETCH_S - 1
    leader.lead(Leadership(leader_epoch=0, partition_epoch=0, replicas=nodes, live=nodes), led_since)
    assert copier._missing_replicas(leader) == ""

    copier.node.access.on_rejected("10.0.0.2", "its TLS handshake failed: certificate unknown")

    expected = "replicas 1, 2 do not fetch; klamm rejected 10.0.0.2: its TLS handshake failed: certificate unknown"
    assert copier._missing_replicas(leader) == expected
    leader.lead(Leadership(leader_epoch=1, partition_epoch=1, replicas=nodes, live=nodes), time.monotonic())
    assert copier._missing_replicas(leader) == ""


def logs_of(**ends: int) -> SourceLogs:
    """Return the logs of a source topic with these log ends: ``at_0=3`` is that of partition 0."""
    bounds = {("orders", int(name.removeprefix("at_"))): range(end) for name, end in ends.items()}
    return SourceLogs("source", UUID(int=1), len(bounds), bounds)


def let_source_answer(
    copier: ReplicaCopier, monkeypatch: pytest.MonkeyPatch, read: Callable[[str], SourceLogs]
) -> None:
    """Let the source answer with ``read``. The copier waits until it has."""
    monkeypatch.setattr(source_logs, "_WAIT_S", 60.0)
    monkeypatch.setattr(copier._source_logs, "_read", read)


def let_promote(copier: ReplicaCopier, monkeypatch: pytest.MonkeyPatch, high_watermark: int) -> list[object]:
    """Request the promotion of a topic whose replicas have some records. Return what is handed over."""
    leader = copier.node._by_name[REMOTE] = LeaderPartition("A.orders", UUID(int=7), 0)
    leader.tail, leader.high_watermark = Window(0), high_watermark
    handed_over: list[object] = []

    def hand_over(led: dict[TopicPartition, object], **_: object) -> dict[TopicPartition, HandedOver]:
        handed_over.extend(led)
        return {REMOTE: HandedOver(high_watermark, 0.0, 0.5, 1_000)}

    monkeypatch.setattr(copier._promotion, "is_handed_over", lambda _: bool(handed_over))
    monkeypatch.setattr(copier._promotion, "hand_over", hand_over)
    monkeypatch.setattr(
        copier._promotion, "end_transactions", lambda ends: dict.fromkeys(ends, EndedTransactions(9, 0))
    )
    monkeypatch.setattr(copier._store, "read", StoredSourceOffsets)
    monkeypatch.setattr(copier._store, "write_promotion", MagicMock())
    copier.promoted = {"orders": "PROMOTED"}
    return handed_over


def test_source_that_does_not_respond_holds_up_no_other_topic(
    copier: ReplicaCopier, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    responds = threading.Event()
    handed_over = let_promote(copier, monkeypatch, high_watermark=3)
    monkeypatch.setattr(copier._source_logs, "_read", lambda _: logs_of(at_0=3 if responds.wait(60) else -1))
    reason = "the source has not named the log ends of orders yet"

    for _ in range(3):
        copier._change_leaders(clock.now)
        assert (handed_over, waiting(copier)) == ([], {"orders": reason})
        clock.now += 0.5
    responds.set()
    wait(copier._source_logs._requests.values(), 60)
    copier._change_leaders(clock.now)

    assert (handed_over, waiting(copier)) == ([REMOTE], {})


def test_log_ends_that_were_requested_for_a_withdrawn_promotion_do_not_count_for_the_next_one(
    copier: ReplicaCopier, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    responds, ends = threading.Event(), iter([3, 5])
    handed_over = let_promote(copier, monkeypatch, high_watermark=4)
    monkeypatch.setattr(copier._source_logs, "_read", lambda _: responds.wait(60) and logs_of(at_0=next(ends)))
    copier._change_leaders(clock.now)
    first = tuple(copier._source_logs._requests.values())
    for promoted in ({}, {"orders": "PROMOTED"}):
        copier.promoted = promoted
        clock.now += 0.5
        copier._change_leaders(clock.now)
    responds.set()
    wait((*first, *copier._source_logs._requests.values()), 60)
    clock.now += 0.5
    copier._change_leaders(clock.now)

    assert handed_over == []
    assert waiting(copier) == {"orders": "the replicas of A.orders-0 do not have offset 5 yet"}


def test_topic_that_got_partitions_on_the_source_is_not_promoted(
    copier: ReplicaCopier, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed_over = let_promote(copier, monkeypatch, high_watermark=3)
    let_source_answer(copier, monkeypatch, lambda _: logs_of(at_0=3, at_1=0))

    copier._change_leaders(clock.now)

    assert (handed_over, list(waiting(copier))) == ([], ["orders"])
    assert waiting(copier)["orders"].startswith(
        "orders has 2 partitions on the source, and its remote topic has 1: with"
    )


def test_result_of_a_promotion_names_what_the_source_got_since(
    copier: ReplicaCopier, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_promote(copier, monkeypatch, high_watermark=3)
    logs = iter([logs_of(at_0=3), logs_of(at_0=5, at_1=0)])
    let_source_answer(copier, monkeypatch, lambda _: next(logs))

    copier._change_leaders(clock.now)

    (row,) = copier.progress()
    assert row.state is CopyState.PROMOTED
    assert "the source has 2 offsets and 1 partition more, which are not on the target; 0 open trans" in row.reason


@pytest.mark.parametrize(
    ("bounds", "later"),
    [
        ({"at_0": 5}, "the source has 2 offsets more, which are not on the target; 0 open trans"),
        ({"at_0": 3}, "s; 0 open trans"),
        ({}, "it is not known what the source got since; 0 open trans"),
        (None, "it is not known what the source got since; 0 open trans"),
    ],
)
def test_source_that_responds_late_completes_the_result_of_a_promotion(
    copier: ReplicaCopier,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    bounds: dict[str, int] | None,
    later: str,
) -> None:
    let_promote(copier, monkeypatch, high_watermark=3)
    responds, is_first = threading.Event(), iter([True])

    def read(_: str) -> SourceLogs:
        if next(is_first, False):
            monkeypatch.setattr(source_logs, "_WAIT_S", 0.0)
            return logs_of(at_0=3)
        responds.wait(60)
        if bounds is None:
            raise ConnectionLostError("A is away")
        return logs_of(**bounds)._replace(partitions=1)

    let_source_answer(copier, monkeypatch, read)
    copier._change_leaders(clock.now)
    assert [(row.state, row.reason.partition("; ")[2][:45]) for row in copier.progress()] == [
        (CopyState.PROMOTED, "it is not known what the source got since; 0 ")
    ]
    responds.set()
    wait(copier._source_logs._requests.values(), 60)
    clock.now += 0.5

    copier._change_leaders(clock.now)

    (row,) = copier.progress()
    assert later in row.reason
    assert not copier._changes["orders"].is_unnamed


def test_log_ends_that_were_requested_before_the_log_ended_are_not_its_result(
    copier: ReplicaCopier, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_promote(copier, monkeypatch, high_watermark=3)
    logs = iter([logs_of(at_0=3), logs_of(at_0=4)])
    let_source_answer(copier, monkeypatch, lambda _: next(logs))
    copier._changes["orders"] = _Change("PROMOTED", ends={("orders", 0): 3})
    copier._source_logs._requests["orders"] = copier._source_logs._thread.submit(copier._source_logs._read, "orders")

    copier._change_leaders(clock.now)

    (row,) = copier.progress()
    assert "the source has 1 offset more, which" in row.reason


def test_log_ends_of_a_demotion_that_had_to_wait_are_requested_again(
    copier: ReplicaCopier, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, responds = iter([3, 5]), threading.Event()
    monkeypatch.setattr(copier._source_logs, "_read", lambda _: responds.wait(60) and logs_of(at_0=next(ends)))
    with pytest.raises(PromotionWaitsError):
        copier._source_logs.read("orders")
    responds.set()
    wait(copier._source_logs._requests.values(), 60)
    clock.now += 60
    monkeypatch.setattr(source_logs, "_WAIT_S", 60.0)

    assert copier._source_logs.read("orders").bounds["orders", 0].stop == 5


def test_source_offsets_are_read_once_for_all_topics_that_an_earlier_process_promoted(
    copier: ReplicaCopier, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [f"topic-{number}" for number in range(5)]
    promotions = {topic: StoredPromotion(UUID(int=7), is_finished=True) for topic in topics}
    reads = MagicMock(return_value=StoredSourceOffsets(promotions=promotions))
    monkeypatch.setattr(copier._store, "read", reads)
    monkeypatch.setattr(copier._promotion, "is_handed_over", lambda _: True)
    copier._keys = {(f"A.{topic}", 0): (topic, 0) for topic in topics}
    copier.node._by_name |= {(name, 0): LeaderPartition(name, UUID(int=7), 0) for name, _ in copier._keys}
    copier.promoted = dict.fromkeys(topics, "PROMOTED")

    copier._change_leaders(clock.now)

    assert (len(copier._promoted), reads.call_count) == (5, 1)


def test_promotion_awaits_no_records_that_the_source_has_lost(
    copier: ReplicaCopier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unclean leader election removes records that no replica has yet. Later records do not replace them."""
    leader = LeaderPartition("A.orders", UUID(int=7), 0)
    leader.tail, leader.high_watermark, ends = Window(90), 90, [100, 96, 200, 90]
    copier.node._by_name["A.orders", 0] = leader
    let_source_answer(copier, monkeypatch, lambda _: logs_of(at_0=ends.pop(0)))
    copy = ReplicaCopy(PartitionId("orders", 0, "A.orders"), leader, leader.tail, copier.node, {})
    copier._copies["orders", 0] = copy
    copier._changes["orders"] = _Change("PROMOTED")
    for end, awaited in ((-1, 100), (100, 100), (95, 96), (95, 96), (96, 96)):
        copy.fetched(end_offset=end)
        with pytest.raises(PromotionWaitsError, match=f"the replicas of A.orders-0 do not have offset {awaited} yet"):
            copier._check_ends("orders", {REMOTE: ("orders", 0)})
    copy.fetched(end_offset=90)
    copier._check_ends("orders", {REMOTE: ("orders", 0)})
    assert ends == []


def let_demote(copier: ReplicaCopier, monkeypatch: pytest.MonkeyPatch, **partition: object) -> list[float]:
    """Request that a topic is mirrored again whose partition has this state. Return the times of reads of the store."""
    member = copier.node.member
    assert isinstance(member, FakeMember)
    topic = member.image.topics[UUID(int=7)]
    changed = replace(topic.partitions[0], **partition)  # type: ignore[arg-type]  # fields of a partition
    member.publish(replace(member.image, topics={UUID(int=7): replace(topic, partitions={0: changed})}))
    copier.node._by_name["A.orders", 0] = LeaderPartition("A.orders", UUID(int=7), 0)
    reads = list[float]()
    stored = StoredSourceOffsets(
        offsets={("orders", 0): 11}, promotions={"orders": StoredPromotion(UUID(int=7), is_finished=True)}
    )

    def read() -> StoredSourceOffsets:
        reads.append(copier._clock())
        return stored

    monkeypatch.setattr(copier._store, "read", read)
    let_source_answer(copier, monkeypatch, lambda _: logs_of())
    copier.promoted = {}
    copier.demoted = frozenset({"orders"})
    return reads


def run_a_minute(copier: ReplicaCopier, clock: Clock) -> None:
    for _ in range(120):
        copier._change_leaders(clock.now)
        clock.now += 0.5


BY_BROKERS = {"replicas": (1, 2, 3), "isr": (1, 2, 3), "removing": (), "leader": 1, "leader_epoch": 4}


def test_waiting_demotion_reads_no_source_offsets(
    copier: ReplicaCopier, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = let_demote(copier, monkeypatch, **BY_BROKERS | {"isr": (1, 3)})
    run_a_minute(copier, clock)
    assert (reads, waiting(copier)) == ([], {"orders": "replicas 2 of A.orders-0 are not in sync"})


def test_demotion_that_waits_for_the_source_is_tried_again_after_longer_and_longer_pauses(
    copier: ReplicaCopier, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = let_demote(copier, monkeypatch, **BY_BROKERS)
    run_a_minute(copier, clock)
    assert [at - 100 for at in reads] == [0, 0.5, 1.5, 3.5, 7.5, 15.5, 31.5]
    assert waiting(copier) == {"orders": "orders-0 has no leader on the source"}


def test_topic_of_a_withdrawn_promotion_is_not_due_while_klamm_is_fenced(
    copier: ReplicaCopier, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = let_demote(copier, monkeypatch, leader=NO_LEADER)
    run_a_minute(copier, clock)
    assert (reads, waiting(copier)) == ([], {})


def test_cancelled_reassignment_begins_again_without_the_source(
    copier: ReplicaCopier, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_demote(copier, monkeypatch, replicas=(1, 2, 3, KLAMM), isr=(KLAMM,), removing=(), leader=KLAMM)
    monkeypatch.setattr(copier._source_logs, "read", lambda _: pytest.fail("needs the source"))
    taken_back = list[object]()
    monkeypatch.setattr(copier._demotion, "take_back", taken_back.append)
    monkeypatch.setattr(copier._demotion, "release", taken_back.append)
    copier._change_leaders(clock.now)
    assert taken_back == [{("A.orders", 0): 12}]
    copier.demoted, copier.promoted = frozenset(), {"orders": "FAILED_OVER"}  # the other way out
    clock.now += 1
    monkeypatch.setattr(copier._promotion, "hand_over", lambda *_, **__: {})
    copier._change_leaders(clock.now)
    assert taken_back == [{("A.orders", 0): 12}] * 2


def test_partition_that_klamm_did_not_hand_over_is_not_taken_back(
    copier: ReplicaCopier, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_demote(copier, monkeypatch, **BY_BROKERS)
    monkeypatch.setattr(copier._store, "read", lambda: StoredSourceOffsets(offsets={("orders", 0): 11}))
    copier._change_leaders(clock.now)
    reason = "klamm did not hand A.orders-0 over: delete the remote topic to mirror it"
    assert waiting(copier) == {"orders": reason}


def test_promotion_that_seals_nothing_reads_the_store_once(
    copier: ReplicaCopier, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = list[float]()

    def hand_over(*_: object, **__: object) -> None:
        raise PromotionWaitsError("replica 2 is not live")

    def read() -> StoredSourceOffsets:
        reads.append(clock.now)
        return StoredSourceOffsets()

    monkeypatch.setattr(copier._promotion, "hand_over", hand_over)
    monkeypatch.setattr(copier._store, "read", read)
    run_a_minute(copier, clock)
    assert reads == [100.0]


def test_transactions_that_are_ended_after_a_restart_keep_the_stored_leader_epochs(
    copier: ReplicaCopier, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    floors = {0: (EpochFloor(100, 7, 2),)}
    promotion = StoredPromotion(UUID(int=7), is_finished=False, floors=floors)
    stored = StoredSourceOffsets(offsets={("orders", 0): 199}, promotions={"orders": promotion})
    written = list[StoredPromotion]()
    monkeypatch.setattr(copier._store, "read", lambda: stored)
    monkeypatch.setattr(copier._store, "write_promotion", lambda _, each: written.append(each))
    monkeypatch.setattr(copier._promotion, "is_handed_over", lambda _: True)
    monkeypatch.setattr(
        copier._promotion, "end_transactions", lambda ends: dict.fromkeys(ends, EndedTransactions(9, 0))
    )
    copier.node._by_name["A.orders", 0] = LeaderPartition("A.orders", UUID(int=7), 0)
    copier._change_leaders(clock.now)
    assert written == [promotion._replace(is_finished=True)]


@pytest.mark.parametrize(
    ("fetched", "floors", "source_epoch"),
    [
        # the copy has read the last batch
        (100, (), 5),
        (100, (EpochFloor(90, 8, 3),), 5),
        # the copy had nothing to read, as after a start without a source
        (0, (), 8),
        (0, (EpochFloor(90, 8, 3),), -1),
        (0, (EpochFloor(100, 8, 3),), 3),
    ],
)
def test_log_end_of_a_promotion_is_stored_with_the_leader_epoch_of_the_source(
    copier: ReplicaCopier,
    monkeypatch: pytest.MonkeyPatch,
    fetched: int,
    floors: tuple[EpochFloor, ...],
    source_epoch: int,
) -> None:
    leader = LeaderPartition("A.orders", UUID(int=7), 0)
    leader.floors, leader.high_watermark = floors, 100
    leader.followers = {1: ReplicaProgress(100, 8, Presence(0))}
    window = Window(min(fetched, 90), 5)
    copy = ReplicaCopy(PartitionId("orders", 0, "A.orders"), leader, window, copier.node, {})
    copy.fetch_offset = fetched
    copier.node._by_name[REMOTE] = leader
    monkeypatch.setattr(copier.node, "call", lambda function, *args: function(*args))
    monkeypatch.setattr(copier, "_copies", {("orders", 0): copy})
    written = MagicMock()
    monkeypatch.setattr(copier._store, "write", written)
    monkeypatch.setattr(copier._store, "write_promotion", MagicMock())

    copier._remember({REMOTE: 100})

    written.assert_called_once_with({("orders", 0): SourceOffset(100, source_epoch)})
    assert copy.committed_offset == 100


def test_catch_up_skips_batches_of_recreated_topic(copier: ReplicaCopier, monkeypatch: pytest.MonkeyPatch) -> None:
    key, window = ("orders", 0), Window(0, -1)
    leader = LeaderPartition("A.orders", UUID(int=7), 0)
    copy = ReplicaCopy(PartitionId(*key, "A.orders"), leader, window, copier.node, {})
    monkeypatch.setattr(copier, "_copies", {key: copy})
    copier._fetcher.add(key, UUID(int=1))
    monkeypatch.setattr(copier._again, "refresh", lambda _: None)
    monkeypatch.setattr(copier._again, "topic_id", lambda _: UUID(int=2))
    discarded = MagicMock()
    monkeypatch.setattr(copier, "_discard", discarded)

    copier._begin_lagging(key, copy, window)

    assert copier._again_fetcher.topic_id(key) == UUID(int=1)
    copier._again_fetcher._refresh(0.0)
    discarded.assert_called_once_with(key, copy, "orders was deleted and created again on the source")


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        (StoredSourceOffsets(cluster_id="other"), "A is cluster source, but orders was mirrored from cluster other"),
        (
            StoredSourceOffsets(topic_ids={("orders", 0): UUID(int=2)}),
            "orders was deleted and created again on the source",
        ),
        (StoredSourceOffsets(offsets={("orders", 0): 12}), "orders-0 has the offsets 0 to 12 on the source"),
        (StoredSourceOffsets(cluster_id="source", topic_ids={("orders", 0): UUID(int=1)}), None),
    ],
)
def test_brokers_keep_a_topic_that_the_source_cannot_continue(
    copier: ReplicaCopier,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    stored: StoredSourceOffsets,
    reason: str | None,
) -> None:
    let_demote(copier, monkeypatch, **BY_BROKERS)
    taken_back: list[object] = []
    promotions = {"orders": StoredPromotion(UUID(int=7), is_finished=True)}
    monkeypatch.setattr(copier._store, "read", lambda: replace(stored, promotions=promotions))
    monkeypatch.setattr(copier._demotion, "take_back", taken_back.append)
    let_source_answer(copier, monkeypatch, lambda _: logs_of(at_0=12))

    copier._change_leaders(clock.now)

    # a partition without a source offset was added by the brokers: it is mirrored from its begin
    assert taken_back == ([] if reason else [{("A.orders", 0): 0}])
    assert waiting(copier).get("orders", "").startswith(reason or "")
    assert bool(waiting(copier)) == bool(reason)


@pytest.mark.parametrize("topic_id", [UUID(int=7), UUID(int=8)])
def test_promotion_without_a_source_knows_where_leader_epochs_were_raised(
    copier: ReplicaCopier, clock: Clock, monkeypatch: pytest.MonkeyPatch, topic_id: UUID
) -> None:
    floors = (EpochFloor(100, 7, 2),)
    promotions = {"orders": StoredPromotion(topic_id, is_finished=False, floors={0: floors})}
    leader = copier.node._by_name[REMOTE] = LeaderPartition("A.orders", UUID(int=7), 0)
    seen: list[object] = []

    def hand_over(*_: object, **__: object) -> dict[TopicPartition, HandedOver]:
        seen.append(leader.floors)
        return {}

    monkeypatch.setattr(copier._store, "read", lambda: StoredSourceOffsets(promotions=promotions))
    monkeypatch.setattr(copier._promotion, "hand_over", hand_over)
    monkeypatch.setattr(copier.node, "post", lambda function, *args: function(*args))
    copier._change_leaders(clock.now)
    assert seen == [floors if topic_id == leader.topic_id else ()]
    assert (leader.log_start, leader.log_end) == (-1, -1)

"""Leader of a mirrored partition, asked by replicas that obey it as Kafka's do. I1 to I11 are the rules it keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.mirror.records.source_offsets import EpochFloor
from klamm.mirror.replica.leader_partition import FIRST_FETCH_S, LAGGING_S, LeaderPartition, Leadership, Presence
from klamm.mirror.replica.window import read_chunk
from klamm.protocol.errors import ErrorCode
from tests.support.replicas import KafkaFollower, SourceLog, copy_once, feed, stored_batch

NOW = 100.0
TOPIC_ID = UUID(int=7)
NODES = frozenset({1, 2, 3})


def leadership(epoch: int = 0, live: frozenset[int] = NODES) -> Leadership:
    return Leadership(leader_epoch=epoch, partition_epoch=0, replicas=NODES, live=live)


def leader_of(source: SourceLog, *, epoch: int = 0, may_lose: bool = False) -> LeaderPartition:
    leader = LeaderPartition("t", TOPIC_ID, 0, may_lose=may_lose)
    leader.lead(leadership(epoch), NOW)
    leader.begin(source.log_start, source.end)
    return leader


def source_of(batches: int = 4) -> SourceLog:
    source = SourceLog()
    for _ in range(batches):
        source.produce(3)
    return source


def replicate(source: SourceLog, leader: LeaderPartition, *followers: KafkaFollower, rounds: int = 8) -> None:
    for _ in range(rounds):
        for follower in followers:
            follower.fetch(leader, NOW)
        copy_once(source, leader, NOW)


def raise_epoch(leader: LeaderPartition) -> None:
    """Let the controller elect klamm again if the partition needs a higher leader epoch."""
    leadership = leader.leadership
    if leadership is not None and leader.wanted_epoch > leadership.leader_epoch:
        leader.lead(replace(leadership, leader_epoch=leader.wanted_epoch), NOW)


def replicate_raising(source: SourceLog, leader: LeaderPartition, *followers: KafkaFollower, rounds: int = 8) -> None:
    """Replicate, and raise the leader epoch where that is needed."""
    for _ in range(rounds):
        replicate(source, leader, *followers, rounds=1)
        raise_epoch(leader)


def replicas(source: SourceLog) -> tuple[KafkaFollower, KafkaFollower, KafkaFollower]:
    """Return three replicas that have all of a source."""
    followers = (KafkaFollower(1), KafkaFollower(2), KafkaFollower(3))
    replicate(source, leader_of(source), *followers)
    assert [follower.batches for follower in followers] == [source.batches] * 3
    return followers


def test_replicas_have_the_bytes_of_the_source() -> None:
    source = source_of()
    source.produce(2, hole=5)
    source.leader_epoch = 2
    source.produce(1)
    leader = leader_of(source, epoch=2)
    followers = (KafkaFollower(1), KafkaFollower(2), KafkaFollower(3))

    replicate(source, leader, *followers)

    assert [follower.batches for follower in followers] == [source.batches] * 3
    assert (leader.high_watermark, leader.in_sync()) == (source.end, NODES)
    assert {follower.high_watermark for follower in followers} == {source.end}


def test_replica_starts_in_the_middle_of_a_batch_at_the_log_start() -> None:
    source = source_of()
    source.purge(7)
    followers = (KafkaFollower(1), KafkaFollower(2), KafkaFollower(3))

    replicate(source, leader_of(source), *followers)

    assert [follower.batches for follower in followers] == [source.batches] * 3


# --- I1: a leader never says that its log is shorter or other -------------------------------------------------------


def test_i1_empty_source_halts_and_no_replica_is_truncated() -> None:
    followers = replicas(source_of())
    empty = SourceLog()
    leader = leader_of(empty, epoch=2)

    replicate(empty, leader, *followers)

    assert "ends at offset 12, but the source ends at offset 0" in leader.halted
    assert [(follower.end, follower.removed) for follower in followers] == [(12, [])] * 3
    assert leader.end_offset(2) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert leader.start_offset(2) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


def test_i1_replica_with_records_after_the_high_watermark_of_their_response_does_not_halt() -> None:
    """Kafka's leader notes the high watermark of a response before it reads the records."""
    source = source_of(2)
    leader = leader_of(source)
    followers = (KafkaFollower(1), KafkaFollower(2), KafkaFollower(3))
    for follower in followers:
        follower.fetch(leader, NOW)
    window = leader.open_tail(NOW)
    assert window is not None
    before = source.end
    source.produce(3)
    chunk, _ = read_chunk(memoryview(source.read(0)), 0)

    leader.extend(window, chunk, before, NOW)
    for follower in (*followers, *followers):
        follower.fetch(leader, NOW)

    assert leader.halted == ""
    assert {follower.end for follower in followers} == {leader.log_end} == {9}


def test_i1_halt_outlasts_a_source_that_grows_beyond_the_replicas() -> None:
    followers = replicas(source_of())
    other = source_of(2)
    leader = leader_of(other, epoch=2)
    replicate(other, leader, *followers, rounds=1)
    for _ in range(5):
        other.produce(3)

    replicate(other, leader, *followers)

    assert [(follower.end, follower.removed) for follower in followers] == [(12, [])] * 3


def test_i1_source_with_another_epoch_before_the_offset_halts() -> None:
    source = source_of()
    followers = replicas(source)
    followers[0].batches[-1] = stored_batch(9, 3, 1)
    leader = leader_of(source, epoch=2)

    leader.fetch(2, followers[1].request(2), 100, Presence(NOW))
    leader.fetch(3, followers[2].request(2), 100, Presence(NOW))
    leader.lead(leadership(2, live=frozenset({2, 3})), NOW)
    copy_once(source, leader, NOW)

    assert followers[0].fetch(leader, NOW) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert "leader epoch 1 before offset 12, the source one of epoch 0" in leader.halted


@pytest.mark.parametrize("are_empty", [False, True], ids=["with records", "emptied by retention"])
def test_i1_purged_records_that_no_replica_has_halt(are_empty: bool) -> None:
    source = source_of()
    followers = replicas(source)
    if are_empty:
        for follower in followers:
            follower.batches, follower.log_start = [], follower.end
    for _ in range(4):
        source.produce(3)
    source.purge(18)
    leader = leader_of(source, epoch=2)

    replicate(source, leader, *followers)

    assert leader.halted.startswith("offsets 12 to 17 of t-0 were purged")
    assert [(follower.end, follower.removed) for follower in followers] == [(12, [])] * 3


def test_replicas_resume_at_the_log_start_if_losses_are_accepted() -> None:
    source = source_of()
    followers = replicas(source)
    for _ in range(4):
        source.produce(3)
    source.purge(18)

    replicate(source, leader_of(source, epoch=2, may_lose=True), *followers)

    assert [follower.batches for follower in followers] == [source.batches] * 3


def diverged_source(source: SourceLog) -> SourceLog:
    """Return a source whose new leader has not got the last batch, but then others, as after an unclean election."""
    diverged = SourceLog(batches=source.batches[:-1], end=source.batches[-2].next_offset, leader_epoch=2)
    diverged.produce(2)
    diverged.produce(7)
    return diverged


@pytest.mark.parametrize("returns", [(1, 2, 3), (1, 2)])
def test_replicas_are_truncated_where_the_source_diverges_if_losses_are_accepted(returns: tuple[int, ...]) -> None:
    source = source_of()
    source.leader_epoch = 1
    source.produce(3)
    followers = {node: KafkaFollower(node) for node in NODES}
    replicate(source, leader_of(source, epoch=1), *followers.values())
    assert {follower.end for follower in followers.values()} == {15}
    lost = source.batches[-1]
    diverged = diverged_source(source)
    leader = leader_of(diverged, epoch=2, may_lose=True)
    leader.lead(leadership(2, frozenset(returns)), NOW)

    replicate_raising(diverged, leader, *(followers[node] for node in returns))
    leader.lead(leadership(3), NOW)
    replicate_raising(diverged, leader, *followers.values())

    for follower in followers.values():
        assert (follower.batches, follower.removed, follower.is_failed) == (diverged.batches, [lost], False)
    assert leader.high_watermark == diverged.end


def test_i1_replicas_are_not_truncated_where_the_source_diverges() -> None:
    source = source_of()
    source.leader_epoch = 1
    source.produce(3)
    followers = KafkaFollower(1), KafkaFollower(2), KafkaFollower(3)
    replicate(source, leader_of(source, epoch=1), *followers)

    replicate(diverged_source(source), leader := leader_of(diverged_source(source), epoch=2), *followers)

    assert [follower.batches for follower in followers] == [source.batches] * 3
    assert leader.halted == "the source diverges"


def elected(*, common: int) -> tuple[SourceLog, SourceLog]:
    """Return two brokers of a source that have the first batches in common. The first one has more, of epoch 5."""
    first, second = SourceLog(leader_epoch=3), SourceLog(leader_epoch=3)
    for _ in range(4):
        first.produce(25)
    second.batches, second.end, second.leader_epoch = first.batches[:common], common * 25, 6
    first.leader_epoch = 5
    first.produce(50)
    return first, second


def test_replicas_follow_an_unclean_leader_election_and_another_one_back() -> None:
    first, second = elected(common=4)
    followers = KafkaFollower(1), KafkaFollower(2), KafkaFollower(3)
    leader = leader_of(first, epoch=9, may_lose=True)
    replicate(first, leader, *followers)
    second.produce(60)
    replicate_raising(second, leader, *followers)
    assert {follower.end for follower in followers} == {160}
    first.leader_epoch = 7
    first.produce(20)

    for _ in range(8):
        for follower in followers:
            follower.fetch(leader, NOW, max_bytes=1)  # one batch
        copy_once(first, leader, NOW)
        raise_epoch(leader)

    assert [follower.batches for follower in followers] == [first.batches] * 3


def test_clients_get_end_offset_of_truncated_replicas() -> None:
    # given
    first, second = elected(common=4)
    followers = KafkaFollower(1), KafkaFollower(2), KafkaFollower(3)
    leader = leader_of(first, epoch=9, may_lose=True)
    replicate(first, leader, *followers)
    assert [leader.truncated_end(epoch) for epoch in (3, 5)] == [None, None]
    # when
    second.produce(60)
    replicate_raising(second, leader, *followers)
    # then
    assert {follower.end for follower in followers} == {160}
    assert [leader.truncated_end(epoch) for epoch in (2, 3, 4, 5, 6)] == [None, (3, 100), (3, 100), (3, 100), None]


@pytest.mark.parametrize("is_halted", [False, True], ids=["at once", "after a halt"])
def test_replicas_get_new_records_after_a_truncation_only_with_a_higher_leader_epoch(is_halted: bool) -> None:
    # given
    first, second = elected(common=4)
    followers = KafkaFollower(1), KafkaFollower(2), KafkaFollower(3)
    leader = leader_of(first, epoch=9, may_lose=True)
    replicate(first, leader, *followers)
    second.produce(25)
    # when
    replicate(second, leader, *followers)
    if is_halted:
        leader.halt("the source was deleted")
        leader.restart(NOW)
        replicate(second, leader, *followers)
    # then
    assert ([follower.end for follower in followers], leader.wanted_epoch) == ([100] * 3, 10)
    assert leader.check_client_offset(150, 9) == ErrorCode.NOT_LEADER_OR_FOLLOWER, "its offset would be reset"
    assert "waits for leader epoch 10 after a truncation" in leader.reason_of_closed_tail
    # when
    leader.lead(leadership(10), NOW)
    replicate(second, leader, *followers)
    # then
    assert [follower.end for follower in followers] == [125] * 3
    assert leader.check_client_offset(150, 9) == ErrorCode.FENCED_LEADER_EPOCH


def test_clients_keep_offsets_of_an_epoch_that_another_election_made_valid_again() -> None:
    # given
    first, second = elected(common=4)
    followers = KafkaFollower(1), KafkaFollower(2), KafkaFollower(3)
    leader = leader_of(first, epoch=9, may_lose=True)
    replicate(first, leader, *followers)
    second.produce(60)
    replicate_raising(second, leader, *followers)
    # when
    first.leader_epoch = 7
    first.produce(20)
    replicate_raising(first, leader, *followers)
    # then
    assert {follower.end for follower in followers} == {170}
    assert [leader.truncated_end(epoch) for epoch in (5, 6, 7)] == [(5, 150), (5, 150), None]


def test_replicas_are_truncated_if_the_common_epoch_ends_after_them_on_the_source() -> None:
    """The new leader has more batches of epoch 3 than the one that wrote epoch 5 had."""
    first, second = elected(common=4)
    second.leader_epoch = 3
    second.produce(100)
    second.leader_epoch = 6
    followers = KafkaFollower(1), KafkaFollower(2), KafkaFollower(3)
    replicate(first, leader_of(first, epoch=9), *followers)

    replicate_raising(second, leader_of(second, epoch=9, may_lose=True), *followers)

    assert [follower.batches for follower in followers] == [second.batches] * 3


def returned(end: int, *, may_lose: bool = True) -> tuple[SourceLog, LeaderPartition, dict[int, KafkaFollower]]:
    """Return a source that lost epoch 1, and replicas 2 and 3, from whose ends on it is in memory. Replica 1 was away.

    The source was elected with 100 offsets and has four batches of ten since, the last two of which only replica 2 has.

    Args:
        end: End offset of replica 1, which has a batch of epoch 1.
        may_lose: Whether the source may lose records.
    """
    before, after = SourceLog(), SourceLog(leader_epoch=2)
    before.produce(100)
    after.batches, after.end = list(before.batches), 100
    before.leader_epoch = 1
    before.produce(end - 100)
    followers = {node: KafkaFollower(node) for node in NODES}
    replicate(before, leader_of(before, epoch=1), followers[1])
    leader = leader_of(before, epoch=1)
    leader.lead(leadership(1, frozenset({1})), NOW)
    replicate(before, leader, followers[1])
    leader = leader_of(after, epoch=3, may_lose=may_lose)
    leader.lead(leadership(3, frozenset({2, 3})), NOW)
    after.produce(10)
    replicate(after, leader, followers[2], followers[3])
    for _ in range(3):
        after.produce(10)
        followers[2].fetch(leader, NOW)
        copy_once(after, leader, NOW)
    assert leader.tail is not None
    assert (followers[1].end, leader.tail.start, leader.tail.end) == (end, 110, 140)
    leader.lead(leadership(3), NOW)
    return after, leader, followers


@pytest.mark.parametrize("end", [130, 125, 110, 140, 300])
def test_returning_replica_is_truncated_if_the_batches_in_memory_differ(end: int) -> None:
    """Its log ends at a batch end in the tail, inside a batch, at both ends of the tail, or after it."""
    source, leader, followers = returned(end)
    lost = followers[1].batches[-1]

    assert followers[1].fetch(leader, NOW) is None
    assert (leader.is_disputed, leader.in_sync()) == (True, frozenset())
    replicate_raising(source, leader, *followers.values(), rounds=12)

    assert leader.halted == ""
    for follower in followers.values():
        assert (follower.batches, follower.is_failed) == (source.batches, False)
    assert (followers[1].removed, followers[2].removed, followers[3].removed) == ([lost], [], [])
    assert leader.in_sync() == NODES


def test_i1_partition_halts_if_replica_ends_inside_source_batch() -> None:
    source, leader, followers = returned(125, may_lose=False)

    replicate(source, leader, *followers.values())

    assert (leader.halted, followers[1].removed) == ("the source diverges", [])


def test_replica_whose_last_batch_the_source_has_compacted_away_is_served() -> None:
    source = source_of(1)
    returning, ahead, behind = followers = replicas(source)
    leader = leader_of(source)
    leader.lead(leadership(0, frozenset({2, 3})), NOW)
    replicate(source, leader, ahead, behind)
    source.produce(3, hole=3)
    copy_once(source, leader, NOW)
    returning.append(stored_batch(3, 3, 0).data, 0)
    leader.lead(leadership(), NOW)
    assert leader.tail is not None
    assert (leader.tail.start, returning.end, leader.tail.end) == (3, 6, 9)

    replicate(source, leader, *followers)

    assert (leader.halted, [follower.end for follower in followers]) == ("", [9, 9, 9])


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_replicas_that_differ_at_the_log_end_of_an_idle_source_are_truncated(order: tuple[int, ...]) -> None:
    source, other = elected(common=4)
    other.produce(50)
    followers = KafkaFollower(1), KafkaFollower(2), KafkaFollower(3)
    replicate(source, leader_of(source, epoch=9), *followers)
    followers[0].truncate(3, 100)
    followers[0].append(other.batches[-1].data, 9)
    source.leader_epoch = 7
    leader = leader_of(source, epoch=9, may_lose=True)

    replicate_raising(source, leader, *(followers[index] for index in order))

    assert [follower.batches for follower in followers] == [source.batches] * 3
    assert leader.in_sync() == NODES


def test_replica_that_differs_is_not_in_sync_with_a_sealed_log() -> None:
    source, leader, followers = returned(140)
    replicate(source, leader, followers[2], followers[3])
    leader.seal()

    replicate(source, leader, *followers.values())

    assert (leader.log_end, leader.in_sync()) == (140, frozenset({2, 3}))


def test_sealed_log_ends_after_replicas_not_compared_with_source() -> None:
    _, leader, followers = returned(130)
    for node in (2, 2, 1):
        followers[node].fetch(leader, NOW)

    leader.seal()

    assert (leader.log_end, leader.in_sync()) == (140, frozenset())


def test_sealed_log_is_not_truncated() -> None:
    source = source_of()
    followers = KafkaFollower(1), KafkaFollower(2), KafkaFollower(3)
    leader = leader_of(source, may_lose=True)
    replicate(source, leader, *followers)
    leader.seal()
    assert leader.tail is not None

    leader.truncate(leader.tail, 0, (0, 3), NOW)

    replicate(source, leader, *followers)
    assert {follower.end for follower in followers} == {leader.log_end} == {12}


def test_returning_replica_starts_at_the_log_start_if_another_one_has_the_purged_records() -> None:
    source = source_of()
    ahead, behind, _ = replicas(source)
    behind.batches, behind.end = behind.batches[:1], 3
    source.produce(3)
    source.purge(6)
    leader = leader_of(source, epoch=2)
    leader.lead(leadership(2, live=frozenset({1, 2})), NOW)

    replicate(source, leader, ahead, behind)

    assert (leader.halted, behind.batches) == ("", source.batches)
    assert (ahead.end, ahead.removed) == (15, [])


# --- I3: leader epochs ------- --------------------------------------------------------------------------------------


def test_i3_batch_with_a_higher_epoch_is_held_until_klamm_has_this_epoch() -> None:
    source = source_of(1)
    source.leader_epoch = 5
    source.produce(2)
    followers = (KafkaFollower(1), KafkaFollower(2), KafkaFollower(3))
    leader = leader_of(source, epoch=1)
    replicate(source, leader, *followers)
    assert ([follower.end for follower in followers], leader.wanted_epoch) == ([3] * 3, 5)

    leader.lead(leadership(5), NOW)
    assert leader.wanted_epoch == -1
    replicate(source, leader, *followers)

    assert [follower.batches for follower in followers] == [source.batches] * 3


# --- I5 and I11: bounds in the answers ------------------------------------------------------------------------------


def test_i5_fetch_waits_for_the_high_watermark() -> None:
    source = source_of()
    leader = leader_of(source)
    first, second, third = KafkaFollower(1), KafkaFollower(2), KafkaFollower(3)

    assert [first.fetch(leader, NOW), second.fetch(leader, NOW)] == [None, None]
    assert leader.open_tail(NOW) is None
    assert third.fetch(leader, NOW) is ErrorCode.NONE
    assert leader.high_watermark == 0


def test_i5_absent_replica_delays_fetch_responses_for_ten_seconds() -> None:
    source = source_of()
    leader = leader_of(source)
    follower = KafkaFollower(1)
    assert follower.fetch(leader, NOW) is None

    assert follower.fetch(leader, NOW + FIRST_FETCH_S) is ErrorCode.NONE

    copy_once(source, leader, NOW + FIRST_FETCH_S)
    follower.fetch(leader, NOW + FIRST_FETCH_S)
    assert follower.batches == source.batches


def test_i5_log_start_of_an_answer_is_at_most_the_fetch_offset() -> None:
    source = source_of()
    followers = replicas(source)
    source.purge(9)
    leader = leader_of(source, epoch=2, may_lose=True)
    followers[0].batches, followers[0].end = followers[0].batches[:1], 3

    replicate(source, leader, *followers)

    assert not any(follower.is_failed for follower in followers)
    assert followers[1].log_start <= followers[1].high_watermark


def test_i5_replica_that_stopped_fetching_is_reported() -> None:
    source = source_of()
    leader = leader_of(source)
    replicate(source, leader, KafkaFollower(1), KafkaFollower(2))

    assert leader.silent(NOW + 20, 30) == frozenset()
    KafkaFollower(1).fetch(leader, NOW + 31)
    assert leader.silent(NOW + 31, 30) == {2, 3}


def test_i11_high_watermark_is_that_of_the_slowest_live_replica() -> None:
    source = source_of()
    leader = leader_of(source)
    first, second, third = KafkaFollower(1), KafkaFollower(2), KafkaFollower(3)
    replicate(source, leader, first, second, third, rounds=1)
    first.fetch(leader, NOW)
    first.fetch(leader, NOW)
    second.fetch(leader, NOW)
    second.fetch(leader, NOW)
    assert (leader.high_watermark, leader.in_sync()) == (0, frozenset({1, 2}))

    leader.lead(leadership(live=frozenset({1, 2})), NOW)

    assert leader.high_watermark == 12


def test_i11_high_watermark_is_known_without_the_source() -> None:
    source = source_of()
    followers = replicas(source)
    leader = LeaderPartition("t", TOPIC_ID, 0)
    leader.lead(leadership(2), NOW)
    for follower in followers:
        follower.high_watermark = 0
    # when
    for follower in (*followers, *followers):
        follower.fetch(leader, NOW)
    # then
    assert (leader.high_watermark, leader.log_end, leader.open_tail(NOW)) == (12, -1, None)
    assert [(follower.end, follower.high_watermark, follower.removed) for follower in followers] == [(12, 12, [])] * 3
    assert leader.end_offset(2) == leader.start_offset(2) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert leader.end_offset_for_clients(2) == (ErrorCode.NONE, 12)
    # when
    source.produce(3)
    replicate(source, leader, *followers)
    # then
    assert [follower.batches for follower in followers] == [source.batches] * 3


def test_i11_halted_partition_has_a_high_watermark_for_readers() -> None:
    followers = replicas(source_of())
    leader = LeaderPartition("t", TOPIC_ID, 0)
    leader.lead(leadership(2), NOW)
    leader.halt("the source is another cluster")
    # when
    answers = [follower.fetch(leader, NOW) for follower in followers]
    # then
    assert answers == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3
    assert leader.high_watermark == 12
    assert leader.end_offset_for_clients(2) == (ErrorCode.NONE, 12)


def test_end_offset_for_clients_is_that_of_the_longest_replica() -> None:
    source = source_of()
    first, second, third = replicas(source)
    third.batches, third.end = third.batches[:2], 6
    leader = LeaderPartition("t", TOPIC_ID, 0)
    leader.lead(leadership(2), NOW)
    assert leader.end_offset_for_clients(2) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)

    for follower in (first, second, third):
        follower.fetch(leader, NOW)

    assert (leader.high_watermark, leader.end_offset_for_clients(2)) == (6, (ErrorCode.NONE, 12))
    assert leader.end_offset_for_clients(1) == (ErrorCode.FENCED_LEADER_EPOCH, -1)


def test_other_leader_epochs_get_kafkas_error_codes() -> None:
    leader = leader_of(source_of(), epoch=4)
    follower = KafkaFollower(1)
    codes = [leader.fetch(1, follower.request(epoch), 100, Presence(NOW)) for epoch in (3, 5)]

    assert [answer and answer.error_code for answer in codes] == [
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    ]
    assert leader.end_offset(3) == (ErrorCode.FENCED_LEADER_EPOCH, -1)
    leader.resign()
    assert follower.fetch(leader, NOW) is None
    assert leader.end_offset(4) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


def test_partition_that_another_broker_has_led_is_not_halted_any_more() -> None:
    source = source_of()
    leader = leader_of(source)
    leadership = leader.leadership
    assert leadership is not None
    leader.halt("the source lost records")
    leader.resign()
    leader.lead(leadership, NOW)
    assert leader.halted
    leader.resign(is_replaced=True)
    leader.lead(replace(leadership, leader_epoch=9), NOW)
    replicate(source, leader, KafkaFollower(1), KafkaFollower(2), KafkaFollower(3))
    assert not leader.halted
    assert leader.high_watermark == source.end


# --- memory --------------------------------------------------------------------------------------------------------


def test_batches_that_all_replicas_have_are_dropped() -> None:
    source = source_of()
    leader = leader_of(source)
    replicate(source, leader, KafkaFollower(1), KafkaFollower(2), KafkaFollower(3))

    assert leader.tail is not None
    assert leader.tail.start == leader.tail.end == 12
    assert leader.tail.dropped_bytes == sum(len(batch.data) for batch in source.batches)


def test_lagging_replica_catches_up_from_second_window() -> None:
    source = source_of()
    ahead, behind, other = replicas(source)
    behind.batches, behind.end = [], 0
    leader = leader_of(source, epoch=2)
    replicate(source, leader, ahead, behind, other, rounds=1)
    source.produce(3)

    ahead.fetch(leader, NOW)
    copy_once(source, leader, NOW, max_bytes=1)
    ahead.fetch(leader, NOW)
    assert ahead.end == 15
    assert leader.catch_up is not None
    assert behind.end == 0

    replicate(source, leader, ahead, behind, other, rounds=12)

    assert behind.batches == source.batches
    assert leader.high_watermark == 15
    assert leader.open_catch_up(NOW) is None


def test_silent_replica_keeps_no_batches_in_memory() -> None:
    source = source_of()
    first, second, third = replicas(source)
    leader = leader_of(source, epoch=2)
    replicate(source, leader, first, second, third, rounds=2)
    source.produce(3)
    later = NOW + LAGGING_S + 1

    for now in (NOW, later, later):
        copy_once(source, leader, now)
        first.fetch(leader, now)
        second.fetch(leader, now)
        first.fetch(leader, now)
        second.fetch(leader, now)
    leader.tick(later)

    assert leader.tail is not None
    assert leader.tail.start == 15
    third.fetch(leader, later)
    copy_once(source, leader, later)
    third.fetch(leader, later)
    assert third.batches == source.batches


def test_sealed_log_ends_where_it_was_read_while_the_source_goes_on() -> None:
    source = source_of()
    followers = replicas(source)
    leader = leader_of(source)
    replicate(source, leader, *followers)
    end = leader.log_end
    leader.seal()
    source.produce(3)

    replicate(source, leader, *followers)

    assert leader.log_end == end
    assert [follower.end for follower in followers] == [end] * 3
    assert leader.in_sync() == NODES


def test_unsealed_partition_goes_on_with_the_source() -> None:
    source = source_of()
    followers = replicas(source)
    leader = leader_of(source)
    replicate(source, leader, *followers)
    leader.seal()
    source.produce(3)
    leader.unseal()

    replicate(source, leader, *followers)

    assert [follower.batches for follower in followers] == [source.batches] * 3


def test_sealed_partition_that_was_not_read_ends_where_the_most_advanced_replica_ends() -> None:
    source = source_of()
    first, second, third = replicas(source)
    leader = leader_of(source)
    second.end -= 1
    for follower in (first, second, third):
        follower.fetch(leader, NOW)
    leader.tail = None

    leader.seal()

    assert leader.log_end == first.end
    assert leader.in_sync() == {1, 3}


def test_damaged_batch_is_not_served() -> None:
    source = source_of(2)
    data = bytearray(source.read(0))
    data[-1] ^= 1

    chunk, defect = read_chunk(memoryview(data), 0)

    assert chunk is not None
    assert (chunk.next_offset, "wrong checksum" in defect) == (3, True)


# --- any order of events -------------------------------------------------------------------------------------------


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("fetch"), st.integers(1, 3), st.integers(1, 400)),
        st.tuples(st.just("copy"), st.integers(1, 400), st.just(0)),
        st.tuples(st.just("produce"), st.integers(1, 4), st.integers(0, 3)),
        st.tuples(st.just("elect"), st.integers(1, 2), st.just(0)),
        st.tuples(st.just("raise"), st.just(0), st.just(0)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
        st.tuples(st.just("live"), st.sets(st.integers(1, 3), min_size=1).map(frozenset), st.just(0)),
        st.tuples(st.just("wait"), st.integers(1, 20), st.just(0)),
        st.tuples(st.just("purge"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("lose source"), st.integers(0, 3), st.just(0)),
    ),
    max_size=120,
)


class ReplicatedPartition:
    """A source, a leader that may restart and three replicas."""

    def __init__(self) -> None:
        self.source = SourceLog()
        self.written: list[bytes] = []
        self.followers = {node: KafkaFollower(node) for node in NODES}
        self.now, self.epoch, self.live = NOW, 0, NODES
        self.is_lost = False
        self.start()

    def start(self) -> None:
        self.leader = LeaderPartition("t", TOPIC_ID, 0)
        self.leader.lead(leadership(self.epoch, self.live), self.now)

    def step(self, name: str, first: int, second: int) -> None:  # noqa: C901 - a table of events
        if name == "fetch" and first in self.live:
            self.followers[first].fetch(self.leader, self.now, second)
        elif name == "copy":
            copy_once(self.source, self.leader, self.now, first)
        elif name == "produce":
            self.source.produce(first, second)
            self.written.append(self.source.batches[-1].data)
        elif name == "elect":
            self.source.leader_epoch += first
        elif name == "raise":
            self.epoch += 2
            self.leader.lead(leadership(self.epoch, self.live), self.now)
        elif name == "restart":
            self.start()
        elif name == "live":
            self.live = first  # type: ignore[assignment] # a set for this step
            self.leader.lead(leadership(self.epoch, self.live), self.now)
        elif name == "wait":
            self.now += first
        elif name == "purge":
            self.source.purge(min(first, *(follower.end for follower in self.followers.values())))
        elif name == "lose source":
            self.source = SourceLog([], 0, 0, self.source.leader_epoch)
            for _ in range(first):
                self.source.produce(2)
            self.is_lost = True
            self.start()


@given(steps=STEPS)
@settings(deadline=None)
def test_replicas_never_diverge_in_any_order_of_events(steps: list[tuple[str, int, int]]) -> None:
    replicated = ReplicatedPartition()
    for step in steps:
        if step[0] == "lose source" and replicated.is_lost:
            continue
        ends = {node: follower.end for node, follower in replicated.followers.items()}
        leader, high_watermark = replicated.leader, replicated.leader.high_watermark
        replicated.step(*step)
        if replicated.leader is leader and leader.high_watermark > high_watermark:
            assert leader.high_watermark <= min(
                replicated.followers[node].end for node in replicated.live & leader.followers.keys()
            )
        for node, follower in replicated.followers.items():
            assert follower.end >= ends[node]
            assert (follower.removed, follower.is_failed) == ([], False)
            assert follower.high_watermark <= follower.end
        if not replicated.is_lost:
            own = {batch.base_offset: batch.data for batch in replicated.source.batches}
            for follower in replicated.followers.values():
                assert all(own.get(batch.base_offset, batch.data) == batch.data for batch in follower.batches)
                assert [batch.data for batch in follower.batches] == [
                    data for data in replicated.written if data in {batch.data for batch in follower.batches}
                ]
    if replicated.is_lost or replicated.leader.halted:
        return
    replicated.epoch = max(replicated.epoch, replicated.source.leader_epoch)
    replicated.leader.lead(leadership(replicated.epoch, replicated.live), replicated.now)
    for _ in range(60):
        replicated.now += 1
        for node in sorted(replicated.live):
            replicated.followers[node].fetch(replicated.leader, replicated.now)
        copy_once(replicated.source, replicated.leader, replicated.now)
        replicated.leader.tick(replicated.now)
    assert {replicated.followers[node].end for node in replicated.live} == {replicated.source.end}
    assert replicated.leader.high_watermark == replicated.source.end


# --- halted partitions, and partitions whose replicas are all away --------------------------------------------------


def with_batches_in_memory() -> tuple[SourceLog, LeaderPartition, tuple[KafkaFollower, ...]]:
    source = source_of()
    leader = leader_of(source)
    followers = (KafkaFollower(1), KafkaFollower(2), KafkaFollower(3))
    replicate(source, leader, *followers, rounds=1)
    assert leader.tail is not None
    assert (leader.tail.start, leader.tail.end) == (0, 12)
    return source, leader, followers


def test_halted_partition_keeps_no_batches() -> None:
    source, leader, _ = with_batches_in_memory()
    window = leader.tail
    assert window is not None

    leader.halt("lost")
    feed(source, leader, window, NOW)

    assert (leader.tail, leader.open_tail(NOW), leader.needs_tick) == (None, None, False)


@pytest.mark.parametrize("is_fenced", [True, False])
def test_batches_that_no_replica_fetches_are_dropped_and_read_again_later(is_fenced: bool) -> None:
    source, leader, followers = with_batches_in_memory()
    now = NOW + 1 if is_fenced else NOW + LAGGING_S + 1
    if is_fenced:
        leader.lead(leadership(live=frozenset()), now)

    leader.tick(now)
    copy_once(source, leader, now)

    assert leader.tail is None
    leader.lead(leadership(), now + 1)
    for _ in range(3):
        for follower in followers:
            follower.fetch(leader, now + 1)
        copy_once(source, leader, now + 1)
    assert [follower.batches for follower in followers] == [source.batches] * 3


def test_sealed_partition_keeps_its_batches_while_no_replica_fetches() -> None:
    _, leader, _ = with_batches_in_memory()
    leader.seal()

    leader.tick(NOW + LAGGING_S + 1)
    leader.restart(NOW)

    assert leader.tail is not None
    assert leader.log_end == 12


def test_restarted_partition_is_mirrored_if_the_source_has_what_the_replicas_have() -> None:
    source = source_of()
    followers = replicas(source)
    source.produce(3)
    leader = leader_of(SourceLog(), epoch=2)
    replicate(SourceLog(), leader, *followers)
    assert leader.halted

    leader.restart(NOW)
    replicate(source, leader, *followers)

    assert leader.halted == ""
    assert [follower.batches for follower in followers] == [source.batches] * 3


def test_restarted_partition_halts_again_for_the_same_reason() -> None:
    followers = replicas(source_of())
    leader = leader_of(SourceLog(), epoch=2)
    replicate(SourceLog(), leader, *followers)
    reason = leader.halted

    leader.restart(NOW)
    assert leader.halted == ""
    leader.begin(0, 0)
    replicate(SourceLog(), leader, *followers)

    assert leader.halted == reason
    assert [(follower.end, follower.removed) for follower in followers] == [(12, [])] * 3


# --- demotion ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("electable", [{"isr": frozenset({2})}, {"is_leaving": False}])
def test_i2_no_replica_gets_batches_while_another_one_may_be_elected(electable: dict[str, Any]) -> None:
    source = source_of()
    leader = leader_of(source)
    leader.lead(replace(leadership(), **electable), NOW)
    followers = (KafkaFollower(1), KafkaFollower(2), KafkaFollower(3))

    replicate(source, leader, *followers)

    assert [follower.batches for follower in followers] == [[]] * 3
    assert not leader.halted
    leader.lead(leadership(), NOW)
    replicate(source, leader, *followers)
    assert [follower.batches for follower in followers] == [source.batches] * 3


def test_i4_batches_get_no_lower_epoch_than_klamm_had_when_it_took_the_partition_back() -> None:
    source = source_of()
    followers = replicas(source)
    followers[0].led_at, followers[0].led_epoch = source.end, 4  # a broker that led, and wrote nothing
    late = KafkaFollower(3, followers[2].batches[:1], end=3)
    floor = EpochFloor(source.end, 5, 0)
    source.produce(3)
    source.leader_epoch = 7
    source.produce(3)
    leader = leader_of(source, epoch=7)
    leader.begin(source.log_start, source.end, (floor,))

    replicate(source, leader, followers[0], followers[1], late, rounds=12)

    assert not leader.halted
    for follower in (followers[0], followers[1], late):
        assert [batch.leader_epoch for batch in follower.batches] == [0, 0, 0, 0, 5, 7]
        assert follower.batches[:4] + follower.batches[5:] == source.batches[:4] + source.batches[5:]


def test_source_is_compared_where_a_partition_was_taken_back() -> None:
    source = source_of()
    followers = replicas(source)
    followers[0].led_at, followers[0].led_epoch = source.end, 4
    leader = leader_of(source, epoch=5)
    leader.begin(source.log_start, source.end, (EpochFloor(source.end, 5, 0),))
    for follower in followers:
        follower.fetch(leader, NOW)

    window = leader.open_tail(NOW)

    assert window is not None
    assert (window.start, window.source_epoch) == (source.end, 0)


def test_i1_record_that_a_broker_wrote_after_the_promotion_halts_the_partition() -> None:
    source = source_of()
    followers = replicas(source)
    floor = EpochFloor(source.end, 5, 0)
    written = stored_batch(source.end, 3, 4)
    followers[0].batches.append(written)
    followers[0].end = written.next_offset
    source.leader_epoch = 4
    source.produce(3)
    source.produce(3)
    leader = leader_of(source, epoch=5)
    leader.begin(source.log_start, source.end, (floor,))

    leader.lead(leadership(5, frozenset({2, 3})), NOW)
    replicate(source, leader, *followers[1:])
    assert followers[1].batches[-1].leader_epoch == 5
    replicate(source, leader, *followers)

    assert "has a batch of leader epoch 4 before offset 15" in leader.halted
    assert followers[0].removed == []

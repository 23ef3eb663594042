"""Timers of a group of the classic protocol."""

from __future__ import annotations

import math

from klamm.broker.groups.classic.model import GroupState, JoinReply, MemberIdentity, SyncReply
from klamm.protocol.errors import ErrorCode
from tests.support.groups import WALL_START_MS, ClassicGroupClients, attempt

# ---- the first rebalance


def test_initial_rebalance_delay_waits_for_more_members() -> None:
    """``group.initial.rebalance.delay.ms``"""
    clients = ClassicGroupClients(initial_delay_ms=3000)
    joined = clients.new_dynamic("m1")

    clients.wait(2.9)
    assert joined == []
    clients.wait(0.2)
    assert joined[0].generation_id == 1


def test_joins_extend_initial_delay_up_to_rebalance_timeout() -> None:
    clients = ClassicGroupClients(initial_delay_ms=3000)
    first = clients.new_dynamic("m0", rebalance_timeout_ms=7000)

    for number in range(1, 9):
        clients.wait(0.9)
        clients.new_dynamic(f"m{number}", rebalance_timeout_ms=7000)
        assert (first == []) == (clients.seconds < 1007)

    assert len(first[0].members) == 8


def test_first_member_does_not_wait_with_an_initial_delay_of_0() -> None:
    clients = ClassicGroupClients(initial_delay_ms=0)
    joined = clients.new_dynamic("m1")

    clients.wait(0)

    assert joined[0].generation_id == 1


def test_expiring_members_do_not_end_initial_delay_early() -> None:
    """Nobody is missing then, but others may come (Kafka's ``GroupMetadataManager.maybeCompleteJoinPhase``)."""
    clients = ClassicGroupClients(initial_delay_ms=3000)
    clients.send_join(attempt(new_member_id="unused", session_timeout_ms=6000))
    clients.wait(5.9)
    first = clients.new_dynamic("m1")
    clients.wait(0.4)  # the unused member id has expired
    second = clients.new_dynamic("m2")
    assert first == second == []

    clients.wait(6)

    assert [reply.generation_id for reply in (*first, *second)] == [1, 1]


def test_group_is_empty_when_all_members_leave_during_initial_delay() -> None:
    clients = ClassicGroupClients()
    clients.new_dynamic("m1")
    clients.group.leave([MemberIdentity(member_id="m1", group_instance_id=None)], clients.now)

    clients.wait(3)

    assert clients.state is GroupState.EMPTY


# ---- later rebalances


def test_rebalance_completes_when_all_members_have_joined() -> None:
    clients = ClassicGroupClients()
    generation_id = clients.stable("m1", "m2")
    third = clients.new_dynamic("m3")
    first = clients.send_join(attempt("m1"))
    assert first == third == []

    second = clients.send_join(attempt("m2"))

    assert {reply[0].generation_id for reply in (first, second, third)} == {generation_id + 1}


def test_member_that_misses_the_rebalance_timeout_is_removed() -> None:
    clients = ClassicGroupClients()
    generation_id = clients.stable("m1", "m2", rebalance_timeout_ms=20_000, session_timeout_ms=60_000)
    parked = clients.send_join(attempt("m2", protocols=(("range", b"other"),), rebalance_timeout_ms=20_000))

    clients.wait(19.9)
    assert parked == []
    clients.wait(0.2)

    assert parked[0].leader == "m2"
    assert [member.member_id for member in parked[0].members] == ["m2"]
    assert clients.heartbeat("m1", generation_id) == ErrorCode.UNKNOWN_MEMBER_ID


def test_rebalance_waits_for_pending_member_ids() -> None:
    clients = ClassicGroupClients()
    clients.stable("m1")
    clients.send_join(attempt(new_member_id="m2"))
    parked = clients.send_join(attempt("m1"))
    assert parked == []

    clients.wait(10)

    assert [member.member_id for member in parked[0].members] == ["m1"]


def test_static_member_survives_a_missed_rebalance() -> None:
    """KIP-345."""
    clients = ClassicGroupClients()
    clients.send_join(attempt(instance_id="i1", new_member_id="s1", session_timeout_ms=90_000))
    clients.send_join(attempt(instance_id="i2", new_member_id="s2", session_timeout_ms=90_000))
    clients.wait(6)
    clients.sync_all(1, "s1", "s2")
    parked = clients.send_join(attempt("s2", "i2", protocols=(("range", b"other"),), session_timeout_ms=90_000))

    clients.wait(61)

    assert parked[0].leader == "s2"
    assert [member.member_id for member in parked[0].members] == ["s1", "s2"]


def test_static_members_missing_a_rebalance_expire_with_their_sessions() -> None:
    clients = ClassicGroupClients()
    clients.send_join(attempt(instance_id="i1", new_member_id="s1", session_timeout_ms=100_000))
    clients.wait(3)
    clients.sync_all(1, "s1")
    clients.new_dynamic("m2", session_timeout_ms=10_000)
    clients.group.leave([MemberIdentity(member_id="m2", group_instance_id=None)], clients.now)

    clients.wait(90)
    before = clients.state
    clients.wait(20)

    assert (before, clients.state) == (GroupState.PREPARING_REBALANCE, GroupState.EMPTY)


def test_static_members_without_rebalance_timeout_do_not_cause_busy_timers() -> None:
    clients = ClassicGroupClients()
    clients.send_join(attempt(instance_id="i1", new_member_id="s1", rebalance_timeout_ms=0, session_timeout_ms=100_000))
    clients.wait(3)
    clients.send_sync("s1", 1, {"s1": b""}, instance_id="i1")
    clients.new_dynamic("m2", rebalance_timeout_ms=0)
    clients.group.leave([MemberIdentity(member_id="m2", group_instance_id=None)], clients.now)

    clients.group.on_time(clients.now)

    assert clients.group.wake_at >= clients.seconds + 1


# ---- sessions


def test_member_without_heartbeat_expires_after_session_timeout() -> None:
    clients = ClassicGroupClients()
    generation_id = clients.stable("m1", "m2")
    for _ in range(4):
        clients.wait(4)
        clients.heartbeat("m1", generation_id)

    assert "m2" not in clients.group.members
    assert clients.heartbeat("m1", generation_id) == ErrorCode.REBALANCE_IN_PROGRESS


def test_group_with_only_silent_members_becomes_empty() -> None:
    clients = ClassicGroupClients()
    generation_id = clients.stable("m1", "m2")

    clients.wait(70)

    assert clients.state is GroupState.EMPTY
    assert clients.group.generation_id == generation_id + 1
    assert clients.group.wake_at == math.inf


def test_member_with_parked_join_needs_no_heartbeat() -> None:
    clients = ClassicGroupClients()
    generation_id = clients.stable("m1", "m2", session_timeout_ms=10_000, rebalance_timeout_ms=60_000)
    parked = clients.send_join(attempt("m1"))

    for _ in range(5):
        clients.wait(9)
        clients.heartbeat("m2", generation_id)
    assert parked == []
    clients.send_join(attempt("m2"))

    assert parked[0].generation_id == generation_id + 1


def test_member_with_parked_sync_needs_no_heartbeat() -> None:
    clients = ClassicGroupClients()
    clients.new_dynamic("m1")
    clients.new_dynamic("m2")
    clients.wait(6)
    parked = clients.send_sync("m2", 1)

    for _ in range(3):
        clients.wait(9)
        clients.heartbeat("m1", 1)
    clients.send_sync("m1", 1, {"m2": b"two"})

    assert parked[0].assignment == b"two"


def test_expiring_member_does_not_take_a_parked_sync_along() -> None:
    """The removal answers the other's SyncGroup. That restarts its session, which ended at the same time."""
    clients = ClassicGroupClients(initial_delay_ms=0)
    joins = clients.new_dynamic("m1")
    clients.wait(0)
    clients.new_dynamic("m2")
    clients.send_join(attempt("m1"))
    parked = clients.send_sync("m2", joins[0].generation_id + 1)

    clients.wait(10)

    assert parked == [SyncReply(error_code=ErrorCode.REBALANCE_IN_PROGRESS)]
    assert [member.member_id for member in clients.group.members] == ["m2"]
    assert clients.state is GroupState.PREPARING_REBALANCE


def test_expiring_member_does_not_take_a_parked_join_along() -> None:
    clients = ClassicGroupClients()
    generation_id = clients.stable("m1", "m2")
    parked = clients.send_join(attempt("m2", protocols=(("range", b"other"),)))

    clients.wait(10)

    assert parked[0].generation_id == generation_id + 1
    assert [member.member_id for member in clients.group.members] == ["m2"]


def test_first_parked_join_expires_after_five_minutes() -> None:
    clients = ClassicGroupClients()
    generation_id = clients.stable("m1", rebalance_timeout_ms=1_800_000)
    parked = clients.new_dynamic("m2", rebalance_timeout_ms=1_800_000)

    for _ in range(60):
        clients.wait(5)
        clients.heartbeat("m1", generation_id)

    assert parked == [JoinReply(error_code=ErrorCode.UNKNOWN_MEMBER_ID)]


def test_unused_pending_member_id_expires() -> None:
    clients = ClassicGroupClients()
    clients.send_join(attempt(new_member_id="m1"))

    clients.wait(10)

    assert clients.send_join(attempt("m1"))[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert clients.group.is_blank


# ---- the assignment


def test_member_without_sync_is_removed() -> None:
    clients = ClassicGroupClients()
    clients.new_dynamic("m1", rebalance_timeout_ms=20_000)
    clients.new_dynamic("m2", rebalance_timeout_ms=20_000)
    clients.wait(6)
    clients.send_sync("m1", 1, {"m1": b"one", "m2": b"two"})
    assert clients.state is GroupState.STABLE

    for _ in range(4):
        clients.wait(5)
        clients.heartbeat("m1", 1)
        clients.heartbeat("m2", 1)

    assert "m2" not in clients.group.members
    assert clients.heartbeat("m1", 1) == ErrorCode.REBALANCE_IN_PROGRESS


def test_leader_that_never_syncs_is_replaced() -> None:
    clients = ClassicGroupClients()
    clients.new_dynamic("m1", rebalance_timeout_ms=20_000)
    clients.new_dynamic("m2", rebalance_timeout_ms=20_000)
    clients.wait(6)
    parked = clients.send_sync("m2", 1)

    for _ in range(4):
        clients.wait(5)
        clients.heartbeat("m1", 1)

    assert parked == [SyncReply(error_code=ErrorCode.REBALANCE_IN_PROGRESS)]
    assert clients.send_join(attempt("m2"))[0].leader == "m2"


def test_sync_deadline_ends_once_all_members_have_synced() -> None:
    clients = ClassicGroupClients()
    generation_id = clients.stable("m1", "m2", rebalance_timeout_ms=20_000)

    for _ in range(10):
        clients.wait(5)
        for member_id in ("m1", "m2"):
            assert clients.heartbeat(member_id, generation_id) == ErrorCode.NONE

    assert clients.state is GroupState.STABLE


# ---- bookkeeping


def test_group_records_when_it_became_empty() -> None:
    clients = ClassicGroupClients()
    clients.stable("m1")
    clients.wait(5)

    clients.group.leave([MemberIdentity(member_id="m1", group_instance_id=None)], clients.now)

    assert clients.group.state_since_ms == WALL_START_MS + 8_000


def test_early_timer_changes_nothing() -> None:
    clients = ClassicGroupClients()
    generation_id = clients.stable("m1")

    clients.group.on_time(clients.now)

    assert clients.state is GroupState.STABLE
    assert clients.heartbeat("m1", generation_id) == ErrorCode.NONE


def test_members_get_a_full_session_after_a_restart() -> None:
    clients = ClassicGroupClients()
    generation_id = clients.stable("m1")
    clients.seconds += 1000

    clients.group.resume(clients.now)
    clients.wait(9)

    assert clients.heartbeat("m1", generation_id) == ErrorCode.NONE

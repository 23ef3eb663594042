"""Timers of a group of the classic protocol."""

from __future__ import annotations

import math

from klamm.broker.groups.classic.model import GroupState, JoinReply, MemberIdentity, SyncReply
from klamm.protocol.errors import ErrorCode
from tests.support.groups import WALL_START_MS, GroupScene, attempt

# ---- the first rebalance


def test_initial_rebalance_delay_waits_for_more_members() -> None:
    """``group.initial.rebalance.delay.ms``"""
    scene = GroupScene(initial_delay_ms=3000)
    joined = scene.new_dynamic("m1")

    scene.wait(2.9)
    assert joined == []
    scene.wait(0.2)
    assert joined[0].generation_id == 1


def test_joins_extend_initial_delay_up_to_rebalance_timeout() -> None:
    scene = GroupScene(initial_delay_ms=3000)
    first = scene.new_dynamic("m0", rebalance_timeout_ms=7000)

    for number in range(1, 9):
        scene.wait(0.9)
        scene.new_dynamic(f"m{number}", rebalance_timeout_ms=7000)
        assert (first == []) == (scene.seconds < 1007)

    assert len(first[0].members) == 8


def test_without_a_delay_the_first_member_does_not_wait() -> None:
    scene = GroupScene(initial_delay_ms=0)
    joined = scene.new_dynamic("m1")

    scene.wait(0)

    assert joined[0].generation_id == 1


def test_group_is_empty_when_all_members_leave_during_initial_delay() -> None:
    scene = GroupScene()
    scene.new_dynamic("m1")
    scene.group.leave([MemberIdentity(member_id="m1", group_instance_id=None)], scene.now)

    scene.wait(3)

    assert scene.state is GroupState.EMPTY


# ---- later rebalances


def test_rebalance_completes_when_all_members_have_joined() -> None:
    scene = GroupScene()
    generation_id = scene.stable("m1", "m2")
    third = scene.new_dynamic("m3")
    first = scene.send_join(attempt("m1"))
    assert first == third == []

    second = scene.send_join(attempt("m2"))

    assert {reply[0].generation_id for reply in (first, second, third)} == {generation_id + 1}


def test_member_that_misses_the_rebalance_timeout_is_removed() -> None:
    scene = GroupScene()
    generation_id = scene.stable("m1", "m2", rebalance_timeout_ms=20_000, session_timeout_ms=60_000)
    parked = scene.send_join(attempt("m2", protocols=(("range", b"other"),), rebalance_timeout_ms=20_000))

    scene.wait(19.9)
    assert parked == []
    scene.wait(0.2)

    assert parked[0].leader == "m2"
    assert [member.member_id for member in parked[0].members] == ["m2"]
    assert scene.heartbeat("m1", generation_id) == ErrorCode.UNKNOWN_MEMBER_ID


def test_rebalance_waits_for_pending_member_ids() -> None:
    scene = GroupScene()
    scene.stable("m1")
    scene.send_join(attempt(new_member_id="m2"))
    parked = scene.send_join(attempt("m1"))
    assert parked == []

    scene.wait(10)

    assert [member.member_id for member in parked[0].members] == ["m1"]


def test_static_member_survives_a_missed_rebalance() -> None:
    """KIP-345."""
    scene = GroupScene()
    scene.send_join(attempt(instance_id="i1", new_member_id="s1", session_timeout_ms=90_000))
    scene.send_join(attempt(instance_id="i2", new_member_id="s2", session_timeout_ms=90_000))
    scene.wait(6)
    scene.sync_all(1, "s1", "s2")
    parked = scene.send_join(attempt("s2", "i2", protocols=(("range", b"other"),), session_timeout_ms=90_000))

    scene.wait(61)

    assert parked[0].leader == "s2"
    assert [member.member_id for member in parked[0].members] == ["s1", "s2"]


def test_static_members_missing_a_rebalance_expire_with_their_sessions() -> None:
    scene = GroupScene()
    scene.send_join(attempt(instance_id="i1", new_member_id="s1", session_timeout_ms=100_000))
    scene.wait(3)
    scene.sync_all(1, "s1")
    scene.new_dynamic("m2", session_timeout_ms=10_000)
    scene.group.leave([MemberIdentity(member_id="m2", group_instance_id=None)], scene.now)

    scene.wait(90)
    before = scene.state
    scene.wait(20)

    assert (before, scene.state) == (GroupState.PREPARING_REBALANCE, GroupState.EMPTY)


def test_static_members_without_rebalance_timeout_do_not_cause_busy_timers() -> None:
    scene = GroupScene()
    scene.send_join(attempt(instance_id="i1", new_member_id="s1", rebalance_timeout_ms=0, session_timeout_ms=100_000))
    scene.wait(3)
    scene.send_sync("s1", 1, {"s1": b""}, instance_id="i1")
    scene.new_dynamic("m2", rebalance_timeout_ms=0)
    scene.group.leave([MemberIdentity(member_id="m2", group_instance_id=None)], scene.now)

    scene.group.on_time(scene.now)

    assert scene.group.wake_at >= scene.seconds + 1


# ---- sessions


def test_member_without_heartbeat_expires_after_session_timeout() -> None:
    scene = GroupScene()
    generation_id = scene.stable("m1", "m2")
    for _ in range(4):
        scene.wait(4)
        scene.heartbeat("m1", generation_id)

    assert "m2" not in scene.group.members
    assert scene.heartbeat("m1", generation_id) == ErrorCode.REBALANCE_IN_PROGRESS


def test_group_with_only_silent_members_becomes_empty() -> None:
    scene = GroupScene()
    generation_id = scene.stable("m1", "m2")

    scene.wait(70)

    assert scene.state is GroupState.EMPTY
    assert scene.group.generation_id == generation_id + 1
    assert scene.group.wake_at == math.inf


def test_member_with_parked_join_needs_no_heartbeat() -> None:
    scene = GroupScene()
    generation_id = scene.stable("m1", "m2", session_timeout_ms=10_000, rebalance_timeout_ms=60_000)
    parked = scene.send_join(attempt("m1"))

    for _ in range(5):
        scene.wait(9)
        scene.heartbeat("m2", generation_id)
    assert parked == []
    scene.send_join(attempt("m2"))

    assert parked[0].generation_id == generation_id + 1


def test_member_with_parked_sync_needs_no_heartbeat() -> None:
    scene = GroupScene()
    scene.new_dynamic("m1")
    scene.new_dynamic("m2")
    scene.wait(6)
    parked = scene.send_sync("m2", 1)

    for _ in range(3):
        scene.wait(9)
        scene.heartbeat("m1", 1)
    scene.send_sync("m1", 1, {"m2": b"two"})

    assert parked[0].assignment == b"two"


def test_first_parked_join_expires_after_five_minutes() -> None:
    scene = GroupScene()
    generation_id = scene.stable("m1", rebalance_timeout_ms=1_800_000)
    parked = scene.new_dynamic("m2", rebalance_timeout_ms=1_800_000)

    for _ in range(60):
        scene.wait(5)
        scene.heartbeat("m1", generation_id)

    assert parked == [JoinReply(error_code=ErrorCode.UNKNOWN_MEMBER_ID)]


def test_unused_pending_member_id_expires() -> None:
    scene = GroupScene()
    scene.send_join(attempt(new_member_id="m1"))

    scene.wait(10)

    assert scene.send_join(attempt("m1"))[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.group.is_blank


# ---- the assignment


def test_member_without_sync_is_removed() -> None:
    scene = GroupScene()
    scene.new_dynamic("m1", rebalance_timeout_ms=20_000)
    scene.new_dynamic("m2", rebalance_timeout_ms=20_000)
    scene.wait(6)
    scene.send_sync("m1", 1, {"m1": b"one", "m2": b"two"})
    assert scene.state is GroupState.STABLE

    for _ in range(4):
        scene.wait(5)
        scene.heartbeat("m1", 1)
        scene.heartbeat("m2", 1)

    assert "m2" not in scene.group.members
    assert scene.heartbeat("m1", 1) == ErrorCode.REBALANCE_IN_PROGRESS


def test_leader_that_never_syncs_is_replaced() -> None:
    scene = GroupScene()
    scene.new_dynamic("m1", rebalance_timeout_ms=20_000)
    scene.new_dynamic("m2", rebalance_timeout_ms=20_000)
    scene.wait(6)
    parked = scene.send_sync("m2", 1)

    for _ in range(4):
        scene.wait(5)
        scene.heartbeat("m1", 1)

    assert parked == [SyncReply(error_code=ErrorCode.REBALANCE_IN_PROGRESS)]
    assert scene.send_join(attempt("m2"))[0].leader == "m2"


def test_sync_deadline_ends_once_all_members_have_synced() -> None:
    scene = GroupScene()
    generation_id = scene.stable("m1", "m2", rebalance_timeout_ms=20_000)

    for _ in range(10):
        scene.wait(5)
        for member_id in ("m1", "m2"):
            assert scene.heartbeat(member_id, generation_id) == ErrorCode.NONE

    assert scene.state is GroupState.STABLE


# ---- bookkeeping


def test_group_records_when_it_became_empty() -> None:
    scene = GroupScene()
    scene.stable("m1")
    scene.wait(5)

    scene.group.leave([MemberIdentity(member_id="m1", group_instance_id=None)], scene.now)

    assert scene.group.state_since_ms == WALL_START_MS + 8_000


def test_early_timer_changes_nothing() -> None:
    scene = GroupScene()
    generation_id = scene.stable("m1")

    scene.group.on_time(scene.now)

    assert scene.state is GroupState.STABLE
    assert scene.heartbeat("m1", generation_id) == ErrorCode.NONE


def test_members_get_a_full_session_after_a_restart() -> None:
    scene = GroupScene()
    generation_id = scene.stable("m1")
    scene.seconds += 1000

    scene.group.resume(scene.now)
    scene.wait(9)

    assert scene.heartbeat("m1", generation_id) == ErrorCode.NONE

"""Requests to a group of the classic protocol."""

from __future__ import annotations

import pytest

from klamm.broker.groups.classic.group import MAX_PENDING_MEMBERS
from klamm.broker.groups.classic.model import GroupState, JoinedMember, JoinReply, MemberIdentity, SyncReply
from klamm.protocol.errors import ErrorCode
from tests.support.groups import ClassicGroupClients, attempt

BOTH = (("range", b"r"), ("sticky", b"s"))


def gone(member_id: str, instance_id: str | None = None) -> MemberIdentity:
    return MemberIdentity(member_id=member_id, group_instance_id=instance_id)


# ---- joining


def test_new_dynamic_member_gets_member_id_required() -> None:
    """KIP-394."""
    clients = ClassicGroupClients()

    assert clients.send_join(attempt(new_member_id="m1")) == [
        JoinReply(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="m1")
    ]
    assert clients.state is GroupState.EMPTY


def test_join_before_v4_is_accepted_without_member_id() -> None:
    clients = ClassicGroupClients()

    joined = clients.send_join(attempt(new_member_id="m1", version=3))
    clients.wait(3)

    assert joined[0].member_id == "m1"
    assert joined[0].generation_id == 1


def test_first_member_is_leader_and_gets_the_members() -> None:
    clients = ClassicGroupClients()
    first = clients.new_dynamic("m1", protocols=(("range", b"one"),))
    second = clients.new_dynamic("m2", protocols=(("range", b"two"),))

    clients.wait(6)

    assert first == [
        JoinReply(
            member_id="m1",
            generation_id=1,
            protocol_type="consumer",
            protocol_name="range",
            leader="m1",
            members=(
                JoinedMember(member_id="m1", group_instance_id=None, metadata=b"one"),
                JoinedMember(member_id="m2", group_instance_id=None, metadata=b"two"),
            ),
        )
    ]
    assert second == [
        JoinReply(member_id="m2", generation_id=1, protocol_type="consumer", protocol_name="range", leader="m1")
    ]
    assert clients.state is GroupState.COMPLETING_REBALANCE


def test_unknown_member_id_is_rejected() -> None:
    clients = ClassicGroupClients()

    assert clients.send_join(attempt("stranger")) == [
        JoinReply(error_code=ErrorCode.UNKNOWN_MEMBER_ID, member_id="stranger")
    ]


def test_pending_member_id_is_rejected_for_static_member() -> None:
    clients = ClassicGroupClients()
    clients.send_join(attempt(new_member_id="m1"))

    assert clients.send_join(attempt("m1", "instance"))[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("change", [{"protocols": ()}, {"protocol_type": ""}], ids=["no protocol", "no protocol type"])
def test_first_member_without_protocol_is_rejected(change: dict[str, object]) -> None:
    clients = ClassicGroupClients()

    reply = clients.send_join(attempt(**change))  # type: ignore[arg-type]

    assert reply == [JoinReply(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)]
    assert clients.group.is_blank


@pytest.mark.parametrize(
    "change",
    [{"protocols": (("sticky", b""),)}, {"protocol_type": "connect"}],
    ids=["another protocol", "another protocol type"],
)
def test_member_with_inconsistent_protocol_is_rejected(change: dict[str, object]) -> None:
    clients = ClassicGroupClients()
    clients.stable("m1")

    assert clients.send_join(attempt(**change))[0].error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL  # type: ignore[arg-type]


def test_empty_group_accepts_any_protocol_type() -> None:
    clients = ClassicGroupClients()
    clients.stable("m1")
    clients.group.leave([gone("m1")], clients.now)

    clients.new_dynamic("m2", protocol_type="connect", protocols=(("default", b""),))
    clients.wait(3)

    assert clients.group.protocol_type == "connect"
    assert clients.group.protocol_name == "default"


def test_only_protocol_supported_by_all_members_is_selected() -> None:
    clients = ClassicGroupClients()
    clients.new_dynamic("m1", protocols=(("only-one", b""), ("range", b"")))
    clients.new_dynamic("m2", protocols=(("sticky", b""), ("range", b""), ("also", b"")))
    clients.new_dynamic("m3", protocols=(("sticky", b""), ("range", b"")))
    clients.wait(9)
    assert clients.group.protocol_name == "range"


def test_protocol_with_most_votes_wins_and_oldest_member_breaks_ties() -> None:
    clients = ClassicGroupClients()
    clients.new_dynamic("m1", protocols=BOTH)
    clients.new_dynamic("m2", protocols=tuple(reversed(BOTH)))
    clients.wait(6)
    assert clients.group.protocol_name == "range"

    clients.new_dynamic("m3", protocols=tuple(reversed(BOTH)))
    for member_id, protocols in (("m1", BOTH), ("m2", tuple(reversed(BOTH)))):
        clients.send_join(attempt(member_id, protocols=protocols))
    assert clients.group.protocol_name == "sticky"


def test_full_group_rejects_further_members() -> None:
    clients = ClassicGroupClients(max_size=2)
    clients.stable("m1", "m2")

    reply = clients.send_join(attempt(new_member_id="m3"))

    assert reply == [JoinReply(error_code=ErrorCode.GROUP_MAX_SIZE_REACHED)]
    assert clients.send_join(attempt("m2"))[0].error_code == ErrorCode.NONE


def test_pending_member_id_is_removed_when_group_is_full() -> None:
    clients = ClassicGroupClients(max_size=1)
    clients.new_dynamic("m1")
    clients.send_join(attempt(new_member_id="m2"))

    assert clients.send_join(attempt("m2"))[0].error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert "m2" not in clients.group.members.pending


def test_pending_member_ids_are_limited() -> None:
    clients = ClassicGroupClients()
    for number in range(MAX_PENDING_MEMBERS):
        clients.send_join(attempt(new_member_id=str(number)))

    assert clients.send_join(attempt(new_member_id="m1"))[0].error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    clients.wait(11)
    assert clients.send_join(attempt(new_member_id="m1"))[0].error_code == ErrorCode.MEMBER_ID_REQUIRED


# ---- joining again


def test_unchanged_follower_rejoins_current_generation() -> None:
    clients = ClassicGroupClients()
    generation_id = clients.stable("m1", "m2")

    reply = clients.send_join(attempt("m2"))

    assert reply[0].generation_id == generation_id
    assert reply[0].members == ()
    assert clients.state is GroupState.STABLE


def test_rejoining_leader_triggers_rebalance() -> None:
    clients = ClassicGroupClients()
    clients.stable("m1", "m2")

    assert clients.send_join(attempt("m1")) == []
    assert clients.state is GroupState.PREPARING_REBALANCE


def test_changed_subscription_triggers_rebalance() -> None:
    clients = ClassicGroupClients()
    generation_id = clients.stable("m1", "m2")

    again = clients.send_join(attempt("m2", protocols=(("range", b"other topics"),)))
    assert clients.heartbeat("m1", generation_id) == ErrorCode.REBALANCE_IN_PROGRESS
    leader = clients.send_join(attempt("m1"))

    assert again[0].generation_id == leader[0].generation_id == generation_id + 1
    assert leader[0].members[1].metadata == b"other topics"


@pytest.mark.parametrize("member_id", ["m1", "m2"], ids=["leader", "follower"])
def test_changed_session_timeout_causes_no_rebalance(member_id: str) -> None:
    """K649-78: Changed session.timeout.ms is sent to the coordinator by a new JoinGroup; a stable group must not
    rebalance for that alone.
    """
    clients = ClassicGroupClients()
    generation_id = clients.stable("m1", "m2")
    clients.group.take_unsaved()

    reply = clients.send_join(attempt(member_id, session_timeout_ms=30_000))

    assert reply[0].generation_id == generation_id
    assert reply[0].skip_assignment is (member_id == "m1")
    assert clients.state is GroupState.STABLE
    assert clients.group.take_unsaved()
    clients.wait(9)
    other = "m2" if member_id == "m1" else "m1"
    assert clients.heartbeat(other, generation_id) == ErrorCode.NONE
    clients.wait(9)
    assert clients.heartbeat(other, generation_id) == ErrorCode.NONE
    clients.wait(9)
    assert clients.heartbeat(member_id, generation_id) == ErrorCode.NONE


def test_enforced_session_timeout_keeps_member_alive() -> None:
    """K649-94."""
    clients = ClassicGroupClients()
    generation_id = clients.stable("m1", enforced_session_timeout_ms=60_000)
    clients.wait(50)
    assert clients.heartbeat("m1", generation_id, enforced_ms=60_000) == ErrorCode.NONE
    clients.wait(61)
    assert clients.heartbeat("m1", generation_id) == ErrorCode.UNKNOWN_MEMBER_ID


def test_changed_enforced_session_timeout_applies_at_next_heartbeat() -> None:
    """K649-94."""
    clients = ClassicGroupClients()
    generation_id = clients.stable("m1")
    assert clients.heartbeat("m1", generation_id, enforced_ms=30_000) == ErrorCode.NONE
    clients.wait(29)
    assert clients.heartbeat("m1", generation_id) == ErrorCode.NONE, "the config is removed"
    clients.wait(9)
    assert clients.heartbeat("m1", generation_id) == ErrorCode.NONE
    clients.wait(11)
    assert clients.heartbeat("m1", generation_id) == ErrorCode.UNKNOWN_MEMBER_ID


def test_rejoining_leader_rebalances_despite_changed_enforced_session_timeout() -> None:
    clients = ClassicGroupClients()
    clients.stable("m1", enforced_session_timeout_ms=30_000)
    assert clients.send_join(attempt("m1", enforced_session_timeout_ms=20_000))[0].generation_id == 2


def test_leader_with_changed_session_timeout_keeps_its_assignment() -> None:
    """K649-78: an old leader that cannot skip the assignment computes one, which changes nothing."""
    clients = ClassicGroupClients()
    generation_id = clients.stable("m1", "m2")

    reply = clients.send_join(attempt("m1", session_timeout_ms=30_000, version=5))
    synced = clients.send_sync("m1", generation_id, {"m1": b"all of it"})

    assert [member.member_id for member in reply[0].members] == ["m1", "m2"]
    assert not reply[0].skip_assignment
    assert synced[0].assignment == b"share of m1"


def test_changed_subscription_and_session_timeout_trigger_rebalance() -> None:
    clients = ClassicGroupClients()
    clients.stable("m1", "m2")

    clients.send_join(attempt("m2", session_timeout_ms=30_000, protocols=(("range", b"other"),)))

    assert clients.state is GroupState.PREPARING_REBALANCE


def test_repeated_join_before_sync_gets_the_same_response() -> None:
    clients = ClassicGroupClients()
    first = clients.new_dynamic("m1")
    clients.wait(3)

    assert clients.send_join(attempt("m1")) == first


def test_changed_subscription_before_sync_restarts_rebalance() -> None:
    clients = ClassicGroupClients()
    clients.new_dynamic("m1")
    clients.new_dynamic("m2")
    clients.wait(6)
    waiting = clients.send_sync("m2", 1)

    clients.send_join(attempt("m1", protocols=(("range", b"other"),)))

    assert waiting == [SyncReply(error_code=ErrorCode.REBALANCE_IN_PROGRESS)]
    assert clients.state is GroupState.PREPARING_REBALANCE


def test_repeated_join_ends_the_parked_one() -> None:
    clients = ClassicGroupClients()
    clients.stable("m1", "m2")
    parked = clients.send_join(attempt("m1"))

    clients.send_join(attempt("m1"))

    assert parked == [JoinReply(error_code=ErrorCode.REBALANCE_IN_PROGRESS, member_id="m1")]


# ---- static members (KIP-345)


def test_static_member_joins_without_member_id_required() -> None:
    clients = ClassicGroupClients()

    joined = clients.send_join(attempt(instance_id="i1", new_member_id="s1"))
    clients.wait(3)

    assert joined[0].member_id == "s1"
    assert joined[0].members[0].group_instance_id == "i1"


def static_pair(clients: ClassicGroupClients) -> int:
    clients.send_join(attempt(instance_id="i1", new_member_id="s1"))
    clients.send_join(attempt(instance_id="i2", new_member_id="s2"))
    clients.wait(6)
    clients.sync_all(1, "s1", "s2")
    clients.group.take_unsaved()
    return 1


def test_restarted_static_follower_rejoins_without_rebalance() -> None:
    clients = ClassicGroupClients()
    generation_id = static_pair(clients)

    joined = clients.send_join(attempt(instance_id="i2", new_member_id="s2-again"))
    synced = clients.send_sync("s2-again", generation_id, instance_id="i2")

    assert joined[0].generation_id == generation_id
    assert not joined[0].skip_assignment
    assert synced[0].assignment == b"share of s2"
    assert clients.state is GroupState.STABLE
    assert clients.group.take_unsaved()


def test_restarted_static_leader_skips_assignment() -> None:
    """KIP-814."""
    clients = ClassicGroupClients()
    generation_id = static_pair(clients)

    joined = clients.send_join(attempt(instance_id="i1", new_member_id="s1-again"))

    assert joined[0].leader == joined[0].member_id == "s1-again"
    assert joined[0].skip_assignment
    assert [member.member_id for member in joined[0].members] == ["s2", "s1-again"]
    assert joined[0].generation_id == generation_id
    assert clients.group.members.leader_id == "s1-again"


def test_restarted_static_leader_before_v9_gets_its_old_member_id() -> None:
    clients = ClassicGroupClients()
    static_pair(clients)

    joined = clients.send_join(attempt(instance_id="i1", new_member_id="s1-again", version=5))

    assert joined[0].leader == "s1"
    assert joined[0].members == ()
    assert clients.group.members.leader_id == "s1-again"


def test_restarted_static_member_that_changes_selected_protocol_rebalances() -> None:
    clients = ClassicGroupClients()
    clients.send_join(attempt(instance_id="i1", new_member_id="s1", protocols=BOTH))
    clients.wait(3)
    clients.sync_all(1, "s1")

    parked = clients.send_join(attempt(instance_id="i1", new_member_id="s1b", protocols=tuple(reversed(BOTH))))

    assert parked[0].generation_id == 2
    assert clients.group.protocol_name == "sticky"


def test_requests_of_replaced_static_member_are_fenced() -> None:
    clients = ClassicGroupClients()
    generation_id = static_pair(clients)
    clients.send_join(attempt(instance_id="i2", new_member_id="s2-again"))

    assert clients.heartbeat("s2", generation_id, "i2") == ErrorCode.FENCED_INSTANCE_ID
    assert clients.commit("s2", generation_id, "i2") == ErrorCode.FENCED_INSTANCE_ID
    assert clients.send_sync("s2", generation_id, instance_id="i2")[0].error_code == ErrorCode.FENCED_INSTANCE_ID
    assert clients.send_join(attempt("s2", "i2"))[0].error_code == ErrorCode.FENCED_INSTANCE_ID
    assert clients.group.leave([gone("s2", "i2")], clients.now) == (ErrorCode.FENCED_INSTANCE_ID,)
    assert clients.heartbeat("s2", generation_id) == ErrorCode.UNKNOWN_MEMBER_ID


def test_parked_requests_of_a_replaced_static_member_are_fenced() -> None:
    clients = ClassicGroupClients()
    parked = clients.send_join(attempt(instance_id="i1", new_member_id="s1"))

    clients.send_join(attempt(instance_id="i1", new_member_id="s1-again"))

    assert parked == [JoinReply(error_code=ErrorCode.FENCED_INSTANCE_ID, member_id="s1")]


def test_parked_sync_of_replaced_static_member_is_fenced() -> None:
    clients = ClassicGroupClients()
    clients.send_join(attempt(instance_id="i1", new_member_id="s1"))
    clients.send_join(attempt(instance_id="i2", new_member_id="s2"))
    clients.wait(6)
    parked = clients.send_sync("s2", 1, instance_id="i2")

    clients.send_join(attempt(instance_id="i2", new_member_id="s2-again"))

    assert parked == [SyncReply(error_code=ErrorCode.FENCED_INSTANCE_ID)]
    assert clients.state is GroupState.PREPARING_REBALANCE


def test_unused_group_instance_id_is_unknown_member() -> None:
    clients = ClassicGroupClients()
    generation_id = clients.stable("m1")

    assert clients.heartbeat("m1", generation_id, "nobody") == ErrorCode.UNKNOWN_MEMBER_ID


# ---- syncing


def test_followers_wait_for_the_leader_and_then_get_their_shares() -> None:
    clients = ClassicGroupClients()
    clients.new_dynamic("m1")
    clients.new_dynamic("m2")
    clients.wait(6)

    follower = clients.send_sync("m2", 1)
    assert follower == []
    leader = clients.send_sync("m1", 1, {"m1": b"one", "m2": b"two", "stranger": b"three"})

    assert leader == [SyncReply(protocol_type="consumer", protocol_name="range", assignment=b"one")]
    assert follower == [SyncReply(protocol_type="consumer", protocol_name="range", assignment=b"two")]
    assert clients.state is GroupState.STABLE
    assert clients.group.take_unsaved()


def test_member_without_assignment_gets_an_empty_one() -> None:
    clients = ClassicGroupClients()
    clients.new_dynamic("m1")
    clients.new_dynamic("m2")
    clients.wait(6)
    clients.send_sync("m1", 1, {"m1": b"one"})

    assert clients.send_sync("m2", 1)[0] == SyncReply(protocol_type="consumer", protocol_name="range")


def test_late_sync_gets_its_assignment_from_stable_group() -> None:
    clients = ClassicGroupClients()
    generation_id = clients.stable("m1", "m2")

    assert clients.send_sync("m2", generation_id)[0].assignment == b"share of m2"


@pytest.mark.parametrize(
    ("member_id", "generation_id", "protocol_type", "protocol_name", "error_code"),
    [
        ("stranger", 1, "consumer", "range", ErrorCode.UNKNOWN_MEMBER_ID),
        ("m1", 2, "consumer", "range", ErrorCode.ILLEGAL_GENERATION),
        ("m1", 0, "consumer", "range", ErrorCode.ILLEGAL_GENERATION),
        ("m1", 1, "connect", "range", ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ("m1", 1, "consumer", "sticky", ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ("m1", 1, None, None, ErrorCode.NONE),
    ],
)
def test_sync_with_wrong_member_generation_or_protocol_is_rejected(
    member_id: str,
    generation_id: int,
    protocol_type: str | None,
    protocol_name: str | None,
    error_code: ErrorCode,
) -> None:
    """KIP-559 for the protocol, which versions before 5 do not send."""
    clients = ClassicGroupClients()
    clients.stable("m1")

    reply = clients.send_sync(member_id, generation_id, protocol_type=protocol_type, protocol_name=protocol_name)

    assert reply[0].error_code == error_code


def test_sync_during_rebalance_gets_rebalance_in_progress() -> None:
    clients = ClassicGroupClients()
    generation_id = clients.stable("m1", "m2")
    clients.new_dynamic("m3")

    assert clients.send_sync("m2", generation_id) == [SyncReply(error_code=ErrorCode.REBALANCE_IN_PROGRESS)]


def test_repeated_sync_ends_the_parked_one() -> None:
    clients = ClassicGroupClients()
    clients.new_dynamic("m1")
    clients.new_dynamic("m2")
    clients.wait(6)
    parked = clients.send_sync("m2", 1)

    clients.send_sync("m2", 1)

    assert parked == [SyncReply(error_code=ErrorCode.REBALANCE_IN_PROGRESS)]


# ---- heartbeats and commits


def test_heartbeats_are_checked_for_member_and_generation() -> None:
    clients = ClassicGroupClients()
    generation_id = clients.stable("m1")

    assert clients.heartbeat("m1", generation_id) == ErrorCode.NONE
    assert clients.heartbeat("m1", generation_id - 1) == ErrorCode.ILLEGAL_GENERATION
    assert clients.heartbeat("stranger", generation_id) == ErrorCode.UNKNOWN_MEMBER_ID


def test_heartbeat_before_the_assignment_is_accepted() -> None:
    clients = ClassicGroupClients()
    clients.new_dynamic("m1")
    clients.wait(3)

    assert clients.heartbeat("m1", 1) == ErrorCode.NONE


@pytest.mark.parametrize(
    ("member_id", "generation_id", "error_code"),
    [
        ("m1", 1, ErrorCode.NONE),
        ("m1", 0, ErrorCode.ILLEGAL_GENERATION),
        ("m1", -1, ErrorCode.ILLEGAL_GENERATION),
        ("stranger", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_group_with_members_accepts_commits_of_members_only(
    member_id: str, generation_id: int, error_code: ErrorCode
) -> None:
    clients = ClassicGroupClients()
    clients.stable("m1")

    assert clients.commit(member_id, generation_id) == error_code


def test_empty_group_accepts_outside_commits_only() -> None:
    clients = ClassicGroupClients()
    generation_id = clients.stable("m1")
    clients.group.leave([gone("m1")], clients.now)

    assert clients.commit("", -1) == ErrorCode.NONE
    assert clients.commit("m1", generation_id) == ErrorCode.UNKNOWN_MEMBER_ID


def test_commit_is_accepted_while_preparing_and_rejected_while_completing_rebalance() -> None:
    clients = ClassicGroupClients()
    generation_id = clients.stable("m1", "m2")
    clients.new_dynamic("m3")
    assert clients.commit("m1", generation_id) == ErrorCode.NONE

    for member_id in ("m1", "m2"):
        clients.send_join(attempt(member_id))

    assert clients.commit("m1", generation_id) == ErrorCode.ILLEGAL_GENERATION
    assert clients.commit("m1", generation_id + 1) == ErrorCode.REBALANCE_IN_PROGRESS


def test_commit_counts_as_heartbeat() -> None:
    clients = ClassicGroupClients()
    generation_id = clients.stable("m1")

    for _ in range(4):
        clients.wait(8)
        assert clients.commit("m1", generation_id) == ErrorCode.NONE


# ---- leaving


def test_leaving_member_triggers_rebalance() -> None:
    clients = ClassicGroupClients()
    generation_id = clients.stable("m1", "m2", "m3")

    assert clients.group.leave([gone("m1")], clients.now) == (ErrorCode.NONE,)

    assert clients.heartbeat("m2", generation_id) == ErrorCode.REBALANCE_IN_PROGRESS
    assert clients.heartbeat("m1", generation_id) == ErrorCode.UNKNOWN_MEMBER_ID
    joined = [clients.send_join(attempt(member_id)) for member_id in ("m3", "m2")]
    assert {replies[0].leader for replies in joined} == {"m2"}


def test_last_leaving_member_empties_and_stores_the_group() -> None:
    clients = ClassicGroupClients()
    generation_id = clients.stable("m1")
    clients.group.take_unsaved()

    clients.group.leave([gone("m1")], clients.now)

    assert clients.state is GroupState.EMPTY
    assert clients.group.generation_id == generation_id + 1
    assert clients.group.protocol_type == "consumer"
    assert clients.group.protocol_name is None
    assert clients.group.take_unsaved()


def test_several_members_leave_at_once_each_with_its_own_answer() -> None:
    clients = ClassicGroupClients()
    static_pair(clients)
    clients.send_join(attempt(new_member_id="pending"))

    codes = clients.group.leave(
        [gone("", "i1"), gone("", "nobody"), gone("stranger"), gone("pending"), gone("s2", "i2"), gone("")], clients.now
    )

    assert codes == (
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    )
    assert clients.state is GroupState.EMPTY


def test_leaving_pending_member_causes_no_rebalance() -> None:
    clients = ClassicGroupClients()
    clients.stable("m1")
    clients.send_join(attempt(new_member_id="m2"))

    assert clients.group.leave([gone("m2")], clients.now) == (ErrorCode.NONE,)
    assert clients.state is GroupState.STABLE


def test_leave_of_awaited_member_completes_rebalance() -> None:
    clients = ClassicGroupClients()
    clients.stable("m1", "m2")
    parked = clients.send_join(attempt("m1"))

    clients.group.leave([gone("m2")], clients.now)

    assert [member.member_id for member in parked[0].members] == ["m1"]


def test_parked_join_of_removed_member_gets_response() -> None:
    clients = ClassicGroupClients()
    parked = clients.send_join(attempt(instance_id="i1", new_member_id="s1"))

    clients.group.leave([gone("", "i1")], clients.now)

    assert parked == [JoinReply(error_code=ErrorCode.UNKNOWN_MEMBER_ID)]


def test_disbanded_group_answers_all_parked_requests() -> None:
    clients = ClassicGroupClients()
    clients.new_dynamic("m1")
    clients.new_dynamic("m2")
    clients.wait(6)
    parked_sync = clients.send_sync("m2", 1)
    parked_join = clients.new_dynamic("m3")

    clients.group.disband(ErrorCode.NOT_COORDINATOR)

    assert parked_sync[-1].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert parked_join == [JoinReply(error_code=ErrorCode.NOT_COORDINATOR, member_id="m3")]

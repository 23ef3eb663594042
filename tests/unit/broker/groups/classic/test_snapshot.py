from __future__ import annotations

import json

import pytest

from klamm.broker.groups.classic.model import GroupLimits, GroupState, MemberIdentity
from klamm.broker.groups.classic.snapshot import from_payload, to_payload
from klamm.protocol.errors import ErrorCode
from tests.support.groups import ClassicGroupClients, attempt

LIMITS = GroupLimits()


def restarted(clients: ClassicGroupClients) -> ClassicGroupClients:
    again = ClassicGroupClients()
    again.seconds = clients.seconds + 500
    again.group = from_payload("group", to_payload(clients.group), LIMITS, again.now)
    return again


def test_members_keep_their_generation_after_a_restart() -> None:
    # given
    clients = ClassicGroupClients()
    generation_id = clients.stable("m1", "m2")
    # when
    again = restarted(clients)
    # then
    assert again.state is GroupState.STABLE
    assert again.heartbeat("m1", generation_id) == ErrorCode.NONE
    assert again.commit("m2", generation_id) == ErrorCode.NONE
    assert again.send_sync("m2", generation_id)[0].assignment == b"share of m2"
    assert again.send_join(attempt("m2"))[0].generation_id == generation_id


def test_leader_is_restored() -> None:
    clients = ClassicGroupClients()
    clients.stable("m1", "m2")
    clients.group.leave([MemberIdentity(member_id="m1", group_instance_id=None)], clients.now)
    clients.new_dynamic("m3")
    generation_id = clients.send_join(attempt("m2"))[0].generation_id
    clients.sync_all(generation_id, "m2", "m3")

    assert restarted(clients).group.members.leader_id == "m2"


def test_static_members_are_restored() -> None:
    clients = ClassicGroupClients()
    clients.send_join(attempt(instance_id="i1", new_member_id="s1"))
    clients.wait(3)
    clients.sync_all(1, "s1")

    again = restarted(clients)

    assert again.send_join(attempt(instance_id="i1", new_member_id="s1-again"))[0].generation_id == 1


def test_empty_group_restores_generation_and_state_timestamp() -> None:
    clients = ClassicGroupClients()
    clients.stable("m1")
    clients.group.leave([MemberIdentity(member_id="m1", group_instance_id=None)], clients.now)

    again = restarted(clients)

    assert again.state is GroupState.EMPTY
    assert again.group.generation_id == 2
    assert again.group.protocol_type == "consumer"
    assert again.group.state_since_ms == clients.group.state_since_ms


def test_non_utf_8_bytes_are_restored() -> None:
    clients = ClassicGroupClients()
    clients.stable("m1", protocols=(("range", bytes(range(256))),))

    member = restarted(clients).group.members.get("m1")

    assert member is not None
    assert member.metadata("range") == bytes(range(256))


def test_enforced_session_timeout_is_kept_for_the_first_session_after_a_restart() -> None:
    clients = ClassicGroupClients()
    generation_id = clients.stable("m1", enforced_session_timeout_ms=60_000)

    again = restarted(clients)

    again.wait(50)
    assert again.heartbeat("m1", generation_id) == ErrorCode.NONE
    again.wait(11)
    assert again.heartbeat("m1", generation_id) == ErrorCode.UNKNOWN_MEMBER_ID


def test_group_stored_by_earlier_version_has_no_enforced_timeout() -> None:
    clients = ClassicGroupClients()
    clients.stable("m1")
    facts = json.loads(to_payload(clients.group))
    for member in facts["members"]:
        del member["requested_session_timeout_ms"]

    again = from_payload("group", json.dumps(facts).encode(), LIMITS, clients.now)

    assert [member.requested_session_timeout_ms for member in again.members] == [10_000]


def test_group_stored_while_it_rebalances_rebalances_after_a_restart() -> None:
    # given
    clients = ClassicGroupClients()
    generation_id = clients.stable("m1", "m2")
    clients.wait(9)
    clients.heartbeat("m1", generation_id)
    clients.seconds += 1  # the session of m2 ends, but its timer has not fired yet
    clients.send_join(attempt("m1", session_timeout_ms=20_000))
    clients.group.on_time(clients.now)
    assert clients.group.take_unsaved()
    # when
    again = restarted(clients)
    # then: nobody has the partitions of m2 until m1 joins again
    assert [member.member_id for member in again.group.members] == ["m1"]
    assert again.heartbeat("m1", generation_id) == ErrorCode.REBALANCE_IN_PROGRESS
    assert again.send_join(attempt("m1"))[0].generation_id == generation_id + 1


def test_member_that_does_not_join_again_after_a_restart_is_removed() -> None:
    # given
    clients = ClassicGroupClients()
    generation_id = clients.stable("m1")
    clients.group.rebalance(clients.now)
    again = restarted(clients)
    # when
    for _ in range(8):
        again.heartbeat("m1", generation_id)
        again.wait(8)
    # then
    assert again.state is GroupState.EMPTY


def test_group_stored_by_earlier_version_is_stable() -> None:
    clients = ClassicGroupClients()
    clients.stable("m1")
    facts = json.loads(to_payload(clients.group))
    del facts["is_rebalancing"]

    again = from_payload("group", json.dumps(facts).encode(), LIMITS, clients.now)

    assert again.state is GroupState.STABLE


def test_lowered_maximum_size_removes_surplus_members_after_a_restart() -> None:
    # given
    clients = ClassicGroupClients()
    generation_id = clients.stable("m1", "m2", "m3")
    again = ClassicGroupClients()
    # when
    again.group = from_payload("group", to_payload(clients.group), GroupLimits(max_size=2), again.now)
    # then
    assert again.heartbeat("m1", generation_id) == ErrorCode.REBALANCE_IN_PROGRESS
    joined = [again.send_join(attempt(member_id)) for member_id in ("m1", "m2", "m3")]
    full = ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [replies[0].error_code for replies in joined] == [ErrorCode.NONE, ErrorCode.NONE, full]
    assert len(again.group.members) == 2
    assert again.state is GroupState.COMPLETING_REBALANCE, "nobody waits for the member that was rejected"


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b'{"members": [{}]}', json.dumps({"members": 3}).encode()])
def test_malformed_payload_raises_value_error(payload: bytes) -> None:
    with pytest.raises(ValueError, match=r"group|Expecting"):
        from_payload("group", payload, LIMITS, ClassicGroupClients().now)

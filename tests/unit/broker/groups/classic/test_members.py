from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.broker.groups.classic.members import GroupMembers, Member
from klamm.broker.groups.errors import FencedInstanceIdError, UnknownMemberIdError

if TYPE_CHECKING:
    from klamm.broker.groups.classic.model import JoinReply


def member(member_id: str, *names: str, instance_id: str | None = None) -> Member:
    return Member(
        member_id=member_id,
        group_instance_id=instance_id,
        client_id="client",
        client_host="/127.0.0.1",
        session_timeout_ms=10_000,
        requested_session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocols=tuple((name, name.encode()) for name in names),
    )


def group_of(*members: Member) -> GroupMembers:
    result = GroupMembers()
    for each_member in members:
        result.add(each_member)
    return result


def test_oldest_remaining_member_becomes_leader() -> None:
    group = group_of(member("a", "x"), member("b", "x"), member("c", "x"))

    group.remove("a")

    assert group.leader_id == "b"


def test_leader_that_does_not_rejoin_is_replaced() -> None:
    group = group_of(member("a", "x"), member("b", "x"), member("c", "x"))
    replies: list[JoinReply] = []
    group.park_join("c", replies.append)

    assert group.elect_joined_leader()
    assert group.leader_id == "c"


def test_no_leader_without_joined_members() -> None:
    group = group_of(member("a", "x"))

    assert not group.elect_joined_leader()
    assert group.leader_id == "a"


def test_only_protocols_of_all_members_are_candidates() -> None:
    group = group_of(member("a", "x", "y"), member("b", "y"))

    assert group.vote() == "y"
    assert group.supports_any((("x", b""), ("y", b"")))
    assert not group.supports_any((("x", b""),))


def test_empty_group_selects_no_protocol_and_accepts_any() -> None:
    group = group_of(member("a", "x"))
    group.remove("a")

    assert group.vote() is None
    assert group.supports_any((("whatever", b""),))


def test_protocols_of_former_members_are_removed() -> None:
    group = group_of(member("a", "x"))
    for number in range(100):
        joining = member("b", f"protocol-{number}", "x")
        group.add(joining)
        group.update_protocols(joining, ((f"other-{number}", b""), ("x", b"")))
        group.remove("b")

    assert dict(group.support) == {"x": 1}


def test_duplicate_protocol_counts_once_with_its_first_metadata() -> None:
    single = member("a", "x")
    group = group_of(single)
    group.update_protocols(single, (("x", b"first"), ("x", b"second")))

    assert group.vote() == "x"
    assert group.listing("x")[0].metadata == b"first"
    group.remove("a")
    assert not group.support


def test_member_is_looked_up_by_id_and_instance() -> None:
    group = group_of(member("a", "x", instance_id="i"), member("b", "x"))

    assert group.find("a", "i").member_id == "a"
    assert group.find("a", None).member_id == "a"
    with pytest.raises(FencedInstanceIdError):
        group.find("b", "i")
    with pytest.raises(UnknownMemberIdError):
        group.find("b", "j")
    with pytest.raises(UnknownMemberIdError):
        group.find("c", None)

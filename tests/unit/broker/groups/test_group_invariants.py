"""Invariants of a group under any order of client requests."""

from __future__ import annotations

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from klamm.broker.groups.classic.model import GroupState, JoinReply, MemberIdentity, SyncReply
from klamm.broker.groups.classic.snapshot import from_payload, to_payload
from klamm.protocol.errors import ErrorCode
from tests.support.groups import ClassicGroupClients, attempt

member_ids = st.sampled_from(["m1", "m2", "m3", "s1", "s2", ""])
instance_ids = st.sampled_from([None, None, None, "i1", "i2"])
protocols = st.sampled_from([(("range", b"a"),), (("range", b"b"), ("sticky", b"")), (("sticky", b""), ("range", b""))])
timeouts = st.sampled_from([0, 6_000, 30_000])


class AnyHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clients = ClassicGroupClients(max_size=4)
        self.group = self.clients.group
        self.joins: list[list[JoinReply]] = []
        self.syncs: list[list[SyncReply]] = []
        self.new_ids = iter(range(10**9))
        self.highest_generation = 0

    def replies(self) -> list[int]:
        return [len(replies) for replies in self.joins] + [len(replies) for replies in self.syncs]

    @rule(
        member_id=member_ids,
        instance_id=instance_ids,
        protocols=protocols,
        session=st.sampled_from([6_000, 30_000]),
        rebalance=timeouts,
        version=st.sampled_from([3, 4, 9]),
    )
    def join(  # noqa: PLR0917 - a request has many fields
        self,
        member_id: str,
        instance_id: str | None,
        protocols: tuple[tuple[str, bytes], ...],
        session: int,
        rebalance: int,
        version: int,
    ) -> None:
        ids = [*self.group.members.pending, *(member.member_id for member in self.group.members)]
        number = next(self.new_ids)
        if member_id and ids:
            member_id = ids[number % len(ids)]
        self.joins.append(
            self.clients.send_join(
                attempt(
                    member_id,
                    instance_id,
                    protocols=protocols,
                    session_timeout_ms=session,
                    rebalance_timeout_ms=rebalance,
                    new_member_id=f"n{number}",
                    version=version,
                )
            )
        )

    @rule(index=st.integers(0, 9), is_current=st.booleans())
    def sync(self, index: int, is_current: bool) -> None:
        members = [member.member_id for member in self.group.members]
        member_id = members[index % len(members)] if members else "nobody"
        generation_id = self.group.generation_id - (not is_current)
        shares = {other: other.encode() for other in members}
        self.syncs.append(
            self.clients.send_sync(member_id, generation_id, shares, protocol_type=None, protocol_name=None)
        )

    @rule(index=st.integers(0, 9))
    def heartbeat(self, index: int) -> None:
        members = [member.member_id for member in self.group.members]
        if members:
            code = self.clients.heartbeat(members[index % len(members)], self.group.generation_id)
            assert code in {ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS}

    @rule(index=st.integers(0, 9), instance_id=instance_ids)
    def leave(self, index: int, instance_id: str | None) -> None:
        members = [*(member.member_id for member in self.group.members), *self.group.members.pending, "nobody"]
        identity = MemberIdentity(
            member_id=members[index % len(members)] if instance_id is None else "", group_instance_id=instance_id
        )
        self.group.leave([identity], self.clients.now)

    @rule(seconds=st.sampled_from([0.0, 0.1, 3.0, 10.0, 400.0]))
    def wait(self, seconds: float) -> None:
        self.clients.wait(seconds)

    @rule()
    def restart(self) -> None:
        """Only at rest: a rebalance starts again, and its parked requests are lost."""
        if self.group.state in {GroupState.STABLE, GroupState.EMPTY} and not self.group.members.pending:
            again = from_payload("group", to_payload(self.group), self.group.limits, self.clients.now)
            assert to_payload(again) == to_payload(self.group)

    @invariant()
    def each_request_is_answered_once(self) -> None:
        assert all(count <= 1 for count in self.replies())

    @invariant()
    def parked_requests_are_as_many_as_unanswered_ones(self) -> None:
        members = self.group.members
        assert sum(not replies for replies in self.joins) == members.joining_count
        parked_syncs = sum(
            members.is_waiting(m.member_id) and not members.has_parked_join(m.member_id) for m in members
        )
        assert sum(not replies for replies in self.syncs) == parked_syncs

    @invariant()
    def the_state_fits_the_members(self) -> None:
        members = self.group.members
        state = self.group.state
        assert state is not GroupState.EMPTY or not members
        assert bool(members) or state in {GroupState.EMPTY, GroupState.PREPARING_REBALANCE}
        assert members.leader_id in members if members else members.leader_id is None
        if state in {GroupState.COMPLETING_REBALANCE, GroupState.STABLE}:
            assert not members.joining_count
            assert all(self.group.protocol_name in dict(member.protocols) for member in members)
        if state is not GroupState.COMPLETING_REBALANCE:
            assert not any(
                members.is_waiting(m.member_id) and not members.has_parked_join(m.member_id) for m in members
            )

    @invariant()
    def generations_only_grow(self) -> None:
        assert self.group.generation_id >= self.highest_generation
        self.highest_generation = self.group.generation_id

    @invariant()
    def the_group_never_sleeps_through_a_deadline(self) -> None:
        deadlines = [
            *self.group.members.pending.values(),
            *(member.expires_at for member in self.group.members),
            self.group.join_deadline,
            self.group.sync_deadline,
        ]
        assert self.group.wake_at <= min(deadlines)

    def teardown(self) -> None:
        """Without requests, every waiting request is answered in the end."""
        self.clients.wait(10_000)
        assert self.group.state is GroupState.EMPTY
        assert self.group.wake_at == math.inf
        assert all(count == 1 for count in self.replies())


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(deadline=None, stateful_step_count=40)

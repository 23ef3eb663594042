"""Any sequence of joins, heartbeats, lost responses, kills, new partitions and restarts keeps KIP-848's promises."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from klamm.broker.groups.consumer.model import STATIC_LEAVE_EPOCH, ConsumerGroupState, ConsumerLimits
from klamm.broker.groups.consumer.snapshot import GroupWriter, from_payload
from klamm.protocol.errors import ErrorCode
from tests.support.consumer_groups import ConsumerGroupClients, FakeMember

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from klamm.broker.groups.consumer.model import HeartbeatReply

TOPICS = {"t": 4, "u": 3}
subscriptions = st.frozensets(st.sampled_from([*TOPICS, "later"]), min_size=1)


class AnyHistory(RuleBasedStateMachine):
    """Members take what they get, and give up what they lose with their next heartbeat or later."""

    def __init__(self) -> None:
        super().__init__()
        self.clients = ConsumerGroupClients(**TOPICS)
        self.members: dict[str, FakeMember] = {}
        self.kept: dict[str, set[tuple[UUID, int]]] = {}
        """Partitions that a member has been asked to revoke and still uses."""
        self.held: dict[str, tuple[HeartbeatReply, FakeMember]] = {}
        """Replies that are held back, by member, and what the member owned when it sent the heartbeat."""
        self.number = 0
        self.group_epoch = 0
        self.epochs: dict[str, int] = {}

    # ---- what members do

    @rule(topics=subscriptions, instance=st.sampled_from([None, None, "i1", "i2"]))
    def join(self, topics: frozenset[str], instance: str | None) -> None:
        self.number += 1
        name = f"m{self.number}"
        member = FakeMember(member_id=name, instance_id=instance, topics=topics)
        code = self.clients.rejected(
            lambda: member.take(self.clients.send(name, 0, topics=topics, instance_id=instance))
        )
        if code is not ErrorCode.NONE:
            assert code is ErrorCode.UNRELEASED_INSTANCE_ID
            return
        self._gone(lambda other: other.instance_id is not None and other.instance_id == instance)
        self.members[name] = member
        self.kept[name] = set()

    @precondition(lambda self: self.members.keys() - self.held.keys())
    @rule(data=st.data(), loses_response=st.booleans(), revokes=st.booleans(), topics=st.none() | subscriptions)
    def beat(self, data: st.DataObject, *, loses_response: bool, revokes: bool, topics: frozenset[str] | None) -> None:
        self.clients.computes_target = data.draw(st.booleans())
        member = data.draw(st.sampled_from([each for name, each in self.members.items() if name not in self.held]))
        kept = self.kept[member.member_id]
        if revokes:
            kept.clear()
        before = member.owned | kept
        member.topics = topics or member.topics
        full = FakeMember(member_id=member.member_id, epoch=member.epoch, owned=before)
        replies: list[HeartbeatReply] = []
        code = self.clients.rejected(
            lambda: replies.append(
                self.clients.send(
                    member.member_id,
                    member.epoch,
                    topics=member.topics if member.is_full else topics,
                    owned=full.assignment,
                    instance_id=member.instance_id,
                    is_full=member.is_full,
                )
            )
        )
        if code is not ErrorCode.NONE:
            assert code in {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID}
            self._gone(lambda other: other is member)
        elif loses_response:
            member.is_full = True
        elif self.clients.group.awaited(replies[0]) or self.clients.group.may_assign(self.clients.now):
            self.held[member.member_id] = replies[0], full
        else:
            member.take(replies[0])
            kept |= before - member.owned

    @precondition(lambda self: self.held)
    @rule(data=st.data(), loses_response=st.booleans())
    def release(self, data: st.DataObject, *, loses_response: bool) -> None:
        self._release(data.draw(st.sampled_from(list(self.held))), loses_response=loses_response)

    @precondition(lambda self: self.members)
    @rule(data=st.data(), is_static=st.booleans())
    def leave(self, data: st.DataObject, *, is_static: bool) -> None:
        member = data.draw(st.sampled_from(list(self.members.values())))
        self._gone(lambda other: other is member)
        epoch = STATIC_LEAVE_EPOCH if is_static and member.instance_id else -1
        assert self.clients.rejected(lambda: self.clients.leave(member, epoch)) in {
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_MEMBER_ID,
        }

    # ---- what happens around them

    @rule(seconds=st.sampled_from([1, 20, 50]))
    def wait(self, seconds: int) -> None:
        self.clients.wait(seconds)
        self._gone(lambda other: other.member_id not in self.clients.group.members)

    @rule(interval_ms=st.sampled_from([0, 1_000, 15_000]))
    def change_the_interval(self, interval_ms: int) -> None:
        self.clients.interval_ms = interval_ms

    @rule(name=st.sampled_from([*TOPICS, "later"]), more=st.integers(1, 2))
    def grow(self, name: str, more: int) -> None:
        topic = self.clients.topics.get(name)
        self.clients.topics.add(name, more + (len(topic.partitions) if topic is not None else 0))

    @rule()
    def restart(self) -> None:
        group = self.clients.group
        payload = GroupWriter().payload(group)
        again = from_payload("group", payload, ConsumerLimits(), self.clients.now)
        again.resume(45_000, self.clients.now)
        assert GroupWriter().payload(again) == payload
        assert again.members == group.members
        self.clients.group = again

    def _release(self, name: str, *, loses_response: bool) -> None:
        early, before = self.held.pop(name)
        reply = self.clients.group.continued(
            early, before.epoch, before.assignment, self.clients.topics, self.clients.now
        )
        member = self.members[name]
        if loses_response:
            member.is_full = True
        else:
            member.take(reply)
            self.kept[name] |= before.owned - member.owned

    def _gone(self, is_gone: Callable[[FakeMember], bool]) -> None:
        for name, member in tuple(self.members.items()):
            if is_gone(member):
                del self.members[name], self.kept[name]
                self.held.pop(name, None)

    # ---- the promises

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        used = [item for name, member in self.members.items() for item in member.owned | self.kept[name]]
        assert len(used) == len(set(used))
        stored = [
            (topic, index)
            for member in self.clients.group.members.values()
            for assignment in (member.assigned, member.pending_revocation)
            for topic, indexes in assignment.items()
            for index in indexes
        ]
        assert len(stored) == len(set(stored))

    @invariant()
    def epochs_never_go_back(self) -> None:
        group = self.clients.group
        assert group.group_epoch >= self.group_epoch
        assert group.assignment_epoch <= group.group_epoch
        self.group_epoch = group.group_epoch
        for name, member in group.members.items():
            if member.member_epoch != STATIC_LEAVE_EPOCH:
                assert self.epochs.get(name, 0) <= member.member_epoch <= group.group_epoch
                self.epochs[name] = member.member_epoch

    def teardown(self) -> None:
        """Let all members acknowledge; then everything is assigned."""
        group = self.clients.group
        self.clients.interval_ms = 0
        self.clients.computes_target = True
        for name in tuple(self.held):
            self._release(name, loses_response=False)
        for _ in range(6):
            for member in tuple(self.members.values()):
                self.kept[member.member_id].clear()
                if self.clients.rejected(partial(self.clients.beat, member)) is not ErrorCode.NONE:
                    del self.members[member.member_id]
        self.clients.wait(0)
        if group.state is not ConsumerGroupState.STABLE or group.members.keys() != self.members.keys():
            assert group.members.keys() > self.members.keys() or not group.members  # a member is away
            return
        names = {name for member in group.members.values() for name in member.topic_names}
        topics = [topic for name in names if (topic := self.clients.topics.get(name)) is not None]
        expected = {(topic.topic_id, index) for topic in topics for index in range(len(topic.partitions))}
        assert {item for member in self.members.values() for item in member.owned} == expected


def test_any_history_preserves_kip_848_guarantees() -> None:
    """K848-02, -03."""
    run_state_machine_as_test(AnyHistory, settings=settings(max_examples=30, stateful_step_count=25, deadline=None))

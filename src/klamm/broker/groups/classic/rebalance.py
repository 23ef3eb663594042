"""State of a classic group, and the steps that time triggers: rebalances, generations, sessions and deadlines.

``model.GroupState`` lists the states and transitions. Deadlines are plain numbers: ``on_time`` handles those that have
passed, and ``wake_at`` is the earliest time of the next one. The caller owns the timer. The rules are those of Kafka's
``ClassicGroup`` and ``GroupMetadataManager``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from klamm.broker.groups.classic.members import GroupMembers
from klamm.broker.groups.classic.model import CONSUMER_PROTOCOL_TYPE, GroupState, JoinReply, SyncReply
from klamm.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from klamm.broker.groups.classic.members import Member
    from klamm.broker.groups.classic.model import GroupLimits, Moment

RETRY_MS: Final = 1_000
"""Shortest delay in milliseconds before a rebalance that no member joined is checked again."""


class Rebalance:
    """A group's state and its timed steps. ``ClassicGroup`` adds the requests."""

    def __init__(self, group_id: str, limits: GroupLimits, now: Moment) -> None:
        self.group_id: Final = group_id
        self.members: Final = GroupMembers()
        self.state = GroupState.EMPTY
        self.state_since_ms = now.wall_ms
        """Wall clock time of the last state change. Offsets of an empty group expire from here on (KIP-211)."""
        self.generation_id = 0
        self.protocol_type: str | None = None
        """None if no member has ever joined, and offsets were only committed from outside the group."""
        self.protocol_name: str | None = None
        self.wake_at = math.inf
        """Time of the next deadline, monotonic seconds. May be too early, never too late."""
        self.limits = limits
        self.join_deadline = math.inf
        self.sync_deadline = math.inf
        self._initial_delay_left_ms: int | None = None
        """Remaining time by which the initial rebalance delay can be extended; None if no initial delay is running."""
        self._initial_delay_ms = 0
        self._has_newcomer = False
        self._is_unsaved = False

    # ---- timed steps

    def on_time(self, now: Moment) -> None:
        """Handle all deadlines that have passed, and set ``wake_at`` to the next one."""
        for member_id in [pending for pending, expires_at in self.members.pending.items() if expires_at <= now.seconds]:
            self.members.remove(member_id)
            self._complete_if_all_joined(now)
        for member in [member for member in self.members if member.expires_at <= now.seconds]:
            self._expire(member, now)
        if self.join_deadline <= now.seconds:
            self._on_join_deadline(now)
        if self.sync_deadline <= now.seconds:
            self._on_sync_deadline(now)
        self.wake_at = min(
            self.join_deadline,
            self.sync_deadline,
            min(self.members.pending.values(), default=math.inf),
            min((member.expires_at for member in self.members), default=math.inf),
        )

    def resume(self, now: Moment) -> None:
        """Start all members' sessions after a restart. The broker's downtime does not count towards them."""
        for member in self.members:
            self._keep_alive(member, now)

    def disband(self, error_code: ErrorCode) -> None:
        """Answer every parked request with an error. The group must not be used afterwards."""
        self.members.answer_everyone(error_code)

    def take_unsaved(self) -> bool:
        """Return whether the group has changes that must be stored, and reset the flag."""
        is_unsaved, self._is_unsaved = self._is_unsaved, False
        return is_unsaved

    @property
    def is_blank(self) -> bool:
        """Return whether the group can be dropped without loss: it has no members and never had a generation."""
        return not self.members and not self.members.pending and self.generation_id == 0

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members."""
        return self.state is GroupState.EMPTY

    @property
    def is_deserted(self) -> bool:
        """Whether the group has no members, and no client has a member id to join with."""
        return self.is_empty and not self.members.pending

    @property
    def offsets_expire_since_ms(self) -> int | None:
        """Earliest time from which the retention of unused offsets counts; None while no offset expires.

        The retention of an empty group counts from when it became empty, or from a later commit from outside the group.
        """
        if self.protocol_type is not None and self.is_empty:
            return self.state_since_ms
        is_stable = self.protocol_type == CONSUMER_PROTOCOL_TYPE and self.state is GroupState.STABLE
        return 0 if self.protocol_type is None or is_stable else None

    def adopt(self, generation_id: int, now: Moment) -> None:
        """Become a stable group of consumers in a generation, with the members that were added."""
        self.generation_id = generation_id
        self.protocol_type = CONSUMER_PROTOCOL_TYPE
        self.protocol_name = self.members.vote()
        self._enter(GroupState.STABLE if self.members else GroupState.EMPTY, now)
        self._is_unsaved = True
        self.resume(now)

    def rebalance(self, now: Moment) -> None:
        """Start a rebalance: every member has to join again."""
        self._prepare(now)

    # ---- the rebalance

    def _rebalance_or_complete(self, now: Moment) -> None:
        if self.state is GroupState.PREPARING_REBALANCE:
            self._complete_if_all_joined(now)
        else:
            self._prepare(now)

    def _prepare(self, now: Moment) -> None:
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._share_out({}, SyncReply(error_code=ErrorCode.REBALANCE_IN_PROGRESS), now)
        self.members.unsynced.clear()
        self.sync_deadline = math.inf
        is_initial = self.state is GroupState.EMPTY
        self._enter(GroupState.PREPARING_REBALANCE, now)
        if is_initial:
            delay_ms = self.limits.initial_rebalance_delay_ms
            self._delay_initially(delay_ms, max(self.members.rebalance_timeout_ms - delay_ms, 0), now)
        elif not self._complete_if_all_joined(now):
            self._set_join_deadline(self.members.rebalance_timeout_ms, now)

    def _delay_initially(self, delay_ms: int, left_ms: int, now: Moment) -> None:
        self._has_newcomer = False
        self._initial_delay_ms = delay_ms
        self._initial_delay_left_ms = left_ms
        self._set_join_deadline(delay_ms, now)

    def _on_join_deadline(self, now: Moment) -> None:
        left_ms = self._initial_delay_left_ms
        if left_ms and self._has_newcomer:
            delay_ms = min(self.limits.initial_rebalance_delay_ms, left_ms)
            self._delay_initially(delay_ms, max(left_ms - self._initial_delay_ms, 0), now)
        else:
            self._complete(now)

    def _complete_if_all_joined(self, now: Moment) -> bool:
        """Complete the rebalance if all members have joined and the initial delay is over. Return whether it did."""
        may_complete = self.state is GroupState.PREPARING_REBALANCE and self._initial_delay_left_ms is None
        if not may_complete or not self.members.has_everyone_joined():
            return False
        self._complete(now)
        return True

    def _complete(self, now: Moment) -> None:
        """End the first half of a rebalance: remove absent dynamic members, and start a generation with the others."""
        self.join_deadline = math.inf
        for member in tuple(self.members):
            if member.group_instance_id is None and not self.members.has_parked_join(member.member_id):
                self.members.remove(member.member_id)
        if self.members and not self.members.elect_joined_leader():
            # Only static members remain, and none of them has joined: wait until they join or their sessions expire.
            self._set_join_deadline(max(self.members.rebalance_timeout_ms, RETRY_MS), now)
            return
        self._initial_delay_left_ms = None
        self.generation_id += 1
        self.protocol_name = self.members.vote()
        self.members.unsynced.clear()
        if not self.members:
            self._enter(GroupState.EMPTY, now)
            self._is_unsaved = True
            return
        self._enter(GroupState.COMPLETING_REBALANCE, now)
        for member in self.members:
            member.is_new = False
            self.members.answer_join(member.member_id, self._current_generation(member))
            self._keep_alive(member, now)
            self.members.unsynced.add(member.member_id)
        self.sync_deadline = now.seconds + self.members.rebalance_timeout_ms / 1000
        self.wake_at = min(self.wake_at, self.sync_deadline)

    # ---- assignments

    def _current_generation(
        self, member: Member, *, leader: str | None = None, skip_assignment: bool = False
    ) -> JoinReply:
        leader = self.members.leader_id or "" if leader is None else leader
        is_leader = leader == member.member_id
        return JoinReply(
            member_id=member.member_id,
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=leader,
            members=self.members.listing(self.protocol_name) if is_leader else (),
            skip_assignment=is_leader and skip_assignment,
        )

    def _share_of(self, member: Member) -> SyncReply:
        return SyncReply(
            protocol_type=self.protocol_type, protocol_name=self.protocol_name, assignment=member.assignment
        )

    def _stabilise(self, assignments: dict[str, bytes], now: Moment) -> None:
        self._enter(GroupState.STABLE, now)
        self._is_unsaved = True
        self._share_out(assignments, None, now)

    def _share_out(self, assignments: dict[str, bytes], instead: SyncReply | None, now: Moment) -> None:
        """Set every member's assignment (empty if the leader sent none), and respond to the waiting SyncGroup requests.

        Args:
            assignments: Assignments by member id.
            instead: Reply for all parked syncs instead of the assignment; None sends the assignment.
            now: Current time.
        """
        for member in self.members:
            member.assignment = assignments.get(member.member_id, b"")
            if self.members.answer_sync(member.member_id, instead or self._share_of(member)):
                self._keep_alive(member, now)

    def _on_sync_deadline(self, now: Moment) -> None:
        self.sync_deadline = math.inf
        if self.members.unsynced:
            for member_id in tuple(self.members.unsynced):
                self.members.remove(member_id)
            self._prepare(now)

    # ---- expired sessions

    def _expire(self, member: Member, now: Moment) -> None:
        if member.member_id not in self.members or member.expires_at > now.seconds:
            return  # the removal of another member has answered its parked request, which restarted its session
        if self.members.is_waiting(member.member_id) and not member.is_new:
            # A client with a parked request sends no heartbeats. Its session restarts with the reply.
            member.expires_at = math.inf
            return
        self.members.remove(member.member_id)
        if self.state is GroupState.PREPARING_REBALANCE:
            self._complete_if_all_joined(now)
        else:
            self._prepare(now)

    # ---- helpers

    def _enter(self, state: GroupState, now: Moment) -> None:
        self.state = state
        self.state_since_ms = now.wall_ms

    def _keep_alive(self, member: Member, now: Moment) -> None:
        self._expire_at(member, now.seconds + member.session_timeout_ms / 1000)

    def _expire_at(self, member: Member, seconds: float) -> None:
        member.expires_at = seconds
        self.wake_at = min(self.wake_at, seconds)

    def _set_join_deadline(self, after_ms: int, now: Moment) -> None:
        self.join_deadline = now.seconds + after_ms / 1000
        self.wake_at = min(self.wake_at, self.join_deadline)

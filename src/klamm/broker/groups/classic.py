"""The classic group protocol as a state machine: no I/O, no clock, no timer of its own.

Every step gets the current ``Moment``; parked requests are answered by calling their waiters from within a step.
After a step the owner looks at ``wake_at``, and asks ``take_unsaved``: true means that the group must be on disk
before the answers of this step may go out.

Rules of Kafka's ``ClassicGroup`` and ``GroupMetadataManager``; KIP-345 (static members), KIP-394 (member id required),
KIP-559 (protocol type and name checked in syncs), KIP-814 (a static leader may skip the assignment).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from klamm.broker.groups.errors import (
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from klamm.broker.groups.model import GroupState, JoinReply, SyncReply
from klamm.broker.groups.rebalance import Rebalance
from klamm.broker.groups.roster import Member
from klamm.protocol.errors import ErrorCode, KafkaApiError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.broker.groups.model import (
        JoinAttempt,
        JoinWaiter,
        MemberIdentity,
        Moment,
        SyncAttempt,
        SyncWaiter,
    )

NEW_MEMBER_JOIN_TIMEOUT_S: Final = 300.0
"""How long the parked join of a member without a finished join is believed in: its client may be gone long since."""

MAX_PENDING_MEMBERS: Final = 10_000
"""Ids given out and not used yet, per group; a client that only ever asks for ids cannot fill the memory."""


class ClassicGroup(Rebalance):
    """One group. Owned by the coordinator; everything happens in its steps, one after the other."""

    def join(self, attempt: JoinAttempt, now: Moment, waiter: JoinWaiter) -> None:
        """Take a member in, or let it come again: the first half of a rebalance."""
        if not self._has_room(attempt.member_id):
            self.roster.remove(attempt.member_id)
            waiter(JoinReply(error_code=ErrorCode.GROUP_MAX_SIZE_REACHED))
        elif not self._supports(attempt):
            waiter(JoinReply(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id=attempt.member_id))
        elif not attempt.member_id:
            self._join_without_id(attempt, now, waiter)
        elif attempt.member_id in self.roster.pending and attempt.group_instance_id is None:
            self._add(attempt, attempt.member_id, now, waiter)
        else:
            self._join_again(attempt, now, waiter)

    def sync(self, attempt: SyncAttempt, now: Moment, waiter: SyncWaiter) -> None:
        """Fetch the member's share, and bring everybody's when it is the leader: the second half of a rebalance."""
        try:
            member = self._check_sync(attempt)
        except KafkaApiError as error:
            waiter(SyncReply(error_code=error.error_code))
            return
        self.roster.unsynced.discard(member.member_id)
        if not self.roster.unsynced:
            self._sync_deadline = math.inf
        if self.state is GroupState.STABLE:
            waiter(self._share_of(member))
            return
        self.roster.park_sync(member.member_id, waiter)
        if member.member_id == self.roster.leader_id:
            self._stabilise(dict(attempt.assignments), now)

    def heartbeat(self, member_id: str, group_instance_id: str | None, generation_id: int, now: Moment) -> None:
        """Keep a member alive.

        Raises:
            UnknownMemberIdError: it has to join as a new member.
            FencedInstanceIdError: its instance id was taken over.
            IllegalGenerationError: it has missed a rebalance.
            RebalanceInProgressError: it is alive, and has to join again.
        """
        member = self.roster.find(member_id, group_instance_id)
        if generation_id != self.generation_id:
            raise IllegalGenerationError
        self._keep_alive(member, now)
        if self.state is GroupState.PREPARING_REBALANCE:
            raise RebalanceInProgressError

    def leave(self, identities: Sequence[MemberIdentity], now: Moment) -> tuple[ErrorCode, ...]:
        """Let members go, all before the group reacts; one answer per identity, in order."""
        members_before = len(self.roster)
        answers = tuple(self._leave_one(identity) for identity in identities)
        # An id that was given out and never used is no loss to a group that does not wait for it.
        if len(self.roster) < members_before or self.state is GroupState.PREPARING_REBALANCE:
            self._rebalance_or_complete(now)
        return answers

    def admit_commit(self, member_id: str, group_instance_id: str | None, generation_id: int, now: Moment) -> None:
        """Decide whether a member, or somebody from outside, may commit offsets now; a commit is a sign of life.

        Raises:
            UnknownMemberIdError: not a member, or an outsider while the group has members.
            FencedInstanceIdError: its instance id was taken over.
            IllegalGenerationError: it has missed a rebalance.
            RebalanceInProgressError: the group waits for its leader's assignment.
        """
        if generation_id < 0 and self.state is GroupState.EMPTY:
            return
        if generation_id < 0 and not member_id and group_instance_id is None:
            raise UnknownMemberIdError
        member = self.roster.find(member_id, group_instance_id)
        if generation_id != self.generation_id:
            raise IllegalGenerationError
        if self.state is GroupState.COMPLETING_REBALANCE:
            raise RebalanceInProgressError
        self._keep_alive(member, now)

    def admit_transactional_commit(self, member_id: str, group_instance_id: str | None, generation_id: int) -> None:
        """Decide whether a transaction may commit offsets for the group (KIP-447).

        A producer that does not say which member it works for is believed: its transactional id fences it.

        Raises:
            UnknownMemberIdError: not a member.
            FencedInstanceIdError: its instance id was taken over.
            IllegalGenerationError: it has missed a rebalance.
        """
        if generation_id < 0 and (self.state is GroupState.EMPTY or (not member_id and group_instance_id is None)):
            return
        self.roster.find(member_id, group_instance_id)
        if generation_id != self.generation_id:
            raise IllegalGenerationError

    # ---- joins

    def _has_room(self, member_id: str) -> bool:
        if not member_id and len(self.roster.pending) >= MAX_PENDING_MEMBERS:
            return False
        match self.state:
            case GroupState.PREPARING_REBALANCE:
                return self.roster.has_parked_join(member_id) or self.roster.joining_count < self._limits.max_size
            case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
                return member_id in self.roster or len(self.roster) < self._limits.max_size
            case _:
                return True

    def _supports(self, attempt: JoinAttempt) -> bool:
        if self.state is GroupState.EMPTY:
            return bool(attempt.protocol_type) and bool(attempt.protocols)
        return attempt.protocol_type == self.protocol_type and self.roster.supports_any(attempt.protocols)

    def _join_without_id(self, attempt: JoinAttempt, now: Moment, waiter: JoinWaiter) -> None:
        instance_id = attempt.group_instance_id
        holder = self.roster.get(self.roster.static_member_id(instance_id) or "") if instance_id is not None else None
        if holder is not None:
            self._replace_static(holder, attempt, now, waiter)
        elif instance_id is None and attempt.requires_known_member_id:
            expires_at = now.seconds + attempt.session_timeout_ms / 1000
            self.roster.pending[attempt.new_member_id] = expires_at
            self.wake_at = min(self.wake_at, expires_at)
            waiter(JoinReply(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=attempt.new_member_id))
        else:
            self._add(attempt, attempt.new_member_id, now, waiter)

    def _add(self, attempt: JoinAttempt, member_id: str, now: Moment, waiter: JoinWaiter) -> None:
        if not self.roster:
            self.protocol_type = attempt.protocol_type
        member = _member(attempt, member_id)
        member.is_new = True
        if self._initial_delay_left_ms is not None:
            self._has_newcomer = True
        self.roster.add(member)
        self.roster.park_join(member_id, waiter)
        self._expire_at(member, now.seconds + NEW_MEMBER_JOIN_TIMEOUT_S)
        self._rebalance_or_complete(now)

    def _join_again(self, attempt: JoinAttempt, now: Moment, waiter: JoinWaiter) -> None:
        try:
            member = self.roster.find(attempt.member_id, attempt.group_instance_id)
        except KafkaApiError as error:
            waiter(JoinReply(error_code=error.error_code, member_id=attempt.member_id))
            return
        is_same = member.protocols == attempt.protocols
        is_leader = member.member_id == self.roster.leader_id
        changes_timeout = member.session_timeout_ms != attempt.session_timeout_ms
        if self.state is GroupState.COMPLETING_REBALANCE and is_same:
            waiter(self._current_generation(member))
        elif self.state is GroupState.STABLE and is_same and (changes_timeout or not is_leader):
            # A leader that joins again as it was asks for a new assignment. One that differs in nothing but its
            # session timeout only tells us that its client config has changed (KIP-649): no reason to disturb anyone.
            self._take_timeouts(member, attempt, now)
            self._is_unsaved = changes_timeout
            waiter(self._current_generation(member, skip_assignment=attempt.supports_skipping_assignment))
        else:
            self._take_timeouts(member, attempt, now)
            self.roster.update_protocols(member, attempt.protocols)
            self.roster.park_join(member.member_id, waiter)
            self._rebalance_or_complete(now)

    def _take_timeouts(self, member: Member, attempt: JoinAttempt, now: Moment) -> None:
        member.session_timeout_ms = attempt.session_timeout_ms
        member.rebalance_timeout_ms = attempt.rebalance_timeout_ms
        if not member.is_new:
            self._keep_alive(member, now)

    def _replace_static(self, old: Member, attempt: JoinAttempt, now: Moment, waiter: JoinWaiter) -> None:
        """Let a restarted static member in; a stable group stays as it is when its protocol does (KIP-345)."""
        leader_before = self.roster.leader_id or ""
        new = _member(attempt, attempt.new_member_id)
        new.assignment = old.assignment
        self.roster.replace_static(old, new)
        self._keep_alive(new, now)
        if self.state is GroupState.STABLE and self.roster.vote() == self.protocol_name:
            self._is_unsaved = True
            if attempt.supports_skipping_assignment:
                waiter(self._current_generation(new, skip_assignment=True))
            else:
                # An old client that read its own id as the leader's would assign; so it reads the id it had before.
                waiter(self._current_generation(new, leader=leader_before))
            return
        self.roster.park_join(new.member_id, waiter)
        self._rebalance_or_complete(now)

    # ---- syncs

    def _check_sync(self, attempt: SyncAttempt) -> Member:
        member = self.roster.find(attempt.member_id, attempt.group_instance_id)
        if attempt.generation_id != self.generation_id:
            raise IllegalGenerationError
        is_type_right = attempt.protocol_type in {None, self.protocol_type}
        if not is_type_right or attempt.protocol_name not in {None, self.protocol_name}:
            raise InconsistentGroupProtocolError
        if self.state is GroupState.PREPARING_REBALANCE:
            raise RebalanceInProgressError
        return member

    def _leave_one(self, identity: MemberIdentity) -> ErrorCode:
        member_id = identity.member_id
        if not member_id:
            member_id = self.roster.static_member_id(identity.group_instance_id or "") or ""
        if member_id not in self.roster.pending:
            try:
                self.roster.find(member_id, identity.group_instance_id)
            except KafkaApiError as error:
                return error.error_code
        self.roster.remove(member_id)
        return ErrorCode.NONE


def _member(attempt: JoinAttempt, member_id: str) -> Member:
    return Member(
        member_id=member_id,
        group_instance_id=attempt.group_instance_id,
        client_id=attempt.client_id,
        client_host=attempt.client_host,
        session_timeout_ms=attempt.session_timeout_ms,
        rebalance_timeout_ms=attempt.rebalance_timeout_ms,
        protocols=attempt.protocols,
    )

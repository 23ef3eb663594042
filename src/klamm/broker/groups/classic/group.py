"""The requests of the classic group protocol, as steps of a state machine without I/O, clock or timer.

``model.GroupState`` lists the states and transitions; ``rebalance.Rebalance`` holds the steps that time triggers. This
module adds the requests. Their effect depends on the state:

    request       EMPTY               PREPARING_REBALANCE     COMPLETING_REBALANCE     STABLE
    JoinGroup     first member: a     parked until the        unchanged member:        unchanged follower:
                  rebalance starts    generation starts       current generation       current generation
                                                              else: new rebalance      else: new rebalance
    SyncGroup     UNKNOWN_MEMBER_ID   REBALANCE_IN_PROGRESS   parked until the         answered
                                                              leader's SyncGroup
    Heartbeat     UNKNOWN_MEMBER_ID   REBALANCE_IN_PROGRESS   answered                 answered
                                      (extends the session)
    OffsetCommit  only generation -1  answered                REBALANCE_IN_PROGRESS    answered
    LeaveGroup    UNKNOWN_MEMBER_ID   the member is removed   new rebalance            new rebalance

"Parked" means that the response is sent later: the request leaves a callback (``JoinWaiter``, ``SyncWaiter``), which a
later step calls exactly once. Each step gets the current ``Moment``. After each step the caller has two duties
(``GroupRegistry.after_step``): it arms a timer for ``wake_at``, and if ``take_unsaved`` returns True, it stores the
group before the responses of this step are sent.

The rules are those of Kafka's ``ClassicGroup`` and ``GroupMetadataManager``: KIP-345 (static members), KIP-394 (member
id required), KIP-559 (SyncGroup checks protocol type and name), KIP-814 (a static leader may skip the assignment).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from klamm.broker.groups.classic.members import Member
from klamm.broker.groups.classic.model import GroupState, JoinReply, SyncReply
from klamm.broker.groups.classic.rebalance import Rebalance
from klamm.broker.groups.errors import (
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from klamm.protocol.errors import ErrorCode, KafkaApiError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.broker.groups.classic.model import (
        JoinAttempt,
        JoinWaiter,
        MemberIdentity,
        Moment,
        SyncAttempt,
        SyncWaiter,
    )

NEW_MEMBER_JOIN_TIMEOUT_S: Final = 300.0
"""Session in seconds of a new member while its first JoinGroup is parked. Its client may have disconnected."""

MAX_PENDING_MEMBERS: Final = 10_000
"""Largest number of member ids per group that are handed out but not used, so that clients cannot fill the memory."""


class ClassicGroup(Rebalance):
    """One classic group. Its registry owns it and calls one step at a time."""

    def join(self, attempt: JoinAttempt, now: Moment, waiter: JoinWaiter) -> None:
        """Handle JoinGroup, the first half of a rebalance: a new member joins, or a known member joins again."""
        if not self._has_room(attempt.member_id):
            self.members.remove(attempt.member_id)
            waiter(JoinReply(error_code=ErrorCode.GROUP_MAX_SIZE_REACHED))
            self._complete_if_all_joined(now)
        elif not self._supports(attempt):
            waiter(JoinReply(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id=attempt.member_id))
        elif not attempt.member_id:
            self._join_without_id(attempt, now, waiter)
        elif attempt.member_id in self.members.pending and attempt.group_instance_id is None:
            self._add(attempt, attempt.member_id, now, waiter)
        else:
            self._join_again(attempt, now, waiter)

    def sync(self, attempt: SyncAttempt, now: Moment, waiter: SyncWaiter) -> None:
        """Handle SyncGroup, the second half of a rebalance: the leader sends all assignments, members get theirs."""
        try:
            member = self._check_sync(attempt)
        except KafkaApiError as error:
            waiter(SyncReply(error_code=error.error_code))
            return
        self.members.unsynced.discard(member.member_id)
        if not self.members.unsynced:
            self.sync_deadline = math.inf
        if self.state is GroupState.STABLE:
            waiter(self._share_of(member))
            return
        self.members.park_sync(member.member_id, waiter)
        if member.member_id == self.members.leader_id:
            self._stabilise(dict(attempt.assignments), now)

    def heartbeat(
        self,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        now: Moment,
        *,
        enforced_session_timeout_ms: int | None = None,
    ) -> None:
        """Extend the session of a member.

        Args:
            member_id: Member id of the request.
            group_instance_id: Instance id of the request.
            generation_id: Generation of the request.
            now: Current time.
            enforced_session_timeout_ms: Session timeout that the broker enforces from now on; None means the one that
                the member requested.

        Raises:
            UnknownMemberIdError: The group has no such member; the client has to join as a new member.
            FencedInstanceIdError: Another member has taken over the instance id.
            IllegalGenerationError: The member missed a rebalance.
            RebalanceInProgressError: The session is extended, but the member has to join again.
        """
        member = self.members.find(member_id, group_instance_id)
        if generation_id != self.generation_id:
            raise IllegalGenerationError
        member.enforce_session_timeout(enforced_session_timeout_ms)
        self._keep_alive(member, now)
        if self.state is GroupState.PREPARING_REBALANCE:
            raise RebalanceInProgressError

    def leave(self, identities: Sequence[MemberIdentity], now: Moment) -> tuple[ErrorCode, ...]:
        """Remove members, and start a rebalance once for all of them. Return one error code per identity, in order."""
        members_before = len(self.members)
        answers = tuple(self._leave_one(identity) for identity in identities)
        # The removal of an unused member id changes nothing, unless a rebalance is waiting for that member to join.
        if len(self.members) < members_before or self.state is GroupState.PREPARING_REBALANCE:
            self._rebalance_or_complete(now)
        return answers

    def admit_commit(self, member_id: str, group_instance_id: str | None, generation_id: int, now: Moment) -> None:
        """Check that a member or an outside client may commit offsets now. A member's commit extends its session.

        Raises:
            UnknownMemberIdError: Not a member, or a client outside the group while the group has members.
            FencedInstanceIdError: Another member has taken over the instance id.
            IllegalGenerationError: The member missed a rebalance.
            RebalanceInProgressError: The group waits for its leader's assignment.
        """
        if generation_id < 0 and self.state is GroupState.EMPTY:
            return
        if generation_id < 0 and not member_id and group_instance_id is None:
            raise UnknownMemberIdError
        member = self.members.find(member_id, group_instance_id)
        if generation_id != self.generation_id:
            raise IllegalGenerationError
        if self.state is GroupState.COMPLETING_REBALANCE:
            raise RebalanceInProgressError
        self._keep_alive(member, now)

    def admit_transactional_commit(self, member_id: str, group_instance_id: str | None, generation_id: int) -> None:
        """Check that a transaction may commit offsets for the group (KIP-447).

        A producer that names no member is accepted: it is fenced by its transactional id instead.

        Raises:
            UnknownMemberIdError: Not a member.
            FencedInstanceIdError: Another member has taken over the instance id.
            IllegalGenerationError: The member missed a rebalance.
        """
        if generation_id < 0 and (self.state is GroupState.EMPTY or (not member_id and group_instance_id is None)):
            return
        self.members.find(member_id, group_instance_id)
        if generation_id != self.generation_id:
            raise IllegalGenerationError

    # ---- JoinGroup

    def _has_room(self, member_id: str) -> bool:
        if not member_id and len(self.members.pending) >= MAX_PENDING_MEMBERS:
            return False
        match self.state:
            case GroupState.PREPARING_REBALANCE:
                return self.members.has_parked_join(member_id) or self.members.joining_count < self.limits.max_size
            case GroupState.COMPLETING_REBALANCE | GroupState.STABLE:
                return member_id in self.members or len(self.members) < self.limits.max_size
            case _:
                return True

    def _supports(self, attempt: JoinAttempt) -> bool:
        if self.state is GroupState.EMPTY:
            return bool(attempt.protocol_type) and bool(attempt.protocols)
        return attempt.protocol_type == self.protocol_type and self.members.supports_any(attempt.protocols)

    def _join_without_id(self, attempt: JoinAttempt, now: Moment, waiter: JoinWaiter) -> None:
        instance_id = attempt.group_instance_id
        holder = self.members.get(self.members.static_member_id(instance_id) or "") if instance_id is not None else None
        if holder is not None:
            self._replace_static(holder, attempt, now, waiter)
        elif instance_id is None and attempt.requires_known_member_id:
            expires_at = now.seconds + attempt.session_timeout_ms / 1000
            self.members.pending[attempt.new_member_id] = expires_at
            self.wake_at = min(self.wake_at, expires_at)
            waiter(JoinReply(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=attempt.new_member_id))
        else:
            self._add(attempt, attempt.new_member_id, now, waiter)

    def _add(self, attempt: JoinAttempt, member_id: str, now: Moment, waiter: JoinWaiter) -> None:
        if not self.members:
            self.protocol_type = attempt.protocol_type
        member = _member(attempt, member_id)
        member.is_new = True
        if self._initial_delay_left_ms is not None:
            self._has_newcomer = True
        self.members.add(member)
        if member.group_instance_id is not None:
            self._is_unsaved = True  # as in _replace_static
        self.members.park_join(member_id, waiter)
        self._expire_at(member, now.seconds + NEW_MEMBER_JOIN_TIMEOUT_S)
        self._rebalance_or_complete(now)

    def _join_again(self, attempt: JoinAttempt, now: Moment, waiter: JoinWaiter) -> None:
        try:
            member = self.members.find(attempt.member_id, attempt.group_instance_id)
        except KafkaApiError as error:
            waiter(JoinReply(error_code=error.error_code, member_id=attempt.member_id))
            return
        is_same = member.protocols == attempt.protocols
        is_leader = member.member_id == self.members.leader_id
        changes_timeout = member.requested_session_timeout_ms != attempt.session_timeout_ms
        if self.state is GroupState.COMPLETING_REBALANCE and is_same:
            waiter(self._current_generation(member))
        elif self.state is GroupState.STABLE and is_same and (changes_timeout or not is_leader):
            # A leader that joins again unchanged asks for a new assignment, so it starts a rebalance. If only its
            # session timeout differs, it just reports a changed client config (KIP-649), and no rebalance is needed.
            self._take_timeouts(member, attempt, now)
            self._is_unsaved = changes_timeout
            waiter(self._current_generation(member, skip_assignment=attempt.supports_skipping_assignment))
        else:
            self._take_timeouts(member, attempt, now)
            self.members.update_protocols(member, attempt.protocols)
            self.members.park_join(member.member_id, waiter)
            self._rebalance_or_complete(now)

    def _take_timeouts(self, member: Member, attempt: JoinAttempt, now: Moment) -> None:
        member.requested_session_timeout_ms = attempt.session_timeout_ms
        member.enforce_session_timeout(attempt.enforced_session_timeout_ms)
        member.rebalance_timeout_ms = attempt.rebalance_timeout_ms
        if not member.is_new:
            self._keep_alive(member, now)

    def _replace_static(self, old: Member, attempt: JoinAttempt, now: Moment, waiter: JoinWaiter) -> None:
        """Replace a restarted static member, without a rebalance if a stable group keeps its protocol (KIP-345)."""
        leader_before = self.members.leader_id or ""
        new = _member(attempt, attempt.new_member_id)
        new.assignment = old.assignment
        self.members.replace_static(old, new)
        # Also during a rebalance: a client is fenced permanently if a restart brings back the old id.
        self._is_unsaved = True
        self._keep_alive(new, now)
        if self.state is GroupState.STABLE and self.members.vote() == self.protocol_name:
            if attempt.supports_skipping_assignment:
                waiter(self._current_generation(new, skip_assignment=True))
            else:
                # A client before JoinGroup v9 would start an assignment if it saw its new id as the leader's. It
                # therefore gets the leader's old id.
                waiter(self._current_generation(new, leader=leader_before))
            return
        self.members.park_join(new.member_id, waiter)
        self._rebalance_or_complete(now)

    # ---- SyncGroup and LeaveGroup

    def _check_sync(self, attempt: SyncAttempt) -> Member:
        member = self.members.find(attempt.member_id, attempt.group_instance_id)
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
            member_id = self.members.static_member_id(identity.group_instance_id or "") or ""
        if member_id not in self.members.pending:
            try:
                self.members.find(member_id, identity.group_instance_id)
            except KafkaApiError as error:
                return error.error_code
        self.members.remove(member_id)
        return ErrorCode.NONE


def _member(attempt: JoinAttempt, member_id: str) -> Member:
    member = Member(
        member_id=member_id,
        group_instance_id=attempt.group_instance_id,
        client_id=attempt.client_id,
        client_host=attempt.client_host,
        session_timeout_ms=attempt.session_timeout_ms,
        requested_session_timeout_ms=attempt.session_timeout_ms,
        rebalance_timeout_ms=attempt.rebalance_timeout_ms,
        protocols=attempt.protocols,
    )
    member.enforce_session_timeout(attempt.enforced_session_timeout_ms)
    return member

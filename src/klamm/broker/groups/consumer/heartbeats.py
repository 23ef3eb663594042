"""The requests of members with the consumer protocol, as steps of a state machine without I/O, clock or timer.

A heartbeat does all of the work, in this order:

1. It creates or updates the member. A changed subscription advances the group epoch.
2. It looks at the subscribed topics if the catalog has changed. New topics and partitions advance the group epoch, too.
3. If the group epoch is newer than the target assignment, it computes a new target for all members, but only once in
   ``consumer.assignment.interval.ms`` (KIP-1263). In between, members continue towards the target that is there, and a
   member that has just joined waits without partitions.
4. It takes the member one step closer to its target (``reconciliation.reconcile``).
5. It replies with the member's epoch, and with its partitions if they changed.

The third step may be left to ``continued``, so that one new target serves all members that join at the same time.
The reply to a member without partitions that waits for those of other members may be held back for a while
(``awaited``). If one of them is released meanwhile, ``continued`` takes the member's next step.

Each step gets the current ``Moment``. After each step the caller arms a timer for ``wake_at``, and if ``take_unsaved``
returns True, it stores the group before the response is sent. The rules are those of Kafka's ``GroupMetadataManager``.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from klamm.broker.groups.consumer.membership import DeadlineKind, Membership, Resolution
from klamm.broker.groups.consumer.model import (
    JOIN_EPOCH,
    NO_PARTITIONS,
    STATIC_LEAVE_EPOCH,
    UNCHANGED_MS,
    ConsumerMember,
    HeartbeatReply,
    MemberState,
    is_subset,
)
from klamm.broker.groups.consumer.reconciliation import reconcile
from klamm.broker.groups.errors import (
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupMaxSizeReachedError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from klamm.broker.groups.classic.model import Moment
    from klamm.broker.groups.consumer.model import Assignment, HeartbeatAttempt, Resolver, SubscribableTopics

REGEX_INTERVAL_S: Final = 1.0
"""Shortest time in seconds between two resolutions of a regular expression, however often topics change."""


class ConsumerHeartbeats(Membership):
    """A consumer group and the requests of its members with the consumer protocol."""

    def heartbeat(
        self, attempt: HeartbeatAttempt, topics: SubscribableTopics, now: Moment, *, computes_target: bool = True
    ) -> HeartbeatReply:
        """Let a member join, stay, or take the next step to its target.

        Args:
            attempt: Contents of the request.
            topics: Topic catalog.
            now: Current time.
            computes_target: Whether a new target assignment may be computed; if not, ``continued`` does it.

        Raises:
            GroupMaxSizeReachedError: The group is full.
            UnknownMemberIdError: The group has no such member, or no longer.
            FencedMemberEpochError: The member's epoch does not match. It has to give up its partitions and join again.
            UnreleasedInstanceIdError: Another member uses the instance id.
            FencedInstanceIdError: The instance id belongs to another member now.
            InvalidRegularExpressionError: RE2 does not accept the regular expression.
        """
        self._check_room(attempt.member_id)
        before, departed = self._admit(attempt)
        after = _updated(before, attempt)
        matches_other_topics = self._resolve(after.topic_regex, attempt.resolve, topics, now)
        if departed is not None:
            self.replace_static(departed, before)
        self._update(
            before,
            after,
            topics,
            interval_ms=attempt.timings.assignment_interval_ms,
            matches_other_topics=matches_other_topics,
        )
        if computes_target and self.may_assign(now):
            self.assign(topics, now)
        after = self._reconcile(after, attempt.owned, topics, now)
        self._set_deadline(DeadlineKind.SESSION, after.member_id, attempt.timings.session_timeout_ms, now)
        return HeartbeatReply(
            member_id=after.member_id,
            member_epoch=after.member_epoch,
            heartbeat_interval_ms=attempt.timings.heartbeat_interval_ms,
            assignment=after.assigned if attempt.is_full or after.assigned != before.assigned else None,
        )

    def awaited(self, reply: HeartbeatReply) -> Sequence[tuple[UUID, int]]:
        """Return the partitions that a member waits for with its reply. A member that has partitions does not wait."""
        member = self._receiver(reply)
        if member is None or member.assigned or member.state is not MemberState.UNRELEASED_PARTITIONS:
            return ()
        target = self.target.get(member.member_id, NO_PARTITIONS)
        return tuple((topic_id, index) for topic_id, indexes in target.items() for index in indexes)

    def continued(
        self, reply: HeartbeatReply, epoch: int, owned: Assignment | None, topics: SubscribableTopics, now: Moment
    ) -> HeartbeatReply:
        """Take the next step of a member whose reply has not been sent yet, and return the new reply.

        Args:
            reply: Reply to its heartbeat.
            epoch: Member epoch in the heartbeat.
            owned: Partitions that the heartbeat reported as owned.
            topics: Topic catalog.
            now: Current time.
        """
        member = self._receiver(reply)
        if member is None:
            return reply
        if self.may_assign(now):
            self.assign(topics, now)
        after = self._reconcile(member, owned, topics, now)
        if after is member:
            return reply
        # The client has not seen the reply: if it loses this one, it repeats its request with the same epoch.
        self.put(replace(after, previous_epoch=epoch))
        assignment = after.assigned if after.assigned != member.assigned else reply.assignment
        return replace(reply, member_epoch=after.member_epoch, assignment=assignment)

    def leave(self, member_id: str, instance_id: str | None, epoch: int, now: Moment) -> HeartbeatReply:
        """Remove a member that leaves. A static member with ``STATIC_LEAVE_EPOCH`` keeps its partitions for a while.

        Raises:
            UnknownMemberIdError: The group has no such member.
            FencedInstanceIdError: The instance id belongs to another member now.
        """
        member = self.find(member_id) if instance_id is None else self.find_static(member_id, instance_id)
        if epoch == STATIC_LEAVE_EPOCH and instance_id is not None:
            self._cancel_deadline(DeadlineKind.REBALANCE, member.member_id)  # it keeps its partitions for its session
            # The next instance may commit offsets at any epoch: its partitions lose their assignment epochs.
            self.put(
                replace(
                    member,
                    member_epoch=STATIC_LEAVE_EPOCH,
                    pending_revocation=NO_PARTITIONS,
                    assignment_epochs={},
                )
            )
        else:
            self.fence(member.member_id, now)
        return HeartbeatReply(member_id=member_id, member_epoch=epoch)

    def find_static(self, member_id: str, instance_id: str) -> ConsumerMember:
        """Return a static member.

        Raises:
            UnknownMemberIdError: No member has the instance id.
            FencedInstanceIdError: Another member has the instance id.
        """
        holder = self.static_member(instance_id)
        if holder is None:
            raise UnknownMemberIdError(f"Instance id {instance_id} is unknown.")
        if holder.member_id != member_id:
            raise FencedInstanceIdError(
                f"Static member {member_id} with instance id {instance_id} was fenced by member {holder.member_id}."
            )
        return holder

    def fence(self, member_id: str, now: Moment) -> None:
        """Remove a member. Its partitions are free at once, and the next heartbeat computes a new target."""
        self.remove(member_id)
        self.lose(now)

    def lose(self, now: Moment) -> None:
        """Advance the epoch after the removal of members."""
        self.group_epoch += 1
        if not self.members:
            self.state_since_ms = now.wall_ms
            self._assigned_at = -math.inf  # the next member need not wait for the interval

    def on_time(self, now: Moment) -> None:
        """Remove the members that missed a deadline."""
        for member_id in self._passed_deadlines(now):
            if member_id in self.members:
                self.fence(member_id, now)

    @property
    def can_become_classic(self) -> bool:
        """Whether all members use the classic protocol, and the configs allow to convert the group."""
        return (
            self._limits.allows_downgrade
            and 0 < len(self.members) <= self._limits.classic_max_size
            and all(member.classic is not None for member in self.members.values())
        )

    # ---- the steps of a heartbeat

    def _check_room(self, member_id: str) -> None:
        if len(self.members) >= self._limits.max_size and member_id not in self.members:
            raise GroupMaxSizeReachedError(
                f"The consumer group has reached its maximum capacity of {self._limits.max_size} members."
            )

    def _admit(self, attempt: HeartbeatAttempt) -> tuple[ConsumerMember, ConsumerMember | None]:
        """Return the member that sent the request, and the static member that it replaces; None if it replaces none."""
        if attempt.instance_id is not None:
            return self._admit_static(attempt, attempt.instance_id)
        member = self.members.get(attempt.member_id)
        if member is None and attempt.member_epoch == JOIN_EPOCH:
            member = ConsumerMember(member_id=attempt.member_id)
        if member is None:
            raise UnknownMemberIdError(f"Member {attempt.member_id} is not a member of group {self.group_id}.")
        _check_epoch(member, attempt)
        return member, None

    def _admit_static(
        self, attempt: HeartbeatAttempt, instance_id: str
    ) -> tuple[ConsumerMember, ConsumerMember | None]:
        if attempt.member_epoch != JOIN_EPOCH:
            member = self.find_static(attempt.member_id, instance_id)
            _check_epoch(member, attempt)
            return member, None
        holder = self.static_member(instance_id)
        if holder is None:
            return self.members.get(attempt.member_id) or ConsumerMember(member_id=attempt.member_id), None
        if holder.classic is None and holder.member_epoch != STATIC_LEAVE_EPOCH:
            raise UnreleasedInstanceIdError(
                f"Static member {attempt.member_id} with instance id {instance_id} cannot join the group because the "
                f"instance id is owned by {holder.member_id} member."
            )
        return replace(holder, member_id=attempt.member_id, member_epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH), holder

    def _resolve(self, pattern: str | None, resolve: Resolver, topics: SubscribableTopics, now: Moment) -> bool:
        """Resolve the member's regular expression if it is new, if topics have changed, or after the interval.

        Return whether it matches other topics than before. The group may know them by another subscription already.

        The rights of the requesting member decide which topics it finds.
        """
        if pattern is None:
            return False
        resolved = self.regexes.get(pattern)
        if resolved is not None:
            age = now.seconds - resolved.at
            is_stale = resolved.changes != topics.changes and age >= REGEX_INTERVAL_S
            if not is_stale and age < self._limits.regex_refresh_interval_ms / 1000:
                return False
        names = resolve(pattern)
        self.regexes[pattern] = Resolution(names=names, at=now.seconds, changes=topics.changes)
        return resolved is None or resolved.names != names

    def _receiver(self, reply: HeartbeatReply) -> ConsumerMember | None:
        """Return the member that a reply is for; None if it has left or sent another heartbeat since."""
        member = self.members.get(reply.member_id)
        return None if member is None or member.member_epoch != reply.member_epoch else member

    def _update(
        self,
        before: ConsumerMember,
        after: ConsumerMember,
        topics: SubscribableTopics,
        *,
        interval_ms: int,
        matches_other_topics: bool = False,
    ) -> None:
        """Store the member, and advance the epoch if subscriptions, the assignor or the subscribed topics changed."""
        assignor = self.assignor
        if self.members.get(after.member_id) != after:
            self.put(after)
        is_changed = (
            matches_other_topics
            or before.topic_names != after.topic_names
            or before.topic_regex != after.topic_regex
            or self.assignor != assignor
        )
        if is_changed or self._seen_changes != topics.changes:
            is_changed = self.refresh_topics(topics) or is_changed
        if is_changed:
            self.group_epoch += 1
        self._interval_ms = interval_ms

    def _reconcile(
        self, member: ConsumerMember, owned: Assignment | None, topics: SubscribableTopics, now: Moment
    ) -> ConsumerMember:
        target = self.target.get(member.member_id, NO_PARTITIONS)
        gone = self.unsubscribed(member, topics)
        after = reconcile(member, self.assignment_epoch, target, self.is_owned, owned, unsubscribed=gone)
        if after is member:
            return member
        self.put(after)
        if after.classic is None:
            if after.state is MemberState.UNREVOKED_PARTITIONS:
                self._set_deadline(DeadlineKind.REBALANCE, after.member_id, after.rebalance_timeout_ms, now)
            else:
                self._cancel_deadline(DeadlineKind.REBALANCE, after.member_id)
        return after


def _updated(member: ConsumerMember, attempt: HeartbeatAttempt) -> ConsumerMember:
    regex = member.topic_regex if attempt.topic_regex is None else attempt.topic_regex or None
    is_same_timeout = attempt.rebalance_timeout_ms == UNCHANGED_MS
    return replace(
        member,
        instance_id=member.instance_id if attempt.instance_id is None else attempt.instance_id,
        rack_id=member.rack_id if attempt.rack_id is None else attempt.rack_id,
        client_id=attempt.client_id,
        client_host=attempt.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms if is_same_timeout else attempt.rebalance_timeout_ms,
        topic_names=member.topic_names if attempt.topic_names is None else attempt.topic_names,
        topic_regex=regex,
        server_assignor=member.server_assignor if attempt.server_assignor is None else attempt.server_assignor,
        classic=None,
    )


def _check_epoch(member: ConsumerMember, attempt: HeartbeatAttempt) -> None:
    """Check the epoch of a request.

    The previous epoch is accepted together with partitions that the member still has: then the last response was lost.
    ``JOIN_EPOCH`` always is: a fenced member joins again with it.
    """
    if attempt.member_epoch == JOIN_EPOCH:
        return
    received, current = attempt.member_epoch, member.member_epoch
    if received > current:
        raise FencedMemberEpochError(
            f"The consumer group member has a greater member epoch ({received}) than the one known by the group "
            f"coordinator ({current}). The member must abandon all its partitions and rejoin."
        )
    is_repeated = (
        received == member.previous_epoch and attempt.owned is not None and is_subset(attempt.owned, member.assigned)
    )
    if received < current and not is_repeated:
        raise FencedMemberEpochError(
            f"The consumer group member has a smaller member epoch ({received}) than the one known by the group "
            f"coordinator ({current}). The member must abandon all its partitions and rejoin."
        )

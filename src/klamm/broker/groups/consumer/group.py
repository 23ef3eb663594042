"""A consumer group with all requests that it can receive, those of the classic protocol included.

While a group migrates, some members use the classic protocol. For them the broker acts as the leader of the group: a
JoinGroup takes the member one step closer to its target, and SyncGroup returns its partitions at once. The member epoch
is their generation. The response to Heartbeat is REBALANCE_IN_PROGRESS whenever the member has to take another step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.broker.groups.classic.model import CONSUMER_PROTOCOL_TYPE, JoinReply, SyncReply
from klamm.broker.groups.consumer.consumer_protocol import (
    ClassicSubscription,
    read_subscription,
    read_version,
    write_assignment,
)
from klamm.broker.groups.consumer.heartbeats import ConsumerHeartbeats
from klamm.broker.groups.consumer.membership import DeadlineKind
from klamm.broker.groups.consumer.model import (
    JOIN_EPOCH,
    NO_PARTITIONS,
    ClassicTraits,
    ConsumerMember,
    MemberState,
    assignment_of,
)
from klamm.broker.groups.errors import (
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    MemberIdRequiredError,
    RebalanceInProgressError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from klamm.protocol.errors import ErrorCode, KafkaApiError, UnsupportedVersionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from klamm.broker.groups.classic.model import JoinAttempt, MemberIdentity, Moment, SyncAttempt
    from klamm.broker.groups.consumer.model import SubscribableTopics

FIRST_COMMIT_VERSION: Final = 9
"""First version of OffsetCommit that knows member epochs."""
NO_GENERATION: Final = -1
"""Epoch in the commit of a client that is no member."""

Partitions: TypeAlias = "Iterable[tuple[UUID, int]]"
"""Topic ids and partitions of a commit."""


class ConsumerGroup(ConsumerHeartbeats):
    """Consumer group of KIP-848. Its registry owns it and calls one step at a time."""

    protocol_type: Final = CONSUMER_PROTOCOL_TYPE

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members."""
        return not self.members

    @property
    def is_deserted(self) -> bool:
        """Whether the group has no members. A joining client is a member at once."""
        return not self.members

    @property
    def offsets_expire_since_ms(self) -> int:
        """Earliest time from which the retention of unused offsets counts."""
        return 0

    def disband(self, error_code: ErrorCode) -> None:
        """Do nothing: requests of consumer groups are never parked."""

    def resume(self, session_timeout_ms: int, now: Moment) -> None:
        """Start all sessions and revocations after a restart. The broker's downtime does not count towards them.

        Args:
            session_timeout_ms: Timeout of members with the consumer protocol until their next heartbeat.
            now: Current time.
        """
        for member in self.members.values():
            timeout_ms = session_timeout_ms if member.classic is None else member.classic.session_timeout_ms
            self._set_deadline(DeadlineKind.SESSION, member.member_id, timeout_ms, now)
            if member.classic is None and member.pending_revocation:
                self._set_deadline(DeadlineKind.REBALANCE, member.member_id, member.rebalance_timeout_ms, now)

    # ---- committed offsets

    def admit_commit(self, member_id: str, epoch: int, partitions: Partitions, *, api_version: int) -> None:
        """Check that a member or an outside client may commit offsets of some partitions now.

        A member may be behind: its epoch has advanced, but it has not received the response yet. It may still commit
        offsets of partitions that it had at the epoch that it sends, and still has (KIP-1251).

        Raises:
            UnknownMemberIdError: Not a member, or a client outside the group while the group has members.
            StaleMemberEpochError: The member has an older epoch, or it did not have one of the partitions at the epoch.
            IllegalGenerationError: The same, for a member with the classic protocol.
            UnsupportedVersionError: The version of the request knows no member epochs.
        """
        if epoch < 0 and not self.members:
            return
        member = self.find(member_id)
        if member.classic is None and api_version < FIRST_COMMIT_VERSION:
            raise UnsupportedVersionError(
                f"OffsetCommit version {FIRST_COMMIT_VERSION} or above must be used by members using the modern group "
                "protocol"
            )
        _check_commit(member, epoch, partitions)

    def admit_transactional_commit(
        self, member_id: str, group_instance_id: str | None, epoch: int, partitions: Partitions
    ) -> None:
        """Check that a transaction may commit offsets for the group (KIP-447), as in ``admit_commit``.

        Raises:
            UnknownMemberIdError: Not a member.
            StaleMemberEpochError: The member has an older epoch, or it did not have one of the partitions at the epoch.
            IllegalGenerationError: The same, for a member with the classic protocol.
        """
        is_outside = epoch == NO_GENERATION and not member_id and group_instance_id is None
        if not is_outside and (epoch >= 0 or self.members):
            _check_commit(self.find(member_id), epoch, partitions)

    def admit_fetch(self, member_id: str | None, epoch: int) -> None:
        """Check that the sender of OffsetFetch may read offsets. Only members send their id and epoch.

        Raises:
            UnknownMemberIdError: Not a member.
            StaleMemberEpochError: The member has another epoch.
            IllegalGenerationError: The same, for a member with the classic protocol.
        """
        if member_id is None and epoch < 0:
            return
        _check_generation(self.find(member_id or ""), epoch)

    # ---- members with the classic protocol

    def join(
        self, attempt: JoinAttempt, topics: SubscribableTopics, now: Moment, *, assignment_interval_ms: int = 0
    ) -> JoinReply:
        """Let a member with the classic protocol join or take the next step to its target (JoinGroup).

        Args:
            attempt: Contents of the request.
            topics: Topic catalog.
            now: Current time.
            assignment_interval_ms: Shortest time between two target assignments of the group.

        Raises:
            GroupMaxSizeReachedError: The group is full.
            InconsistentGroupProtocolError: The member supports no protocol that all other classic members support, or
                its metadata is not a subscription.
            MemberIdRequiredError: The client has to join again with the id that it receives (KIP-394).
            UnknownMemberIdError: No member has the instance id.
            FencedInstanceIdError: Another member has the instance id.
        """
        member_id = attempt.member_id or attempt.new_member_id
        session_timeout_ms = attempt.enforced_session_timeout_ms or attempt.session_timeout_ms
        self._check_room(member_id)
        subscription = self._subscription_of(attempt)
        if not attempt.member_id and attempt.group_instance_id is None and attempt.requires_known_member_id:
            raise MemberIdRequiredError
        before, departed = self._admit_classic(attempt, member_id)
        after = replace(
            before,
            instance_id=attempt.group_instance_id or before.instance_id,
            rack_id=subscription.rack_id or before.rack_id,
            rebalance_timeout_ms=attempt.rebalance_timeout_ms,
            topic_names=frozenset(subscription.topics),
            topic_regex=None,
            server_assignor=None,
            client_id=attempt.client_id,
            client_host=attempt.client_host,
            classic=ClassicTraits(
                session_timeout_ms=session_timeout_ms,
                requested_session_timeout_ms=attempt.session_timeout_ms,
                protocols=attempt.protocols,
            ),
        )
        if departed is not None:
            self.replace_static(departed, before)
        self._update(before, after, topics, interval_ms=assignment_interval_ms)
        # A group that becomes classic after this step gets its next assignment from its leader, after a rebalance.
        if self.may_assign(now) and not self.can_become_classic:
            self.assign(topics, now)
        named = ((topics.get(name), indexes) for name, indexes in subscription.owned.items())
        owned = assignment_of((topic.topic_id, indexes) for topic, indexes in named if topic is not None)
        after = self._reconcile(after, owned, topics, now)
        self._cancel_deadline(DeadlineKind.JOIN, member_id)
        self._cancel_deadline(DeadlineKind.REBALANCE, member_id)
        self._set_deadline(DeadlineKind.SESSION, member_id, session_timeout_ms, now)
        self._set_deadline(DeadlineKind.SYNC, member_id, attempt.rebalance_timeout_ms, now)
        return JoinReply(
            member_id=member_id,
            generation_id=after.member_epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=attempt.protocols[0][0],
        )

    def sync(self, attempt: SyncAttempt, topics: SubscribableTopics, now: Moment) -> SyncReply:
        """Return the partitions of a member with the classic protocol (SyncGroup).

        Raises:
            UnknownMemberIdError: Not a member with the classic protocol.
            FencedInstanceIdError: Another member has the instance id.
            IllegalGenerationError: The member has another epoch.
            InconsistentGroupProtocolError: The protocol is another than that of the JoinGroup response.
            RebalanceInProgressError: The member has to join again.
        """
        member, traits = self._classic(attempt.member_id, attempt.group_instance_id, attempt.generation_id)
        name, metadata = traits.protocols[0]
        if attempt.protocol_type not in {None, CONSUMER_PROTOCOL_TYPE} or attempt.protocol_name not in {None, name}:
            raise InconsistentGroupProtocolError
        if self.assignment_epoch > member.member_epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._require_join(member, now)
            raise RebalanceInProgressError
        self._cancel_deadline(DeadlineKind.SYNC, member.member_id)
        self._set_deadline(DeadlineKind.SESSION, member.member_id, traits.session_timeout_ms, now)
        assignment = ((topics.by_id(topic_id), indexes) for topic_id, indexes in member.assigned.items())
        partitions = {topic.name: sorted(indexes) for topic, indexes in assignment if topic is not None}
        return SyncReply(
            protocol_type=attempt.protocol_type,
            protocol_name=attempt.protocol_name,
            assignment=write_assignment(partitions, read_version(metadata)),
        )

    def classic_heartbeat(
        self,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        now: Moment,
        *,
        enforced_session_timeout_ms: int | None = None,
    ) -> None:
        """Extend the session of a member with the classic protocol (Heartbeat).

        Args:
            member_id: Member id of the request.
            group_instance_id: Instance id of the request.
            generation_id: Generation of the request.
            now: Current time.
            enforced_session_timeout_ms: Session timeout that the broker enforces; None means the one that the member
                requested.

        Raises:
            UnknownMemberIdError: Not a member with the classic protocol.
            FencedInstanceIdError: Another member has the instance id.
            IllegalGenerationError: The member has another epoch.
            RebalanceInProgressError: The member has to join again, to revoke partitions or to get more.
        """
        member, traits = self._classic(member_id, group_instance_id, generation_id)
        session_timeout_ms = enforced_session_timeout_ms or traits.requested_session_timeout_ms
        if session_timeout_ms != traits.session_timeout_ms:
            self.members[member_id] = replace(member, classic=replace(traits, session_timeout_ms=session_timeout_ms))
        self._set_deadline(DeadlineKind.SESSION, member_id, session_timeout_ms, now)
        has_step = (
            member.member_epoch < self.assignment_epoch
            # Nothing else might compute the next target: only a JoinGroup or a heartbeat of the new protocol does.
            or self.may_assign(now)
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and not self._waits_for_owners(member))
        )
        if has_step:
            self._require_join(member, now)
            raise RebalanceInProgressError

    def classic_leave(self, identities: Sequence[MemberIdentity], now: Moment) -> tuple[ErrorCode, ...]:
        """Remove members (LeaveGroup), and return one error code per identity, in order.

        An administrator may remove members with the consumer protocol in this way, too.
        """
        codes = tuple(self._leave_one(identity) for identity in identities)
        if ErrorCode.NONE in codes:
            self.lose(now)
        return codes

    def _leave_one(self, identity: MemberIdentity) -> ErrorCode:
        instance_id = identity.group_instance_id
        try:
            if instance_id is None:
                member = self.find(identity.member_id)
            else:
                holder = self.static_member(instance_id)
                member = self.find_static(identity.member_id or getattr(holder, "member_id", ""), instance_id)
        except KafkaApiError as error:
            return error.error_code
        self.remove(member.member_id)
        return ErrorCode.NONE

    def _subscription_of(self, attempt: JoinAttempt) -> ClassicSubscription:
        is_supported = self.supports_any(name for name, _ in attempt.protocols)
        if attempt.protocol_type != CONSUMER_PROTOCOL_TYPE or not is_supported:
            raise InconsistentGroupProtocolError
        try:
            return read_subscription(attempt.protocols[0][1])
        except ValueError as error:
            raise InconsistentGroupProtocolError(str(error)) from error

    def _admit_classic(self, attempt: JoinAttempt, member_id: str) -> tuple[ConsumerMember, ConsumerMember | None]:
        instance_id = attempt.group_instance_id
        if instance_id is None:
            return self.members.get(member_id) or ConsumerMember(member_id=member_id), None
        if attempt.member_id:
            return self.find_static(member_id, instance_id), None
        holder = self.static_member(instance_id)
        if holder is None:
            return ConsumerMember(member_id=member_id), None
        return replace(holder, member_id=member_id, member_epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH), holder

    def _classic(
        self, member_id: str, instance_id: str | None, generation_id: int
    ) -> tuple[ConsumerMember, ClassicTraits]:
        member = self.find(member_id) if instance_id is None else self.find_static(member_id, instance_id)
        if member.classic is None:
            raise UnknownMemberIdError(f"Member {member_id} does not use the classic protocol.")
        _check_generation(member, generation_id)
        return member, member.classic

    def _require_join(self, member: ConsumerMember, now: Moment) -> None:
        if (DeadlineKind.JOIN, member.member_id) not in self._deadlines:
            self._set_deadline(DeadlineKind.JOIN, member.member_id, member.rebalance_timeout_ms, now)

    def _waits_for_owners(self, member: ConsumerMember) -> bool:
        return any(
            self.is_owned(topic_id, partition)
            for topic_id, partitions in self.target.get(member.member_id, NO_PARTITIONS).items()
            for partition in partitions - member.assigned.get(topic_id, frozenset())
        )


def _check_commit(member: ConsumerMember, epoch: int, partitions: Partitions) -> None:
    if epoch >= member.member_epoch:
        _check_generation(member, epoch)
        return
    for topic_id, partition in partitions:
        assigned_at = member.assignment_epoch(topic_id, partition)
        if assigned_at is None or assigned_at > epoch:
            _check_generation(member, epoch)


def _check_generation(member: ConsumerMember, epoch: int) -> None:
    if epoch == member.member_epoch:
        return
    if member.classic is not None:
        raise IllegalGenerationError(
            f"The received generation id {epoch} does not match the expected member epoch {member.member_epoch}."
        )
    raise StaleMemberEpochError(
        f"The received member epoch {epoch} does not match the expected member epoch {member.member_epoch}."
    )

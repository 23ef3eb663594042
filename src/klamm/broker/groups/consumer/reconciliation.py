"""The steps of one member towards its target assignment (Kafka's CurrentAssignmentBuilder)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from klamm.broker.groups.consumer.model import NO_PARTITIONS, ConsumerMember, MemberState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from klamm.broker.groups.consumer.model import Assignment

IsOwned: TypeAlias = "Callable[[UUID, int], bool]"
"""Function that returns whether any member owns a partition."""


def reconcile(
    member: ConsumerMember,
    target_epoch: int,
    target: Assignment,
    is_owned: IsOwned,
    owned: Assignment | None,
    *,
    unsubscribed: frozenset[UUID] = frozenset(),
) -> ConsumerMember:
    """Return the member after the next step that is possible now; the same member if none is possible.

    A partition changes hands in three heartbeats. The response to its owner has an assignment without the
    partition. The owner then reports that it no longer owns it. Then the response to the new owner has an
    assignment with the partition. So two members never use a partition at the same time.

    Args:
        member: Member to reconcile.
        target_epoch: Epoch of the target assignment.
        target: The member's part of the target assignment.
        is_owned: Function that returns whether any member owns a partition.
        owned: Partitions that the member reports as owned; None if it reports none.
        unsubscribed: Topics that the member has left since the target was computed. It revokes their partitions at
            once and gets no more of them.
    """
    target = {topic_id: indexes for topic_id, indexes in target.items() if topic_id not in unsubscribed}
    left = {topic_id: indexes for topic_id, indexes in member.assigned.items() if topic_id in unsubscribed}
    if member.is_reconciled_to(target_epoch) and not left:
        return member
    if member.state is MemberState.UNREVOKED_PARTITIONS and _owns(owned, member.pending_revocation):
        rest, pending = _difference(member.assigned, left), _union(member.pending_revocation, left)
        return _moved(member, member.state, member.member_epoch, rest, pending) if left else member
    kept = _intersection(member.assigned, target)
    revoked = _difference(member.assigned, kept)
    if revoked and _owns(owned, revoked):
        return _moved(member, MemberState.UNREVOKED_PARTITIONS, member.member_epoch, kept, revoked)
    assigned: dict[UUID, frozenset[int]] = {}
    is_waiting = False
    for topic_id, wanted in target.items():
        own_kept = kept.get(topic_id, frozenset())
        # The member may have to revoke a partition that a newer target gives back to it.
        own = member.pending_revocation.get(topic_id, frozenset())
        free = {partition for partition in wanted - own_kept if partition in own or not is_owned(topic_id, partition)}
        is_waiting = is_waiting or len(own_kept) + len(free) < len(wanted)
        if own_kept or free:
            assigned[topic_id] = own_kept | free
    state = MemberState.UNRELEASED_PARTITIONS if is_waiting else MemberState.STABLE
    return _moved(member, state, target_epoch, assigned, NO_PARTITIONS)


def _moved(
    member: ConsumerMember, state: MemberState, epoch: int, assigned: Assignment, pending_revocation: Assignment
) -> ConsumerMember:
    is_same = (
        state is member.state
        and epoch == member.member_epoch
        and assigned == member.assigned
        and pending_revocation == member.pending_revocation
    )
    if is_same:
        return member
    return replace(
        member,
        state=state,
        previous_epoch=member.member_epoch,
        member_epoch=epoch,
        assigned=assigned,
        pending_revocation=pending_revocation,
        assignment_epochs=_epochs(member, epoch, assigned, pending_revocation),
    )


def _epochs(
    member: ConsumerMember, epoch: int, assigned: Assignment, pending_revocation: Assignment
) -> Mapping[UUID, Mapping[int, int]]:
    """Return the assignment epochs of a member's partitions: ``epoch`` for those that it gets in this step."""
    fresh, epochs = _difference(assigned, member.assigned), member.assignment_epochs
    return {
        topic_id: {
            index: epoch if index in fresh.get(topic_id, ()) else epochs.get(topic_id, {}).get(index, 0)
            for index in indexes
        }
        for topic_id, indexes in _union(assigned, pending_revocation).items()
    }


def _owns(owned: Assignment | None, partitions: Assignment) -> bool:
    """Return whether the member may still use one of the partitions. A member that reports nothing may use all."""
    if owned is None:
        return True
    return any(owned.get(topic_id, frozenset()) & indexes for topic_id, indexes in partitions.items())


def _intersection(left: Assignment, right: Assignment) -> Assignment:
    both = {topic_id: indexes & right.get(topic_id, frozenset()) for topic_id, indexes in left.items()}
    return {topic_id: indexes for topic_id, indexes in both.items() if indexes}


def _union(left: Assignment, right: Assignment) -> Assignment:
    none: frozenset[int] = frozenset()
    return {topic_id: left.get(topic_id, none) | right.get(topic_id, none) for topic_id in (*left, *right)}


def _difference(left: Assignment, right: Assignment) -> Assignment:
    rest = {topic_id: indexes - right.get(topic_id, frozenset()) for topic_id, indexes in left.items()}
    return {topic_id: indexes for topic_id, indexes in rest.items() if indexes}

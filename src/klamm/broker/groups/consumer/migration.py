"""The two kinds of groups, and conversion of a group with members between them (KIP-848, online migration)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.broker.groups.classic.group import ClassicGroup
from klamm.broker.groups.classic.members import Member
from klamm.broker.groups.classic.model import CONSUMER_PROTOCOL_TYPE
from klamm.broker.groups.consumer.consumer_protocol import (
    ElementLimit,
    UserDataError,
    read_assignment,
    read_subscription,
    read_version,
    write_assignment,
)
from klamm.broker.groups.consumer.group import ConsumerGroup
from klamm.broker.groups.consumer.model import (
    FIRST_EPOCH,
    ClassicTraits,
    ConsumerGroupState,
    ConsumerMember,
    assignment_of,
)
from klamm.broker.groups.errors import GroupIdNotFoundError

if TYPE_CHECKING:
    from uuid import UUID

    from klamm.broker.groups.classic.model import GroupLimits, Moment
    from klamm.broker.groups.consumer.model import Assignment, ConsumerLimits, SubscribableTopics

AnyGroup: TypeAlias = ClassicGroup | ConsumerGroup

MAX_ELEMENTS: Final = 500_000
"""Largest number of topics and partitions in the subscriptions and assignments of a classic group that is converted. No
other request is served while they are read."""


def can_become_consumer(group: ClassicGroup, limits: ConsumerLimits) -> bool:
    """Return whether a classic group with members may be converted to a consumer group."""
    return (
        limits.allows_upgrade
        and group.protocol_type == CONSUMER_PROTOCOL_TYPE
        and len(group.members) <= limits.max_size
    )


def to_consumer(
    classic: ClassicGroup, topics: SubscribableTopics, limits: ConsumerLimits, now: Moment
) -> ConsumerGroup:
    """Return a consumer group with the members of a classic group, which is not changed.

    Raises:
        GroupIdNotFoundError: A subscription or an assignment is not of Kafka's ConsumerProtocol, or they have more than
            ``MAX_ELEMENTS`` topics and partitions in total, or an assignment has user data. Consumer groups cannot
            keep user data, and without it Kafka Streams and other clients with an assignor of their own fail.
    """
    group = ConsumerGroup(classic.group_id, limits, now)
    group.group_epoch = group.assignment_epoch = epoch = max(classic.generation_id, FIRST_EPOCH)
    taken: set[tuple[UUID, int]] = set()
    limit = ElementLimit(MAX_ELEMENTS)
    try:
        for member in classic.members:
            converted = _consumer_member(classic, member, topics, taken, epoch=epoch, limit=limit)
            group.put(converted)
            group.target[member.member_id] = converted.assigned
    except UserDataError as error:
        raise GroupIdNotFoundError(
            f"Cannot upgrade classic group {classic.group_id} to consumer group because an unsupported custom assignor "
            "is in use. Please refer to the documentation or switch to a default assignor before re-attempting the "
            "upgrade."
        ) from error
    except ValueError as error:
        reason = "is malformed" if limit.left >= 0 else f"has more than {MAX_ELEMENTS} topics and partitions"
        raise GroupIdNotFoundError(
            f"Cannot upgrade the classic group {classic.group_id} to consumer group because the embedded consumer "
            f"protocol {reason}."
        ) from error
    group.resume(0, now)
    return group


def to_classic(group: ConsumerGroup, topics: SubscribableTopics, limits: GroupLimits, now: Moment) -> ClassicGroup:
    """Return a classic group with the members of a consumer group, if any, which all use the classic protocol.

    The members have to join again unless all of them have their partitions of the current target assignment. So they
    need not if the last member with the consumer protocol was a static member whose next instance uses the classic
    protocol with the same subscription: that one takes over its partitions.

    The generation is the epoch of the last target assignment, because a member never has a later one. Members at that
    epoch can still commit offsets before they join again.

    Raises:
        ValueError: A member uses the consumer protocol.
    """
    classic = ClassicGroup(group.group_id, limits, now)
    for member in group.members.values():
        traits = member.classic
        if traits is None:
            raise ValueError(f"Member {member.member_id} of group {group.group_id} uses the consumer protocol")
        classic.members.add(
            Member(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                session_timeout_ms=traits.session_timeout_ms,
                requested_session_timeout_ms=traits.requested_session_timeout_ms,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                protocols=traits.protocols,
                assignment=_classic_assignment(member.assigned, traits, topics),
            )
        )
    classic.adopt(group.assignment_epoch if group.members else group.group_epoch, now)
    if group.members and group.state is not ConsumerGroupState.STABLE:
        classic.rebalance(now)
    return classic


def _consumer_member(
    classic: ClassicGroup,
    member: Member,
    topics: SubscribableTopics,
    taken: set[tuple[UUID, int]],
    *,
    epoch: int,
    limit: ElementLimit,
) -> ConsumerMember:
    """Return a member in its new form, without partitions that do not exist or that an earlier member has.

    Its partitions are added to ``taken``.

    Raises:
        UserDataError: The assignment has user data.
        ValueError: The subscription or the assignment cannot be read, or exceeds the limit.
    """
    name = classic.protocol_name or member.protocols[0][0]
    subscription = read_subscription(member.metadata(name), limit)
    shares = read_assignment(member.assignment, limit, allows_user_data=False)
    named = ((topics.get(topic), indexes) for topic, indexes in shares.items())
    assigned = assignment_of(
        (
            topic.topic_id,
            [index for index in indexes if 0 <= index < len(topic.partitions) and (topic.topic_id, index) not in taken],
        )
        for topic, indexes in named
        if topic is not None
    )
    taken.update((topic_id, index) for topic_id, indexes in assigned.items() for index in indexes)
    return ConsumerMember(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topic_names=frozenset(subscription.topics),
        member_epoch=epoch,
        previous_epoch=epoch,
        assigned=assigned,
        assignment_epochs={topic_id: dict.fromkeys(indexes, epoch) for topic_id, indexes in assigned.items()},
        classic=ClassicTraits(
            session_timeout_ms=member.session_timeout_ms,
            requested_session_timeout_ms=member.requested_session_timeout_ms,
            protocols=member.protocols,
        ),
    )


def _classic_assignment(assigned: Assignment, traits: ClassicTraits, topics: SubscribableTopics) -> bytes:
    assignment = ((topics.by_id(topic_id), indexes) for topic_id, indexes in assigned.items())
    partitions = {topic.name: sorted(indexes) for topic, indexes in assignment if topic is not None}
    return write_assignment(partitions, read_version(traits.protocols[0][1]))

"""Topics to which a consumer group is subscribed, read from its members' metadata (Kafka's ConsumerProtocol)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from klamm.broker.groups.consumer.group import ConsumerGroup
from klamm.broker.groups.model import CONSUMER_PROTOCOL_TYPE

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from klamm.broker.groups.kinds import AnyGroup
    from klamm.broker.groups.rebalance import Rebalance


def subscribed_topics(group: Rebalance) -> frozenset[str] | None:
    """Return the topics to which the members of a consumer group are subscribed.

    None means unknown: the group has another protocol type, or a member's metadata cannot be parsed.
    """
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return None
    if not group.members:
        return frozenset()
    if group.protocol_name is None:
        return None
    try:
        return frozenset(
            topic for member in group.members for topic in read_topics(member.metadata(group.protocol_name))
        )
    except ValueError:
        return None


def is_subscribed(group: AnyGroup, topic: str) -> bool:
    """Return whether the group uses the topic. A group of consumers with unreadable metadata uses every topic."""
    return bool(topics_in_use(group, {topic}))


def topics_in_use(group: AnyGroup, topics: AbstractSet[str]) -> AbstractSet[str]:
    """Return those of the topics that the group uses. A group with unreadable metadata uses every topic."""
    if isinstance(group, ConsumerGroup):
        return topics & frozenset(group.subscribed_names())
    subscribed = subscribed_topics(group)
    if subscribed is None:
        return topics if group.protocol_type == CONSUMER_PROTOCOL_TYPE else frozenset()
    return topics & subscribed


def read_topics(metadata: bytes) -> tuple[str, ...]:
    """Return the topics of a ConsumerProtocolSubscription of any version: an int16, then an array of strings.

    Raises:
        ValueError: The bytes are not a subscription.
    """
    try:
        version, count = struct.unpack_from(">hi", metadata)
        if version < 0 or count < 0:
            raise ValueError(f"Not a subscription: version {version}, {count} topics")
        topics = []
        position = 6
        for _ in range(count):
            (length,) = struct.unpack_from(">h", metadata, position)
            position += 2
            if length < 0 or position + length > len(metadata):
                raise ValueError(f"A topic name of {length} bytes at byte {position} of {len(metadata)}")
            topics.append(metadata[position : position + length].decode())
            position += length
    except struct.error as error:
        raise ValueError(f"Not a subscription: {error}") from error
    return tuple(topics)

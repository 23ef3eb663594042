"""From what a client calls a partition to its log: who leads it, and whether the client's epoch is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.security.checks import require_topic
from klamm.protocol.errors import (
    FencedLeaderEpochError,
    NotLeaderOrFollowerError,
    StorageError,
    UnknownLeaderEpochError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from klamm.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from uuid import UUID

    from klamm.broker.context import RequestContext
    from klamm.broker.topics.catalog import Topic
    from klamm.security.acls import AclOperation
    from klamm.storage.log import PartitionLog

ANY_EPOCH: Final = -1


def find_topic(
    context: RequestContext, operation: AclOperation, *, name: str | None, topic_id: UUID = ZERO_UUID
) -> Topic:
    """Return a topic by id if one is given, else by name, to somebody who may do ``operation`` to it.

    Raises:
        TopicAuthorizationError: The principal may not; of a name this is said whether the topic exists or not.
        UnknownTopicIdError: No such id.
        UnknownTopicOrPartitionError: No such name.
    """
    topics = context.services.topics
    if topic_id != ZERO_UUID or not name:
        topic = topics.by_id(topic_id)
        if topic is None:
            raise UnknownTopicIdError("This server does not host this topic ID.")
        require_topic(context, operation, topic.name)
        return topic
    require_topic(context, operation, name)
    topic = topics.get(name)
    if topic is None:
        raise UnknownTopicOrPartitionError("This server does not host this topic-partition.")
    return topic


def leader_log(
    context: RequestContext, topic: Topic, partition: int, *, current_leader_epoch: int = ANY_EPOCH
) -> PartitionLog:
    """Return the log of a partition that the asked broker id leads.

    Raises:
        UnknownTopicOrPartitionError: No such partition.
        NotLeaderOrFollowerError: Another broker id leads it.
        FencedLeaderEpochError: The client's epoch is older.
        UnknownLeaderEpochError: The client's epoch is newer.
        StorageError: The log cannot be opened.
    """
    if not topic.has_partition(partition):
        raise UnknownTopicOrPartitionError("This server does not host this topic-partition.")
    if topic.leader(partition) != context.node_id:
        raise NotLeaderOrFollowerError(f"Broker {context.node_id} does not lead {topic.name}-{partition}")
    try:
        log = context.services.logs.get(topic.topic_id, partition)
    except OSError as error:
        raise StorageError(f"Cannot open {topic.name}-{partition}: {error}") from error
    if log is None:  # the topic is just being created or deleted
        raise UnknownTopicOrPartitionError("This server does not host this topic-partition.")
    if current_leader_epoch not in (ANY_EPOCH, log.leader_epoch):
        if current_leader_epoch < log.leader_epoch:
            raise FencedLeaderEpochError(f"Leader epoch of {log.name} is {log.leader_epoch}")
        raise UnknownLeaderEpochError(f"Leader epoch of {log.name} is {log.leader_epoch}")
    return log

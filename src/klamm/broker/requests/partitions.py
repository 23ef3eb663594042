"""Lookup of topics and partition logs for a request, with the checks of permission, leader and leader epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.requests.checks import require_topic
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
    """Return a topic by id, or by name if no id is given, after checking the principal's permission.

    Raises:
        TopicAuthorizationError: The principal lacks the permission. For a name, this does not depend on whether the
            topic exists, so a denied principal cannot find that out.
        UnknownTopicIdError: No topic has this id.
        UnknownTopicOrPartitionError: No topic has this name.
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
    """Return the log of a partition whose leader is the requested broker id.

    Raises:
        UnknownTopicOrPartitionError: The partition does not exist.
        NotLeaderOrFollowerError: Another broker id leads it; or it is being created and has no log yet. Clients retry
            this error, as with Kafka (``ReplicaManager.getPartitionOrError``). An unknown partition of a topic that
            metadata names is final for librdkafka.
        FencedLeaderEpochError: The client's leader epoch is older than the current one.
        UnknownLeaderEpochError: The client's leader epoch is newer than the current one.
        StorageError: The log cannot be opened or is offline.
    """
    if not topic.has_partition(partition):
        raise UnknownTopicOrPartitionError("This server does not host this topic-partition.")
    if context.services.cluster.leader(topic.partitions[partition]) != context.node_id:
        raise NotLeaderOrFollowerError(f"Broker {context.node_id} does not lead {topic.name}-{partition}")
    try:
        log = context.services.logs.get(topic.topic_id, partition)
    except OSError as error:
        raise StorageError(f"Cannot open {topic.name}-{partition}: {error}") from error
    if log is None:
        if context.services.topics.by_id(topic.topic_id) is None:  # deleted during the request
            raise UnknownTopicOrPartitionError("This server does not host this topic-partition.")
        raise NotLeaderOrFollowerError(f"{topic.name}-{partition} is being created")
    log.check_online()
    if current_leader_epoch not in (ANY_EPOCH, log.leader_epoch):
        if current_leader_epoch < log.leader_epoch:
            raise FencedLeaderEpochError(f"Leader epoch of {log.name} is {log.leader_epoch}")
        raise UnknownLeaderEpochError(f"Leader epoch of {log.name} is {log.leader_epoch}")
    return log

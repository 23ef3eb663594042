"""Details of a change as policies see them, made from what the broker or the gateway knows of the change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from klamm.policy.details import AlterConfigDetails, CreatePartitionsDetails, DeleteTopicDetails, TopicDetails

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from klamm.configs.operations import ConfigDecision


class Requester(Protocol):
    """Sender of a request."""

    @property
    def principal(self) -> str:
        """Principal as ``Type:name``."""
        ...

    @property
    def client_id(self) -> str | None:
        """Client id; None when the client sent none."""
        ...

    @property
    def listener(self) -> str | None:
        """Name of the listener that received the request."""
        ...


def topic_details(
    name: str,
    *,
    num_partitions: int,
    replication_factor: int,
    assignments: Mapping[int, Sequence[int]] | None,
    configs: Mapping[str, str],
    defaults: Mapping[str, str],
    requester: Requester,
    validate_only: bool,
) -> TopicDetails:
    """Return the details of a topic about to be created.

    Args:
        name: Name of the topic.
        num_partitions: Number of partitions; not used with ``assignments``.
        replication_factor: Replication factor; not used with ``assignments``.
        assignments: Broker ids by partition if the request assigns the replicas, else None.
        configs: Configs that the request sets.
        defaults: Value of each topic config for a topic that does not set it.
        requester: Sender of the request.
        validate_only: Whether the request only validates.
    """
    is_manual = assignments is not None
    return TopicDetails(
        name,
        None if is_manual else num_partitions,
        None if is_manual else replication_factor,
        assignments,
        configs,
        principal=requester.principal,
        client_id=requester.client_id,
        listener=requester.listener,
        validate_only=validate_only,
        defaults=defaults,
    )


def alter_config_details(
    decision: ConfigDecision, requester: Requester, *, validate_only: bool, replication_factor: int | None = None
) -> AlterConfigDetails:
    """Return the details of a decided config change."""
    result = decision.result
    return AlterConfigDetails(
        resource_type=decision.resource_type.name,
        resource_name=decision.resource_name,
        configs=decision.altered,
        result=result,
        principal=requester.principal,
        client_id=requester.client_id,
        listener=requester.listener,
        validate_only=validate_only,
        removed=frozenset(decision.before).difference(result),
        defaults=decision.defaults,
        before=decision.before,
        replication_factor=replication_factor,
    )


def partitions_details(
    topic: str,
    topic_id: UUID,
    current: Sequence[Sequence[int]],
    *,
    count: int,
    assignments: Sequence[Sequence[int]] | None,
    configs: Mapping[str, str],
    defaults: Mapping[str, str],
    requester: Requester,
    validate_only: bool,
) -> CreatePartitionsDetails:
    """Return the details of a topic whose partitions are about to change.

    Args:
        topic: Name of the topic.
        topic_id: Id of the topic.
        current: Replicas of each partition.
        count: Number of partitions after the change.
        assignments: Requested replicas; None if the request leaves them to the cluster.
        configs: Configs that the topic sets.
        defaults: Value of each topic config for a topic that does not set it.
        requester: Sender of the request.
        validate_only: Whether the request only validates.
    """
    return CreatePartitionsDetails(
        topic=topic,
        topic_id=topic_id,
        num_partitions=len(current),
        new_num_partitions=count,
        replication_factor=len(current[0]),
        new_assignments=assignments,
        configs=configs,
        defaults=defaults,
        principal=requester.principal,
        client_id=requester.client_id,
        listener=requester.listener,
        validate_only=validate_only,
    )


def deletion_details(
    topic: str, topic_id: UUID, current: Sequence[Sequence[int]], requester: Requester
) -> DeleteTopicDetails:
    """Return the details of a topic about to be deleted. ``current`` has the replicas of each partition."""
    return DeleteTopicDetails(
        topic=topic,
        topic_id=topic_id,
        num_partitions=len(current),
        replication_factor=len(current[0]),
        principal=requester.principal,
        client_id=requester.client_id,
        listener=requester.listener,
    )

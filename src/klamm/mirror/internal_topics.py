"""Creation of the mirror's internal topics, all of them compacted."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from klamm.admin import KafkaApiError, NewTopic
from klamm.kafka_client.errors import is_denial
from klamm.mirror.cluster_admin import create_topics, partition_counts
from klamm.protocol.errors import ErrorCode, UnsupportedVersionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.admin import AdminClient

KNOWN_AFTER_S: Final = 10.0
"""Time in seconds until all brokers know a new topic. Until then a missing internal topic is not reported."""


def create_internal_topic(
    admin: AdminClient,
    name: str,
    *,
    replication_factor: int,
    partition_count: int = 1,
    configs: Mapping[str, str] = MappingProxyType({}),
) -> KafkaApiError | None:
    """Create a compacted topic. Return the rejection, or None if the topic exists or is assumed to exist.

    An existing topic is not changed, and the principal need not be allowed to create it. On a cluster without
    CreateTopics, the topic is assumed to exist (Kafka's ``MirrorUtils.createCompactedTopic``).

    Raises:
        ConnectionError, TimeoutError: The cluster is unavailable.
    """
    topic = internal_topic(
        name, replication_factor=replication_factor, partition_count=partition_count, configs=configs
    )
    try:
        refused = create_topics(admin, [topic]).get(name)
        if refused is None or refused.error_code is ErrorCode.TOPIC_ALREADY_EXISTS:
            return None
        if is_denial(refused) and name in partition_counts(admin):
            return None
    except UnsupportedVersionError:
        return None
    return refused


def internal_topic(
    name: str, *, replication_factor: int, partition_count: int = 1, configs: Mapping[str, str] = MappingProxyType({})
) -> NewTopic:
    """Return the description of a compacted internal topic."""
    return NewTopic(
        name=name,
        num_partitions=partition_count,
        replication_factor=replication_factor,
        configs={**configs, "cleanup.policy": "compact"},
    )

"""Creation of the mirror's internal topics, all of them compacted."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from klamm.mirror.model import AdminIncompatibleError, AdminRefusedError, NewRemoteTopic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.mirror.model import MirrorAdmin

EXISTS: Final = "TOPIC_ALREADY_EXISTS"
KNOWN_AFTER_S: Final = 10.0
"""Time in seconds until all brokers know a new topic. Until then a missing internal topic is not reported."""


def create_internal_topic(
    admin: MirrorAdmin,
    name: str,
    *,
    replication_factor: int,
    partition_count: int = 1,
    configs: Mapping[str, str] = MappingProxyType({}),
) -> AdminRefusedError | None:
    """Create a compacted topic. Return the rejection, or None if the topic exists or is assumed to exist.

    An existing topic is not changed, and the principal need not be allowed to create it. On a cluster without
    CreateTopics, the topic is assumed to exist (Kafka's ``MirrorUtils.createCompactedTopic``).

    Raises:
        ClusterAwayError: The cluster does not answer.
    """
    topic = internal_topic(
        name, replication_factor=replication_factor, partition_count=partition_count, configs=configs
    )
    try:
        refused = admin.create_topics([topic]).get(name)
        if refused is None or refused.error_name == EXISTS or (refused.is_denial and name in admin.list_topics()):
            return None
    except AdminIncompatibleError:
        return None
    return refused


def internal_topic(
    name: str, *, replication_factor: int, partition_count: int = 1, configs: Mapping[str, str] = MappingProxyType({})
) -> NewRemoteTopic:
    """Return the description of a compacted internal topic."""
    return NewRemoteTopic(
        name=name,
        partition_count=partition_count,
        replication_factor=replication_factor,
        configs={**configs, "cleanup.policy": "compact"},
    )

"""The mirror's own topics: compacted, and made by whoever may."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from klamm.mirror.model import AdminIncompatibleError, AdminRefusedError, NewRemoteTopic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.mirror.model import MirrorAdmin

EXISTS: Final = "TOPIC_ALREADY_EXISTS"
KNOWN_AFTER_S: Final = 10.0
"""A topic that was just created is not known to every broker at once; until then nobody is told that it is missing."""


def create_internal_topic(
    admin: MirrorAdmin,
    name: str,
    *,
    replication_factor: int,
    partition_count: int = 1,
    configs: Mapping[str, str] = MappingProxyType({}),
) -> AdminRefusedError | None:
    """Create a compacted topic; returns why it is not there, None when it is taken to be.

    A topic that exists is fine as it is, also without the right to create it. Where the cluster cannot create topics,
    somebody else is taken to have done so (Kafka's ``MirrorUtils.createCompactedTopic``).

    Raises:
        ClusterAwayError: the cluster does not answer.
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
    """Describe a compacted topic of the mirror's own."""
    return NewRemoteTopic(
        name=name,
        partition_count=partition_count,
        replication_factor=replication_factor,
        configs={**configs, "cleanup.policy": "compact"},
    )

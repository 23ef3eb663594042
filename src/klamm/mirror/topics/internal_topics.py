"""Creation of a flow's internal topics: source offsets, offset syncs, checkpoints and heartbeats."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from klamm.kafka_client.errors import CLUSTER_ERRORS, api_error, error_text
from klamm.kafka_client.internal_topic import check_retention
from klamm.mirror.cluster_admin import create_internal_topic, topic_configs
from klamm.mirror.naming import HEARTBEATS_TOPIC
from klamm.mirror.settings.definitions import SyncsLocation
from klamm.protocol.errors import KafkaApiError

if TYPE_CHECKING:
    from collections.abc import Callable

    from klamm.admin import AdminClient, NewTopic
    from klamm.mirror.settings.flow import FlowSettings
    from klamm.mirror.settings.groups import HeartbeatSettings

    Place = Callable[[NewTopic], NewTopic]

logger = logging.getLogger(__name__)


def create_offsets_topic(target: AdminClient, settings: FlowSettings, place: Place) -> None:
    """Create the topic for source offsets, without which nothing is copied.

    Raises:
        KafkaApiError: The topic does not exist and could not be created, or it is not compacted. Its retention would
            then remove source offsets (Connect's TopicAdmin.verifyTopicCleanupPolicyOnlyCompact).
        ConnectionError, TimeoutError: The target is unavailable.
    """
    factor = settings.source_offsets_replication_factor
    rejected = create_internal_topic(
        target,
        settings.source_offsets_topic,
        replication_factor=factor,
        partition_count=settings.source_offsets_partitions,
        configs=settings.source_offsets_topic_configs,
        place=place,
    )
    if rejected is not None:
        raise api_error(
            rejected.error_code,
            f"{settings.source_offsets_topic} could not be created with "
            f"offset.storage.replication.factor={factor}: {error_text(rejected)}",
        )
    name = settings.source_offsets_topic
    configs = topic_configs(target, [name])[name]
    if isinstance(configs, KafkaApiError):
        logger.warning(
            "%s: whether %s is compacted cannot be read: %s", settings.name, name, error_text(configs)
        )  # fmt: skip
    else:
        check_retention(name, {key: entry.value for key, entry in configs.items()}, {"cleanup.policy": "compact"})


def create_other_topics(
    source: AdminClient, target: AdminClient, settings: FlowSettings, place: Place, heartbeats: HeartbeatSettings | None
) -> Exception | None:
    """Create the topics for offset syncs, checkpoints and heartbeats, without which records can be copied.

    Returns:
        Error of a cluster that is unavailable, or has no controller now. None: no topic has to be created later.

    Raises:
        ConnectionError, TimeoutError: The target of a flow that is a broker is unavailable.
    """
    if settings.replica is not None and settings.groups is not None:
        # Created before klamm is a broker, so that the target does not place it there.
        create_internal_topic(
            target,
            settings.groups.checkpoints_topic,
            replication_factor=settings.groups.checkpoints_replication_factor,
            place=place,
        )
    try:
        if settings.syncs_topic is not None:
            _create_syncs_topic(source, target, settings, settings.syncs_topic)
        if heartbeats is not None:
            # The heartbeat thread also creates this topic, and logs a failure. Creating it here, before the source
            # topics are listed, makes the first refresh mirror it.
            create_internal_topic(source, HEARTBEATS_TOPIC, replication_factor=heartbeats.replication_factor)
    except CLUSTER_ERRORS as error:
        return error
    return None


def _create_syncs_topic(source: AdminClient, target: AdminClient, settings: FlowSettings, name: str) -> None:
    on_source = settings.syncs_location is SyncsLocation.SOURCE
    factor = settings.syncs_replication_factor
    admin = source if on_source else target
    rejected = create_internal_topic(admin, name, replication_factor=factor)
    if rejected is not None:
        alias = settings.source.alias if on_source else settings.target.alias
        logger.warning(
            "%s: topic %s could not be created on cluster %s with offset-syncs.topic.replication.factor=%d: %s; "
            "offsets of groups cannot be translated until it is created",
            settings.name, name, alias, factor, error_text(rejected),
        )  # fmt: skip

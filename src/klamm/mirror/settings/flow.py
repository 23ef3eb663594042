"""Settings of one flow, ``A->B``."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from klamm.lazy_dataclass import dataclass
from klamm.mirror import filters, naming
from klamm.mirror.filters import (
    DefaultConfigPropertyFilter,
    DefaultTopicFilter,
    EqualOffsetsConfigFilter,
    TopicSelection,
)
from klamm.mirror.settings import definitions
from klamm.mirror.settings.clients import ClientProperties, of_flow
from klamm.mirror.settings.definitions import (
    DefaultsFrom,
    IncrementalAlterConfigs,
    IsolationLevel,
    OffsetReset,
    OffsetsBy,
    OnSourceLoss,
    SyncsLocation,
    TopicDeletions,
)
from klamm.mirror.settings.exactly_once import parse_delivery
from klamm.mirror.settings.groups import parse_groups
from klamm.mirror.settings.key_reader import (
    JAVA_PACKAGE,
    KeyReader,
    aliases_in_names,
    own_class,
    source_offsets_topics,
)
from klamm.mirror.settings.replica import parse_replica
from klamm.properties import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from klamm.mirror.filters import ConfigPropertyFilter
    from klamm.mirror.naming import ReplicationPolicy
    from klamm.mirror.settings.clients import ClusterSettings
    from klamm.mirror.settings.exactly_once import ExactlyOnce
    from klamm.mirror.settings.groups import GroupSettings
    from klamm.mirror.settings.replica import ReplicaBroker

_POLICY_METHODS: Final = ("format_remote_topic", "topic_source", "upstream_topic")
_KNOWN_POLICIES: Final[Mapping[str, str]] = {
    "io.strimzi.kafka.connect.mirror.IdentityReplicationPolicy": "IdentityReplicationPolicy",
    "com.amazonaws.kafka.samples.CustomMM2ReplicationPolicy": "IdentityReplicationPolicy",
}
"""Replication policies of others, from Strimzi and from AWS's guide to MSK, that keep names."""

_SEGMENT_BYTES: Final = 100 * 1024 * 1024
"""Segment size of the offsets topic in bytes, as Kafka's default for group offsets. Only closed segments are compacted,
and every start reads the whole topic. Exactly once can write fifty records per second and partition.
"""
_NOT_CONFIGS: Final = frozenset({"topic", "partitions", "replication.factor", "cleanup.policy"})
"""Suffixes of ``offset.storage.`` that are not configs of the topic or cannot be changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionSettings:
    """Settings of the deletion of remote topics, a klamm extension."""

    mode: TopicDeletions = TopicDeletions.OFF
    """``klamm.sync.topic.deletions``."""
    grace: timedelta = timedelta(seconds=3600)
    """``klamm.sync.topic.deletions.grace.seconds``: how long a source topic must be gone."""
    max_per_hour: int = 10
    """``klamm.sync.topic.deletions.max.per.hour``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSettings:
    """Settings of one enabled flow from ``source`` to ``target``."""

    source: ClusterSettings
    target: ClusterSettings
    source_alias: str
    """Alias of the source in names of topics and in the mirror's records (``source.cluster.alias``). May be empty."""
    target_alias: str
    """Alias of the target in names of topics and in the mirror's records (``target.cluster.alias``). May be empty."""
    connector: str
    """``klamm.source.connector.name``: name of MirrorMaker's source connector in the keys of source offsets."""
    policy: ReplicationPolicy
    selection: TopicSelection
    config_filter: ConfigPropertyFilter
    use_incremental_alter_configs: IncrementalAlterConfigs
    sync_topic_configs_enabled: bool
    sync_topic_configs_interval: timedelta
    sync_topic_acls_enabled: bool
    sync_topic_acls_interval: timedelta
    refresh_topics_enabled: bool
    refresh_topics_interval: timedelta
    deletions: DeletionSettings = DeletionSettings()
    replication_factor: int
    """Replication factor of new remote topics. -1: the target's default."""
    source_offsets_topic: str
    """Offsets topic: ``offsets.storage.topic`` of the flow, or else ``offset.storage.topic`` of the Connect worker."""
    worker_offsets_topic: str | None = None
    """``offset.storage.topic`` of the Connect worker if the flow has its own offsets topic.

    Source offsets found only here count as well. None: there is no second topic.
    """
    source_offsets_partitions: int
    """Number of partitions of the offsets topic. -1: the target's default."""
    source_offsets_replication_factor: int
    """Replication factor of the offsets topic. -1: the target's default."""
    source_offsets_topic_configs: Mapping[str, str]
    """Configs of the offsets topic, without its cleanup policy."""
    source_offsets_interval: timedelta
    """Interval between commits of source offsets. ``offset.flush.interval.ms`` if that is shorter."""
    isolation_level: IsolationLevel
    exactly_once: ExactlyOnce | None = None
    """Transaction settings. None: at least once."""
    on_source_loss: OnSourceLoss
    """``klamm.on.source.loss``, a klamm extension."""
    flows_in_same_topics: tuple[FlowSettings, ...] = ()
    """Other flows to the same target that do not keep offsets either; see ``flows_sharing``."""
    preserves_offsets: bool = False
    """Whether records keep their offsets (``klamm.offsets=preserve``, a klamm extension)."""
    offsets_by: OffsetsBy = OffsetsBy.AUTO
    """``klamm.offsets.by``: requested way in which offsets are kept."""
    replica: ReplicaBroker | None = None
    """Broker of the target that keeps the offsets (``klamm.offsets.by=replica``). None: records are produced."""
    transactional_id_prefix: str = ""
    """Prefix of the flow's transactional ids."""
    max_bytes_per_second: int | None = None
    """``klamm.max.bytes.per.second``, a klamm extension. None: no limit. ``LiveKeys`` has later values."""
    auto_offset_reset: OffsetReset = OffsetReset.EARLIEST
    reset_duration: timedelta = timedelta()
    """Age of the first record that counts with ``by_duration``."""
    tasks_max: int | None
    """Most parallel tasks. None: as many as Spark has slots."""
    admin_timeout: timedelta
    syncs_topic: str | None = None
    """Topic of the offset syncs. None: no offset syncs are written (``emit.offset-syncs.enabled=false``)."""
    syncs_location: SyncsLocation
    syncs_replication_factor: int
    offset_lag_max: int
    groups: GroupSettings | None = None
    """Settings of the consumer groups. None: group offsets are not translated."""
    warnings: tuple[str, ...] = ()
    """Warnings about settings that cannot take effect."""
    clients: Mapping[str, ClientProperties]
    """Client properties by ``source.consumer``, ``source.admin``, ``target.producer``, ``target.admin``."""

    @property
    def name(self) -> str:
        """Name of the flow, ``A->B``."""
        return f"{self.source.alias}->{self.target.alias}"

    def remote_topic(self, topic: str) -> str:
        """Return the name of a source topic on the target."""
        return self.policy.format_remote_topic(self.source_alias, topic)

    def flows_sharing(self, topic: str) -> list[FlowSettings]:
        """Return the other flows that write to the remote topic of a source topic if their clusters have the topic.

        These keep the names of topics, too, or have the same ``source.cluster.alias``. A flow whose custom topic filter
        fails counts: it may select the topic.
        """
        if not self.flows_in_same_topics:
            return []
        remote_topic = self.remote_topic(topic)
        return [flow for flow in self.flows_in_same_topics if flow.may_write(topic, remote_topic)]

    def shared_topics(self, topics: Iterable[str]) -> tuple[str, ...]:
        """Return the source topics whose remote topics have ``flows_sharing``."""
        return tuple(topic for topic in topics if self.flows_sharing(topic))

    def may_write(self, topic: str, remote_topic: str) -> bool:
        """Return whether the flow mirrors a topic to a remote topic. False for a custom policy that fails."""
        with contextlib.suppress(Exception):  # reported when the flow names its topics
            return self.remote_topic(topic) == remote_topic and self.may_select(topic)
        return False

    def may_select(self, topic: str) -> bool:
        """Return whether the flow selects a topic. True for a custom topic filter that fails."""
        with contextlib.suppress(Exception):  # reported by the flow of the filter
            return self.selection.includes(topic)
        return True

    @property
    def syncs_cluster(self) -> ClusterSettings:
        """Cluster that holds the offset syncs."""
        return self.source if self.syncs_location is SyncsLocation.SOURCE else self.target

    def with_timeout(self, timeout_ms: int | None) -> FlowSettings:
        """Return the flow with a time limit in milliseconds for each call and request. None keeps those of the file."""
        if timeout_ms is None:
            return self
        clients = {
            name: ClientProperties(client | {"request.timeout.ms": str(timeout_ms)}, client.origins, client.places)
            for name, client in self.clients.items()
        }
        return replace(self, admin_timeout=timedelta(milliseconds=timeout_ms), clients=clients)

    @property
    def keeps_names(self) -> bool:
        """Whether remote topics have the names of their source topics. False for a custom policy that fails."""
        with contextlib.suppress(Exception):  # reported when the flow names its topics
            return self.remote_topic("topic") == "topic"
        return False


def parse_flow(properties: Mapping[str, str], source: ClusterSettings, target: ClusterSettings) -> FlowSettings:
    """Return the settings of one flow. Its keys (``A->B.k``) have precedence over those at top level.

    Raises:
        SettingsError: A value is wrong. Names key, value and the allowed values.
    """
    reader = KeyReader(properties, source.alias, target.alias)
    clients = of_flow(properties, source, target)
    consumer = clients["source.consumer"]
    source_alias, target_alias = aliases_in_names(reader, source.alias, target.alias)
    policy = _policy(reader, source_alias)
    delivery = parse_delivery(reader, source.alias, consumer, clients["target.producer"])
    preserves = delivery.preserves_offsets
    replica, replica_warnings = parse_replica(reader, target, preserves_offsets=preserves)
    syncs_topic = None if preserves else _syncs_topic(reader, policy, source_alias, target_alias)
    source_offsets_topic, worker_offsets_topic = source_offsets_topics(reader, source.alias)
    groups, warnings = parse_groups(
        reader,
        checkpoints_topic=policy.checkpoints_topic(source_alias),
        has_syncs=syncs_topic is not None or preserves,
    )
    sync_configs, sync_configs_interval = reader.repetition(definitions.SYNC_TOPIC_CONFIGS)
    sync_acls, sync_acls_interval = reader.repetition(definitions.SYNC_TOPIC_ACLS)
    refresh_topics, refresh_topics_interval = reader.repetition(definitions.REFRESH_TOPICS)
    auto_offset_reset, reset_duration = _offset_reset(consumer, preserves_offsets=preserves)
    return FlowSettings(
        source=source,
        target=target,
        source_alias=source_alias,
        target_alias=target_alias,
        connector=reader.get(definitions.SOURCE_CONNECTOR_NAME),
        policy=policy,
        selection=TopicSelection(
            topic_filter=_topic_filter(reader),
            policy=policy,
            target_alias=target_alias,
            heartbeats_replication_enabled=reader.get(definitions.HEARTBEATS_REPLICATION),
        ),
        config_filter=EqualOffsetsConfigFilter(_config_filter(reader)) if preserves else _config_filter(reader),
        use_incremental_alter_configs=reader.get(definitions.USE_INCREMENTAL_ALTER_CONFIGS),
        sync_topic_configs_enabled=sync_configs,
        sync_topic_configs_interval=sync_configs_interval,
        sync_topic_acls_enabled=sync_acls,
        sync_topic_acls_interval=sync_acls_interval,
        refresh_topics_enabled=refresh_topics,
        refresh_topics_interval=refresh_topics_interval,
        deletions=_deletions(reader, refreshes_topics=refresh_topics),
        replication_factor=reader.get(definitions.REPLICATION_FACTOR),
        source_offsets_topic=source_offsets_topic,
        worker_offsets_topic=worker_offsets_topic,
        source_offsets_partitions=reader.get(definitions.OFFSETS_PARTITIONS),
        source_offsets_replication_factor=reader.get(definitions.OFFSETS_REPLICATION_FACTOR),
        source_offsets_topic_configs=_source_offsets_topic_configs(reader),
        source_offsets_interval=_source_offsets_interval(reader),
        isolation_level=delivery.isolation_level,
        exactly_once=delivery.exactly_once,
        on_source_loss=reader.get(definitions.ON_SOURCE_LOSS),
        preserves_offsets=preserves,
        offsets_by=reader.get(definitions.OFFSETS_BY),  # also without preserve, so that wrong values are reported
        replica=replica,
        transactional_id_prefix=delivery.id_prefix,
        max_bytes_per_second=reader.get(definitions.MAX_BYTES_PER_SECOND),
        auto_offset_reset=auto_offset_reset,
        reset_duration=reset_duration,
        tasks_max=reader.get(definitions.TASKS_MAX),
        admin_timeout=reader.admin_timeout(),
        syncs_topic=syncs_topic,
        syncs_location=_syncs_location(reader),
        syncs_replication_factor=reader.get(definitions.SYNCS_REPLICATION_FACTOR),
        offset_lag_max=max(0, reader.get(definitions.OFFSET_LAG_MAX)),
        groups=groups,
        warnings=(*delivery.warnings, *warnings, *replica_warnings),
        clients=clients,
    )


def _deletions(reader: KeyReader, *, refreshes_topics: bool) -> DeletionSettings:
    mode = reader.get(definitions.TOPIC_DELETIONS)
    if mode is definitions.TopicDeletions.ON and not refreshes_topics:
        raise SettingsError(
            f"{definitions.TOPIC_DELETIONS.key}={mode} without the search for topics: expected "
            f"{definitions.REFRESH_TOPICS[0].key}=true and an interval; a topic is deleted if no search finds it"
        )
    return DeletionSettings(
        mode=mode,
        grace=timedelta(seconds=reader.get(definitions.TOPIC_DELETIONS_GRACE_S)),
        max_per_hour=reader.get(definitions.TOPIC_DELETIONS_PER_HOUR),
    )


def _source_offsets_topic_configs(reader: KeyReader) -> Mapping[str, str]:
    """Return the configs with which the offsets topic is created (KIP-605, ``DistributedConfig.topicSettings``)."""
    configs = reader.with_prefix(definitions.WORKER_OFFSETS_PREFIX, definitions.KeyPlace.WORKER_AT_TOP)
    return {"segment.bytes": str(_SEGMENT_BYTES), **{key: configs[key] for key in configs.keys() - _NOT_CONFIGS}}


def _syncs_location(reader: KeyReader) -> SyncsLocation:
    return reader.get(definitions.SYNCS_LOCATION)


def _syncs_topic(reader: KeyReader, policy: ReplicationPolicy, source: str, target: str) -> str | None:
    if not reader.get(definitions.EMIT_OFFSET_SYNCS):
        return None
    # The name contains the other cluster's alias, because a cluster can be the source of several flows.
    return policy.offset_syncs_topic(target if _syncs_location(reader) is SyncsLocation.SOURCE else source)


def _offset_reset(consumer: ClientProperties, *, preserves_offsets: bool) -> tuple[OffsetReset, timedelta]:
    key = "auto.offset.reset"
    value = consumer.get(key)
    if value is None:
        return OffsetReset.EARLIEST, timedelta()
    reset, duration = definitions.parse_offset_reset(consumer.origins[key], value.strip())
    if preserves_offsets and reset is not OffsetReset.EARLIEST:
        raise SettingsError(
            f"{consumer.origins[key]}={reset} with {definitions.OFFSETS.key}=preserve: expected earliest; a partition "
            "that keeps its offsets is mirrored from its log start"
        )
    return reset, duration


def _source_offsets_interval(reader: KeyReader) -> timedelta:
    return timedelta(milliseconds=min(reader.get(definitions.OFFSET_FLUSH_INTERVAL_MS), 1000))


def _policy(reader: KeyReader, source_alias: str) -> ReplicationPolicy:
    name = reader.get(definitions.POLICY_CLASS)
    separator, internal = reader.get(definitions.SEPARATOR), reader.get(definitions.INTERNAL_SEPARATOR)
    match _KNOWN_POLICIES.get(name, name.removeprefix(JAVA_PACKAGE)):
        case "DefaultReplicationPolicy":
            return naming.DefaultReplicationPolicy(separator=separator, internal_topic_separator_enabled=internal)
        case "IdentityReplicationPolicy":
            return naming.IdentityReplicationPolicy(
                separator=separator, internal_topic_separator_enabled=internal, source_cluster_alias=source_alias
            )
        case _:
            own: ReplicationPolicy = own_class(reader, definitions.POLICY_CLASS.key, name, _POLICY_METHODS)
            return naming.OwnReplicationPolicy(separator=separator, internal_topic_separator_enabled=internal, own=own)


def _topic_filter(reader: KeyReader) -> filters.TopicFilter:
    setting = definitions.TOPIC_FILTER_CLASS
    name = reader.get(setting)
    if name.removeprefix(JAVA_PACKAGE) != setting.default:
        own: filters.TopicFilter = own_class(reader, setting.key, name, ("should_replicate_topic",))
        return own
    return DefaultTopicFilter(
        include=reader.get(definitions.TOPICS),
        exclude=reader.get(definitions.TOPICS_EXCLUDE),
    )


def _config_filter(reader: KeyReader) -> ConfigPropertyFilter:
    setting = definitions.CONFIG_FILTER_CLASS
    name, defaults_from = reader.get(setting), reader.get(definitions.USE_DEFAULTS_FROM)
    if name.removeprefix(JAVA_PACKAGE) != setting.default:
        own: ConfigPropertyFilter = own_class(reader, setting.key, name, ("should_replicate_config_property",))
        return own
    exclude = reader.get(definitions.CONFIGS_EXCLUDE)
    return DefaultConfigPropertyFilter(exclude=exclude, source_defaults=defaults_from is DefaultsFrom.SOURCE)

"""Settings for consumer group offsets and heartbeats."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from klamm.lazy_dataclass import dataclass
from klamm.mirror.filters import DefaultGroupFilter
from klamm.mirror.settings import definitions
from klamm.mirror.settings.key_reader import (
    JAVA_PACKAGE,
    KeyReader,
    aliases_in_names,
    own_class,
    source_offsets_topics,
    worker_group,
)
from klamm.properties import SettingsError, parse_bool

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from klamm.mirror.filters import GroupFilter
    from klamm.mirror.settings.clients import ClientProperties, ClusterSettings

_SYNC_ENABLED: Final = definitions.SYNC_GROUP_OFFSETS.enabled.key
_CHECKPOINTS_ENABLED: Final = definitions.EMIT_CHECKPOINTS.enabled.key


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Settings for the group offsets of one flow."""

    group_filter: GroupFilter
    refresh_enabled: bool
    refresh_interval: timedelta
    """``refresh.groups.interval.seconds``: interval between searches for new groups."""
    checkpoints_topic: str
    checkpoints_replication_factor: int
    """Replication factor of the checkpoints topic. -1: the target's default."""
    checkpoints_interval: timedelta
    sync_enabled: bool
    """``sync.group.offsets.enabled``: whether translated offsets are committed for groups on the target."""
    sync_interval: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatSettings:
    """Heartbeat settings of a pair of clusters. Its flow need not be enabled."""

    name: str
    """Name of the pair, ``A->B``."""
    identity: str
    """Short hash of the settings by which flows with this name are independent. Empty: the pair's flow is not enabled.
    """
    source_alias: str
    """Alias of the source in the records (``source.cluster.alias``)."""
    target_alias: str
    """Alias of the target in the records (``target.cluster.alias``)."""
    target: ClusterSettings
    """Cluster to which the heartbeats are written."""
    interval: timedelta
    replication_factor: int
    """Replication factor of the heartbeats topic. -1: the target's default."""
    admin_timeout: timedelta
    clients: Mapping[str, ClientProperties]
    """Client properties by ``target.producer`` and ``target.admin``."""

    @property
    def target_clients(self) -> dict[str, ClientProperties]:
        """Properties of the clients of the target, the only ones that heartbeats need."""
        return {name: client for name, client in self.clients.items() if name.startswith("target.")}


def parse_groups(
    reader: KeyReader, *, checkpoints_topic: str, has_syncs: bool
) -> tuple[GroupSettings | None, tuple[str, ...]]:
    """Return the group settings of a flow (None: group offsets are not translated) and warnings about ineffective keys.

    Raises:
        SettingsError: A value is wrong, or checkpoints are enabled without offset syncs.
    """
    enabled, checkpoints_interval = reader.repetition(definitions.EMIT_CHECKPOINTS)
    sync_enabled, sync_interval = reader.repetition(definitions.SYNC_GROUP_OFFSETS)
    group_filter = _group_filter(reader)  # also if it is not used, so that wrong values are always reported
    refresh_enabled, refresh_interval = reader.repetition(definitions.REFRESH_GROUPS)
    if not has_syncs:
        for key, is_on in ((_CHECKPOINTS_ENABLED, enabled), (_SYNC_ENABLED, sync_enabled)):
            if is_on and (entry := reader.find(key)):
                raise SettingsError(
                    f"{entry[0]}={entry[1]}: expected false, because emit.offset-syncs.enabled=false; "
                    "group offsets cannot be translated without offset syncs"
                )
        in_vain = f"{_CHECKPOINTS_ENABLED}=true (the default) has no effect because emit.offset-syncs.enabled=false"
        return None, (in_vain,) if enabled else ()
    if not enabled:
        in_vain = f"{_SYNC_ENABLED}=true has no effect because {_CHECKPOINTS_ENABLED}=false"
        return None, (in_vain,) if sync_enabled else ()
    settings = GroupSettings(
        group_filter=group_filter,
        refresh_enabled=refresh_enabled,
        refresh_interval=refresh_interval,
        checkpoints_topic=checkpoints_topic,
        checkpoints_replication_factor=reader.get(definitions.CHECKPOINTS_REPLICATION_FACTOR),
        checkpoints_interval=checkpoints_interval,
        sync_enabled=sync_enabled,
        sync_interval=sync_interval,
    )
    return settings, ()


def parse_heartbeats(
    reader: KeyReader, source: ClusterSettings, target: ClusterSettings, clients: Mapping[str, ClientProperties]
) -> HeartbeatSettings | None:
    """Return the heartbeat settings of a pair of clusters. None: heartbeats are disabled.

    Raises:
        SettingsError: A value is wrong.
    """
    enabled, interval = reader.repetition(definitions.EMIT_HEARTBEATS)
    if not enabled:
        return None
    source_alias, target_alias = aliases_in_names(reader, source.alias, target.alias)
    return HeartbeatSettings(
        name=f"{source.alias}->{target.alias}",
        identity=_identity(reader, source, source_alias, target_alias),
        source_alias=source_alias,
        target_alias=target_alias,
        target=target,
        interval=interval,
        replication_factor=reader.get(definitions.HEARTBEATS_REPLICATION_FACTOR),
        admin_timeout=reader.admin_timeout(),
        clients=clients,
    )


def _identity(reader: KeyReader, source: ClusterSettings, source_alias: str, target_alias: str) -> str:
    """Return the identity of the pair's flow among flows of the same name, such as those of other files."""
    entry = reader.find("enabled")
    if entry is None or not parse_bool(*entry):
        return ""
    group = worker_group(reader, source.alias)
    offsets_topic, _ = source_offsets_topics(reader, source.alias)
    return hashlib.sha256("\n".join((source_alias, target_alias, offsets_topic, group)).encode()).hexdigest()[:8]


def _group_filter(reader: KeyReader) -> GroupFilter:
    setting = definitions.GROUP_FILTER_CLASS
    name = reader.get(setting)
    if name.removeprefix(JAVA_PACKAGE) != setting.default:
        own: GroupFilter = own_class(reader, setting.key, name, ("should_replicate_group",))
        return own
    return DefaultGroupFilter(
        include=reader.get(definitions.GROUPS),
        exclude=reader.get(definitions.GROUPS_EXCLUDE),
    )

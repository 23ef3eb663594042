"""Table of the keys of ``mm2.properties``: type, default, limits, meaning and place; and the keys without effect.

The keys of clients, such as ``A.consumer.fetch.min.bytes``, are in ``clients``.
"""

from __future__ import annotations

import functools
from datetime import timedelta
from enum import Enum, StrEnum, auto
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from klamm.configs.names import MAX_TOPIC_NAME_LENGTH, check_topic_name, is_of_topic_characters
from klamm.configs.validators import parse_iso_duration
from klamm.lazy_dataclass import dataclass
from klamm.mirror import filters
from klamm.mirror.filters import PatternList
from klamm.mirror.naming import CONNECTOR, OWN_CONNECTOR
from klamm.properties import SettingsError, parse_bool, parse_int, parse_list
from klamm.protocol.errors import InvalidTopicError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Choice = TypeVar("Choice", bound=StrEnum)
Value = TypeVar("Value")

_OF_WORKER: Final = (
    "plugin.path", "plugin.discovery", "connect.protocol", "heartbeat.interval.ms",
    "internal.topics.automatic.creation.enable", "rebalance.timeout.ms", "scheduled.rebalance.max.delay.ms",
    "session.timeout.ms", "bootstrap.resolve.timeout.ms", "client.dns.lookup", "connections.max.idle.ms",
    "metadata.cluster.check.enable", "metadata.max.age.ms", "metadata.recovery.rebootstrap.trigger.ms",
    "metadata.recovery.strategy", "receive.buffer.bytes", "reconnect.backoff.max.ms", "reconnect.backoff.ms",
    "retry.backoff.max.ms", "retry.backoff.ms", "send.buffer.bytes", "socket.connection.setup.timeout.max.ms",
    "socket.connection.setup.timeout.ms",
)  # fmt: skip
"""Keys of MirrorMaker's Connect worker: for its plugins, its place among other workers, and its own connections."""
ACCEPTED_WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "config.storage.topic": "the mirror keeps no configuration on the target",
    "config.storage.replication.factor": "the mirror keeps no configuration on the target",
    "status.storage.topic": "the mirror keeps no status on the target",
    "status.storage.replication.factor": "the mirror keeps no status on the target",
    "dedicated.mode.enable.internal.rest": "Spark places the tasks",
    "listeners": "Spark places the tasks",
    "forwarding.admin.class": "klamm uses its own admin client",
    "key.converter": "records are copied byte for byte",
    "value.converter": "records are copied byte for byte",
    "header.converter": "records are copied byte for byte",
    "connector.class": "flows are named by A->B.enabled",
    "name": "flows are named by A->B.enabled",
    "metric.reporters": "there is no JMX",
    "consumer.poll.timeout.ms": "the mirror waits for data on its own connections",
    "offset.flush.timeout.ms": "source offsets are written in the background",
    "metric.names.formats": "there is no JMX",
    "metrics.num.samples": "there is no JMX",
    "metrics.recording.level": "there is no JMX",
    "metrics.sample.window.ms": "there is no JMX",
    "auto.include.jmx.reporter": "there is no JMX",
    "add.source.alias.to.metrics": "there is no JMX",
    "client.id": "clients are named after their flow",
    "config.action.reload": "the mirror does not watch config providers",
    "connector.client.config.override.policy": "there is no Connect worker",
    "connector.plugin.version": "there is no Connect worker",
    "response.http.headers.config": "there is no REST server",
    **dict.fromkeys(_OF_WORKER, "there is no Connect worker"),
}
"""Keys of MirrorMaker 2 that have no effect here, with the reason. Logged once at startup."""
_ACCEPTED_PREFIXES: Final[Mapping[str, str]] = {
    "config.storage.": "the mirror keeps no configuration on the target",
    "status.storage.": "the mirror keeps no status on the target",
    "key.converter.": "records are copied byte for byte",
    "value.converter.": "records are copied byte for byte",
    "header.converter.": "records are copied byte for byte",
    "internal.": "records are copied byte for byte",
    "errors.": "records are copied byte for byte, no step can fail for a single one",
    "tasks.max.": "Spark places the tasks",
    "task.": "Spark places the tasks",
    "worker.": "there is no Connect worker",
    "inter.worker.": "there is no Connect worker",
    "topic.tracking.": "there is no Connect worker",
    "access.control.allow.": "there is no REST server",
    "rest.": "there is no REST server",
    "admin.listeners": "there is no REST server",
    "topic.creation.": "remote topics have the partitions and configs of their source topics",
}
MAX_LONG: Final = 2**63 - 1
_LONGEST_S: Final = 10**9
"""Longest duration in seconds, 31 years. Longer ones count as this one, because threads cannot wait for longer."""

INT32_MAX: Final = 2**31 - 1
WORKER_OFFSETS_PREFIX: Final = "offset.storage."
"""Prefix of the Connect worker's keys for its offsets topic."""


def accepted_without_effect(key: str) -> str | None:
    """Return why a key of MirrorMaker has no effect here, or None if it should have one."""
    if (reason := ACCEPTED_WITHOUT_EFFECT.get(key)) is not None:
        return reason
    return next((reason for prefix, reason in _ACCEPTED_PREFIXES.items() if key.startswith(prefix)), None)


def is_of_heartbeats(key: str) -> bool:
    """Return whether a key counts for heartbeats, which do not need an enabled flow."""
    return key in ("enabled", "admin.timeout.ms") or key.startswith(("emit.heartbeats.", "heartbeats.topic."))


class IncrementalAlterConfigs(StrEnum):
    """Values of ``use.incremental.alter.configs`` (KIP-894)."""

    REQUESTED = "requested"
    REQUIRED = "required"
    NEVER = "never"


class DefaultsFrom(StrEnum):
    """Values of ``use.defaults.from`` (KIP-894): the cluster whose default applies to a config that is not set."""

    SOURCE = "source"
    TARGET = "target"


class IsolationLevel(StrEnum):
    """Values of the consumer's ``isolation.level``."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class OnSourceLoss(StrEnum):
    """Values of ``klamm.on.source.loss``: reaction to source records that are lost before they were mirrored."""

    STOP = "stop"
    CONTINUE = "continue"


class Offsets(StrEnum):
    """Values of ``klamm.offsets``: the offsets that records get on the target."""

    TRANSLATE = "translate"
    """The target assigns offsets. Offset syncs translate those of groups."""
    PRESERVE = "preserve"
    """Each record gets its source offset."""


class OffsetsBy(StrEnum):
    """Values of ``klamm.offsets.by``: the way in which offsets are kept."""

    AUTO = "auto"
    REPLAY = "replay"
    """Records are produced at their offsets, and gaps are filled."""
    REPLICA = "replica"
    """klamm leads the remote partitions as a broker of the target."""


class TopicDeletions(StrEnum):
    """Values of ``klamm.sync.topic.deletions``: whether remote topics of deleted source topics are deleted."""

    OFF = "off"
    PLAN = "plan"
    """The deletions are logged and shown by ``--plan``, and not made."""
    ON = "on"


class WorkerSupport(StrEnum):
    """Values of ``exactly.once.source.support`` (KIP-618)."""

    DISABLED = "disabled"
    PREPARING = "preparing"
    ENABLED = "enabled"


class ConnectorSupport(StrEnum):
    """Values of ``exactly.once.support`` (KIP-618)."""

    REQUESTED = "requested"
    REQUIRED = "required"


class Boundary(StrEnum):
    """Values of ``transaction.boundary`` that the mirror supports (KIP-618)."""

    POLL = "poll"
    INTERVAL = "interval"


class SyncsLocation(StrEnum):
    """Values of ``offset-syncs.topic.location``: cluster that holds the offset syncs."""

    SOURCE = "source"
    TARGET = "target"


class OffsetReset(StrEnum):
    """Values of the consumer's ``auto.offset.reset``: start offset of partitions that were never mirrored."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"
    """A partition that was never mirrored is stopped."""
    BY_DURATION = "by_duration"
    """The first record that is not older than a duration (KIP-1106)."""


def parse_offset_reset(key: str, value: str) -> tuple[OffsetReset, timedelta]:
    """Parse ``earliest``, ``latest``, ``none`` or ``by_duration:<ISO 8601 duration>``, with the duration or 0.

    Raises:
        SettingsError: The value is none of them.
    """
    kind, _, text = value.partition(":")
    duration = parse_iso_duration(text) if kind == OffsetReset.BY_DURATION else timedelta() if kind == value else None
    if kind not in [*OffsetReset] or duration is None or duration < timedelta():
        raise SettingsError(f"{key}={value}: expected earliest, latest, none or by_duration:PnDTnHnMn.nS")
    return OffsetReset(kind), duration


def parse_seconds(key: str, value: str) -> timedelta:
    """Parse a duration in seconds, at least 1.

    Raises:
        SettingsError: The value is not an integer or less than 1.
    """
    return timedelta(seconds=min(parse_int(key, value, at_least=1, at_most=MAX_LONG), _LONGEST_S))


def parse_choice(key: str, value: str, choices: type[Choice]) -> Choice:
    """Parse a value of an enum, case-sensitive.

    Raises:
        SettingsError: The value is not one of the enum. Names the allowed values.
    """
    try:
        return choices(value)
    except ValueError as error:
        allowed = ", ".join(choices)
        raise SettingsError(f"{key}={value}: expected one of {allowed}") from error


def parse_text(key: str, value: str) -> str:
    """Return a string."""
    _ = key
    return value


def _connector(key: str, value: str) -> str:
    if value in ("", OWN_CONNECTOR):
        raise SettingsError(f"{key}={value}: expected the name of the source connector in the Connect cluster")
    return value


def parse_topic(key: str, value: str) -> str:
    """Check a topic name and return it.

    Raises:
        SettingsError: The value is not a valid topic name.
    """
    try:
        check_topic_name(value)
    except InvalidTopicError as error:
        expected = f"the name of a topic: 1 to {MAX_TOPIC_NAME_LENGTH} of a-z A-Z 0-9 . _ -"
        raise SettingsError(f"{key}={value}: expected {expected}") from error
    return value


def parse_part_of_names(key: str, value: str) -> str:
    """Return a part of topic names, which may be empty.

    Raises:
        SettingsError: The value has characters that are not valid in topic names.
    """
    if value and not is_of_topic_characters(value):
        raise SettingsError(f"{key}={value}: expected characters that are allowed in topic names: a-z A-Z 0-9 . _ -")
    return value


def parse_count(key: str, value: str, *, at_most: int = 2**15 - 1) -> int:
    """Return a replication factor or a number of partitions: at least 1, or -1 for the cluster's default.

    Raises:
        SettingsError: The value is 0, less than -1 or not an integer.
    """
    count = parse_int(key, value, at_least=-1, at_most=at_most)
    if count == 0:
        raise SettingsError(f"{key}=0: expected a whole number from 1, or -1 for the target's default")
    return count


def _patterns(key: str, value: str) -> PatternList:
    return PatternList.compile(key, parse_list(value))


def _integer(*, at_least: int, at_most: int = INT32_MAX) -> Callable[[str, str], int]:
    return functools.partial(parse_int, at_least=at_least, at_most=at_most)


def _choice(choices: type[Choice], *, any_case: bool = False) -> Callable[[str, str], Choice]:
    """Return the parser of an enum. Connect ignores the case of some of its values."""
    return lambda key, value: parse_choice(key, value.lower() if any_case else value, choices)


class KeyPlace(Enum):
    """Places at which a key counts, in the order of their precedence. ``B`` is the target of the flow."""

    FLOW = auto()
    """``A->B.k``, ``k``."""
    FLOW_ONLY = auto()
    """``A->B.k``."""
    WORKER = auto()
    """``B.k``, ``A->B.k``, ``k``: keys of the Connect worker."""
    WORKER_AT_TOP = auto()
    """``k``, ``B.k``, ``A->B.k``: keys of the Connect worker that MirrorMaker reads at top level."""


@dataclass(frozen=True, slots=True)
class Setting(Generic[Value]):
    """One key."""

    key: str
    parse: Callable[[str, str], Value]
    """Converts the value, given the key in the file. Raises ``SettingsError`` for a wrong value."""
    default: Value
    doc: str
    place: KeyPlace = KeyPlace.FLOW
    former_key: str = ""
    """Former name of the key, which is used if ``key`` is not set. Empty: there is none."""
    deprecated: str = ""
    """Reason why the key is deprecated. Empty: it is not."""


class Repetition(NamedTuple):
    """Keys ``<prefix>.enabled`` and ``<prefix>.interval.seconds`` of a step that is repeated."""

    enabled: Setting[bool]
    interval_s: Setting[int]
    """Interval in seconds. A negative one disables the step, as in MirrorMaker."""


def _repetition(prefix: str, default_s: int, doc: str, *, enabled: bool = True) -> Repetition:
    seconds = _integer(at_least=-MAX_LONG - 1, at_most=MAX_LONG)
    return Repetition(
        Setting(f"{prefix}.enabled", parse_bool, enabled, f"Whether to {doc}."),
        Setting(f"{prefix}.interval.seconds", seconds, default_s, f"Interval in seconds at which to {doc}."),
    )


def _pattern_setting(key: str, default: tuple[str, ...], doc: str, former_key: str = "") -> Setting[PatternList]:
    return Setting(key, _patterns, PatternList.compile(key, default), doc, former_key=former_key)


# Names of topics
SOURCE_ALIAS: Final = Setting("source.cluster.alias", parse_part_of_names, "", "Alias of the source in names.")
TARGET_ALIAS: Final = Setting("target.cluster.alias", parse_part_of_names, "", "Alias of the target in names.")
SOURCE_CONNECTOR_NAME: Final = Setting(
    "klamm.source.connector.name", _connector, CONNECTOR, "Name of the source connector in the keys of source offsets."
)
POLICY_CLASS: Final = Setting(
    "replication.policy.class", parse_text, "DefaultReplicationPolicy", "Class that names remote topics."
)
SEPARATOR: Final = Setting("replication.policy.separator", parse_part_of_names, ".", "Separator of alias and topic.")
INTERNAL_SEPARATOR: Final = Setting(
    "replication.policy.internal.topic.separator.enabled",
    parse_bool,
    True,
    "Whether names of internal topics have the separator.",
)

# Selection of topics, groups and configs
TOPIC_FILTER_CLASS: Final = Setting("topic.filter.class", parse_text, "DefaultTopicFilter", "Topic filter.")
TOPICS: Final = _pattern_setting("topics", filters.DEFAULT_TOPICS, "Topics to mirror.")
TOPICS_EXCLUDE: Final = _pattern_setting(
    "topics.exclude", filters.DEFAULT_TOPICS_EXCLUDE, "Topics not to mirror.", "topics.blacklist"
)
HEARTBEATS_REPLICATION: Final = Setting(
    "heartbeats.replication.enabled", parse_bool, True, "Whether to mirror heartbeats topics."
)
CONFIG_FILTER_CLASS: Final = Setting(
    "config.property.filter.class", parse_text, "DefaultConfigPropertyFilter", "Config filter."
)
CONFIGS_EXCLUDE: Final = _pattern_setting(
    "config.properties.exclude",
    filters.DEFAULT_CONFIG_PROPERTIES_EXCLUDE,
    "Configs not to sync.",
    "config.properties.blacklist",
)
GROUP_FILTER_CLASS: Final = Setting("group.filter.class", parse_text, "DefaultGroupFilter", "Group filter.")
GROUPS: Final = _pattern_setting("groups", filters.DEFAULT_GROUPS, "Groups to translate.")
GROUPS_EXCLUDE: Final = _pattern_setting(
    "groups.exclude", filters.DEFAULT_GROUPS_EXCLUDE, "Groups not to translate.", "groups.blacklist"
)

# Topics, configs and ACLs
USE_INCREMENTAL_ALTER_CONFIGS: Final = Setting(
    "use.incremental.alter.configs",
    _choice(IncrementalAlterConfigs),
    IncrementalAlterConfigs.REQUESTED,
    "API that writes topic configs (KIP-894).",
    deprecated="it will be removed in a later major version; topic configs are then always written "
    "with IncrementalAlterConfigs",
)
USE_DEFAULTS_FROM: Final = Setting(
    "use.defaults.from", _choice(DefaultsFrom), DefaultsFrom.TARGET, "Cluster whose defaults apply (KIP-894)."
)
REFRESH_TOPICS: Final = _repetition("refresh.topics", 600, "search for new topics and partitions")
SYNC_TOPIC_CONFIGS: Final = _repetition("sync.topic.configs", 600, "sync topic configs")
SYNC_TOPIC_ACLS: Final = _repetition("sync.topic.acls", 600, "sync ACLs")
TOPIC_DELETIONS: Final = Setting(
    "klamm.sync.topic.deletions",
    _choice(TopicDeletions),
    TopicDeletions.OFF,
    "Whether to delete remote topics of deleted source topics.",
)
TOPIC_DELETIONS_GRACE_S: Final = Setting(
    "klamm.sync.topic.deletions.grace.seconds",
    _integer(at_least=0, at_most=_LONGEST_S),
    3600,
    "Seconds for which a source topic must be gone before its remote topic is deleted.",
)
TOPIC_DELETIONS_PER_HOUR: Final = Setting(
    "klamm.sync.topic.deletions.max.per.hour", _integer(at_least=1), 10, "Most remote topics deleted within an hour."
)
REPLICATION_FACTOR: Final = Setting("replication.factor", parse_count, 2, "Replication factor of new remote topics.")
ADMIN_TIMEOUT_MS: Final = Setting(
    "admin.timeout.ms", _integer(at_least=1, at_most=MAX_LONG), 60_000, "Time limit of admin calls in milliseconds."
)

# Source offsets
OFFSETS_TOPIC: Final = Setting(
    "offset.storage.topic", parse_topic, "", "Offsets topic of the Connect worker.", KeyPlace.WORKER_AT_TOP
)
FLOW_OFFSETS_TOPIC: Final = Setting(
    "offsets.storage.topic", parse_topic, "", "Offsets topic of the flow (KIP-618).", KeyPlace.FLOW_ONLY
)
OFFSETS_PARTITIONS: Final = Setting(
    "offset.storage.partitions",
    functools.partial(parse_count, at_most=INT32_MAX),
    25,
    "Number of partitions of the offsets topic.",
    KeyPlace.WORKER_AT_TOP,
)
OFFSETS_REPLICATION_FACTOR: Final = Setting(
    "offset.storage.replication.factor",
    parse_count,
    3,
    "Replication factor of the offsets topic.",
    KeyPlace.WORKER_AT_TOP,
)
OFFSET_FLUSH_INTERVAL_MS: Final = Setting(
    "offset.flush.interval.ms",
    _integer(at_least=1, at_most=MAX_LONG),
    60_000,
    "Interval in milliseconds between commits of source offsets; at most one second counts.",
    KeyPlace.WORKER,
)

# Copying
TASKS_MAX: Final[Setting[int | None]] = Setting(
    "tasks.max", _integer(at_least=1), None, "Maximum number of parallel tasks."
)
ON_SOURCE_LOSS: Final = Setting(
    "klamm.on.source.loss", _choice(OnSourceLoss), OnSourceLoss.STOP, "Reaction to lost source records."
)
MAX_BYTES_PER_SECOND: Final[Setting[int | None]] = Setting(
    "klamm.max.bytes.per.second",
    _integer(at_least=1, at_most=MAX_LONG),
    None,
    "Most bytes of records per second that the flow fetches, as they are stored on the source.",
)
OFFSETS: Final = Setting(
    "klamm.offsets", _choice(Offsets), Offsets.TRANSLATE, "Whether records keep their offsets on the target."
)
OFFSETS_BY: Final = Setting("klamm.offsets.by", _choice(OffsetsBy), OffsetsBy.AUTO, "Way in which offsets are kept.")
REPLICA_EXPERIMENTAL: Final = Setting(
    "klamm.replica.experimental", parse_bool, False, "Whether to allow klamm.offsets.by=replica."
)
REPLICA_NODE_ID: Final[Setting[int | None]] = Setting(
    "klamm.replica.node.id", _integer(at_least=0), None, "Broker id of klamm on the target."
)
REPLICA_LISTENERS: Final = Setting(
    "klamm.replica.listeners", parse_text, "", "Addresses that klamm listens on as a broker of the target."
)
REPLICA_ADVERTISED: Final = Setting(
    "klamm.replica.advertised.listeners", parse_text, "", "Addresses at which the target's brokers reach klamm."
)
EXACTLY_ONCE: Final = Setting("klamm.exactly.once", parse_bool, False, "Whether to copy exactly once.")
SHARDS: Final[Setting[int | None]] = Setting(
    "klamm.exactly.once.shards",
    _integer(at_least=1),
    None,
    "Number of shards. The default is tasks.max, but at most 4, or 1 without it: more shards than tasks cost the "
    "target's brokers more transactions and delay records.",
)
WORKER_SUPPORT: Final = Setting(
    "exactly.once.source.support",
    _choice(WorkerSupport, any_case=True),
    WorkerSupport.DISABLED,
    "Exactly-once support of the Connect worker (KIP-618).",
    KeyPlace.WORKER,
)
CONNECTOR_SUPPORT: Final = Setting(
    "exactly.once.support",
    _choice(ConnectorSupport, any_case=True),
    ConnectorSupport.REQUESTED,
    "Whether the flow requires exactly-once delivery (KIP-618).",
)
BOUNDARY: Final = Setting(
    "transaction.boundary",
    _choice(Boundary, any_case=True),
    Boundary.POLL,
    "Rule for commits (KIP-618).",
)
BOUNDARY_MS: Final = Setting(
    "transaction.boundary.interval.ms", _integer(at_least=1), 200, "Interval between commits in milliseconds (KIP-618)."
)
WORKER_GROUP: Final = Setting("group.id", parse_text, "", "Prefix of the transactional ids.", KeyPlace.WORKER)

# Offset syncs, groups and heartbeats
EMIT_OFFSET_SYNCS: Final = Setting("emit.offset-syncs.enabled", parse_bool, True, "Whether to write offset syncs.")
SYNCS_LOCATION: Final = Setting(
    "offset-syncs.topic.location", _choice(SyncsLocation), SyncsLocation.SOURCE, "Cluster that holds the offset syncs."
)
SYNCS_REPLICATION_FACTOR: Final = Setting(
    "offset-syncs.topic.replication.factor", parse_count, 3, "Replication factor of the offset-syncs topic."
)
OFFSET_LAG_MAX: Final = Setting(
    "offset.lag.max",
    _integer(at_least=-MAX_LONG, at_most=MAX_LONG),
    100,
    "Most target offsets between two syncs.",
)
REFRESH_GROUPS: Final = _repetition("refresh.groups", 600, "search for new groups")
EMIT_CHECKPOINTS: Final = _repetition("emit.checkpoints", 60, "write checkpoints")
SYNC_GROUP_OFFSETS: Final = _repetition("sync.group.offsets", 60, "commit group offsets on the target", enabled=False)
CHECKPOINTS_REPLICATION_FACTOR: Final = Setting(
    "checkpoints.topic.replication.factor", parse_count, 3, "Replication factor of the checkpoints topic."
)
EMIT_HEARTBEATS: Final = _repetition("emit.heartbeats", 1, "write heartbeats")
HEARTBEATS_REPLICATION_FACTOR: Final = Setting(
    "heartbeats.topic.replication.factor", parse_count, 3, "Replication factor of the heartbeats topic."
)

SETTINGS: Final[tuple[Setting[Any], ...]] = tuple(
    setting
    for value in tuple(globals().values())
    for setting in (value if isinstance(value, Repetition) else (value,))
    if isinstance(setting, Setting)
)
"""Table of all keys of flows."""
ONLY_OF_FLOWS: Final[Mapping[str, str]] = {
    FLOW_OFFSETS_TOPIC.key: f"MirrorMaker takes it as A->B.{FLOW_OFFSETS_TOPIC.key} only; "
    f"{OFFSETS_TOPIC.key} counts here"
}
"""Keys that count only at ``A->B.``, with the note for any other place."""
ANYWHERE: Final = frozenset(
    key
    for setting in SETTINGS
    if setting.place is not KeyPlace.FLOW_ONLY
    for key in (setting.key, setting.former_key)
    if key
)
"""Keys that count at ``A->B.k`` and ``k``, also if the feature they belong to is disabled."""
DEPRECATED: Final[Mapping[str, str]] = {
    **{
        setting.former_key: f"MirrorMaker 4.0 and later ignore it, klamm reads it as {setting.key}"
        for setting in SETTINGS
        if setting.former_key
    },
    **{setting.key: setting.deprecated for setting in SETTINGS if setting.deprecated},
}

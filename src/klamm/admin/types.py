"""Arguments and results of the admin client. Names follow Kafka's Java admin client, in snake_case."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from klamm.lazy_dataclass import dataclass
from klamm.protocol.types import ConfigSource, ResourceType, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from klamm.policy.answers import PolicyOverride


Scalar: TypeAlias = str | int | float
"""A config value. True and False are sent as ``true`` and ``false``."""
ConfigValue: TypeAlias = Scalar | Iterable[Scalar]
"""A config value, or the elements of a list config."""


@dataclass(frozen=True, slots=True, order=True)
class ConfigResource:
    """A resource that has configs. For BROKER, an empty name means the cluster-wide default."""

    type: ResourceType
    name: str


_OWN_SOURCES: Final = {
    ResourceType.TOPIC: ConfigSource.DYNAMIC_TOPIC_CONFIG,
    ResourceType.BROKER: ConfigSource.DYNAMIC_BROKER_CONFIG,
    ResourceType.GROUP: ConfigSource.GROUP_CONFIG,
    ResourceType.CLIENT_METRICS: ConfigSource.CLIENT_METRICS_CONFIG,
}


def own_source(resource: ConfigResource) -> ConfigSource | None:
    """Return the source of the values that are set on a resource itself. None: all its values are, as with loggers."""
    is_default = resource == ConfigResource(ResourceType.BROKER, "")
    return ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG if is_default else _OWN_SOURCES.get(resource.type)


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """One possible source of a config's value. The source in force comes first."""

    name: str
    value: str | None
    """Value of this source. None if the config is sensitive, or unset there."""
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A config with its value. A described config also has the source of the value."""

    name: str
    value: str | None
    """Value of the config. None if it is sensitive, unset, or not used by the operation (DELETE)."""
    source: ConfigSource = field(default=ConfigSource.UNKNOWN, kw_only=True)
    is_sensitive: bool = field(default=False, kw_only=True)
    is_read_only: bool = field(default=False, kw_only=True)
    synonyms: tuple[ConfigSynonym, ...] = field(default=(), kw_only=True)
    config_type: int = field(default=0, kw_only=True)
    """Wire value of Kafka's ``ConfigEntry.ConfigType``; 0 if the broker is too old to report it."""
    documentation: str | None = field(default=None, kw_only=True)
    """Text about the config. None if it was not requested, or if the broker has none."""

    @property
    def is_default(self) -> bool:
        """Return whether the value is the built-in default."""
        return self.source is ConfigSource.DEFAULT_CONFIG


def hides_inherited(entry: ConfigEntry) -> bool:
    """Return whether a topic sets a config, and the value that it would inherit is not described."""
    sources = {synonym.source for synonym in entry.synonyms} or {entry.source}
    return sources == {ConfigSource.DYNAMIC_TOPIC_CONFIG}


def inherited_value(entry: ConfigEntry, own: ConfigSource | None) -> ConfigSynonym | None:
    """Return the value in force if a resource did not set a config itself, in the unit of the config.

    None if no such value is described.

    Args:
        entry: Config of the resource, described with its synonyms.
        own: Source of the values that are set on the resource itself (``own_source``).
    """
    from klamm.configs.definitions import in_unit_of  # noqa: PLC0415 -- most clients need no definitions of configs

    synonyms = entry.synonyms or (ConfigSynonym(entry.name, entry.value, entry.source),)
    synonym = next((each for each in synonyms if each.source is not own), None)
    if synonym is None or synonym.value is None:
        return synonym
    return replace(synonym, value=in_unit_of(entry.name, synonym.name, synonym.value))


def own_values(resource: ConfigResource, entries: Mapping[str, ConfigEntry]) -> dict[str, str]:
    """Return the values that are set on a resource itself; secrets have none."""
    source = own_source(resource)
    return {
        entry.name: entry.value
        for entry in entries.values()
        if source in {None, entry.source} and entry.value is not None
    }


class OpType(IntEnum):
    """Wire values of ``config_operation`` in IncrementalAlterConfigsRequest (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3
    REMOVE = 1
    """Name of operation 1 in KIP-339's table; an alias of DELETE."""

    @property
    def id(self) -> int:
        """The wire value."""
        return self.value

    @classmethod
    def for_id(cls, id: int) -> OpType | None:  # noqa: A002  # KIP-339: OpType.forId(id)
        """Return the operation of a wire value, or None if it is unknown."""
        return cls(id) if id in cls._value2member_map_ else None


@dataclass(frozen=True, slots=True)
class AlterConfigOp:
    """Change of one config. Equal if config entry and operation are equal.

    Raises:
        TypeError: ``op_type`` is no ``OpType``, for example the text ``"SET"``.
    """

    config_entry: ConfigEntry
    op_type: OpType

    def __post_init__(self) -> None:
        """Reject the name of an operation, which the wire format cannot carry."""
        if not isinstance(self.op_type, int):
            raise TypeError(f"op_type must be an OpType such as OpType.SET, not {self.op_type!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsOptions:
    """Options of both APIs that alter configs (KIP-339 reuses those of AlterConfigs)."""

    timeout_ms: int | None = None
    """Limit for the call in milliseconds. None means the client's own."""
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. Name, partitions and replication factor may be positional, in Java's order."""

    name: str
    num_partitions: int = -1
    """Number of partitions; -1 means the broker's default."""
    replication_factor: int = -1
    """Replication factor; -1 means the broker's default."""
    configs: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    """Configs to set: strings, numbers, booleans or lists of these. Brokers reject None."""
    replicas_assignments: Mapping[int, tuple[int, ...]] = field(default_factory=dict, kw_only=True)
    """Broker ids by partition, the leader first. Requires -1 for both numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTopic:
    """A created topic (KIP-525). Older brokers report only the name."""

    name: str
    topic_id: UUID
    num_partitions: int
    """Number of partitions; -1 if the broker does not report it."""
    replication_factor: int
    """Replication factor; -1 if the broker does not report it."""
    override: PolicyOverride | None = None
    """What a policy changed. None: nothing."""
    configs: Mapping[str, ConfigEntry] = field(default_factory=lambda: MappingProxyType({}))
    """Configs of the topic by name, with the values that it inherits. Empty if the broker does not report them."""


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """New total number of partitions of a topic. The number may be positional."""

    total_count: int
    new_assignments: tuple[tuple[int, ...], ...] | None = None
    """Broker ids of each new partition. None lets the broker assign them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A broker with its advertised address."""

    id: int
    host: str
    port: int
    rack: str | None = None
    """``broker.rack`` of the broker. None if it is not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicListing:
    """A topic by name and id."""

    name: str
    topic_id: UUID
    """Id of the topic; all zeros from brokers older than 2.8."""
    is_internal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDescription:
    """Leader and replicas of a partition."""

    partition: int
    leader: int
    """Node id of the leader; -1 if there is none."""
    leader_epoch: int
    """Leader epoch; -1 if the broker does not report it."""
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    eligible_leader_replicas: tuple[int, ...] | None = None
    """Eligible leader replicas (KIP-966). None if not requested or not reported by the broker."""
    last_known_elr: tuple[int, ...] | None = None
    """Last known eligible leader replicas (KIP-966). None if not requested or not reported by the broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic with its partitions, ordered by index."""

    name: str
    topic_id: UUID
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A group in a listing."""

    group_id: str
    protocol_type: str
    """``consumer`` for consumer groups, empty for groups that never had a member."""
    state: str | None
    """State of the group. None if the broker does not report it (before 2.6)."""
    group_type: str | None = None
    """``classic``, ``consumer`` (KIP-848), ... as the broker spells it. None if it does not report it (before 3.8)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """The cluster's id, its controller and its brokers."""

    cluster_id: str | None
    """Id of the cluster. None if the broker is too old to report it."""
    controller_id: int
    """Node id of the controller; -1 if there is none."""
    nodes: tuple[Node, ...]
    features: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Features that the responding broker supports, with lowest and highest version (KIP-584)."""
    finalized_features: Mapping[str, int] = field(default_factory=dict)
    """Features that the cluster has finalized, with their level (KIP-584)."""


class OffsetSpec(IntEnum):
    """Special timestamps of ListOffsets. Any other number is a timestamp in milliseconds since the epoch."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedOffset:
    """ListOffsets result of a partition."""

    offset: int
    """Offset; -1 if no record has the requested timestamp or a later one."""
    timestamp: int
    """Timestamp in milliseconds since the epoch, or -1."""
    leader_epoch: int
    """Leader epoch; -1 if unknown."""


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed offset: the offset of the next record to read, which may be positional."""

    offset: int
    leader_epoch: int = field(default=-1, kw_only=True)
    """Leader epoch of the last record read; -1 if unknown."""
    metadata: str = field(default="", kw_only=True)
    """Free text stored with the offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member of a group, as its coordinator reports it."""

    member_id: str
    group_instance_id: str | None
    """Group instance id of a static member (KIP-345). None for a dynamic member."""
    client_id: str
    host: str
    metadata: bytes
    """Subscription metadata in the format of the group's protocol; empty while the group rebalances."""
    assignment: bytes
    """Assignment in the format of the group's protocol; empty while the group rebalances."""
    assigned_partitions: tuple[TopicPartition, ...] | None
    """Decoded assignment. None if the group is not a consumer group."""
    member_epoch: int | None = None
    """Member epoch. None in a classic group."""
    target_partitions: tuple[TopicPartition, ...] | None = None
    """Partitions that the member gets once others have given them up. None in a classic group."""
    is_upgraded: bool | None = None
    """Whether the member uses the protocol of KIP-848. None in a classic group or if the broker does not report it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group with its members."""

    group_id: str
    state: str
    """``Stable``, ``Empty``, ``PreparingRebalance``, ``CompletingRebalance``; in a group of KIP-848 also ``Assigning``
    and ``Reconciling``.
    """
    protocol_type: str
    """``consumer`` for consumer groups, empty for groups that never had a member."""
    protocol: str
    """Name of the assignor in use."""
    members: tuple[GroupMember, ...]
    coordinator: int = -1
    """Node id of the group's coordinator."""
    group_epoch: int | None = None
    """Group epoch (KIP-848). None for a classic group."""
    target_assignment_epoch: int | None = None
    """Group epoch of the target assignment (KIP-848). None for a classic group."""

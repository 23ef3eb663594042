"""What the admin is asked with and answers with; names as in Kafka's Java admin, in snake_case."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from klamm.protocol.types import ConfigSource, ResourceType, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID


@dataclass(frozen=True, slots=True, order=True)
class ConfigResource:
    """A thing that has configs. The empty name stands for the default of all brokers."""

    type: ResourceType
    name: str


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """One place that could give a config its value, the deciding one first."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A config with its value, and when it was described, where the value comes from."""

    name: str
    value: str | None
    """None when the value is sensitive, unset, or of no use to the operation (DELETE)."""
    source: ConfigSource = field(default=ConfigSource.UNKNOWN, kw_only=True)
    is_sensitive: bool = field(default=False, kw_only=True)
    is_read_only: bool = field(default=False, kw_only=True)
    synonyms: tuple[ConfigSynonym, ...] = field(default=(), kw_only=True)
    config_type: int = field(default=0, kw_only=True)
    """Wire value of Kafka's ``ConfigEntry.ConfigType``; 0 where the broker is too old to tell."""
    documentation: str | None = field(default=None, kw_only=True)

    @property
    def is_default(self) -> bool:
        """Tell whether nobody set it anywhere."""
        return self.source is ConfigSource.DEFAULT_CONFIG


class OpType(IntEnum):
    """Wire values of ``config_operation`` in IncrementalAlterConfigsRequest (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3
    REMOVE = 1
    """KIP-339's table calls operation 1 so; the same as DELETE."""

    @property
    def id(self) -> int:
        """The wire value."""
        return self.value

    @classmethod
    def for_id(cls, id: int) -> OpType | None:  # noqa: A002  # KIP-339: OpType.forId(id)
        """Return the operation of a wire value, or None when there is none."""
        return cls(id) if id in cls._value2member_map_ else None


@dataclass(frozen=True, slots=True)
class AlterConfigOp:
    """One change to one config; equal when entry and operation are equal."""

    config_entry: ConfigEntry
    op_type: OpType


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsOptions:
    """Options of both ways to alter configs (KIP-339 reuses AlterConfigs')."""

    timeout_ms: int | None = None
    """None means the client's own timeout."""
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be made; name, partitions and replicas may stand in Java's order."""

    name: str
    num_partitions: int = -1
    """-1 leaves it to the broker."""
    replication_factor: int = -1
    """-1 leaves it to the broker."""
    configs: Mapping[str, str | None] = field(default_factory=dict, kw_only=True)
    replicas_assignments: Mapping[int, tuple[int, ...]] = field(default_factory=dict, kw_only=True)
    """Partition -> broker ids, the leader first; then both numbers stay -1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTopic:
    """What the broker made (KIP-525); old brokers tell only the name."""

    name: str
    topic_id: UUID
    num_partitions: int
    """-1 when the broker does not tell."""
    replication_factor: int
    """-1 when the broker does not tell."""


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """To how many partitions a topic is to grow; the number may stand alone."""

    total_count: int
    new_assignments: tuple[tuple[int, ...], ...] | None = None
    """Broker ids for each new partition, or None to leave it to the broker."""

    @classmethod
    def increase_to(cls, total_count: int, new_assignments: tuple[tuple[int, ...], ...] | None = None) -> NewPartitions:
        """Return what Java's ``NewPartitions.increaseTo`` does."""
        return cls(total_count, new_assignments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A broker as clients reach it."""

    id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicListing:
    """A topic by name and id."""

    name: str
    topic_id: UUID
    """All zero from brokers older than 2.8."""
    is_internal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDescription:
    """Where a partition lives."""

    partition: int
    leader: int
    """-1 when it has none."""
    leader_epoch: int
    """-1 when the broker does not tell."""
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    eligible_leader_replicas: tuple[int, ...] | None = None
    """KIP-966; None when nobody asked or the broker does not tell."""
    last_known_elr: tuple[int, ...] | None = None
    """KIP-966; None when nobody asked or the broker does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic with its partitions, ordered by index."""

    name: str
    topic_id: UUID
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A group by its id."""

    group_id: str
    protocol_type: str
    """``consumer`` for consumers, empty for groups that never had a member."""
    state: str | None
    """None when the broker does not tell (before 2.6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """The cluster's id, its controller and its brokers."""

    cluster_id: str | None
    controller_id: int
    """-1 when there is none."""
    nodes: tuple[Node, ...]
    features: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Supported features of the broker that was asked, lowest and highest version (KIP-584)."""


def by_topic(partitions: Iterable[TopicPartition]) -> Mapping[str, list[int]]:
    """Return the indexes of partitions by topic, as requests list them."""
    topics: dict[str, list[int]] = defaultdict(list)
    for partition in partitions:
        topics[partition.topic].append(partition.partition)
    return topics


class OffsetSpec(IntEnum):
    """Special timestamps of ListOffsets; any other number is milliseconds since the epoch."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedOffset:
    """What ListOffsets found for a partition."""

    offset: int
    """-1 when no record is as young as the timestamp asked for."""
    timestamp: int
    """Milliseconds since the epoch, or -1."""
    leader_epoch: int
    """-1 when unknown."""


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed position: the offset of the next record to read, which may stand alone."""

    offset: int
    leader_epoch: int = field(default=-1, kw_only=True)
    """Epoch of the record before it; -1 when unknown."""
    metadata: str = field(default="", kw_only=True)
    """Whatever the committer wanted to keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member of a group, as its coordinator sees it."""

    member_id: str
    group_instance_id: str | None
    """The name of a static member (KIP-345)."""
    client_id: str
    host: str
    metadata: bytes
    """What the member told of itself, in the form of the group's protocol; empty while the group rebalances."""
    assignment: bytes
    """What the leader gave it, in the form of the group's protocol; empty while the group rebalances."""
    assigned_partitions: tuple[TopicPartition, ...] | None
    """The assignment read; None where the group is not one of consumers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group with its members."""

    group_id: str
    state: str
    """``Stable``, ``Empty``, ``PreparingRebalance``, ``CompletingRebalance``."""
    protocol_type: str
    """``consumer`` for consumers, empty for groups that never had a member."""
    protocol: str
    """Name of the assignor that the members agreed on."""
    members: tuple[GroupMember, ...]

"""Observations of a cluster from which an impact is predicted. They are collected elsewhere."""

from __future__ import annotations

from dataclasses import field
from enum import Flag, auto
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

from klamm.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.protocol.types import ConfigSource, TopicPartition

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def _empty() -> Mapping[_Key, _Value]:
    return MappingProxyType({})


class Need(Flag):
    """Kinds of facts that a change needs, so that a collector sends no request in vain."""

    OFFSETS = auto()
    """Start and end offsets, and sizes of local logs."""
    GROUPS = auto()
    """Groups with their states and committed offsets, and the progress of mirrors."""
    PRODUCERS = auto()
    """Producers active on the partitions (DescribeProducers)."""
    BATCHES = auto()
    """The newest batches of the partitions."""
    REMOTE_SIZES = auto()
    """Sizes of logs in remote storage (KIP-405), which no API reports."""


NO_NEED: Final = Need(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValueFact:
    """Value of a config from one source."""

    name: str
    """Name in that source: a topic config, or its broker synonym."""
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFact:
    """A record batch at the end of a log."""

    size: int
    """Size in bytes, as ``max.message.bytes`` counts it."""
    codec: str
    """Compression type as in ``compression.type``, or ``none``."""
    first_timestamp_ms: int
    """Smallest timestamp in milliseconds since the epoch."""
    max_timestamp_ms: int
    next_offset: int
    """First offset after the batch, and after the batches without records that follow it."""
    keys: tuple[int | None, ...] = ()
    """Per record: murmur2 hash of the key as a positive number, or None without a key. Empty if not decoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerFact:
    """A producer whose state a partition's leader keeps (DescribeProducers): an idempotent one."""

    producer_id: int
    last_timestamp_ms: int
    """Timestamp of its last batch in milliseconds since the epoch; -1 if unknown."""
    transactional_id: str | None = None
    """Transactional id. None if the producer has none."""
    is_in_transaction: bool = False

    @property
    def name(self) -> str:
        """Return the name for people."""
        return self.transactional_id or f"producer id {self.producer_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """One partition. Offsets are -1 and collections are None if they were not collected."""

    partition: int
    leader: int = -1
    """Node id of the leader; -1 if there is none."""
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    start_offset: int = -1
    end_offset: int = -1
    size: int | None = None
    """Size of the leader's log in bytes, without what is only in remote storage."""
    offset_at: Mapping[int, int] = field(default_factory=_empty)
    """First offset with at least a timestamp, by that timestamp in milliseconds; -1 if no record is so new."""
    oldest_ms: int | None = None
    """Timestamp of the oldest record in milliseconds since the epoch."""
    newest_batches: tuple[BatchFact, ...] | None = None
    producers: tuple[ProducerFact, ...] | None = None

    @property
    def record_count(self) -> int:
        """Number of offsets in the log: an upper bound of its records."""
        return max(0, self.end_offset - self.start_offset)

    def bytes_before(self, offset: int) -> int:
        """Return the bytes before an offset, estimated from the average size of a record in this log."""
        if not self.record_count or self.size is None:
            return 0
        return round(self.size * min(max(offset - self.start_offset, 0), self.record_count) / self.record_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedTopic:
    """A topic with the values of its configs from all sources."""

    name: str
    partitions: tuple[PartitionFacts, ...]
    configs: Mapping[str, tuple[ConfigValueFact, ...]] = field(default_factory=_empty)
    """Values by topic config, the effective one first. A config that no source sets may have no value here."""
    config_brokers: frozenset[int] | None = None
    """Brokers whose own configs the topic inherits; None means those that have a replica of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """A group, or the flow of a mirror, with its offsets."""

    name: str
    is_active: bool
    """Whether the group has members."""
    offsets: Mapping[TopicPartition, int] = field(default_factory=_empty)
    """Committed offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFacts:
    """A client whose traffic or registration is visible to the server."""

    user: str | None
    client_id: str | None
    rates: Mapping[str, float] = field(default_factory=_empty)
    """Present rate by quota, in the unit of the quota."""
    supported_configs: frozenset[str] | None = None
    """Dynamic client configs that it supports (KIP-649). None if unknown."""

    @property
    def name(self) -> str:
        """Return the name for people."""
        return "/".join(part for part in (self.user, self.client_id) if part) or "anonymous"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """Everything that was collected for some changes."""

    now_ms: int
    """Time of the observation in milliseconds since the epoch."""
    topics: Mapping[str, ObservedTopic] = field(default_factory=_empty)
    """Topics that the changes concern."""
    topic_names: frozenset[str] = frozenset()
    """Names of all topics."""
    groups: tuple[GroupFacts, ...] = ()
    mirrors: tuple[GroupFacts, ...] = ()
    """Flows of mirrors that copy topics of this cluster, with the newest source offset that each reported."""
    inherited: Mapping[int, Mapping[str, tuple[ConfigValueFact, ...]]] = field(default_factory=_empty)
    """Values that topics inherit from each broker, by node id and topic config, in the order of precedence. Other
    brokers count as one of these; other configs are inherited as the topics were described."""
    brokers: Mapping[int, Mapping[str, str]] = field(default_factory=_empty)
    """Static and dynamic configs of each broker that the rules read, by node id."""
    quotas: Mapping[tuple[tuple[str, str | None], ...], Mapping[str, float]] = field(default_factory=_empty)
    """Quotas by entity."""
    clients: tuple[ClientFacts, ...] | None = None
    """Connected or registered clients. None if the server does not report them."""
    unknown: tuple[str, ...] = ()
    """Sentences about facts that could not be collected, and why."""
    missing: Need = NO_NEED
    """Kinds of facts that were not collected, or not for every partition."""


REPORTED_PRODUCER_MS: Final = 5 * 60_000
"""Age of a producer's last batch up to which it counts as active, in milliseconds."""

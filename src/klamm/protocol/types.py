"""Kafka concepts that several packages share. Each is declared once, here, with Kafka's name and wire number."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

CLIENT_CONFIGS_FEATURE: Final = "client.configs"
"""Feature that ApiVersions reports if the broker serves DescribeClientConfigs and AlterClientConfigs (KIP-649)."""

MAX_SEQUENCE: Final = 0x7FFFFFFF
"""Largest sequence number of a producer; the next one is 0. Used as a bit mask, it wraps a sum."""


class ResourceType(IntEnum):
    """Wire values of ``resource_type`` (Kafka's ``ConfigResource.Type``) that can be configured."""

    UNKNOWN = 0
    """A resource type unknown to klamm. Never served."""
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


RESOURCE_TYPES: Final = tuple(kind for kind in ResourceType if kind is not ResourceType.UNKNOWN)
"""Resource types that a broker serves."""


class ConfigOperation(IntEnum):
    """Wire values of ``config_operation`` in IncrementalAlterConfigsRequest (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigType(IntEnum):
    """Wire values of ``config_type`` in DescribeConfigsResponse (Kafka's ``ConfigDef.Type``)."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """Wire values of ``config_source`` in DescribeConfigsResponse and CreateTopicsResponse."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8

    @classmethod
    def _missing_(cls, value: object) -> ConfigSource:
        """Return UNKNOWN for a source that a newer broker reports."""
        return cls.UNKNOWN

    @property
    def origin(self) -> str:
        """Place where the value was set, in an operator's words. Kafka's name for sources without such words."""
        return _ORIGINS.get(self, self.name)


_ORIGINS: Final = {
    ConfigSource.DYNAMIC_TOPIC_CONFIG: "topic",
    ConfigSource.DYNAMIC_BROKER_CONFIG: "broker",
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: "all brokers",
    ConfigSource.STATIC_BROKER_CONFIG: "server.properties",
    ConfigSource.DEFAULT_CONFIG: "default",
}


class UpdateMode(StrEnum):
    """Update mode of a broker config: how it may change while the broker runs (KIP-226)."""

    READ_ONLY = "read-only"
    """Can be set only in the properties file, before the start."""
    PER_BROKER = "per-broker"
    """Can be changed for a single broker, but has no cluster-wide default."""
    CLUSTER_WIDE = "cluster-wide"
    """Can be changed for a single broker or as the cluster-wide default."""


class CoordinatorType(IntEnum):
    """Wire values of ``key_type`` in FindCoordinatorRequest (Kafka's ``FindCoordinatorRequest.CoordinatorType``)."""

    GROUP = 0
    TRANSACTION = 1


class TopicPartition(NamedTuple):
    """One partition of a topic (Kafka's ``TopicPartition``)."""

    topic: str
    partition: int

    @property
    def name(self) -> str:
        """The partition as Kafka prints it, such as ``orders-0``."""
        return f"{self.topic}-{self.partition}"


PartitionTuple: TypeAlias = tuple[str, int]
"""A ``TopicPartition`` as a plain tuple. Equal to it, with the same hash, and much cheaper to create in hot paths."""


def by_topic(partitions: Iterable[PartitionTuple]) -> dict[str, list[int]]:
    """Return the partition numbers of each topic, as requests name them."""
    numbers: dict[str, list[int]] = {}
    for topic, number in partitions:
        numbers.setdefault(topic, []).append(number)
    return numbers


class ProducerIdentity(NamedTuple):
    """Producer id and epoch (Kafka's ``ProducerIdAndEpoch``); -1 means none."""

    producer_id: int = -1
    producer_epoch: int = -1


class AbortedTransaction(NamedTuple):
    """An aborted transaction in a FetchResponse for ``read_committed``."""

    producer_id: int
    first_offset: int
    """Offset of the first record of the transaction."""

"""Kafka's concepts that several packages share: each is declared here once, with Kafka's name and wire number."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final, NamedTuple, TypeAlias

CLIENT_CONFIGS_FEATURE: Final = "client.configs"
"""Feature in ApiVersions of a broker that serves DescribeClientConfigs and AlterClientConfigs (KIP-649)."""

MAX_SEQUENCE: Final = 0x7FFFFFFF
"""Largest sequence number of a producer; the one after it is 0. As a mask it wraps a sum."""


class ResourceType(IntEnum):
    """Wire values of ``resource_type`` (Kafka's ``ConfigResource.Type``) that can be configured."""

    UNKNOWN = 0
    """A type that klamm does not know. Never served."""
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


class UpdateMode(StrEnum):
    """How a broker config may change while the broker runs (KIP-226)."""

    READ_ONLY = "read-only"
    """Only in the properties file, before the start."""
    PER_BROKER = "per-broker"
    """For one broker, never as the cluster's default."""
    CLUSTER_WIDE = "cluster-wide"
    """For one broker or as the cluster's default."""


class CoordinatorType(IntEnum):
    """Wire values of ``key_type`` in FindCoordinatorRequest (Kafka's ``FindCoordinatorRequest.CoordinatorType``)."""

    GROUP = 0
    TRANSACTION = 1


class TopicPartition(NamedTuple):
    """One partition of a topic (Kafka's ``TopicPartition``)."""

    topic: str
    partition: int


PartitionTuple: TypeAlias = tuple[str, int]
"""A ``TopicPartition`` as a plain tuple: equal, with the same hash, and much cheaper to make in hot paths."""


class ProducerIdentity(NamedTuple):
    """Producer id and epoch (Kafka's ``ProducerIdAndEpoch``); -1 where there is none."""

    producer_id: int = -1
    producer_epoch: int = -1


class AbortedTransaction(NamedTuple):
    """An aborted transaction in a FetchResponse under ``read_committed``."""

    producer_id: int
    first_offset: int
    """Offset of its first record."""

"""The enums of the config APIs, with Kafka's names and wire numbers."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class ResourceType(IntEnum):
    """Wire values of ``resource_type`` (Kafka's ``ConfigResource.Type``) that can be configured."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


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


class UpdateMode(StrEnum):
    """How a broker config may change while the broker runs (KIP-226)."""

    READ_ONLY = "read-only"
    """Only in the properties file, before the start."""
    PER_BROKER = "per-broker"
    """For one broker, never as the cluster's default."""
    CLUSTER_WIDE = "cluster-wide"
    """For one broker or as the cluster's default."""

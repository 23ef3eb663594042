"""Descriptions of resources for DescribeConfigs, built from the current values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.configs.image import CLUSTER_DEFAULT
from klamm.configs.describe import (
    DescribedConfig,
    describe_broker,
    describe_client_metrics,
    describe_cluster_default,
    describe_group,
)
from klamm.configs.names import check_topic_name, parse_node_id
from klamm.protocol.errors import InvalidRequestError, UnknownTopicOrPartitionError
from klamm.protocol.types import ConfigSource, ConfigType, ResourceType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from klamm.broker.configs.image import ConfigImage


def describe_resource(
    image: ConfigImage, levels: Callable[[], Mapping[str, str]], *, resource_type: int, name: str, node_id: int
) -> tuple[DescribedConfig, ...]:
    """Describe all configs of a resource from the view of the broker ``node_id``.

    Args:
        image: Current values.
        levels: Function that returns the level of every logger.
        resource_type: A ResourceType.
        name: Name of the resource.
        node_id: Broker id that received the request.

    Raises:
        KafkaApiError: The resource does not exist.
    """
    if resource_type == ResourceType.BROKER_LOGGER:
        return _describe_loggers(levels, name, node_id)
    describe = _DESCRIBERS.get(resource_type)
    if describe is None:
        raise InvalidRequestError(f"Unsupported resource type: {resource_type}")
    return describe(image, name, node_id)


def _describe_topic(image: ConfigImage, name: str, node_id: int) -> tuple[DescribedConfig, ...]:
    check_topic_name(name)
    if not image.has_topic(name):
        # Kafka uses an empty message here.
        raise UnknownTopicOrPartitionError("")
    return image.topic_describer(node_id).describe(image.current(ResourceType.TOPIC, name))


def _describe_broker(image: ConfigImage, name: str, node_id: int) -> tuple[DescribedConfig, ...]:
    if name == CLUSTER_DEFAULT:
        return describe_cluster_default(image.layers(node_id))
    _check_broker_asked(name, node_id, expected=f"expected {node_id} or empty string,")
    return describe_broker(image.layers(node_id))


def _describe_loggers(levels: Callable[[], Mapping[str, str]], name: str, node_id: int) -> tuple[DescribedConfig, ...]:
    if not name:
        raise InvalidRequestError("Broker id must not be empty")
    _check_broker_asked(name, node_id, expected=f"expected {node_id}")
    return tuple(
        DescribedConfig(
            name=logger,
            value=level,
            is_read_only=False,
            source=ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG,
            is_sensitive=False,
            synonyms=(),
            config_type=ConfigType.UNKNOWN,
        )
        for logger, level in sorted(levels().items())
    )


def _describe_client_metrics(image: ConfigImage, name: str, _node_id: int) -> tuple[DescribedConfig, ...]:
    if not name:
        raise InvalidRequestError("Client metrics subscription name must not be empty")
    return describe_client_metrics(image.current(ResourceType.CLIENT_METRICS, name))


def _describe_group(image: ConfigImage, name: str, node_id: int) -> tuple[DescribedConfig, ...]:
    if not name:
        raise InvalidRequestError("Group name must not be empty")
    return describe_group(image.current(ResourceType.GROUP, name), image.layers(node_id))


def _check_broker_asked(name: str, node_id: int, *, expected: str) -> None:
    if parse_node_id(name, what="Broker") != node_id:
        raise InvalidRequestError(f"Unexpected broker id, {expected} but received {name}")


_DESCRIBERS: Final[Mapping[int, Callable[[ConfigImage, str, int], tuple[DescribedConfig, ...]]]] = {
    ResourceType.TOPIC: _describe_topic,
    ResourceType.BROKER: _describe_broker,
    ResourceType.CLIENT_METRICS: _describe_client_metrics,
    ResourceType.GROUP: _describe_group,
}

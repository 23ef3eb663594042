"""Decisions on config changes, resource by resource. Nothing is changed here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from klamm.broker.configs.image import CLUSTER_DEFAULT
from klamm.broker.configs.logger_levels import plan_logger_levels
from klamm.configs.brokers import BrokerSchema, is_store_of_listener
from klamm.configs.groups import ClientMetricsSchema, GroupSchema
from klamm.configs.layers import NOTHING_SET
from klamm.configs.names import identity_of, parse_node_id
from klamm.configs.operations import (
    AlterOperation,
    ConfigDelta,
    ConfigSchema,
    apply_changes,
    check_configs,
    check_operations,
    plan_incremental_alter,
    plan_legacy_alter,
)
from klamm.configs.topics import TopicSchema
from klamm.protocol.errors import InvalidRequestError, KafkaApiError, UnknownTopicOrPartitionError
from klamm.protocol.types import ConfigOperation, ResourceType

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractAsyncContextManager

    from klamm.broker.configs.image import ConfigImage
    from klamm.server.author import Author

LegacyConfigs: TypeAlias = Sequence[tuple[str, str | None]]


OPERATIONS_AT_ONCE: Final = 256
"""Number of operations that are decided and applied in one turn of the event loop, which takes some milliseconds."""


class LoggerLevels(Protocol):
    """Loggers whose levels can be changed."""

    def levels(self) -> Mapping[str, str]:
        """Return the effective level of every logger."""
        ...

    def apply(self, changes: Sequence[ConfigDelta]) -> None:
        """Set levels."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceAlteration:
    """Requested change of one resource."""

    resource_type: int
    resource_name: str
    operations: tuple[AlterOperation, ...] | None
    """Operations of IncrementalAlterConfigs; None for the legacy AlterConfigs, which uses ``replacement``."""
    replacement: LegacyConfigs = ()
    """All configs of the resource after a legacy AlterConfigs; configs not named are removed."""

    @property
    def identity(self) -> tuple[int, str]:
        """Key that is equal for equal resources."""
        return identity_of(self.resource_type, self.resource_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDecision:
    """Decided change of one resource, not yet applied."""

    resource_type: ResourceType
    resource_name: str
    changes: tuple[ConfigDelta, ...]
    before: Mapping[str, str] = field(default_factory=dict)
    """Dynamic configs of the resource at the time of the decision."""
    altered: Mapping[str, str | None] = field(default_factory=dict)
    """Configs that the request names; None as value means removal."""
    defaults: Mapping[str, str] = field(default_factory=lambda: NOTHING_SET)
    """For a topic, the broker's value of every topic config."""

    @property
    def result(self) -> Mapping[str, str]:
        """Dynamic configs of the resource after the change."""
        return apply_changes(self.before, self.changes)


class AlterConfigGuard(Protocol):
    """Final check of otherwise valid changes: a policy, the TLS settings or the policy settings."""

    def turn(self) -> AbstractAsyncContextManager[object]:
        """Return the context manager to hold from the decision until the change is applied."""
        ...

    async def check(self, decision: ConfigDecision, author: Author, *, validate_only: bool) -> bool:
        """Raise a KafkaApiError to reject a change; return whether other requests were served meanwhile."""
        ...


class ConfigDecider:
    """Decider of config changes, based on the current values.

    Args:
        image: Current values.
        loggers: Loggers whose levels can be changed.
    """

    def __init__(self, image: ConfigImage, loggers: LoggerLevels) -> None:
        self._image = image
        self._loggers = loggers

    def decide(self, alteration: ResourceAlteration, node_id: int) -> ConfigDecision:
        """Decide on an alteration without applying it.

        Raises:
            KafkaApiError: The alteration is rejected.
        """
        operations, name = alteration.operations, alteration.resource_name
        if alteration.resource_type == ResourceType.BROKER_LOGGER and operations is not None:
            return self._decide_loggers(name, operations, node_id)
        try:
            resource_type, name, schema = self._schema(alteration, node_id)
        except KafkaApiError:
            # Errors of the request itself take precedence over an unknown resource.
            if operations is None:
                check_configs(alteration.replacement)
            else:
                check_operations(operations)
            raise
        current = self._image.current(resource_type, name)
        if operations is None:
            changes = plan_legacy_alter(current, alteration.replacement, schema)
        else:
            changes = plan_incremental_alter(current, operations, schema)
        if resource_type is ResourceType.BROKER:
            changes += _set_again(current, alteration)
        if resource_type is ResourceType.TOPIC and not self._image.has_topic(name):
            raise UnknownTopicOrPartitionError(f"The topic '{name}' does not exist.")
        # As in Kafka, a policy does not see the configs that a replacement removes by not naming them.
        replaced = {key for key, _ in alteration.replacement}
        altered = {c.name: c.value for c in changes if operations is not None or c.name in replaced}
        return ConfigDecision(
            resource_type=resource_type,
            resource_name=name,
            changes=changes,
            before=current,
            altered=altered,
            defaults=self._image.topic_default_texts() if resource_type is ResourceType.TOPIC else NOTHING_SET,
        )

    def _schema(self, alteration: ResourceAlteration, node_id: int) -> tuple[ResourceType, str, ConfigSchema]:
        name = alteration.resource_name
        match alteration.resource_type:
            case ResourceType.TOPIC:
                return ResourceType.TOPIC, name, TopicSchema(topic=name, layers=self._image.layers(node_id))
            case ResourceType.GROUP:
                return ResourceType.GROUP, name, GroupSchema(group_id=name, layers=self._image.layers(node_id))
            case ResourceType.CLIENT_METRICS:
                return ResourceType.CLIENT_METRICS, name, ClientMetricsSchema(subscription=name)
            case ResourceType.BROKER:
                if name != CLUSTER_DEFAULT:
                    named_id = parse_node_id(name)
                    if named_id != node_id:
                        raise InvalidRequestError(f"Unexpected broker id, expected {node_id}, but received {name}")
                    name = str(named_id)
                layers = self._image.layers(node_id)
                schema = BrokerSchema(
                    layers=layers,
                    is_cluster_default=name == CLUSTER_DEFAULT,
                    speaks_for_process=node_id == self._image.node_ids[0],
                )
                return ResourceType.BROKER, name, schema
            case unknown:
                raise InvalidRequestError(f"Unknown resource type {int(unknown)}")

    def _decide_loggers(self, name: str, operations: Sequence[AlterOperation], node_id: int) -> ConfigDecision:
        check_operations(operations)
        if parse_node_id(name) != node_id:
            raise InvalidRequestError(f"Unexpected node id. Expected {node_id}, but received {name}")
        changes = plan_logger_levels(self._loggers.levels(), operations)
        return ConfigDecision(resource_type=ResourceType.BROKER_LOGGER, resource_name=str(node_id), changes=changes)


def _set_again(current: Mapping[str, str], alteration: ResourceAlteration) -> tuple[ConfigDelta, ...]:
    """Return the stores of listeners that are set to their current value, so their files are reloaded (KIP-226)."""
    named: Iterable[tuple[str, str | None]] = alteration.replacement
    if alteration.operations is not None:
        named = ((o.name, o.value) for o in alteration.operations if o.config_operation == ConfigOperation.SET)
    return tuple(
        ConfigDelta(name=name, value=value)
        for name, value in named
        if value is not None and current.get(name) == value and is_store_of_listener(name)
    )


def parts(alterations: Sequence[ResourceAlteration]) -> Iterator[Sequence[ResourceAlteration]]:
    """Split a request into parts that are each decided and applied in one step."""
    begin = size = 0
    for end, alteration in enumerate(alterations):
        operations = alteration.replacement if alteration.operations is None else alteration.operations
        if size and size + len(operations) > OPERATIONS_AT_ONCE:
            yield alterations[begin:end]
            begin, size = end, 0
        size += 1 + len(operations)
    if begin < len(alterations):
        yield alterations[begin:]

"""Rules of config changes: what a request changes on each resource, or why it is rejected. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.broker.configs.image import CLUSTER_DEFAULT
from klamm.configs.brokers import BrokerSchema, is_store_of_listener
from klamm.configs.definitions import MIN_INSYNC_REPLICAS, POLICY_RULES_FILE, broker_configs
from klamm.configs.groups import ClientMetricsSchema, GroupSchema
from klamm.configs.layers import NOTHING_SET
from klamm.configs.names import parse_node_id
from klamm.configs.operations import (
    AlterOperation,
    ConfigDecision,
    ConfigDelta,
    ConfigSchema,
    check_configs,
    check_operations,
    plan_incremental_alter,
    plan_legacy_alter,
)
from klamm.configs.topics import TopicSchema
from klamm.lazy_dataclass import dataclass
from klamm.policy_runtime.decision import overridden_configs, overridden_operations
from klamm.protocol.errors import InvalidConfigError, InvalidRequestError, KafkaApiError, UnknownTopicOrPartitionError
from klamm.protocol.types import ConfigOperation, ResourceType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from klamm.broker.configs.image import ConfigImage
    from klamm.configs.layers import BrokerLayers
    from klamm.policy.answers import Override

ROOT: Final = "root"
"""Name of the root logger."""
LEVELS: Final = ("DEBUG", "ERROR", "FATAL", "INFO", "TRACE", "WARN")

LegacyConfigs: TypeAlias = Sequence[tuple[str, str | None]]


OPERATIONS_AT_ONCE: Final = 256
"""Number of operations that are decided and applied in one turn of the event loop, which takes some milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceAlteration:
    """Requested change of one resource."""

    resource_type: int
    resource_name: str
    operations: Sequence[AlterOperation] | None
    """Operations of IncrementalAlterConfigs; None for the legacy AlterConfigs, which uses ``replacement``."""
    replacement: LegacyConfigs = ()
    """All configs of the resource after a legacy AlterConfigs; configs not named are removed."""
    error: KafkaApiError | None = None
    """Error of a check before, without operations. The resource still counts as one that appears in the request."""


def overridden(alteration: ResourceAlteration, override: Override) -> ResourceAlteration:
    """Return an alteration with the changes of a policy's override."""
    if alteration.operations is None:
        return replace(alteration, replacement=overridden_configs(alteration.replacement, override.configs))
    return replace(alteration, operations=overridden_operations(alteration.operations, override.configs))


def decide(
    alteration: ResourceAlteration, *, node_id: int, image: ConfigImage, levels: Callable[[], Mapping[str, str]]
) -> ConfigDecision:
    """Decide on an alteration without applying it.

    Args:
        alteration: Requested change.
        node_id: Broker id that received the request.
        image: Current values.
        levels: Function that returns the effective level of every logger.

    Raises:
        KafkaApiError: The alteration is rejected.
    """
    operations, name = alteration.operations, alteration.resource_name
    if alteration.resource_type == ResourceType.BROKER_LOGGER and operations is not None:
        return _decide_loggers(name, operations, node_id, levels)
    try:
        layers, is_first = image.layers(node_id), node_id == image.first_node_id
        resource_type, name, schema = _schema(alteration, node_id, layers, speaks_for_process=is_first)
    except KafkaApiError:
        # Errors of the request itself take precedence over an unknown resource.
        if operations is None:
            check_configs(alteration.replacement)
        else:
            check_operations(operations)
        raise
    current = image.current(resource_type, name)
    if operations is None:
        changes = plan_legacy_alter(current, alteration.replacement, schema)
    else:
        changes = plan_incremental_alter(current, operations, schema)
    if resource_type is ResourceType.BROKER:
        changes += _set_again(current, alteration)
    if resource_type is ResourceType.TOPIC and not image.has_topic(name):
        raise UnknownTopicOrPartitionError(f"The topic '{name}' does not exist.")
    return ConfigDecision(
        resource_type=resource_type,
        resource_name=name,
        changes=changes,
        before=current,
        replaced=None if operations is not None else frozenset(key for key, _ in alteration.replacement),
        defaults=_inherited(resource_type, name, image, layers),
    )


def _inherited(resource_type: ResourceType, name: str, image: ConfigImage, layers: BrokerLayers) -> Mapping[str, str]:
    """Return the values of configs that a topic or a broker does not set itself, without secrets."""
    if resource_type is ResourceType.TOPIC:
        return image.topic_default_texts()
    if resource_type is not ResourceType.BROKER:
        return NOTHING_SET
    below = replace(layers, dynamic=NOTHING_SET, cluster=NOTHING_SET if name == CLUSTER_DEFAULT else layers.cluster)
    texts = {key: below.text(key) for key, definition in broker_configs().items() if not definition.is_sensitive}
    return {key: text for key, text in texts.items() if text is not None}


def _schema(
    alteration: ResourceAlteration, node_id: int, layers: BrokerLayers, *, speaks_for_process: bool
) -> tuple[ResourceType, str, ConfigSchema]:
    name = alteration.resource_name
    match alteration.resource_type:
        case ResourceType.TOPIC:
            return ResourceType.TOPIC, name, TopicSchema(topic=name, layers=layers)
        case ResourceType.GROUP:
            return ResourceType.GROUP, name, GroupSchema(group_id=name, layers=layers)
        case ResourceType.CLIENT_METRICS:
            return ResourceType.CLIENT_METRICS, name, ClientMetricsSchema(subscription=name)
        case ResourceType.BROKER:
            if name != CLUSTER_DEFAULT:
                named_id = parse_node_id(name)
                if named_id != node_id:
                    raise InvalidRequestError(f"Unexpected broker id, expected {node_id}, but received {name}")
                name = str(named_id)
            schema = BrokerSchema(
                layers=layers,
                is_cluster_default=name == CLUSTER_DEFAULT,
                speaks_for_process=speaks_for_process,
            )
            return ResourceType.BROKER, name, schema
        case unknown:
            raise InvalidRequestError(f"Unknown resource type {int(unknown)}")


def _decide_loggers(
    name: str, operations: Sequence[AlterOperation], node_id: int, levels: Callable[[], Mapping[str, str]]
) -> ConfigDecision:
    check_operations(operations)
    if parse_node_id(name) != node_id:
        raise InvalidRequestError(f"Unexpected node id. Expected {node_id}, but received {name}")
    changes = plan_logger_levels(levels(), operations)
    return ConfigDecision(resource_type=ResourceType.BROKER_LOGGER, resource_name=str(node_id), changes=changes)


def _set_again(current: Mapping[str, str], alteration: ResourceAlteration) -> tuple[ConfigDelta, ...]:
    """Return configs that are set to their current value and are to be applied or stored nevertheless.

    The files at the paths of stores and rules are loaded again (KIP-226). The current ``min.insync.replicas`` of the
    cluster may come from the properties file; once set, it is stored and no longer follows that file.
    """
    named: Iterable[tuple[str, str | None]] = alteration.replacement
    if alteration.operations is not None:
        named = ((o.name, o.value) for o in alteration.operations if o.config_operation == ConfigOperation.SET)
    return tuple(
        ConfigDelta(name=name, value=value)
        for name, value in named
        if value is not None
        and current.get(name) == value
        and (is_store_of_listener(name) or name in (POLICY_RULES_FILE, MIN_INSYNC_REPLICAS))
    )


def parts(alterations: Sequence[ResourceAlteration]) -> Iterator[Sequence[ResourceAlteration]]:
    """Split a request into parts that are each decided and applied in one step.

    A broker is a part of its own. What it sets concerns topics, so a policy decides on each with the other applied.
    """
    begin = size = 0
    for end, alteration in enumerate(alterations):
        operations = alteration.replacement if alteration.operations is None else alteration.operations
        is_full = size + len(operations) > OPERATIONS_AT_ONCE
        if size and (is_full or ResourceType.BROKER in (alterations[end - 1].resource_type, alteration.resource_type)):
            yield alterations[begin:end]
            begin, size = end, 0
        size += 1 + len(operations)
    if begin < len(alterations):
        yield alterations[begin:]


def plan_logger_levels(levels: Mapping[str, str], operations: Sequence[AlterOperation]) -> tuple[ConfigDelta, ...]:
    """Decide on operations on loggers: either all are valid or none is applied.

    Args:
        levels: Effective level of every existing logger.
        operations: Requested operations.

    Raises:
        InvalidConfigError: A logger or a level does not exist.
        InvalidRequestError: The operation is not defined for loggers, or would remove the level of the root logger.
    """
    check_operations(operations)
    return tuple(_plan_one(levels, operation) for operation in operations)


def _plan_one(levels: Mapping[str, str], operation: AlterOperation) -> ConfigDelta:
    name, level = operation.name, operation.value
    match operation.config_operation:
        case ConfigOperation.SET | ConfigOperation.DELETE as kind:
            if name not in levels:
                raise InvalidConfigError(f"Logger {name} does not exist!")
            if kind == ConfigOperation.DELETE:
                if name == ROOT:
                    raise InvalidRequestError(f"Removing the log level of the {ROOT} logger is not allowed")
                return ConfigDelta(name=name, value=None)
            if level not in LEVELS:
                raise InvalidConfigError(
                    f"Cannot set the log level of {name} to {level} as it is not a supported log level. "
                    f"Valid log levels are {', '.join(LEVELS)}"
                )
            return ConfigDelta(name=name, value=level)
        case ConfigOperation.APPEND | ConfigOperation.SUBTRACT as kind:
            raise InvalidRequestError(
                f"{ConfigOperation(kind).name} operation is not allowed for the BROKER_LOGGER resource"
            )
        case unknown:
            raise InvalidRequestError(f"Unknown operation type {unknown} is not allowed for the BROKER_LOGGER resource")

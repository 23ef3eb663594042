"""Facts about topics and configs of the upstream cluster, which policies see.

The gateway reads them with its own credentials. A client that may change a topic need not have the right to describe
its configs, and a policy must see them all the same.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from klamm.admin import ConfigResource
from klamm.client.errors import CLUSTER_ERRORS
from klamm.configs.decision import ConfigDecision
from klamm.configs.operations import plan_incremental_alter, plan_legacy_alter
from klamm.configs.topics import refuse_topic_list
from klamm.protocol.errors import KafkaApiError, UnknownTopicOrPartitionError
from klamm.protocol.messages.alter_configs import AlterConfigsRequest
from klamm.protocol.types import ConfigSource, ResourceType
from klamm.storage.metadata.changes import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from klamm.admin import AdminClient, ConfigEntry, TopicDescription
    from klamm.admin.results import PerKeyResult
    from klamm.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
    from klamm.protocol.types import ConfigOperation

Key = TypeVar("Key")
Value = TypeVar("Value")

FIRST_WAIT_S: Final = 0.05
"""Seconds before a missing topic is looked up again. A broker learns of a new topic after the controller. Each further
wait is twice as long.
"""
WAITS: Final = 4
"""Number of these waits, together 0.75 seconds, when the topic may be missing because it does not exist."""
WAITS_FOR_EXISTING: Final = 7
"""Number of these waits, together 6.35 seconds, when the controller has accepted a request for the topic."""
_OWN_SOURCE: Final = {
    ResourceType.TOPIC: ConfigSource.DYNAMIC_TOPIC_CONFIG,
    ResourceType.GROUP: ConfigSource.GROUP_CONFIG,
    ResourceType.CLIENT_METRICS: ConfigSource.CLIENT_METRICS_CONFIG,
}
"""Source of the values that a resource sets itself, by type. Those of brokers depend on the name."""
_INHERITING: Final = (ResourceType.TOPIC, ResourceType.BROKER)


async def outcomes(result: PerKeyResult[Key, Value]) -> dict[Key, Value | KafkaApiError]:
    """Wait for all keys of an admin call; return each one's value or error.

    Raises:
        ConnectionError: The upstream cannot be reached.
        TimeoutError: The upstream does not respond.
    """
    found: dict[Key, Value | KafkaApiError] = {}
    for key, outcome in result.values().items():
        try:
            found[key] = await outcome
        except KafkaApiError as error:
            found[key] = error.with_traceback(None)
    return found


async def looked_up(
    look_up: Callable[[Collection[Key]], PerKeyResult[Key, Value]], keys: Collection[Key], waits: int
) -> dict[Key, Value | KafkaApiError]:
    """Return the outcome of each key. Topics that the asked broker does not know are looked up again after waits."""
    found: dict[Key, Value | KafkaApiError] = await outcomes(look_up(keys))
    for number in range(waits):
        missing = [key for key, each in found.items() if isinstance(each, UnknownTopicOrPartitionError)]
        if not missing:
            break
        await asyncio.sleep(FIRST_WAIT_S * 2**number)
        again: dict[Key, Value | KafkaApiError] = await outcomes(look_up(missing))
        found |= again
    return found


async def describe_topics(
    admin: AdminClient, names: Collection[str], *, waits: int = WAITS
) -> dict[str, TopicDescription | KafkaApiError]:
    """Return the description of each topic, or the error because of which it cannot be described."""
    return await looked_up(admin.describe_topics, list(dict.fromkeys(names)), waits)


async def describe_configs(
    admin: AdminClient, resources: Collection[tuple[int, str]]
) -> dict[tuple[int, str], Mapping[str, ConfigEntry] | KafkaApiError]:
    """Return the configs of each resource with their synonyms, or the error because of which they cannot be read.

    The upstream has accepted an alteration of the resources, so topics exist.
    """
    wanted = {ConfigResource(ResourceType(resource_type), name) for resource_type, name in resources}
    look_up = partial(admin.describe_configs, include_synonyms=True)
    found = await looked_up(look_up, wanted, WAITS_FOR_EXISTING)
    return {(int(resource.type), resource.name): each for resource, each in found.items()}


async def default_configs(admin: AdminClient) -> Mapping[str, str]:
    """Return the value of each topic config for a topic that does not set it; empty if it cannot be found out."""
    try:
        topics = await admin.list_topics(include_internal=True)
        for name in topics:
            described = await admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)], include_synonyms=True)
            return {key: value for configs in described.values() for key, value in inherited(configs).items()}
    except CLUSTER_ERRORS:
        return {}
    return {}


async def topic_config_types(admin: AdminClient) -> Mapping[str, int] | None:
    """Return the type of each topic config of the upstream, as wire values of ``ConfigType``.

    Returns:
        None if they cannot be read, or if the upstream has no topic to read them from.
    """
    try:
        for name in await admin.list_topics(include_internal=True):
            for configs in (await admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)])).values():
                return {entry.name: entry.config_type for entry in configs.values()}
    except CLUSTER_ERRORS:
        return None
    return None


def own_source(resource_type: ResourceType, name: str) -> ConfigSource:
    """Return the source of the values that a resource sets itself."""
    if resource_type is ResourceType.BROKER:
        return ConfigSource.DYNAMIC_BROKER_CONFIG if name else ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    return _OWN_SOURCE[resource_type]


def own_configs(resource_type: ResourceType, name: str, described: Mapping[str, ConfigEntry]) -> dict[str, str]:
    """Return the configs that a resource sets itself. Secrets are hidden."""
    own = own_source(resource_type, name)
    return {
        entry.name: HIDDEN if entry.value is None else entry.value
        for entry in described.values()
        if entry.source is own
    }


def inherited(
    described: Mapping[str, ConfigEntry], own: ConfigSource = ConfigSource.DYNAMIC_TOPIC_CONFIG
) -> dict[str, str]:
    """Return the value of each config that is in force if the resource itself, with this source, does not set it."""
    found: dict[str, str] = {}
    for entry in described.values():
        values = [(synonym.source, synonym.value) for synonym in entry.synonyms] or [(entry.source, entry.value)]
        value = next((value for source, value in values if source is not own), None)
        if value is not None:
            found[entry.name] = value
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSchema:
    """Schema of a resource of the upstream. The upstream itself has validated the request before."""

    built_in: Mapping[str, str] = field(default_factory=dict)
    """Built-in defaults. In Kafka, APPEND and SUBTRACT on a list that is not set start from its built-in default."""

    def is_list(self, name: str) -> bool:
        """Return True: the upstream rejects APPEND and SUBTRACT on other configs."""
        return True

    def list_in_force(self, name: str) -> str | None:
        """Return the built-in default of a list."""
        return self.built_in.get(name)

    def refuse_non_list(self, operation: ConfigOperation, name: str) -> KafkaApiError:
        """Return the error for an operation that a list requires."""
        return refuse_topic_list(operation, name)

    def validate(self, *, touched: Mapping[str, str | None], result: Mapping[str, str]) -> None:
        """Accept the outcome, which the upstream has validated."""


def config_decision(
    resource: AlterConfigsRequest.AlterConfigsResource | IncrementalAlterConfigsRequest.AlterConfigsResource,
    described: Mapping[str, ConfigEntry],
) -> ConfigDecision:
    """Return the change of a resource that a valid request makes.

    Args:
        resource: The resource's part of the request.
        described: Configs of the resource before the change.

    Raises:
        KafkaApiError: The request is invalid, though the upstream accepted it.
    """
    resource_type, name = ResourceType(resource.resource_type), resource.resource_name
    before = own_configs(resource_type, name, described)
    schema = UpstreamSchema(
        built_in={
            entry.name: synonym.value
            for entry in described.values()
            for synonym in entry.synonyms
            if synonym.source is ConfigSource.DEFAULT_CONFIG and synonym.value is not None
        }
    )
    replaced: frozenset[str] | None = None
    if isinstance(resource, AlterConfigsRequest.AlterConfigsResource):
        changes = plan_legacy_alter(before, [(config.name, config.value) for config in resource.configs], schema)
        replaced = frozenset([config.name for config in resource.configs])
    else:
        changes = plan_incremental_alter(before, resource.configs, schema)
    return ConfigDecision(
        resource_type=resource_type,
        resource_name=name,
        changes=changes,
        before=before,
        replaced=replaced,
        defaults=inherited(described, own_source(resource_type, name)) if resource_type in _INHERITING else {},
    )

"""Facts about topics and configs of the upstream cluster, which policies see.

The gateway reads them with its own credentials. A client that may change a topic need not have the right to describe
its configs, and a policy must see them all the same.
"""

from __future__ import annotations

import asyncio
from dataclasses import field, replace
from typing import TYPE_CHECKING, TypeVar

from klamm.admin import ConfigResource, ConfigSynonym
from klamm.admin.impact import impact_of
from klamm.admin.types import hides_inherited, inherited_value, own_source
from klamm.configs.definitions import base_name, find_broker_config, topic_synonyms
from klamm.configs.layers import BrokerLayers
from klamm.configs.operations import ConfigSchema
from klamm.history.change import HIDDEN
from klamm.kafka_client.errors import CLUSTER_ERRORS, ConnectionLostError
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import KafkaApiError
from klamm.protocol.types import ConfigSource, ResourceType, TopicPartition
from klamm.server.time_slice import TimeSlice

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from uuid import UUID

    from klamm.admin import AdminClient, ConfigEntry, PartitionReassignment, TopicDescription
    from klamm.admin.results import PerKeyResult
    from klamm.impact.changes import Change
    from klamm.impact.findings import Impact

Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """Topic with the replicas that its partitions have after all reassignments in progress."""

    name: str
    topic_id: UUID
    replicas: tuple[tuple[int, ...], ...]
    """Final replicas by partition: without those that a reassignment removes."""
    reassigning: Mapping[int, PartitionReassignment]
    """Reassignments in progress, by partition."""
    configs: Mapping[str, str] = field(default_factory=dict)
    """Configs that the topic sets; empty unless they were read."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Value of each config for a topic that does not set it; empty unless they were read."""


async def outcomes(result: PerKeyResult[Key, Value]) -> dict[Key, Value | KafkaApiError]:
    """Wait for all keys of an admin call; return each one's value or error.

    Raises:
        ConnectionError: The upstream cannot be reached.
        TimeoutError: The upstream does not respond.
    """
    values: dict[Key, Value | KafkaApiError] = {}
    async for key, outcome in TimeSlice().over(result.values().items()):
        try:
            values[key] = await outcome
        except KafkaApiError as error:
            values[key] = error.with_traceback(None)
    return values


async def read(result: PerKeyResult[Key, Value]) -> dict[Key, Value | KafkaApiError]:
    """Return the outcomes of an admin call. If the upstream does not respond, each one is an error."""
    try:
        return await outcomes(result)
    except CLUSTER_ERRORS as error:
        return dict.fromkeys(result.values(), KafkaApiError(str(error)))


async def describe_topics(
    admin: AdminClient, names: Collection[str], *, with_configs: bool = False
) -> dict[str, TopicFacts | KafkaApiError]:
    """Return the state of each topic, or the error because of which it cannot be read.

    All changes that were committed before this call are included.
    """
    if not names:
        return {}
    # A reassignment that ends between the two reads has removed its replicas from the second result.
    try:
        listed = await admin.list_partition_reassignments()
    except CLUSTER_ERRORS as error:
        return dict.fromkeys(names, error if isinstance(error, KafkaApiError) else KafkaApiError(str(error)))
    described = await read(admin.describe_topics(list(dict.fromkeys(names)), is_current=True))
    keys = [(int(ResourceType.TOPIC), name) for name in described] if with_configs else []
    configs = {name: entries for (_, name), entries in (await describe_configs(admin, keys)).items()}
    facts: dict[str, TopicFacts | KafkaApiError] = {}
    async for name, topic in TimeSlice().over(described.items()):
        entries = configs.get(name, {})
        if isinstance(topic, KafkaApiError):
            facts[name] = topic
        else:
            facts[name] = entries if isinstance(entries, KafkaApiError) else _state(topic, listed, entries)
    return facts


def _state(
    topic: TopicDescription,
    listed: Mapping[TopicPartition, PartitionReassignment],
    configs: Mapping[str, ConfigEntry],
) -> TopicFacts:
    reassigning = {
        partition.partition: listed[key]
        for partition in topic.partitions
        if (key := TopicPartition(topic.name, partition.partition)) in listed
    }
    removed = {index: each.removing_replicas for index, each in reassigning.items()}
    return TopicFacts(
        name=topic.name,
        topic_id=topic.topic_id,
        replicas=tuple(
            tuple(replica for replica in partition.replicas if replica not in removed.get(partition.partition, ()))
            for partition in topic.partitions
        ),
        reassigning=reassigning,
        configs=own_configs(ConfigResource(ResourceType.TOPIC, topic.name), configs),
        defaults=inherited(configs),
    )


async def describe_configs(
    admin: AdminClient, resources: Collection[tuple[int, str]]
) -> dict[tuple[int, str], Mapping[str, ConfigEntry] | KafkaApiError]:
    """Return the configs of each resource with their synonyms, or the error because of which they cannot be read.

    All changes that were committed before this call are included.
    """
    wanted = {ConfigResource(ResourceType(resource_type), name) for resource_type, name in resources}
    described = await read(admin.describe_configs(wanted, include_synonyms=True, is_current=True))
    return await _with_inherited(admin, {(int(key.type), key.name): each for key, each in described.items()})


async def _with_inherited(
    admin: AdminClient, described: Mapping[tuple[int, str], Mapping[str, ConfigEntry] | KafkaApiError]
) -> dict[tuple[int, str], Mapping[str, ConfigEntry] | KafkaApiError]:
    """Add the synonyms in other units, which Kafka omits: log.retention.hours of a topic that sets retention.ms.

    Without them it would be unknown which value is in force when the topic does not set the config any more.
    """
    lacking = {
        key: [name for name in topic_synonyms() if name in each and hides_inherited(each[name])]
        async for key, each in TimeSlice().over(described.items())
        if key[0] == ResourceType.TOPIC and not isinstance(each, KafkaApiError)
    }
    if not any(lacking.values()):
        return dict(described)
    try:
        node = ConfigResource(ResourceType.BROKER, str((await admin.describe_cluster()).nodes[0].id))
        broker = (await admin.describe_configs([node]))[node]
    except CLUSTER_ERRORS as error:
        failure = KafkaApiError(f"the configs of the brokers cannot be read: {error}")
        return {key: failure if lacking.get(key) else each for key, each in described.items()}
    layers = BrokerLayers(static={entry.name: entry.value for entry in broker.values() if entry.value is not None})
    completed = dict(described)
    for key, names in lacking.items():
        entries = described[key]
        if names and not isinstance(entries, KafkaApiError):
            completed[key] = {**entries, **{name: _completed(entries[name], layers) for name in names}}
    return completed


def _completed(entry: ConfigEntry, layers: BrokerLayers) -> ConfigEntry:
    value = layers.topic_default_shown(entry.name)
    if value is None:
        return entry
    inherited = ConfigSynonym(entry.name, value, ConfigSource.DEFAULT_CONFIG)
    return replace(entry, synonyms=(*entry.synonyms, inherited))


async def default_configs(admin: AdminClient) -> Mapping[str, str]:
    """Return the value of each topic config for a topic that does not set it.

    Raises:
        KafkaApiError: It cannot be read, or the cluster has no topic to read it from.
    """
    try:
        for name in await admin.list_topics(include_internal=True, is_current=True):
            (described,) = (await describe_configs(admin, [(ResourceType.TOPIC, name)])).values()
            if isinstance(described, KafkaApiError):
                raise described
            return inherited(described)
    except CLUSTER_ERRORS as error:
        raise KafkaApiError(f"The gateway cannot read the defaults of topic configs: {error}") from error
    raise KafkaApiError("The gateway cannot read the defaults of topic configs, because there is no topic.")


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


async def predict_impact(admin: AdminClient, changes: Sequence[Change], timeout_s: float) -> Impact:
    """Return the impact of changes, with every finding.

    Raises:
        TimeoutError: The topics were not described within ``timeout_s`` seconds. Other missing facts are in the impact.
        KafkaApiError: They cannot be described.
    """
    try:
        return await asyncio.to_thread(impact_of, changes, admin, timeout_s=timeout_s, sums_up=False)
    except TimeoutError:
        raise TimeoutError("the topics of the upstream and their configs") from None
    except ConnectionLostError as error:
        raise KafkaApiError(f"the upstream cannot be reached: {error}") from error


def own_configs(resource: ConfigResource, described: Mapping[str, ConfigEntry]) -> dict[str, str]:
    """Return the configs that a resource sets itself. Secrets are hidden."""
    own = own_source(resource)
    return {
        entry.name: HIDDEN if entry.value is None else entry.value
        for entry in described.values()
        if entry.source is own
    }


def inherited(
    described: Mapping[str, ConfigEntry], own: ConfigSource | None = ConfigSource.DYNAMIC_TOPIC_CONFIG
) -> dict[str, str]:
    """Return the value of each config that is in force if the resource itself, with this source, does not set it."""
    inherited_values: dict[str, str] = {}
    for entry in described.values():
        synonym = inherited_value(entry, own)
        if synonym is not None and synonym.value is not None:
            inherited_values[entry.name] = synonym.value
    return inherited_values


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSchema(ConfigSchema):
    """Schema of a resource of the upstream. The upstream itself has validated the request before."""

    described: Mapping[str, str] = field(default_factory=dict)
    """Defaults from which APPEND and SUBTRACT on a list that is not set start: in Kafka the built-in ones."""
    is_klamm: bool = False
    """Whether the upstream is klamm, which drops blanks around the elements of a list. Kafka keeps them."""

    def is_list(self, name: str) -> bool:
        """Return True: the upstream rejects APPEND and SUBTRACT on other configs."""
        return True

    def list_in_force(self, name: str) -> str | None:
        """Return the default of a list. Of the cluster's default, only what is set is described."""
        if name not in self.described:
            name = base_name(name)  # that of a listener is described if it is set
        definition = None if name in self.described else find_broker_config(name)
        return self.described.get(name) if definition is None else definition.default

    def element(self, text: str) -> str:
        """Return an element of a list as the upstream compares and stores it."""
        # Not super(): a class with slots is created twice.
        return ConfigSchema.element(self, text) if self.is_klamm else text

    def validate(self, *, touched: Mapping[str, str | None], result: Mapping[str, str]) -> None:
        """Accept the outcome, which the upstream has validated."""

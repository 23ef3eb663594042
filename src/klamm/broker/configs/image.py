"""Current configs in memory: one mapping per resource, and the effective configs of topics and groups."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from klamm.configs.definitions import group_configs, topic_configs
from klamm.configs.describe import CreatedTopicDescriber, TopicDescriber
from klamm.configs.layers import NOTHING_SET, BrokerLayers
from klamm.configs.values import format_value
from klamm.protocol.types import ResourceType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from klamm.configs.values import ConfigValue

CLUSTER_DEFAULT = ""
"""Name of the broker resource that holds the cluster-wide default."""


class ConfigImage:
    """Dynamic configs of all resources on top of the brokers' static ones. Used on the event loop only.

    A mapping that was returned is never modified; changes replace it.

    Args:
        static: Properties of each broker by its id, including ``node.id`` and ``broker.id``.
    """

    def __init__(self, static: Mapping[int, Mapping[str, str]]) -> None:
        self._static = static
        self.first_node_id: Final = min(static)
        """Id of the first broker, whose configs apply to the whole process."""
        self._values: dict[tuple[int, str], Mapping[str, str]] = {}
        self._topics: set[str] = set()
        self._layers: dict[int, BrokerLayers] = {}
        self._describers: dict[int, TopicDescriber] = {}
        self._created_describers: dict[int, CreatedTopicDescriber] = {}
        self._topic_defaults: Mapping[str, ConfigValue | None] | None = None
        self._topic_default_texts: Mapping[str, str] | None = None
        self._topic_configs: dict[str, Mapping[str, ConfigValue | None]] = {}

    @property
    def node_ids(self) -> Sequence[int]:
        """Ids of the brokers, ascending."""
        return sorted(self._static)

    @property
    def topics(self) -> Sequence[str]:
        """Names of all topics, ascending."""
        return sorted(self._topics)

    def has_topic(self, name: str) -> bool:
        """Return whether a topic exists."""
        return name in self._topics

    @property
    def values(self) -> Mapping[tuple[int, str], Mapping[str, str]]:
        """All dynamic configs, by type and name of the resource."""
        return dict(self._values)

    def reset(self, topics: Iterable[str], configs: Mapping[tuple[int, str], Mapping[str, str]]) -> None:
        """Replace all topics and dynamic configs."""
        self._topics = set(topics)
        self._values = {resource: MappingProxyType(dict(values)) for resource, values in configs.items()}
        self._forget_broker_views()

    def current(self, resource_type: int, resource_name: str) -> Mapping[str, str]:
        """Return the dynamic configs of a resource; an empty mapping for an unknown one."""
        return self._values.get((resource_type, resource_name), NOTHING_SET)

    def replace(self, resource_type: int, resource_name: str, values: Mapping[str, str]) -> None:
        """Replace the dynamic configs of a resource."""
        if values:
            self._values[resource_type, resource_name] = MappingProxyType(dict(values))
        else:
            self._values.pop((resource_type, resource_name), None)
        if resource_type == ResourceType.BROKER:
            self._forget_broker_views()
        elif resource_type == ResourceType.TOPIC:
            self._topic_configs.pop(resource_name, None)

    def add_topic(self, name: str, values: Mapping[str, str]) -> None:
        """Add a topic with its dynamic configs."""
        self._topics.add(name)
        self.replace(ResourceType.TOPIC, name, values)

    def drop_topic(self, name: str) -> None:
        """Remove a topic and its dynamic configs."""
        self._topics.discard(name)
        self.replace(ResourceType.TOPIC, name, NOTHING_SET)

    def names_set(self, resource_type: int) -> Sequence[str]:
        """Return the names of all resources of a type with dynamic configs, ascending."""
        return sorted(name for kind, name in self._values if kind == resource_type)

    def layers(self, node_id: int | None = None) -> BrokerLayers:
        """Return the config layers of a broker; None means the first broker."""
        node_id = self.first_node_id if node_id is None else node_id
        layers = self._layers.get(node_id)
        if layers is None:
            layers = self._layers[node_id] = BrokerLayers(
                dynamic=self.current(ResourceType.BROKER, str(node_id)),
                cluster=self.current(ResourceType.BROKER, CLUSTER_DEFAULT),
                static=self._static[node_id],
            )
        return layers

    def topic_describer(self, node_id: int) -> TopicDescriber:
        """Return the describer of topics from the view of a broker."""
        describer = self._describers.get(node_id)
        if describer is None:
            describer = self._describers[node_id] = TopicDescriber(self.layers(node_id))
        return describer

    def created_topic_describer(self, node_id: int) -> CreatedTopicDescriber:
        """Return the describer of new topics in CreateTopics responses, from the view of a broker."""
        describer = self._created_describers.get(node_id)
        if describer is None:
            describer = self._created_describers[node_id] = CreatedTopicDescriber(self.layers(node_id))
        return describer

    def topic_config(self, name: str) -> Mapping[str, ConfigValue | None]:
        """Return the effective configs of a topic, typed; for an unknown topic the broker's defaults."""
        config = self._topic_configs.get(name)
        if config is not None:
            return config
        defaults = self._topic_defaults
        if defaults is None:
            defaults = self._topic_defaults = self.layers().topic_defaults()
        overrides = self.current(ResourceType.TOPIC, name)
        if not overrides:
            return defaults
        table = topic_configs()
        own = {key: table[key].parse(text) for key, text in overrides.items()}
        config = self._topic_configs[name] = MappingProxyType({**defaults, **own})
        return config

    def topic_default_texts(self) -> Mapping[str, str]:
        """Return the broker's value of every topic config that has one, as DescribeConfigs shows it."""
        cached = self._topic_default_texts
        if cached is None:
            defaults = self.layers().topic_defaults()
            texts = {name: format_value(value) for name, value in defaults.items() if value is not None}
            cached = self._topic_default_texts = MappingProxyType(texts)
        return cached

    def group_config(self, group_id: str) -> Mapping[str, ConfigValue | None]:
        """Return the effective configs of a group, typed. Groups without dynamic configs have the broker's defaults."""
        overrides, table = self.current(ResourceType.GROUP, group_id), group_configs()
        layers = self.layers()
        return MappingProxyType(
            {
                name: table[name].parse(overrides[name]) if name in overrides else layers.group_default(name)
                for name in table
            }
        )

    def _forget_broker_views(self) -> None:
        self._layers.clear()
        self._describers.clear()
        self._created_describers.clear()
        self._topic_configs.clear()
        self._topic_defaults = None
        self._topic_default_texts = None

"""Layers of broker config values: dynamic per broker, dynamic cluster-wide, properties file, built-in default.

Topics and groups that do not set a config inherit its value from these layers.
"""

from __future__ import annotations

from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, cast

from klamm.configs.definitions import (
    base_name,
    broker_configs,
    broker_families,
    find_broker_config,
    group_configs,
    has_listener_prefix,
    topic_configs,
    topic_synonyms,
)
from klamm.configs.values import ConfigValue, format_value, parse_value
from klamm.lazy_dataclass import dataclass
from klamm.protocol.types import ConfigSource

if TYPE_CHECKING:
    from collections.abc import Mapping

NOTHING_SET: Mapping[str, str] = MappingProxyType({})

_STREAMS_ASSIGNORS: Final = "group.streams.assignors"
"""Broker config whose first assignor is the default of ``streams.assignor.name``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Synonym:
    """One possible source of a config's value, as DescribeConfigs lists it."""

    name: str
    value: str | None
    """Value at this source. None means that the value is a secret."""
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLayers:
    """Config values of one broker by layer, the most specific first.

    No layer contains None: a name is set or absent.
    """

    dynamic: Mapping[str, str] = field(default_factory=lambda: NOTHING_SET)
    """Dynamic configs of this broker."""
    cluster: Mapping[str, str] = field(default_factory=lambda: NOTHING_SET)
    """Dynamic configs of the cluster-wide default."""
    static: Mapping[str, str] = field(default_factory=lambda: NOTHING_SET)
    """Values of the properties file, including ``node.id`` and ``broker.id``."""

    def text(self, name: str) -> str | None:
        """Return a value as written in the most specific layer that sets it, else the default, else None."""
        for layer in (self.dynamic, self.cluster, self.static):
            if name in layer:
                return layer[name]
        definition = broker_configs().get_definition(name)
        return None if definition is None else definition.default

    def value(self, name: str) -> ConfigValue | None:
        """Return the typed value in force of a config; None if it is not set and has no default.

        A name with a listener prefix falls back to the config without the prefix.
        """
        for layer in (self.dynamic, self.cluster, self.static):
            if name in layer:
                definition = find_broker_config(name)
                return layer[name] if definition is None else parse_value(name, layer[name], definition.config_type)
        definition = broker_configs().get_definition(name)
        if definition is not None:
            return definition.default_value
        return self.value(base_name(name)) if has_listener_prefix(name) else None

    def synonyms(self, name: str, *, is_sensitive: bool) -> tuple[Synonym, ...]:
        """Return every source of a broker config's value, in order of precedence.

        As in Kafka, sources before the first one named ``name`` itself are omitted: a retention in hours does not count
        as a retention in milliseconds unless the latter is set somewhere.
        """
        base = base_name(name)
        names = (name, base) if base != name else broker_families().get(name, (name,))
        table = broker_configs()
        defaults = {n: d.default for n in names if (d := table.get_definition(n)) and d.default is not None}
        synonyms = [
            Synonym(name=n, value=None if is_sensitive else layer[n], source=source)
            for layer, source in (
                (self.dynamic, ConfigSource.DYNAMIC_BROKER_CONFIG),
                (self.cluster, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
                (self.static, ConfigSource.STATIC_BROKER_CONFIG),
                (defaults, ConfigSource.DEFAULT_CONFIG),
            )
            for n in names
            if n in layer
        ]
        own = next((i for i, synonym in enumerate(synonyms) if synonym.name == name), len(synonyms))
        return tuple(synonyms[own:])

    def topic_default(self, name: str) -> ConfigValue | None:
        """Return the value in force of a topic config that the topic does not set; None if it has no default."""
        for synonym in topic_synonyms().get(name, ()):
            value = self.value(synonym.name)
            if value is None:
                continue
            if name == "retention.ms" and cast("int", value) < 0:
                return -1  # any negative number means unlimited
            if name == "flush.ms" and cast("int", value) < 0:
                break  # the same, but the topic config expresses it by its default
            return value if synonym.milliseconds is None else cast("int", value) * synonym.milliseconds
        return topic_configs()[name].default_value

    def topic_default_text(self, name: str) -> tuple[str | None, ConfigSource]:
        """Return the default of a topic config as it was written, in the topic config's unit, and its source.

        Layers take precedence over synonyms here, as in the CreateTopics response.
        """
        for layer, source in (
            (self.dynamic, ConfigSource.DYNAMIC_BROKER_CONFIG),
            (self.cluster, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
            (self.static, ConfigSource.STATIC_BROKER_CONFIG),
        ):
            for synonym in topic_synonyms().get(name, ()):
                if synonym.name in layer:
                    text = layer[synonym.name]
                    if synonym.milliseconds is not None:
                        text = str(int(text) * synonym.milliseconds)
                    return text, source
        return topic_configs()[name].default, ConfigSource.DEFAULT_CONFIG

    def topic_defaults(self) -> Mapping[str, ConfigValue | None]:
        """Return the values in force of all topic configs for a topic that sets none of them."""
        return MappingProxyType({name: self.topic_default(name) for name in topic_configs()})

    def group_default(self, name: str) -> ConfigValue | None:
        """Return the value in force of a group config that the group does not set."""
        broker_name = group_synonym(name)
        value = group_configs()[name].default_value if broker_name is None else self.value(broker_name)
        return value[0] if broker_name == _STREAMS_ASSIGNORS and isinstance(value, tuple) else value

    def topic_default_shown(self, name: str) -> str | None:
        """Return the value in force of a topic config that the topic does not set, as DescribeConfigs shows it."""
        value = self.topic_default(name)
        return None if value is None else format_value(value)


def group_synonym(name: str) -> str | None:
    """Return the broker config that provides the default of a group config; None if there is none."""
    if name == "streams.assignor.name":
        return _STREAMS_ASSIGNORS
    broker_name = f"group.{name}"
    return broker_name if broker_name in broker_configs() else None

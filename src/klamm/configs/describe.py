"""Config descriptions (Kafka's ``ConfigHelper``): values in force, their source, and their synonyms.

All results are sorted by name. As in Kafka, an internal config is described only where it is set, with its value as it
was written.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from klamm.configs.definitions import (
    ConfigDefinition,
    base_name,
    broker_configs,
    client_metrics_configs,
    find_broker_config,
    group_configs,
    topic_configs,
    topic_synonyms,
)
from klamm.configs.layers import BrokerLayers, Synonym, group_synonym
from klamm.configs.values import format_value
from klamm.lazy_dataclass import dataclass
from klamm.protocol.types import ConfigSource, ConfigType, ResourceType

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

TEXTS: Final = Path(__file__).with_name("documentation.txt")
"""Documentation texts. There is one section per resource type; each line is a name, `` = `` and a sentence."""

_SECTIONS: Final = {
    ResourceType.TOPIC: "topic",
    ResourceType.BROKER: "broker",
    ResourceType.GROUP: "group",
    ResourceType.CLIENT_METRICS: "client-metrics",
}
_TABLES: Final = {
    ResourceType.TOPIC: topic_configs,
    ResourceType.BROKER: broker_configs,
    ResourceType.GROUP: group_configs,
    ResourceType.CLIENT_METRICS: client_metrics_configs,
}
_INTERNAL: Final = "An internal config, which may change with any version."


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConfig:
    """Description of one config."""

    name: str
    value: str | None
    """Value of the config. None means that it is a secret or has no value."""
    is_read_only: bool
    source: ConfigSource
    is_sensitive: bool
    synonyms: tuple[Synonym, ...]
    config_type: ConfigType


def select_keys(configs: Iterable[DescribedConfig], keys: Collection[str] | None) -> tuple[DescribedConfig, ...]:
    """Return the requested configs. None or no keys requests all configs. Unknown keys are ignored."""
    if not keys:
        return tuple(configs)
    wanted = set(keys)
    return tuple(config for config in configs if config.name in wanted)


class TopicDescriber:
    """Describer of topics on one broker. The configs that a topic does not set are computed once for all topics."""

    def __init__(self, layers: BrokerLayers) -> None:
        self._defaults: Mapping[str, DescribedConfig] = MappingProxyType(
            {d.name: _topic_default(d, layers) for d in sorted(topic_configs().described, key=lambda d: d.name)}
        )
        self._without_overrides = tuple(self._defaults.values())

    def describe(self, overrides: Mapping[str, str]) -> tuple[DescribedConfig, ...]:
        """Describe a topic whose own configs are ``overrides``."""
        if not overrides:
            return self._without_overrides
        described = [
            _overridden(default, overrides[name], ConfigSource.DYNAMIC_TOPIC_CONFIG) if name in overrides else default
            for name, default in self._defaults.items()
        ]
        return _with_internal(described, overrides, has_synonyms=True)


class CreatedTopicDescriber:
    """Describer of topics for the CreateTopics response: values as they were written, without synonyms."""

    def __init__(self, layers: BrokerLayers) -> None:
        self._defaults: Mapping[str, DescribedConfig] = MappingProxyType(
            {d.name: _created_default(d, layers) for d in sorted(topic_configs().described, key=lambda d: d.name)}
        )
        self._without_overrides = tuple(self._defaults.values())

    def describe(self, overrides: Mapping[str, str]) -> tuple[DescribedConfig, ...]:
        """Describe a topic that was created with the configs ``overrides``."""
        if not overrides:
            return self._without_overrides
        described = [
            replace(default, value=overrides[name], source=ConfigSource.DYNAMIC_TOPIC_CONFIG)
            if name in overrides
            else default
            for name, default in self._defaults.items()
        ]
        return _with_internal(described, overrides, has_synonyms=False)


def _with_internal(
    described: list[DescribedConfig], overrides: Mapping[str, str], *, has_synonyms: bool
) -> tuple[DescribedConfig, ...]:
    """Return the description of a topic with the internal configs that it sets. No broker config is their synonym."""
    source = ConfigSource.DYNAMIC_TOPIC_CONFIG
    internal = [
        _entry(
            definition,
            value=text,
            source=source,
            synonyms=(Synonym(name=name, value=text, source=source),) if has_synonyms else (),
        )
        for name, text in overrides.items()
        if (definition := topic_configs()[name]).is_internal
    ]
    return tuple(sorted([*described, *internal], key=lambda config: config.name) if internal else described)


def _created_default(definition: ConfigDefinition, layers: BrokerLayers) -> DescribedConfig:
    value, source = layers.topic_default_text(definition.name)
    return _entry(definition, value=value, source=source)


def describe_broker(layers: BrokerLayers) -> tuple[DescribedConfig, ...]:
    """Describe one broker: all broker configs, and any other names that are set, such as internal configs."""
    names = {definition.name for definition in broker_configs().described}
    for layer in (layers.dynamic, layers.cluster, layers.static):
        names.update(layer)
    return tuple(_broker_config(name, layers) for name in sorted(names))


def describe_cluster_default(layers: BrokerLayers) -> tuple[DescribedConfig, ...]:
    """Describe the cluster-wide default: only the configs set there, with values as they were written."""
    described = []
    for name in sorted(layers.cluster):
        definition = find_broker_config(name)
        is_sensitive = definition is None or definition.is_sensitive
        synonyms = tuple(
            synonym
            for synonym in layers.synonyms(name, is_sensitive=is_sensitive)
            if synonym.source is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        )
        described.append(
            DescribedConfig(
                name=name,
                value=None if is_sensitive else layers.cluster[name],
                is_read_only=_is_read_only(name),
                source=ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
                is_sensitive=is_sensitive,
                synonyms=synonyms,
                config_type=ConfigType.UNKNOWN if definition is None else definition.config_type,
            )
        )
    return tuple(described)


def describe_group(overrides: Mapping[str, str], layers: BrokerLayers) -> tuple[DescribedConfig, ...]:
    """Describe a group. The broker configs that provide its defaults are synonyms."""
    described = []
    for definition in sorted(group_configs().values(), key=lambda d: d.name):
        name = definition.name
        default = layers.group_default(name)
        value = "" if default is None else format_value(default)
        broker_name = group_synonym(name)
        synonyms: tuple[Synonym, ...] = (Synonym(name=name, value=value, source=ConfigSource.DEFAULT_CONFIG),)
        if broker_name is not None:
            synonyms = layers.synonyms(broker_name, is_sensitive=False)
        if name in overrides:
            text = overrides[name]
            value = text if definition.is_internal else format_value(definition.parse(text))
            synonyms = (Synonym(name=name, value=value, source=ConfigSource.GROUP_CONFIG), *synonyms)
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
        if definition.is_internal and source is ConfigSource.DEFAULT_CONFIG:
            continue
        described.append(_entry(definition, value=value, source=source, synonyms=synonyms))
    return tuple(described)


def describe_client_metrics(overrides: Mapping[str, str]) -> tuple[DescribedConfig, ...]:
    """Describe a client metrics subscription. One that was never created has the default values."""
    described = []
    for definition in sorted(client_metrics_configs().described, key=lambda d: d.name):
        entry = _entry(definition, value=definition.default, source=ConfigSource.DEFAULT_CONFIG)
        text = overrides.get(definition.name)
        described.append(entry if text is None else _overridden(entry, text, ConfigSource.CLIENT_METRICS_CONFIG))
    return tuple(described)


def _entry(
    definition: ConfigDefinition, *, value: str | None, source: ConfigSource, synonyms: tuple[Synonym, ...] = ()
) -> DescribedConfig:
    return DescribedConfig(
        name=definition.name,
        value=value,
        is_read_only=False,
        source=source,
        is_sensitive=False,
        synonyms=synonyms,
        config_type=definition.config_type,
    )


def _topic_default(definition: ConfigDefinition, layers: BrokerLayers) -> DescribedConfig:
    name = definition.name
    behind = topic_synonyms().get(name, ())
    synonyms = layers.synonyms(behind[0].name, is_sensitive=False) if behind else ()
    value = layers.topic_default(name)
    return _entry(
        definition,
        value=None if value is None else format_value(value),
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        synonyms=synonyms,
    )


def _overridden(default: DescribedConfig, text: str, source: ConfigSource) -> DescribedConfig:
    """Return the description of a config that the resource itself sets, followed by the synonyms it overrides."""
    table = topic_configs() if source is ConfigSource.DYNAMIC_TOPIC_CONFIG else client_metrics_configs()
    value = format_value(table[default.name].parse(text))
    own = Synonym(name=default.name, value=value, source=source)
    return DescribedConfig(
        name=default.name,
        value=value,
        is_read_only=False,
        source=source,
        is_sensitive=False,
        synonyms=(own, *default.synonyms),
        config_type=default.config_type,
    )


def _broker_config(name: str, layers: BrokerLayers) -> DescribedConfig:
    definition = find_broker_config(name)
    # An unknown config might be a secret.
    is_sensitive = definition is None or definition.is_sensitive
    is_internal = definition is not None and definition.is_internal
    value = None if is_sensitive else layers.text(name) if is_internal else layers.value(name)
    synonyms = layers.synonyms(name, is_sensitive=is_sensitive)
    return DescribedConfig(
        name=name,
        value=None if value is None else format_value(value),
        is_read_only=_is_read_only(name),
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        is_sensitive=is_sensitive,
        synonyms=synonyms,
        config_type=ConfigType.UNKNOWN if definition is None else definition.config_type,
    )


def _is_read_only(name: str) -> bool:
    """Return the ``read_only`` flag. A name with a listener prefix is described as read-only although it can change."""
    definition = broker_configs().get_definition(name)
    return definition is None or definition.is_read_only


def documentation(resource_type: int, name: str) -> str | None:
    """Return a sentence that documents a config, or None if there is no documentation."""
    texts = _texts().get(resource_type)
    if texts is None:
        return None
    text = texts.get(name) or (texts.get(base_name(name)) if resource_type == ResourceType.BROKER else None)
    definition = _TABLES[ResourceType(resource_type)]().get_definition(name)
    return _INTERNAL if text is None and definition is not None and definition.is_internal else text


@cache
def _texts() -> Mapping[int, Mapping[str, str]]:
    sections: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in TEXTS.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            current = sections.setdefault(line.strip("[]"), {})
        elif line:
            name, _, sentence = line.partition(" = ")
            current[name] = sentence
    return MappingProxyType({kind: MappingProxyType(sections[section]) for kind, section in _SECTIONS.items()})

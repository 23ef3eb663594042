"""Effective values of topic configs before and after changes, along Kafka's chain of synonyms."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from klamm.configs.definitions import find_broker_config, topic_configs, topic_synonyms
from klamm.configs.values import JAVA_BLANKS, parse_java_int
from klamm.impact.facts import ConfigValueFact
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import InvalidConfigError
from klamm.protocol.types import ConfigSource, ResourceType

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from klamm.impact.changes import ConfigAltered
    from klamm.impact.facts import ObservedTopic

REMOTE_STORAGE: Final = "remote.storage.enable"
CLUSTER_DEFAULT: Final = ""
"""Resource name of the cluster-wide default of all brokers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfigs:
    """Effective configs of a topic before and after changes. Only configs whose effective value differs count."""

    topic: ObservedTopic
    before: Mapping[str, str | None]
    after: Mapping[str, str | None]
    resource: str
    """The changed resource, for people."""

    def is_changed(self, *names: str) -> bool:
        """Return whether the effective value of one of the configs differs."""
        return any(self.before.get(name) != self.after.get(name) for name in names)

    def number_before(self, name: str) -> int:
        """Return the integer before the changes."""
        return _number(name, self.before)

    def number(self, name: str) -> int:
        """Return the integer after the changes."""
        return _number(name, self.after)

    def is_enabled(self, name: str) -> bool:
        """Return whether a boolean becomes true. Kafka ignores its case."""
        return _is_true(name, self.after) and not _is_true(name, self.before)

    def is_remote_log_deleted(self) -> bool:
        """Return whether remote storage is disabled. Kafka then deletes the remote log, or rejects the change."""
        return _is_true(REMOTE_STORAGE, self.before) and not _is_true(REMOTE_STORAGE, self.after)

    def policies_before(self) -> frozenset[str]:
        """Return the cleanup policies before the changes."""
        return _policies(self.before)

    def policies(self) -> frozenset[str]:
        """Return the cleanup policies after the changes."""
        return _policies(self.after)


def has_remote_log(topic: ObservedTopic) -> bool:
    """Return whether segments of a topic may be in remote storage (KIP-405)."""
    return _is_true(REMOTE_STORAGE, {REMOTE_STORAGE: _effective(REMOTE_STORAGE, topic.configs.get(REMOTE_STORAGE, ()))})


def with_inherited(name: str, chain: tuple[ConfigValueFact, ...], inherited: str | None) -> tuple[ConfigValueFact, ...]:
    """Return the values of a topic config with the inherited one at the end, which Kafka may leave out.

    It describes ``log.retention.hours`` only below a value of ``log.retention.ms``.

    Args:
        name: Topic config.
        chain: Values as described.
        inherited: Value in force if the topic does not set it, in the unit of the topic config; None if there is none.
    """
    if inherited is None or any(entry.source is not ConfigSource.DYNAMIC_TOPIC_CONFIG for entry in chain):
        return chain
    return (*chain, ConfigValueFact(name=name, value=inherited, source=ConfigSource.DEFAULT_CONFIG))


def topic_keys(change: ConfigAltered) -> tuple[str, ...]:
    """Return the topic configs whose effective value a config change may affect."""
    if change.resource_type == ResourceType.TOPIC:
        return (change.name,)
    if change.resource_type != ResourceType.BROKER:
        return ()
    return _inheriting_keys(change.name)


@cache
def _inheriting_keys(broker_config: str) -> tuple[str, ...]:
    return tuple(key for key, names in topic_synonyms().items() if any(each.name == broker_config for each in names))


@cache
def _units(key: str) -> Mapping[str, int | None]:
    """Return the milliseconds per unit of each broker synonym of a topic config, the most specific synonym first."""
    return {synonym.name: synonym.milliseconds for synonym in topic_synonyms().get(key, ())}


def effective_configs(
    topic: ObservedTopic,
    changes: Collection[ConfigAltered],
    resource: str,
    inherited: Mapping[int, Mapping[str, tuple[ConfigValueFact, ...]]],
) -> list[TopicConfigs]:
    """Return the effective configs of a topic before and after some changes of itself, of brokers and of defaults.

    Brokers with values of their own may have others, so there is one result for each group of brokers that have the
    same. A change with an invalid value is left out: the cluster rejects it.

    Args:
        topic: The topic.
        changes: The changes.
        resource: The changed resource, for people.
        inherited: Values that topics inherit from each broker (``ClusterFacts.inherited``).
    """
    brokers = topic.config_brokers
    if brokers is None:
        brokers = frozenset(node for partition in topic.partitions for node in partition.replicas)
    described = sorted(brokers & inherited.keys())
    groups = [(frozenset([node]), inherited[node]) for node in described]
    if len(described) < len(brokers) or not brokers:  # a broker that is down has the values of another, as far as known
        groups.append((brokers.difference(described), next(iter(inherited.values()), {})))
    effective: list[TopicConfigs] = []
    for nodes, values in groups:
        chains = {**topic.configs, **{key: (*_own(topic, key), *chain) for key, chain in values.items()}}
        before = {name: _effective(name, chain) for name, chain in chains.items()}
        for change in changes:
            if not _concerns(change, topic, nodes) or not _is_valid(change):
                continue
            for key in topic_keys(change):
                chains[key] = _with_change(key, chains.get(key, ()), change)
        after = {name: _effective(name, chain) for name, chain in chains.items()}
        configs = TopicConfigs(topic=topic, before=before, after=after, resource=resource)
        if configs not in effective:
            effective.append(configs)
    return effective


def _own(topic: ObservedTopic, key: str) -> list[ConfigValueFact]:
    """Return the value of a config that the topic sets itself, if any."""
    return [each for each in topic.configs.get(key, ()) if each.source is ConfigSource.DYNAMIC_TOPIC_CONFIG]


def _concerns(change: ConfigAltered, topic: ObservedTopic, nodes: Collection[int]) -> bool:
    if change.resource_type == ResourceType.TOPIC:
        return change.resource_name == topic.name
    node = parse_java_int(change.resource_name)  # ``01`` is broker 1
    return change.resource_name == CLUSTER_DEFAULT or node in nodes


def _is_valid(change: ConfigAltered) -> bool:
    is_of_topic = change.resource_type == ResourceType.TOPIC
    definition = topic_configs().get_definition(change.name) if is_of_topic else find_broker_config(change.name)
    try:
        return definition is not None and (change.value is None or definition.parse(change.value) is not None)
    except InvalidConfigError:
        return False


def _with_change(key: str, chain: tuple[ConfigValueFact, ...], change: ConfigAltered) -> tuple[ConfigValueFact, ...]:
    """Return the chain with the changed value in its place, which depends on synonym first and source second."""
    if change.resource_type == ResourceType.TOPIC:
        source = ConfigSource.DYNAMIC_TOPIC_CONFIG
    elif change.resource_name == CLUSTER_DEFAULT:
        source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    else:
        source = ConfigSource.DYNAMIC_BROKER_CONFIG
    others = [entry for entry in chain if (entry.name, entry.source) != (change.name, source)]
    if change.value is not None:
        others.append(ConfigValueFact(name=change.name, value=change.value, source=source))
    names = list(_units(key))

    def place(entry: ConfigValueFact) -> tuple[bool, int, int]:
        is_own = entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG
        return not is_own, names.index(entry.name) if entry.name in names else len(names), entry.source

    return tuple(sorted(others, key=place))


def _effective(key: str, chain: tuple[ConfigValueFact, ...]) -> str | None:
    """Return the first value of a chain in the unit of the topic config, or Kafka's default.

    It has no blanks at its ends, which Kafka ignores, and some of which Python does not know.
    """
    for entry in chain:
        if entry.value is None:
            continue
        value = entry.value.strip(JAVA_BLANKS)
        unit = None if entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG else _units(key).get(entry.name)
        return value if unit is None else str(int(value) * unit)
    definition = topic_configs().get_definition(key)
    return None if definition is None else definition.default


def _number(name: str, values: Mapping[str, str | None]) -> int:
    text = values.get(name)
    if text is None:
        definition = topic_configs()[name]
        text = definition.default or "0"
    return int(text)


def _is_true(name: str, values: Mapping[str, str | None]) -> bool:
    return (values.get(name) or "").lower() == "true"


def _policies(values: Mapping[str, str | None]) -> frozenset[str]:
    return frozenset(part.strip() for part in (values.get("cleanup.policy") or "").split(",") if part.strip())

"""Tables of all configs, one per resource type, read from the data file of Kafka 4.4 next to this module.

DescribeConfigs, the alter APIs, CreateTopics and the broker's own settings all use these tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from klamm.configs.validators import Check, build_check
from klamm.configs.values import JAVA_BLANKS, ConfigValue, parse_java_int, parse_value
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import InvalidConfigError
from klamm.protocol.types import ConfigType, UpdateMode

FACTS: Final = Path(__file__).with_name("kafka-4.4-configs.json")

MAX_DECOMPRESSED_BYTES: Final = "max.decompressed.message.bytes"
MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
CREATE_TOPICS_POLICY: Final = "create.topics.policy.class.name"
"""Name of ``create.topic.policy.class.name`` in the text of KIP-108."""
ALLOWED_CLIENT_CONFIGS: Final = "client.configs.allowed.keys"
"""klamm's own config: the client configs that may be set centrally (KIP-649). All of them if it is not set."""
CLIENT_CONFIG_ENFORCEMENT: Final = "client.config.enforcement"
"""klamm's own config: whether the broker enforces client configs for clients that do not follow them."""
CLIENT_METRICS_MAX_SERIES: Final = "client.metrics.max.series"
CLIENT_METRICS_OTLP_ENDPOINT: Final = "client.metrics.otlp.endpoint"
CLIENT_METRICS_OTLP_FILE: Final = "client.metrics.otlp.file"
HISTORY_MAX_ENTRIES: Final = "config.history.max.entries"
METRICS_LISTEN: Final = "metrics.listen"
POLICY_TIMEOUT_MS: Final = "policy.timeout.ms"
POLICY_RELOAD_INTERVAL_MS: Final = "policy.reload.interval.ms"
POLICY_RULES_FILE: Final = "policy.rules.file"
UPSTREAM: Final = "upstream.bootstrap.servers"
"""Setting that distinguishes a gateway's properties from a broker's: only a gateway has it."""
_POLICY_MODES: Final = "(case insensitive) [ENFORCE, AUDIT]"

_LISTENER = re.compile(r"listener\.name\.[^.]*\.(.*)", re.DOTALL)
# Configs with the prefix listener.name.<listener>.<mechanism>. All others have the prefix listener.name.<listener>.
_PER_MECHANISM = (
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
    "connections.max.reauth.ms",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDefinition:
    """Definition of a config: name, type, default and valid values."""

    name: str
    config_type: ConfigType
    default: str | None
    """Default value as Kafka describes it. None means that there is no default."""
    default_value: ConfigValue | None
    check: Check | None
    """Validator of single values. None means that every value of the type is valid."""
    is_internal: bool = False
    """Whether the config is internal: accepted, but described only where it is set."""
    update_mode: UpdateMode = UpdateMode.CLUSTER_WIDE
    """Update mode of a broker config. Configs of other resource types can always change."""
    drops_duplicates: bool = False
    """Whether duplicate elements of a list are ignored. Broker configs reject them."""
    is_listed: bool = True
    """Whether the config is always described. False means that it is described only if it is set, such as a replication
    quota, which can only be set dynamically.
    """

    @property
    def is_sensitive(self) -> bool:
        """Return whether the value is a secret, which is never shown."""
        return self.config_type is ConfigType.PASSWORD

    @property
    def is_read_only(self) -> bool:
        """The ``read_only`` flag in DescribeConfigs."""
        return self.update_mode is UpdateMode.READ_ONLY

    def is_same(self, first: str, second: str, *, is_ordered: bool = False) -> bool:
        """Return whether two texts are the same value: numbers by value, lists without blanks.

        Args:
            first: A value.
            second: Another value. An invalid one is never the same.
            is_ordered: Whether the order of a list matters.
        """
        try:
            values = [self.parse(text) for text in (first, second)]
        except InvalidConfigError:
            return False
        one, other = (sorted(v) if isinstance(v, tuple) and not is_ordered else v for v in values)
        return one == other

    def parse(self, text: str) -> ConfigValue:
        """Parse a value and check it.

        Raises:
            InvalidConfigError: The value is not of the type or is out of range.
        """
        value = parse_value(self.name, text, self.config_type)
        if self.drops_duplicates and isinstance(value, tuple):
            value = tuple(dict.fromkeys(value))
        if self.check is not None:
            self.check(self.name, value)
        return value


class ConfigTable(Mapping[str, ConfigDefinition]):
    """Read-only table of the configs of one resource type, by name, in the order in which Kafka checks them.

    A definition is created when it is first used: most brokers use a few of the 400.

    Args:
        facts: Type, default and valid values of each config, as in the data file.
    """

    def __init__(self, facts: Mapping[str, Mapping[str, Any]]) -> None:
        self._facts = facts
        self._definitions: dict[str, ConfigDefinition] = {}
        self.positions: Mapping[str, int] = MappingProxyType({name: i for i, name in enumerate(facts)})
        """Position of each name in the order of checking."""

    @cached_property
    def described(self) -> tuple[ConfigDefinition, ...]:
        """Configs in a description of all configs."""
        return tuple(definition for definition in self.values() if definition.is_listed and not definition.is_internal)

    def __getitem__(self, name: str) -> ConfigDefinition:
        """Return a definition.

        Raises:
            KeyError: No config has this name.
        """
        definition = self._definitions.get(name)
        if definition is None:
            definition = self._definitions[name] = _define(name, self._facts[name])
        return definition

    def __contains__(self, name: object) -> bool:
        """Return whether a config of this name exists. Names are case-sensitive and not trimmed."""
        return name in self._facts

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names in the order of checking."""
        return iter(self._facts)

    def __len__(self) -> int:
        """Return the number of configs, including internal ones."""
        return len(self._facts)

    def get_definition(self, name: str) -> ConfigDefinition | None:
        """Return the definition of a config, or None if there is none."""
        return self[name] if name in self._facts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSynonym:
    """A broker config that provides the default of a topic config."""

    name: str
    milliseconds: int | None
    """Milliseconds per unit of the broker config. None means that both configs have the same unit."""


def base_name(name: str) -> str:
    """Return the name of a broker config without ``listener.name.<listener>.[<mechanism>.]``."""
    match = _LISTENER.fullmatch(name)
    if match is None:
        return name
    base = match.group(1)
    return next((config for config in _PER_MECHANISM if base.endswith(config)), base)


def has_listener_prefix(name: str) -> bool:
    """Return whether the name of a broker config has a listener prefix."""
    return _LISTENER.fullmatch(name) is not None


@cache
def _facts() -> dict[str, dict[str, Any]]:
    with FACTS.open(encoding="utf-8") as file:
        facts: dict[str, dict[str, Any]] = json.load(file)
    return facts


def _define(name: str, fact: Mapping[str, Any]) -> ConfigDefinition:
    config_type = ConfigType[fact["type"]]
    is_distinct_list = config_type is ConfigType.LIST and name not in _THROTTLED_REPLICAS
    default = fact["default"]
    return ConfigDefinition(
        name=name,
        config_type=config_type,
        default=default,
        default_value=None if default is None else parse_value(name, default, config_type),
        check=build_check(fact["validator"], config_type, may_be_empty=name not in _NEVER_EMPTY_LISTS),
        is_internal=fact["internal"],
        drops_duplicates=is_distinct_list and "update_mode" not in fact,
        update_mode=UpdateMode(fact.get("update_mode", UpdateMode.CLUSTER_WIDE)),
        is_listed=fact.get("listed", True),
    )


def _fact(config_type: str, default: str | None, validator: str | None = None, **more: object) -> dict[str, object]:
    return {"type": config_type, "default": default, "validator": validator, "internal": False, **more}


_THROTTLED_REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")

# Lists that Kafka's validator rejects when they are empty. The data file does not say which.
_NEVER_EMPTY_LISTS = {
    "advertised.listeners",
    "controller.listener.names",
    "group.consumer.assignors",
    "group.coordinator.rebalance.protocols",
    "group.share.assignors",
    "group.streams.assignors",
    "listeners",
    "log.dir",
    "log.dirs",
    "process.roles",
}

# All topic configs, in the order in which Kafka checks them. The error names the first invalid one.
TOPIC_ORDER = (
    "segment.bytes",
    "segment.ms",
    "segment.jitter.ms",
    "segment.index.bytes",
    "flush.messages",
    "flush.ms",
    "retention.bytes",
    "retention.ms",
    "max.message.bytes",
    MAX_DECOMPRESSED_BYTES,
    "index.interval.bytes",
    "delete.retention.ms",
    "min.compaction.lag.ms",
    "max.compaction.lag.ms",
    "file.delete.delay.ms",
    "min.cleanable.dirty.ratio",
    "cleanup.policy",
    "unclean.leader.election.enable",
    "min.insync.replicas",
    "compression.type",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.zstd.level",
    "preallocate",
    "message.timestamp.type",
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
    *_THROTTLED_REPLICAS,
    "remote.storage.enable",
    "local.retention.ms",
    "local.retention.bytes",
    "remote.log.copy.disable",
    "remote.copy.lag.ms",
    "remote.copy.lag.bytes",
    "remote.log.delete.on.disable",
    "errors.deadletterqueue.group.enable",
    "internal.segment.bytes",
)

# Broker configs that Kafka's properties file does not have: quotas that can only be set dynamically.
_MORE_BROKER_CONFIGS: Mapping[str, Mapping[str, object]] = {
    "leader.replication.throttled.rate": _fact("LONG", None, "[0,...]", listed=False),
    "follower.replication.throttled.rate": _fact("LONG", None, "[0,...]", listed=False),
    "replica.alter.log.dirs.io.max.bytes.per.second": _fact("LONG", None, "[0,...]", listed=False),
}

# klamm's own broker configs. Policy modes and files apply to the whole process, whichever broker id receives the
# request.
_OWN_BROKER_CONFIGS: Mapping[str, Mapping[str, object]] = {
    ALLOWED_CLIENT_CONFIGS: _fact("LIST", None, "[acks, enforcement, heartbeat.interval.ms, session.timeout.ms]"),
    CLIENT_CONFIG_ENFORCEMENT: _fact("STRING", "off", "[off, on]"),
    CLIENT_METRICS_MAX_SERIES: _fact("INT", "10000", "[0,...]"),
    CLIENT_METRICS_OTLP_ENDPOINT: _fact("STRING", None, update_mode="read-only"),
    CLIENT_METRICS_OTLP_FILE: _fact("STRING", None, update_mode="read-only"),
    HISTORY_MAX_ENTRIES: _fact("LONG", "1000000", "[0,...]", update_mode="read-only"),
    METRICS_LISTEN: _fact("STRING", None, update_mode="read-only"),
    CREATE_TOPICS_POLICY: _fact("CLASS", None, update_mode="read-only"),
    "create.partitions.policy.class.name": _fact("CLASS", None, update_mode="read-only"),
    "delete.topic.policy.class.name": _fact("CLASS", None, update_mode="read-only"),
    "create.topic.policy.mode": _fact("STRING", "enforce", _POLICY_MODES),
    "alter.config.policy.mode": _fact("STRING", "enforce", _POLICY_MODES),
    "create.partitions.policy.mode": _fact("STRING", "enforce", _POLICY_MODES),
    "delete.topic.policy.mode": _fact("STRING", "enforce", _POLICY_MODES),
    POLICY_TIMEOUT_MS: _fact("INT", "2000", "[1,...]"),
    POLICY_RELOAD_INTERVAL_MS: _fact("INT", "1000", "[0,...]", update_mode="read-only"),
    POLICY_RULES_FILE: _fact("STRING", None),
}

_CLIENT_METRICS: Mapping[str, Mapping[str, object]] = {
    "metrics": _fact("LIST", "", ""),
    "interval.ms": _fact("INT", "300000"),
    "match": _fact("LIST", "", ""),
}


@cache
def topic_configs() -> ConfigTable:
    """Return the table of topic configs."""
    facts = _facts()["topic"]
    return ConfigTable({name: facts[name] for name in TOPIC_ORDER})


@cache
def broker_configs() -> ConfigTable:
    """Return the table of broker configs: dynamic quotas, those of Kafka in its order of checking, klamm's own."""
    return ConfigTable({**_MORE_BROKER_CONFIGS, **_facts()["broker"], **_OWN_BROKER_CONFIGS})


@cache
def own_broker_configs() -> ConfigTable:
    """Return the broker configs that exist only in klamm, not in Kafka."""
    return ConfigTable(_OWN_BROKER_CONFIGS)


@cache
def group_configs() -> ConfigTable:
    """Return the table of group configs (KIP-848, KIP-932, KIP-1071)."""
    return ConfigTable(_facts()["group"])


@cache
def client_metrics_configs() -> ConfigTable:
    """Return the table of configs of client metrics subscriptions (KIP-714)."""
    return ConfigTable(_CLIENT_METRICS)


@cache
def topic_synonyms() -> Mapping[str, tuple[BrokerSynonym, ...]]:
    """Return the broker synonyms of each topic config that has any, the most specific first."""
    units = {"none": None, "minutes to ms": 60_000, "hours to ms": 3_600_000}
    return MappingProxyType(
        {
            name: tuple(BrokerSynonym(name=s["name"], milliseconds=units[s["conversion"]]) for s in synonyms)
            for name, synonyms in _facts()["topic_synonyms"].items()
        }
    )


@cache
def _milliseconds() -> Mapping[str, int]:
    """Return the milliseconds per unit of each broker config in hours or minutes."""
    synonyms = (synonym for several in topic_synonyms().values() for synonym in several)
    return {synonym.name: synonym.milliseconds for synonym in synonyms if synonym.milliseconds is not None}


def in_unit_of(name: str, synonym: str, value: str) -> str:
    """Return the value of a synonym in the unit of a config: ``log.retention.hours`` for ``log.retention.ms``.

    Negative values have a meaning of their own and remain.
    """
    factor = _milliseconds().get(synonym, 1) // _milliseconds().get(name, 1)
    number = parse_java_int(value.strip(JAVA_BLANKS)) if factor > 1 else None
    return value if number is None or number < 0 else str(number * factor)


@cache
def broker_families() -> Mapping[str, tuple[str, ...]]:
    """Return the families of broker configs that express the same setting in different units, the most specific first.

    ``log.flush.interval.ms`` falls back to ``log.flush.scheduler.interval.ms``, but not the other way round.
    """
    families: dict[str, tuple[str, ...]] = {}
    for synonyms in topic_synonyms().values():
        names = tuple(synonym.name for synonym in synonyms)
        if len(names) > 1:
            families.update(dict.fromkeys(names, names))
    del families["log.flush.scheduler.interval.ms"]
    return MappingProxyType(families)


def find_broker_config(name: str) -> ConfigDefinition | None:
    """Return the definition of a broker config, also for a name with a listener prefix; None if the name is unknown."""
    table = broker_configs()
    return table.get_definition(name) or table.get_definition(base_name(name))


def is_secret(name: str) -> bool:
    """Return whether the value of a broker config must not be shown. As in Kafka, unknown configs count as secrets."""
    definition = find_broker_config(name)
    return definition is None or definition.is_sensitive


def parse_broker_settings(settings: Mapping[str, str]) -> Mapping[str, ConfigValue]:
    """Parse the known settings of a broker's properties file.

    Raises:
        InvalidConfigError: A value is not of its type or out of range. The message names key and value.
    """
    values = {}
    for name, text in settings.items():
        definition = find_broker_config(name)
        if definition is None:
            continue
        try:
            values[name] = definition.parse(text)
        except InvalidConfigError as error:
            if definition.is_sensitive:
                raise InvalidConfigError(f"Invalid value for configuration {name}") from error
            raise
    return values

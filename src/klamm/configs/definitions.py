"""What configs exist: one table per kind of resource, read from the facts of Kafka 4.1 beside this module.

Describing, altering, creating and the broker's own settings all derive from these tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from klamm.configs.validators import Check, build_check
from klamm.configs.values import ConfigValue, parse_value
from klamm.protocol.errors import InvalidConfigError
from klamm.protocol.types import ConfigType, UpdateMode

FACTS: Final = Path(__file__).with_name("kafka-4.1-configs.json")

MAX_DECOMPRESSED_BYTES: Final = "max.decompressed.message.bytes"
MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
CREATE_TOPIC_POLICY: Final = "create.topic.policy.class.name"
CREATE_TOPICS_POLICY: Final = "create.topics.policy.class.name"
"""The name that KIP-108's text gives the same config."""
ALLOWED_CLIENT_CONFIGS: Final = "client.configs.allowed.keys"
"""klamm's own: the client configs that may be set centrally (KIP-649); all of them when it is not set."""
HISTORY_MAX_ENTRIES: Final = "config.history.max.entries"
METRICS_LISTEN: Final = "metrics.listen"
POLICY_TIMEOUT_MS: Final = "policy.timeout.ms"
POLICY_RELOAD_INTERVAL_MS: Final = "policy.reload.interval.ms"
POLICY_RULES_FILE: Final = "policy.rules.file"
_POLICY_MODES: Final = "(case insensitive) [ENFORCE, AUDIT]"

_LISTENER = re.compile(r"listener\.name\.[^.]*\.(.*)", re.DOTALL)
# These stand under listener.name.<listener>.<mechanism>., all others directly under listener.name.<listener>.
_PER_MECHANISM = (
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
    "connections.max.reauth.ms",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDefinition:
    """One config: its name, type, default and limits."""

    name: str
    config_type: ConfigType
    default: str | None
    """As Kafka describes it; None when there is none."""
    default_value: ConfigValue | None
    check: Check | None
    """The limit on single values; None when every value of the type will do."""
    importance: str
    is_internal: bool = False
    """Internal configs are accepted and never described."""
    update_mode: UpdateMode = UpdateMode.CLUSTER_WIDE
    """For broker configs only; those of other resources can always change."""
    is_listed: bool = True
    """False: described only when it is set."""

    @property
    def is_sensitive(self) -> bool:
        """Whether the value is a secret, never to be shown."""
        return self.config_type is ConfigType.PASSWORD

    @property
    def is_read_only(self) -> bool:
        """What DescribeConfigs says. Replication quotas can be set at any time and yet are described as read-only."""
        return self.update_mode is UpdateMode.READ_ONLY or not self.is_listed

    def parse(self, text: str) -> ConfigValue:
        """Read a value and check it.

        Raises:
            InvalidConfigError: Not of the type, or outside the limit.
        """
        value = parse_value(self.name, text, self.config_type)
        if self.check is not None:
            self.check(self.name, value)
        return value


class ConfigTable(Mapping[str, ConfigDefinition]):
    """The configs of one kind of resource, by name, in the order in which Kafka checks them. Read-only."""

    def __init__(self, definitions: Mapping[str, ConfigDefinition]) -> None:
        self._definitions = dict(definitions)
        self.described = tuple(d for d in self._definitions.values() if d.is_listed and not d.is_internal)
        """What a description of everything lists."""
        self.positions: Mapping[str, int] = MappingProxyType({name: i for i, name in enumerate(self._definitions)})
        """The place of each name in the order of checking."""

    def __getitem__(self, name: str) -> ConfigDefinition:
        """Return a definition; KeyError for an unknown name."""
        return self._definitions[name]

    def __contains__(self, name: object) -> bool:
        """Tell whether a config of that name exists; names are case-sensitive and are not trimmed."""
        return name in self._definitions

    def __iter__(self) -> Iterator[str]:
        """Walk the names in the order of checking."""
        return iter(self._definitions)

    def __len__(self) -> int:
        """Count the configs, internal ones too."""
        return len(self._definitions)

    def get_definition(self, name: str) -> ConfigDefinition | None:
        """Return the definition of a name, or None."""
        return self._definitions.get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSynonym:
    """A broker config that serves as a topic config's default."""

    name: str
    milliseconds: int | None
    """How many milliseconds one unit of the broker config stands for; None when both have the same unit."""


def base_name(name: str) -> str:
    """Return the broker config that ``listener.name.<listener>.[<mechanism>.]<config>`` stands for, else the name."""
    found = _LISTENER.fullmatch(name)
    if found is None:
        return name
    base = found.group(1)
    return next((config for config in _PER_MECHANISM if base.endswith(config)), base)


def has_listener_prefix(name: str) -> bool:
    """Tell whether a broker config is set for one listener only."""
    return _LISTENER.fullmatch(name) is not None


@cache
def _facts() -> dict[str, dict[str, Any]]:
    with FACTS.open(encoding="utf-8") as file:
        facts: dict[str, dict[str, Any]] = json.load(file)
    return facts


def _define(name: str, fact: Mapping[str, Any]) -> ConfigDefinition:
    config_type = ConfigType[fact["type"]]
    default = fact["default"]
    return ConfigDefinition(
        name=name,
        config_type=config_type,
        default=default,
        default_value=None if default is None else parse_value(name, default, config_type),
        check=build_check(fact["validator"], config_type),
        importance=fact["importance"],
        is_internal=fact["internal"],
        update_mode=UpdateMode(fact.get("update_mode", UpdateMode.CLUSTER_WIDE)),
        is_listed=fact.get("listed", True),
    )


def _fact(config_type: str, default: str | None, validator: str | None = None, **more: object) -> dict[str, object]:
    common = {"importance": "MEDIUM", "internal": False}
    return {"type": config_type, "default": default, "validator": validator, **common, **more}


# Kafka checks several bad values of one topic in this order and names the first.
_TOPIC_ORDER = (
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
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
    "remote.storage.enable",
    "local.retention.ms",
    "local.retention.bytes",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "internal.segment.bytes",
)

# Kafka 4.4 has this one, for topics and, under the same name, as their default for brokers. Kafka 4.1 lists no such
# config, so it is described only where it is set.
_MAX_DECOMPRESSED_BYTES = _fact("INT", "2147483639", "[1,...,2147483639]", listed=False)

# Kafka's broker configs that no properties file of 4.1 has: the one of 4.4, and quotas that exist only dynamically.
_MORE_BROKER_CONFIGS: Mapping[str, Mapping[str, object]] = {
    MAX_DECOMPRESSED_BYTES: _MAX_DECOMPRESSED_BYTES,
    "leader.replication.throttled.rate": _fact("LONG", None, "[0,...]", listed=False),
    "follower.replication.throttled.rate": _fact("LONG", None, "[0,...]", listed=False),
    "replica.alter.log.dirs.io.max.bytes.per.second": _fact("LONG", None, "[0,...]", listed=False),
}

# klamm's own broker configs. Modes and files of policies apply to the whole process, whichever broker id was asked.
_OWN_BROKER_CONFIGS: Mapping[str, Mapping[str, object]] = {
    ALLOWED_CLIENT_CONFIGS: _fact("LIST", None, "[acks, heartbeat.interval.ms, session.timeout.ms]"),
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
    "interval.ms": _fact("INT", "300000"),
    "match": _fact("LIST", ""),
    "metrics": _fact("LIST", ""),
}


@cache
def topic_configs() -> ConfigTable:
    """Return the configs of topics."""
    facts = {**_facts()["topic"], MAX_DECOMPRESSED_BYTES: _MAX_DECOMPRESSED_BYTES}
    return ConfigTable({name: _define(name, facts[name]) for name in _TOPIC_ORDER})


@cache
def broker_configs() -> ConfigTable:
    """Return the configs of brokers."""
    facts = {**_facts()["broker"], **_MORE_BROKER_CONFIGS, **_OWN_BROKER_CONFIGS}
    return ConfigTable({name: _define(name, fact) for name, fact in facts.items()})


@cache
def own_broker_configs() -> ConfigTable:
    """Return the broker configs that klamm has and Kafka does not."""
    return ConfigTable({name: broker_configs()[name] for name in _OWN_BROKER_CONFIGS})


@cache
def group_configs() -> ConfigTable:
    """Return the configs of groups (KIP-848, KIP-932, KIP-1071)."""
    return ConfigTable({name: _define(name, fact) for name, fact in _facts()["group"].items()})


@cache
def client_metrics_configs() -> ConfigTable:
    """Return the configs of client metrics subscriptions (KIP-714)."""
    return ConfigTable({name: _define(name, fact) for name, fact in _CLIENT_METRICS.items()})


@cache
def topic_synonyms() -> Mapping[str, tuple[BrokerSynonym, ...]]:
    """Return the broker configs behind each topic config that has some, the most specific first."""
    units = {"none": None, "minutes to ms": 60_000, "hours to ms": 3_600_000}
    of_41 = {
        name: tuple(BrokerSynonym(name=s["name"], milliseconds=units[s["conversion"]]) for s in synonyms)
        for name, synonyms in _facts()["topic_synonyms"].items()
    }
    newer = {MAX_DECOMPRESSED_BYTES: (BrokerSynonym(name=MAX_DECOMPRESSED_BYTES, milliseconds=None),)}
    return MappingProxyType({**of_41, **newer})


@cache
def broker_families() -> Mapping[str, tuple[str, ...]]:
    """Return, for broker configs that say the same in several units, the whole family, the most specific first.

    ``log.flush.interval.ms`` has a fallback that is not in turn described by it.
    """
    families: dict[str, tuple[str, ...]] = {}
    for synonyms in topic_synonyms().values():
        names = tuple(synonym.name for synonym in synonyms)
        if len(names) > 1:
            families.update(dict.fromkeys(names, names))
    del families["log.flush.scheduler.interval.ms"]
    return MappingProxyType(families)


def find_broker_config(name: str) -> ConfigDefinition | None:
    """Return the definition behind a broker config's name, also below a listener's prefix; None when unknown."""
    table = broker_configs()
    return table.get_definition(name) or table.get_definition(base_name(name))


def parse_broker_settings(settings: Mapping[str, str]) -> Mapping[str, ConfigValue]:
    """Read the known settings of a broker's properties file.

    Raises:
        InvalidConfigError: A value is not of its type or outside its limits; the message names key and value.
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

"""Keys of ``mm2.properties`` that klamm reads or accepts without effect, and parsers of their values."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeVar

from klamm.configs.validators import parse_iso_duration
from klamm.properties import SettingsError, parse_int

if TYPE_CHECKING:
    from collections.abc import Mapping

Choice = TypeVar("Choice", bound=StrEnum)

ACCEPTED_WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "config.storage.topic": "the mirror keeps no configuration on the target",
    "config.storage.replication.factor": "the mirror keeps no configuration on the target",
    "status.storage.topic": "the mirror keeps no status on the target",
    "status.storage.replication.factor": "the mirror keeps no status on the target",
    "dedicated.mode.enable.internal.rest": "Spark places the tasks",
    "listeners": "Spark places the tasks",
    "forwarding.admin.class": "klamm uses its own admin client",
    "key.converter": "records are copied byte for byte",
    "value.converter": "records are copied byte for byte",
    "header.converter": "records are copied byte for byte",
    "connector.class": "flows are named by A->B.enabled",
    "name": "flows are named by A->B.enabled",
    "metric.reporters": "there is no JMX",
    "consumer.poll.timeout.ms": "the mirror waits for data on its own connections",
    "offset.flush.timeout.ms": "source offsets are written in the background",
    "metric.names.formats": "there is no JMX",
    "client.id": "clients are named after their flow",
    "config.action.reload": "the mirror does not watch config providers",
    "connector.client.config.override.policy": "there is no Connect worker",
    "connector.plugin.version": "there is no Connect worker",
    "plugin.path": "there is no Connect worker",
    "plugin.discovery": "there is no Connect worker",
}
"""Keys of MirrorMaker 2 that have no effect here, with the reason. Logged once at startup."""
_ACCEPTED_PREFIXES: Final[Mapping[str, str]] = {
    "config.storage.": "the mirror keeps no configuration on the target",
    "status.storage.": "the mirror keeps no status on the target",
    "key.converter.": "records are copied byte for byte",
    "value.converter.": "records are copied byte for byte",
    "header.converter.": "records are copied byte for byte",
    "internal.": "records are copied byte for byte",
    "errors.": "records are copied byte for byte, no step can fail for a single one",
    "tasks.max.": "Spark places the tasks",
    "task.": "Spark places the tasks",
    "worker.": "there is no Connect worker",
    "rest.": "there is no REST server",
    "admin.listeners": "there is no REST server",
    "topic.creation.": "remote topics have the partitions and configs of their source topics",
}
MAX_LONG: Final = 2**63 - 1
_LONGEST_S: Final = 10**9
"""Longest duration in seconds, 31 years. Longer ones count as this one, because threads cannot wait for longer."""

WORKER_OFFSETS_PREFIX: Final = "offset.storage."
"""Prefix of the Connect worker's keys for its offsets topic."""
FLOW_OFFSETS_TOPIC: Final = "offsets.storage.topic"
ONLY_OF_FLOWS: Final[Mapping[str, str]] = {
    FLOW_OFFSETS_TOPIC: f"MirrorMaker takes it as A->B.{FLOW_OFFSETS_TOPIC} only; offset.storage.topic counts here",
}
"""Keys that count only at ``A->B.``, with the note for any other place."""

READ_IN_CASE: Final = frozenset(
    {
        "admin.timeout.ms",
        "checkpoints.topic.replication.factor",
        "config.properties.blacklist",
        "config.properties.exclude",
        "groups.blacklist",
        "heartbeats.topic.replication.factor",
        "offset-syncs.topic.location",
        "offset-syncs.topic.replication.factor",
        "topics",
        "topics.blacklist",
        "topics.exclude",
        "transaction.boundary.interval.ms",
    }
)
"""Keys that are read only if the feature they belong to is enabled. They count as known in any case."""

DEPRECATED: Final[Mapping[str, str]] = {
    **{
        f"{name}.blacklist": f"MirrorMaker 4.0 and later ignore it, klamm reads it as {name}.exclude"
        for name in ("topics", "groups", "config.properties")
    },
    "use.incremental.alter.configs": (
        "it will be removed in a later major version; topic configs are then always written "
        "with IncrementalAlterConfigs"
    ),
}


def accepted_without_effect(key: str) -> str | None:
    """Return why a key of MirrorMaker has no effect here, or None if it should have one."""
    if (reason := ACCEPTED_WITHOUT_EFFECT.get(key)) is not None:
        return reason
    return next((reason for prefix, reason in _ACCEPTED_PREFIXES.items() if key.startswith(prefix)), None)


def is_of_heartbeats(key: str) -> bool:
    """Return whether a key counts for heartbeats, which do not need an enabled flow."""
    return key in ("enabled", "admin.timeout.ms") or key.startswith(("emit.heartbeats.", "heartbeats.topic."))


class IncrementalAlterConfigs(StrEnum):
    """Values of ``use.incremental.alter.configs`` (KIP-894)."""

    REQUESTED = "requested"
    REQUIRED = "required"
    NEVER = "never"


class DefaultsFrom(StrEnum):
    """Values of ``use.defaults.from`` (KIP-894): the cluster whose default applies to a config that is not set."""

    SOURCE = "source"
    TARGET = "target"


class IsolationLevel(StrEnum):
    """Values of the consumer's ``isolation.level``."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class OnSourceLoss(StrEnum):
    """Values of ``klamm.on.source.loss``: reaction to source records that are lost before they were mirrored."""

    STOP = "stop"
    CONTINUE = "continue"


class SyncsLocation(StrEnum):
    """Values of ``offset-syncs.topic.location``: cluster that holds the offset syncs."""

    SOURCE = "source"
    TARGET = "target"


class OffsetReset(StrEnum):
    """Values of the consumer's ``auto.offset.reset``: start offset of partitions that were never mirrored."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"
    """A partition that was never mirrored is stopped."""
    BY_DURATION = "by_duration"
    """The first record that is not older than a duration (KIP-1106)."""


def parse_offset_reset(key: str, value: str) -> tuple[OffsetReset, timedelta]:
    """Parse ``earliest``, ``latest``, ``none`` or ``by_duration:<ISO 8601 duration>``, with the duration or 0.

    Raises:
        SettingsError: The value is none of them.
    """
    kind, _, text = value.partition(":")
    duration = parse_iso_duration(text) if kind == OffsetReset.BY_DURATION else timedelta() if kind == value else None
    if kind not in [*OffsetReset] or duration is None or duration < timedelta():
        raise SettingsError(f"{key}={value}: expected earliest, latest, none or by_duration:PnDTnHnMn.nS")
    return OffsetReset(kind), duration


def parse_seconds(key: str, value: str) -> timedelta:
    """Parse a duration in seconds, at least 1.

    Raises:
        SettingsError: The value is not an integer or less than 1.
    """
    return timedelta(seconds=min(parse_int(key, value, at_least=1, at_most=MAX_LONG), _LONGEST_S))


def parse_choice(key: str, value: str, choices: type[Choice]) -> Choice:
    """Parse a value of an enum, case-sensitive.

    Raises:
        SettingsError: The value is not one of the enum. Names the allowed values.
    """
    try:
        return choices(value)
    except ValueError as error:
        allowed = ", ".join(choices)
        raise SettingsError(f"{key}={value}: expected one of {allowed}") from error

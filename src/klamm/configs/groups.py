"""Rules for configs of groups (Kafka's ``GroupConfig``) and of client metrics subscriptions (KIP-714)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

from klamm.configs.definitions import ConfigTable, client_metrics_configs, group_configs
from klamm.configs.operations import ConfigSchema
from klamm.lazy_dataclass import dataclass
from klamm.patterns import compile_pattern
from klamm.protocol.errors import InvalidConfigError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.configs.layers import BrokerLayers
    from klamm.configs.values import ConfigValue

# Group configs that the broker configs group.<kind>.min.<name> and group.<kind>.max.<name> limit, as far as they exist.
# In the order in which Kafka checks them.
_LIMITED = (
    ("consumer", "heartbeat.interval.ms"),
    ("consumer", "session.timeout.ms"),
    ("consumer", "assignment.interval.ms"),
    ("share", "heartbeat.interval.ms"),
    ("share", "session.timeout.ms"),
    ("share", "record.lock.duration.ms"),
    ("share", "delivery.count.limit"),
    ("share", "partition.max.record.locks"),
    ("share", "assignment.interval.ms"),
    ("streams", "heartbeat.interval.ms"),
    ("streams", "session.timeout.ms"),
    ("streams", "num.standby.replicas"),
    ("streams", "assignment.interval.ms"),
    ("streams", "task.offset.interval.ms"),
    ("streams", "num.warmup.replicas"),
)
# The middle of the names of their limits, where it is not the name of the config.
_LIMIT_NAMES = {"num.standby.replicas": "standby.replicas", "num.warmup.replicas": "warmup.replicas"}
_ASSIGNOR = "streams.assignor.name"
_RACK_TAGS = "streams.rack.aware.assignment.tags"
_DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"
_KINDS = ("consumer", "share", "streams")

_MIN_INTERVAL_MS = 100
_MAX_INTERVAL_MS = 3_600_000
_MATCHABLE = {
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSchema(ConfigSchema):
    """Schema of the configs of one group."""

    group_id: str
    layers: BrokerLayers

    def validate(self, *, touched: Mapping[str, str | None], result: Mapping[str, str]) -> None:
        """Check names, values, the broker's bounds, and that the session timeout exceeds the heartbeat interval.

        Raises:
            InvalidRequestError: The group name is empty.
            InvalidConfigError: A config does not exist or its value is invalid.
        """
        if not self.group_id:
            raise InvalidRequestError("Default group resources are not allowed.")
        table = group_configs()
        unknown = [name for name in touched if touched[name] is not None and name not in table]
        if unknown:
            raise InvalidConfigError(f"Unknown group config name: {min(unknown)}")
        tags = [tag.strip() for tag in result.get(_RACK_TAGS, "").split(",")]
        if len(set(tags)) != len(tags):
            raise InvalidConfigError(f"{_RACK_TAGS} must not contain duplicate tag keys.")
        values = _parse_all(table, result)
        for kind, what in _LIMITED:
            if f"{kind}.{what}" in values:
                self._check_limits(kind, what, cast("int", values[f"{kind}.{what}"]))
        self._check_relations(values)

    def _check_limits(self, kind: str, what: str, value: int) -> None:
        name, limit = f"{kind}.{what}", _LIMIT_NAMES.get(what, what)
        least = cast("int | None", self.layers.value(f"group.{kind}.min.{limit}"))
        most = cast("int | None", self.layers.value(f"group.{kind}.max.{limit}"))
        if (least is None or least <= value) and (most is None or value <= most):
            return
        if least is None:
            raise InvalidConfigError(f"{name} must be less than or equal to {most}")
        if most is None:
            raise InvalidConfigError(f"{name} must be greater than or equal to {least}")
        raise InvalidConfigError(f"{name} must be in the range {least} to {most} inclusive.")

    def _check_relations(self, values: Mapping[str, ConfigValue]) -> None:
        assignors = cast("tuple[str, ...]", self.layers.value("group.streams.assignors"))
        if _ASSIGNOR in values and values[_ASSIGNOR] not in assignors:
            raise InvalidConfigError(
                f"{_ASSIGNOR} '{values[_ASSIGNOR]}' is not a registered task assignor. Registered assignors are: "
                f"[{', '.join(assignors)}]."
            )
        for kind in _KINDS:
            session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
            timeout, interval = (values.get(name, self.layers.group_default(name)) for name in (session, heartbeat))
            if cast("int", timeout) <= cast("int", interval):
                raise InvalidConfigError(f"{session} must be greater than {heartbeat}")
        if str(values.get(_DEAD_LETTER_TOPIC, "")).startswith("__"):
            raise InvalidConfigError(f"{_DEAD_LETTER_TOPIC}: DLQ topic name must not start with '__'")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMetricsSchema(ConfigSchema):
    """Schema of the configs of one client metrics subscription (KIP-714)."""

    subscription: str

    def validate(self, *, touched: Mapping[str, str | None], result: Mapping[str, str]) -> None:
        """Check names, values, the range of the interval and the match patterns.

        Raises:
            InvalidRequestError: The subscription name is empty, a config does not exist, or the interval is out of
                range.
            InvalidConfigError: A value is not of its type, or a match pattern is invalid.
        """
        if not self.subscription:
            raise InvalidRequestError("Subscription name can't be empty")
        table = client_metrics_configs()
        for name in result:
            if name not in table:
                raise InvalidRequestError(f"Unknown client metrics configuration: {name}")
        values = _parse_all(table, result)
        interval_ms = values.get("interval.ms")
        if interval_ms is not None and not _MIN_INTERVAL_MS <= cast("int", interval_ms) <= _MAX_INTERVAL_MS:
            raise InvalidRequestError(
                f"Invalid value {interval_ms} for interval.ms, interval must be between 100 and 3600000 (1 hour)"
            )
        for pattern in cast("tuple[str, ...]", values.get("match", ())):
            _check_pattern(pattern)


def _parse_all(table: ConfigTable, result: Mapping[str, str]) -> dict[str, ConfigValue]:
    """Parse all configs of a resource, in Kafka's order: the error names the first invalid one."""
    return {name: table[name].parse(result[name]) for name in sorted(result, key=table.positions.__getitem__)}


def _check_pattern(pattern: str) -> None:
    """Reject a pattern that is not of the form ``selector=regular expression``."""
    selector, *expressions = pattern.split("=")
    is_legal = len(expressions) == 1 and expressions[0] != "" and selector.strip() in _MATCHABLE
    if is_legal:
        try:
            # Java's regular expressions have a few character classes that Python's lack; those are accepted unchecked.
            compile_pattern(re.sub(r"\\[pP]\{\w+\}", ".", expressions[0].strip()))
        except re.error:
            is_legal = False
    if not is_legal:
        raise InvalidConfigError(f"Illegal client matching pattern: {pattern}")

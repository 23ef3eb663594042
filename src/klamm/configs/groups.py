"""Rules for configs of groups (Kafka's ``GroupConfig``) and of client metrics subscriptions (KIP-714)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from klamm.configs.definitions import ConfigTable, client_metrics_configs, group_configs
from klamm.configs.topics import refuse_topic_list
from klamm.protocol.errors import InvalidConfigError, InvalidRequestError, KafkaApiError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.configs.layers import BrokerLayers
    from klamm.configs.values import ConfigValue
    from klamm.protocol.types import ConfigOperation

# Each group config and the broker configs that are its lower and upper bound.
_BOUNDS: tuple[tuple[str, str | None, str], ...] = (
    *tuple(
        (f"{kind}.{what}", f"group.{kind}.min.{what}", f"group.{kind}.max.{what}")
        for kind, what in (
            ("consumer", "heartbeat.interval.ms"),
            ("consumer", "session.timeout.ms"),
            ("share", "heartbeat.interval.ms"),
            ("share", "session.timeout.ms"),
            ("share", "record.lock.duration.ms"),
            ("streams", "heartbeat.interval.ms"),
            ("streams", "session.timeout.ms"),
        )
    ),
    ("streams.num.standby.replicas", None, "group.streams.max.standby.replicas"),
)
_KINDS = ("consumer", "share", "streams")

_LEAST_INTERVAL_MS = 100
_MOST_INTERVAL_MS = 3_600_000
_MATCHABLE = {
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSchema:
    """Schema of the configs of one group."""

    group_id: str
    layers: BrokerLayers

    def is_list(self, name: str) -> bool:
        """Return whether a config is a list. No group config is."""
        return False

    def list_in_force(self, name: str) -> str | None:
        """Return the list value in force. Always None: there are no lists."""
        return None

    def refuse_non_list(self, operation: ConfigOperation, name: str) -> KafkaApiError:
        """Return the error for APPEND or SUBTRACT."""
        return refuse_topic_list(operation, name)

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
        values = {name: table[name].parse(text) for name, text in result.items()}
        in_force = {name: values.get(name, self.layers.group_default(name)) for name in table}
        self._check_bounds(in_force)

    def _check_bounds(self, in_force: Mapping[str, ConfigValue | None]) -> None:
        for name, least, most in _BOUNDS:
            value = cast("int", in_force[name])
            if least is not None and value < cast("int", self.layers.value(least)):
                raise InvalidConfigError(f"{name} must be greater than or equal to {least}")
            if value > cast("int", self.layers.value(most)):
                raise InvalidConfigError(f"{name} must be less than or equal to {most}")
        for kind in _KINDS:
            session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
            if cast("int", in_force[session]) <= cast("int", in_force[heartbeat]):
                raise InvalidConfigError(f"{session} must be greater than {heartbeat}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMetricsSchema:
    """Schema of the configs of one client metrics subscription (KIP-714)."""

    subscription: str

    def is_list(self, name: str) -> bool:
        """Return whether a config takes APPEND and SUBTRACT. None does, although two are described as lists."""
        return False

    def list_in_force(self, name: str) -> str | None:
        """Return the list value in force. Always None: no config takes list operations."""
        return None

    def refuse_non_list(self, operation: ConfigOperation, name: str) -> KafkaApiError:
        """Return the error for APPEND or SUBTRACT."""
        return refuse_topic_list(operation, name)

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
        if interval_ms is not None and not _LEAST_INTERVAL_MS <= cast("int", interval_ms) <= _MOST_INTERVAL_MS:
            raise InvalidRequestError(
                f"Invalid value {interval_ms} for interval.ms, interval must be between 100 and 3600000 (1 hour)"
            )
        for pattern in cast("tuple[str, ...]", values.get("match", ())):
            _check_pattern(pattern)


def _parse_all(table: ConfigTable, result: Mapping[str, str]) -> dict[str, ConfigValue]:
    return {name: table[name].parse(text) for name, text in result.items()}


def _check_pattern(pattern: str) -> None:
    """Reject a pattern that is not of the form ``selector=regular expression``."""
    selector, *expressions = pattern.split("=")
    is_legal = len(expressions) == 1 and expressions[0] != "" and selector.strip() in _MATCHABLE
    if is_legal:
        try:
            # Java's regular expressions have a few character classes that Python's lack; those are accepted unchecked.
            re.compile(re.sub(r"\\[pP]\{\w+\}", ".", expressions[0].strip()))
        except re.error:
            is_legal = False
    if not is_legal:
        raise InvalidConfigError(f"Illegal client matching pattern: {pattern}")

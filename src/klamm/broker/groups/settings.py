"""Broker configs of groups, read once, and the timings of members of consumer groups, read for each heartbeat."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final

from klamm.broker.groups.classic.model import GroupLimits
from klamm.broker.groups.consumer.assignors import ASSIGNORS
from klamm.broker.groups.consumer.model import ConsumerLimits, MemberTimings
from klamm.client_configs.enforcement import TimingLimits, held_timings
from klamm.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from klamm.client_configs.enforcement import Enforced

MINUTE_MS = 60_000
_PACKAGE: Final = "org.apache.kafka.coordinator.group.assignor"
_CLASSES: Final = {f"{_PACKAGE}.UniformAssignor": "uniform", f"{_PACKAGE}.RangeAssignor": "range"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCoordinatorSettings:
    """Broker configs of groups. The defaults are those of Kafka 4.4."""

    min_session_timeout_ms: int = 6_000
    """``group.min.session.timeout.ms``"""
    max_session_timeout_ms: int = 1_800_000
    """``group.max.session.timeout.ms``"""
    offset_metadata_max_bytes: int = 4_096
    """``offset.metadata.max.bytes``, counted in UTF-16 units as in Kafka."""
    offsets_retention_ms: int = 10_080 * MINUTE_MS
    """``offsets.retention.minutes``"""
    offsets_retention_check_interval_ms: int = 600_000
    """``offsets.retention.check.interval.ms``"""
    limits: GroupLimits = field(default_factory=GroupLimits)
    consumer_limits: ConsumerLimits = field(default_factory=ConsumerLimits)
    serves_consumer_groups: bool = True
    """Whether ``group.coordinator.rebalance.protocols`` contains ``consumer``."""

    @classmethod
    def from_config(cls, get: Callable[[str], Any]) -> GroupCoordinatorSettings:
        """Read every config by Kafka's name; ``get`` returns numbers, or strings that contain numbers."""
        policy = str(get("group.consumer.migration.policy")).lower()
        max_size = int(get("group.max.size"))
        return cls(
            min_session_timeout_ms=int(get("group.min.session.timeout.ms")),
            max_session_timeout_ms=int(get("group.max.session.timeout.ms")),
            offset_metadata_max_bytes=int(get("offset.metadata.max.bytes")),
            offsets_retention_ms=int(get("offsets.retention.minutes")) * MINUTE_MS,
            offsets_retention_check_interval_ms=int(get("offsets.retention.check.interval.ms")),
            limits=GroupLimits(
                initial_rebalance_delay_ms=int(get("group.initial.rebalance.delay.ms")),
                max_size=max_size,
            ),
            consumer_limits=ConsumerLimits(
                assignors=_assignors(get("group.consumer.assignors")),
                max_size=int(get("group.consumer.max.size")),
                regex_refresh_interval_ms=int(get("group.consumer.regex.refresh.interval.ms")),
                allows_upgrade=policy in {"upgrade", "bidirectional"},
                allows_downgrade=policy in {"downgrade", "bidirectional"},
                classic_max_size=max_size,
            ),
            serves_consumer_groups="consumer" in _list(get("group.coordinator.rebalance.protocols")),
        )


def _list(value: tuple[str, ...] | str) -> tuple[str, ...]:
    return tuple(value.split(",")) if isinstance(value, str) else tuple(value)


def _assignors(value: tuple[str, ...] | str) -> tuple[str, ...]:
    """Return the known assignors. Kafka also accepts the names of their classes, and classes of users."""
    names = (_CLASSES.get(name.strip(), name.strip()) for name in _list(value))
    return tuple(name for name in names if name in ASSIGNORS) or ConsumerLimits().assignors


SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL = "consumer.assignment.interval.ms"


class TimingSource:
    """Timings of members. Each heartbeat reads them here, so a changed config takes effect at once.

    Args:
        group_config: Function that returns the effective configs of a group by group id.
        get_config: Function that returns a broker config by Kafka's name.
    """

    def __init__(self, group_config: Callable[[str], Mapping[str, Any]], get_config: Callable[[str], Any]) -> None:
        self._group_config = group_config
        self._limits = TimingLimits(
            min_session_timeout_ms=int(get_config("group.consumer.min.session.timeout.ms")),
            max_session_timeout_ms=int(get_config("group.consumer.max.session.timeout.ms")),
            min_heartbeat_interval_ms=int(get_config("group.consumer.min.heartbeat.interval.ms")),
            max_heartbeat_interval_ms=int(get_config("group.consumer.max.heartbeat.interval.ms")),
        )

    def of_group(self, group_id: str) -> MemberTimings:
        """Return the timings of a group's members as far as its configs determine them."""
        configs = self._group_config(group_id)
        return MemberTimings(
            session_timeout_ms=int(configs[SESSION_TIMEOUT]),
            heartbeat_interval_ms=int(configs[HEARTBEAT_INTERVAL]),
            assignment_interval_ms=int(configs[ASSIGNMENT_INTERVAL]),
        )

    def of_member(self, group_id: str, enforced: Enforced) -> MemberTimings:
        """Return the timings of one member.

        Args:
            group_id: Group of the member.
            enforced: Client configs that are enforced for its client.
        """
        own = self.of_group(group_id)
        session_ms, interval_ms = held_timings(
            own.session_timeout_ms, own.heartbeat_interval_ms, enforced, self._limits
        )
        return replace(own, session_timeout_ms=session_ms, heartbeat_interval_ms=interval_ms)

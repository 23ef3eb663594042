"""Session timeout and heartbeat interval of members of consumer groups. With KIP-848 the broker determines both."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from klamm.broker.groups.consumer.model import MemberTimings
from klamm.client_configs.enforcement import TimingLimits, held_timings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from klamm.client_configs.enforcement import Enforced

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

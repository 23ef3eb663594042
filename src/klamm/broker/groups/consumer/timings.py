"""Session timeout and heartbeat interval of members of consumer groups. With KIP-848 the broker determines both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from klamm.broker.groups.consumer.model import MemberTimings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from klamm.server.author import Author

SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"


class TimingSource:
    """The only place where the timings of a member are read. Each heartbeat asks, so a changed config acts at once.

    Args:
        group_config: Function that returns the effective configs of a group by group id.
    """

    def __init__(self, group_config: Callable[[str], Mapping[str, Any]]) -> None:
        self._group_config = group_config

    def of_group(self, group_id: str) -> MemberTimings:
        """Return the timings of a group's members as far as its configs determine them."""
        configs = self._group_config(group_id)
        return MemberTimings(
            session_timeout_ms=int(configs[SESSION_TIMEOUT]), heartbeat_interval_ms=int(configs[HEARTBEAT_INTERVAL])
        )

    def of_member(self, group_id: str, client: Author) -> MemberTimings:
        """Return the timings of one member.

        Args:
            group_id: Group of the member.
            client: Principal and client id of its heartbeat.
        """
        return self.of_group(group_id)

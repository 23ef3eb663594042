"""Check of the target of a flow that keeps offsets, for ``klamm mirror --plan``. Nothing is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.mirror.replay import obstacles as of_replay
from klamm.mirror.replica import obstacles as of_replica

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.admin import ConfigEntry
    from klamm.mirror.settings.flow import FlowSettings


def obstacles(
    flow: FlowSettings, selected: Mapping[str, int], configs: Mapping[str, Mapping[str, ConfigEntry]]
) -> dict[str, str]:
    """Return why offsets cannot be kept, by remote topic. The key is empty for a reason that concerns all topics.

    Raises:
        ConnectionLostError: The target is unavailable.
    """
    if flow.replica is not None:
        return of_replica.obstacles(flow)
    return of_replay.obstacles(flow, selected, configs)

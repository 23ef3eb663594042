"""Workaround for kafka-python 3.0 in the tests: it loses an assignment that arrives between two polls.

A poll that times out leaves its JoinGroup in flight, and the next poll awaits it. But when the join completes between
the two polls, ``need_rejoin`` is False already: the consumer never takes over the assignment, and without heartbeats it
is removed from its group 45 s later. With this workaround such a consumer joins again with its next poll. On a busy
machine, one in twenty consumers is affected.
"""

from __future__ import annotations

import functools
from typing import Any

from kafka.coordinator.base import BaseCoordinator


def keep_assignments() -> None:
    """Let consumers of kafka-python in this process join again when the outcome of a join was lost."""
    original = BaseCoordinator.need_rejoin
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def need_rejoin(self: Any) -> bool:
        lost = self._join_task is not None and self._join_task.is_done
        return bool(original(self) or lost)

    BaseCoordinator.need_rejoin = need_rejoin

"""Revision of some state: the one way to detect that other requests changed it while a request waited."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

from klamm.server.time_slice import TimeSlice

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Decision = TypeVar("Decision")


class Revision:
    """Number of changes of some state. Its owner advances it in the step that changes the state.

    A request that waits between its decision and the change, for a policy or because its time slice is used up,
    compares the number from before the decision with the current one. If they differ, it decides again.
    """

    __slots__ = ("changes", "rollbacks")

    def __init__(self) -> None:
        self.changes = 0
        """Number of changes, including rollbacks."""
        self.rollbacks = 0
        """Number of times the state was loaded from the store, which reverts changes that could not be stored."""

    def advance(self) -> None:
        """Record a change."""
        self.changes += 1

    def roll_back(self) -> None:
        """Record that the stored state replaced the current one."""
        self.changes += 1
        self.rollbacks += 1


async def decide_in_slices(
    decide: Callable[[TimeSlice], Awaitable[Decision]], revision: Revision, time_slice: TimeSlice
) -> Decision:
    """Decide on a long request, with pauses for other requests. The caller must apply the decision at once.

    If another request changed the state during a pause, decide again without a pause.

    Args:
        decide: Function that decides, with pauses by the time slice that it gets.
        revision: Revision of the state that the decision depends on.
        time_slice: Time slice of the request.
    """
    before = revision.changes
    decision = await decide(time_slice)
    return decision if revision.changes == before else await decide(TimeSlice(math.inf))

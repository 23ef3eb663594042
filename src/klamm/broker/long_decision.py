"""Decisions on long requests, made in time slices."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

from klamm.server.time_slice import TimeSlice

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from klamm.policy_runtime.decision import Revision

Decision = TypeVar("Decision")


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

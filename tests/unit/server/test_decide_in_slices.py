"""A decision outdated by a concurrent change is repeated without a pause."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from klamm.policy_runtime.decision import Revision
from klamm.server.time_slice import TimeSlice, decide_in_slices

if TYPE_CHECKING:
    from collections.abc import Callable


def decided(meanwhile: Callable[[Revision], object]) -> tuple[int, list[int]]:
    """Return the revision that the decision was made on, and the pauses of each attempt."""
    revision, pauses = Revision(), []

    async def decide(time_slice: TimeSlice) -> int:
        seen = revision.changes
        await time_slice.give_way()
        pauses.append(time_slice.pauses)
        if len(pauses) == 1:
            meanwhile(revision)
        return seen

    return asyncio.run(decide_in_slices(decide, revision, TimeSlice(0))), pauses


def test_decision_without_concurrent_change_is_made_once() -> None:
    assert decided(lambda _: None) == (0, [1])


def test_decision_is_repeated_without_a_pause_after_a_change_or_rollback() -> None:
    assert decided(Revision.advance) == (1, [1, 0])
    assert decided(Revision.roll_back) == (1, [1, 0])


def test_rollback_counts_as_change_but_not_vice_versa() -> None:
    revision = Revision()
    revision.advance()
    revision.roll_back()
    assert (revision.changes, revision.rollbacks) == (2, 1)

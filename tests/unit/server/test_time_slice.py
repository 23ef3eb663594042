"""Time slices: a request of thousands of parts lets other tasks run."""

from __future__ import annotations

import asyncio
import math
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from klamm.policy_runtime.decision import Revision
from klamm.server import time_slice as module
from klamm.server.time_slice import SLICE_S, TimeSlice, decide_in_slices, run_at_once

if TYPE_CHECKING:
    from collections.abc import Callable


async def test_long_iteration_yields_to_other_tasks() -> None:
    turns = 0

    async def other_task() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(other_task())
    time_slice = TimeSlice()
    seen = []
    async for item in time_slice.over(range(50)):
        seen.append(item)
        time.sleep(SLICE_S / 5)  # noqa: ASYNC251 -- work
    other.cancel()
    assert seen == list(range(50))
    assert turns >= 5
    assert time_slice.pauses == turns


async def test_short_iteration_does_not_yield(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: 0.0))

    time_slice = TimeSlice(0.005)
    assert [item async for item in time_slice.over("ab")] == ["a", "b"]
    assert time_slice.pauses == 0


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 128, 1000])
def test_list_is_complete_despite_pauses(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(f"{TimeSlice.__module__}.SLICE_S", 0)
    time_slice = TimeSlice()
    assert asyncio.run(time_slice.listed(iter(range(count)))) == list(range(count))
    assert time_slice.pauses == count // 64


async def test_restart_begins_a_new_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now_s))
    time_slice = TimeSlice(0.05)
    now_s = 0.06
    time_slice.restart()
    await time_slice.give_way()
    assert time_slice.pauses == 0


def test_lists_are_freed_in_time_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{TimeSlice.__module__}.SLICE_S", 0)
    time_slice, numbers, other = TimeSlice(), list(range(640)), [None]
    asyncio.run(time_slice.free(numbers, other))
    assert (numbers, other, time_slice.pauses) == ([], [], 9)


def test_coroutine_that_never_pauses_runs_without_a_task() -> None:
    async def steps() -> list[int]:
        return [item async for item in TimeSlice(math.inf).over(range(3))]

    assert run_at_once(steps()) == [0, 1, 2]


def test_coroutine_that_pauses_needs_a_task() -> None:
    with pytest.raises(RuntimeError, match="waits"):
        run_at_once(TimeSlice(-1).give_way())


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

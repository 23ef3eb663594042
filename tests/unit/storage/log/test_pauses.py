"""Loops over many logs let other tasks run."""

from __future__ import annotations

import asyncio

import pytest

from klamm.storage.log.housekeeping import with_pauses


def test_other_tasks_run_after_a_fixed_number_of_items() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def run() -> list[int]:
        counter = asyncio.create_task(count_turns())
        items = [item async for item in with_pauses(range(35), at_once=10)]
        counter.cancel()
        return items

    assert asyncio.run(run()) == list(range(35))
    assert turns == 3


def test_few_items_are_returned_without_a_pause() -> None:
    async def run() -> list[int]:
        return [item async for item in with_pauses(range(255))]

    with pytest.raises(StopIteration) as end:
        run().send(None)
    assert end.value.value == list(range(255))

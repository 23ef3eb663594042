"""Turns of the changes of resources."""

from __future__ import annotations

import asyncio

import pytest

from klamm.gateway.policies.policy_api import ResourceTurns
from klamm.protocol.types import ResourceType


@pytest.mark.parametrize(
    ("held", "wanted", "waits"),
    [
        ([(ResourceType.TOPIC, "a")], [(ResourceType.TOPIC, "a")], True),
        ([(ResourceType.TOPIC, "a"), (ResourceType.TOPIC, "b")], [(ResourceType.TOPIC, "b")], True),
        ([(ResourceType.TOPIC, "a")], [(ResourceType.TOPIC, "b")], False),
        ([(ResourceType.TOPIC, "a")], [(ResourceType.GROUP, "a")], False),
        ([(ResourceType.BROKER, "1")], [(ResourceType.BROKER, "")], True),
    ],
)
async def test_only_changes_of_the_same_resources_wait(
    held: list[tuple[int, str]], wanted: list[tuple[int, str]], waits: bool
) -> None:
    turns = ResourceTurns()
    entered = asyncio.Event()

    async def other() -> None:
        async with turns.of(wanted):
            entered.set()

    async with turns.of(held):
        task = asyncio.create_task(other())
        for _ in range(10):
            await asyncio.sleep(0)
        assert entered.is_set() is not waits
    await task
    assert not turns.held


async def test_requests_with_the_same_topics_in_another_order_do_not_block_each_other() -> None:
    turns = ResourceTurns()

    async def change(*names: str) -> None:
        async with turns.of_topics(names):
            await asyncio.sleep(0)

    pairs = (("a", "b"), ("b", "a"), ("b", "a", "b"))
    async with asyncio.timeout(10):
        await asyncio.gather(*(change(*pair) for pair in pairs for _ in range(20)))

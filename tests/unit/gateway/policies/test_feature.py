"""The filters that a gateway gets for its policies, divided requests, and turns of changed resources."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.gateway.apis.table import POLICIES, UNFILTERED
from klamm.gateway.policies.divided_requests import in_order
from klamm.gateway.policies.feature import PolicyFeature
from klamm.gateway.policies.policy_api import ResourceTurns
from klamm.policy import PolicyLoadError
from klamm.protocol.api import ApiKey
from klamm.protocol.types import ResourceType

if TYPE_CHECKING:
    from pathlib import Path

RULES = "klamm.policy.rules:RulesPolicy"


async def intercepted(**configs: str) -> tuple[set[int], frozenset[int]]:
    interception = await PolicyFeature.load(
        {key.replace("_", "."): value for key, value in configs.items()}, POLICIES, UNFILTERED
    )
    await interception.close()
    return set(interception.filters), interception.withheld


def test_gateway_without_policy_has_no_filters() -> None:
    assert asyncio.run(intercepted()) == (set(), frozenset())


@pytest.mark.parametrize(
    ("key", "apis"),
    [
        ("create_topic", {ApiKey.METADATA, ApiKey.CREATE_TOPICS}),
        ("alter_config", {ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS}),
        ("create_partitions", {ApiKey.CREATE_PARTITIONS, ApiKey.ALTER_PARTITION_REASSIGNMENTS}),
        ("delete_topic", {ApiKey.DELETE_TOPICS}),
    ],
)
def test_policy_filters_the_apis_of_its_kind(tmp_path: Path, key: str, apis: set[int]) -> None:
    (tmp_path / "rules.yaml").write_text("rules: []")
    configs = {f"{key}_policy_class_name": RULES, "policy_rules_file": str(tmp_path / "rules.yaml")}
    keys, withheld = asyncio.run(intercepted(**configs))
    # the settings of the policies must not be stored upstream, whatever the policies decide on
    assert keys == apis | {ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS}
    # the API by which Kafka Streams creates topics is not offered while a policy decides on topics
    assert withheld == ({88} if key == "create_topic" else frozenset())


def test_policy_that_cannot_be_loaded_prevents_start() -> None:
    with pytest.raises(PolicyLoadError, match=r"policy\.rules\.file is not set"):
        asyncio.run(intercepted(delete_topic_policy_class_name=RULES))


KEYS = st.lists(st.sampled_from("abcdef"), max_size=12)


def test_entries_follow_the_order_of_the_request() -> None:
    assert in_order(["c", "a", "b"], ["a1", "b1", "c1"], lambda entry: entry[0]) == ["c1", "a1", "b1"]


def test_repeated_key_gets_as_many_entries_as_there_are() -> None:
    assert in_order(["a", "b", "a"], ["a1", "b1"], lambda entry: entry[0]) == ["a1", "b1"]
    assert in_order(["a", "b", "a"], ["a1", "a2", "b1"], lambda entry: entry[0]) == ["a1", "b1", "a2"]


@given(order=KEYS, entries=KEYS)
def test_no_entry_is_lost_or_doubled(order: list[str], entries: list[str]) -> None:
    numbered = [(key, index) for index, key in enumerate(entries)]
    merged = in_order(order, numbered, lambda entry: entry[0])
    assert sorted(merged) == sorted(numbered)
    own_entries = [entry for entry in merged if entry[0] in order]
    places = [order.index(key) for key, _ in own_entries if entries.count(key) <= 1]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("held", "wanted", "waits"),
    [
        ([(ResourceType.TOPIC, "a")], [(ResourceType.TOPIC, "a")], True),
        ([(ResourceType.TOPIC, "a"), (ResourceType.TOPIC, "b")], [(ResourceType.TOPIC, "b")], True),
        ([(ResourceType.TOPIC, "a")], [(ResourceType.TOPIC, "b")], False),
        ([(ResourceType.TOPIC, "a")], [(ResourceType.GROUP, "a")], False),
        ([(ResourceType.BROKER, "1")], [(ResourceType.BROKER, "")], True),
        ([(ResourceType.BROKER, "1")], [(ResourceType.TOPIC, "a")], True),
        ([(ResourceType.TOPIC, "a")], [(ResourceType.BROKER, "")], True),
        ([(ResourceType.BROKER, ""), (ResourceType.TOPIC, "a")], [(ResourceType.TOPIC, "b")], True),
        ([(ResourceType.BROKER, "")], [(ResourceType.GROUP, "a")], False),
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
    async with asyncio.timeout(60):
        await asyncio.gather(*(change(*pair) for pair in pairs for _ in range(20)))


async def test_changes_of_brokers_and_topics_do_not_block_each_other() -> None:
    turns = ResourceTurns()
    broker, topics = (ResourceType.BROKER, "1"), [(ResourceType.TOPIC, "a"), (ResourceType.TOPIC, "b")]

    async def change(*resources: tuple[int, str]) -> None:
        async with turns.of(resources):
            await asyncio.sleep(0)

    claims = ([broker], topics, topics[1:], [*topics, broker], [(ResourceType.GROUP, "a"), *topics])
    async with asyncio.timeout(60):
        await asyncio.gather(*(change(*claim) for _ in range(20) for claim in claims))


async def test_change_of_a_broker_is_not_overtaken_by_later_changes_of_topics() -> None:
    # given
    turns, order = ResourceTurns(), list[str]()

    async def change(kind: ResourceType, name: str) -> None:
        async with turns.of([(kind, name)]):
            order.append(name)

    # when
    async with turns.of_topics(["first"]):
        broker = asyncio.create_task(change(ResourceType.BROKER, "broker"))
        await asyncio.sleep(0)
        later = asyncio.create_task(change(ResourceType.TOPIC, "later"))
        await asyncio.sleep(0)
    await asyncio.gather(broker, later)
    # then
    assert order == ["broker", "later"]


async def test_cancelled_change_releases_its_turn() -> None:
    # given
    turns = ResourceTurns()

    async def change(kind: ResourceType) -> None:
        async with turns.of([(kind, "1")]):
            pass

    async with turns.of_topics(["a"]):
        broker = asyncio.create_task(change(ResourceType.BROKER))
        topic = asyncio.create_task(change(ResourceType.TOPIC))
        await asyncio.sleep(0)
        # when
        broker.cancel()
        topic.cancel()
        await asyncio.gather(broker, topic, return_exceptions=True)
    # then
    async with asyncio.timeout(60), turns.of([(ResourceType.BROKER, "")]):
        pass

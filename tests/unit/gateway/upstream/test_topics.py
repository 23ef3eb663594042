"""Topics of the upstream for the page: requested now and then, however often the page is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from klamm.admin import ConfigEntry
from klamm.gateway.upstream.topics import MAX_KEPT, MAX_REQUESTS, UpstreamTopics, state_of
from klamm.kafka_client.errors import ConnectionLostError
from klamm.protocol.errors import TopicAuthorizationError
from klamm.protocol.types import ConfigSource
from tests.support.gateway_context import described

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from klamm.admin import AdminClient, ConfigResource


async def answered(value: Any) -> Any:
    if isinstance(value, Exception):
        raise value
    return value


class Answers:
    """Result of a call with one outcome per key."""

    def __init__(self, by_key: dict[Any, Any]) -> None:
        self.by_key = by_key

    def values(self) -> dict[Any, Any]:
        return {key: answered(value) for key, value in self.by_key.items()}


class FakeAdmin:
    """Admin client of a cluster whose topics have three replicas each."""

    def __init__(self, names: Sequence[str]) -> None:
        self.listing: Any = dict.fromkeys(reversed(names))
        self.listings = 0
        self.described: list[tuple[str, ...]] = []

    def list_topics(self, *, include_internal: bool, timeout_ms: int) -> Any:
        assert include_internal
        assert timeout_ms < 10_000
        self.listings += 1
        return answered(self.listing)

    def describe_topics(self, names: Sequence[str], *, timeout_ms: int) -> Answers:
        self.described.append(tuple(names))
        return Answers({name: described(name, [[1, 2, 3]]) for name in names})

    def describe_configs(self, resources: Sequence[ConfigResource], *, timeout_ms: int) -> Answers:
        entry = ConfigEntry("retention.ms", "7", source=ConfigSource.DYNAMIC_TOPIC_CONFIG)
        denied = TopicAuthorizationError("Topic authorization failed.")
        return Answers(
            {each: denied if each.name.startswith("denied") else {"retention.ms": entry} for each in resources}
        )


def served(admin: FakeAdmin, ask: Callable[[UpstreamTopics, list[float]], Awaitable[None]]) -> None:
    """Run a coroutine function with the topics and their clock."""
    clock = [100.0]
    asyncio.run(_run(UpstreamTopics(cast("AdminClient", admin), lambda: clock[0]), clock, ask))


async def _run(topics: UpstreamTopics, clock: list[float], ask: Callable[..., Awaitable[None]]) -> None:
    await ask(topics, clock)


def test_names_and_configs_are_kept_for_some_seconds() -> None:
    admin = FakeAdmin(["a", "b"])

    async def ask(topics: UpstreamTopics, clock: list[float]) -> None:
        for _ in range(5):
            assert await topics.names() == ["a", "b"]
            assert [each["configs"][0]["value"] for each in await topics.documents(["a", "b"])] == ["7", "7"]
        clock[0] += 11
        await topics.names()
        await topics.documents(["a"])

    served(admin, ask)
    assert admin.listings == 1
    assert admin.described == [("a", "b"), ("a",)]


def test_many_pages_at_once_make_few_requests() -> None:
    names = [f"topic-{number}" for number in range(1000)]
    admin = FakeAdmin(names)

    async def ask(topics: UpstreamTopics, clock: list[float]) -> None:
        documents = await asyncio.gather(*(topics.documents([name]) for name in names))
        answered = [document for (document,) in documents if document["partitions"] is not None]
        assert len(answered) == MAX_REQUESTS
        assert "too many requests" in state_of(documents[-1][0])
        clock[0] += 11
        assert (await topics.documents(["topic-999"]))[0]["problem"] is None

    served(admin, ask)
    assert len(admin.described) == MAX_REQUESTS + 1


def test_memory_is_bounded() -> None:
    names = [f"topic-{number}" for number in range(MAX_KEPT + 10)]

    async def ask(topics: UpstreamTopics, clock: list[float]) -> None:
        assert len(await topics.documents(names)) == len(names)
        clock[0] += 1
        assert (await topics.documents(names[:1]))[0]["partitions"] == 1

    admin = FakeAdmin(names)
    served(admin, ask)
    assert admin.described[1:] == [("topic-0",)]


def test_topic_with_denied_configs_has_the_reason() -> None:
    async def ask(topics: UpstreamTopics, _clock: list[float]) -> None:
        denied, fine = await topics.documents(["denied", "fine"])
        assert (denied["partitions"], denied["configs"]) == (1, None)
        assert state_of(denied) == "Topic authorization failed."
        assert state_of(fine) == "in sync"

    served(FakeAdmin(["denied", "fine"]), ask)


def test_unavailable_upstream_is_retried_and_its_topics_kept() -> None:
    admin = FakeAdmin(["a"])

    async def ask(topics: UpstreamTopics, clock: list[float]) -> None:
        await topics.names()
        admin.listing, clock[0] = ConnectionLostError("gone"), clock[0] + 31
        assert [await topics.names() for _ in range(3)] == [["a"]] * 3
        assert (admin.listings, topics.failure) == (2, "gone")
        admin.listing, clock[0] = {"b": None}, clock[0] + 6
        assert (await topics.names(), topics.failure) == (["b"], None)

    served(admin, ask)


def test_states_name_partitions_without_a_leader_before_those_out_of_sync() -> None:
    topic = {"partitions": 3, "leaderless": 1, "under_replicated": 2, "problem": None}
    assert state_of(topic) == "1 partition without a leader"
    assert state_of({**topic, "leaderless": 0}) == "2 partitions under-replicated"


def test_internal_topics_follow_topics_of_users() -> None:
    topics = UpstreamTopics(cast("AdminClient", FakeAdmin(["__klamm", "a", "_b"])))
    assert asyncio.run(topics.names()) == ["_b", "a", "__klamm"]

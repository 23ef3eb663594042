"""A slow policy on config changes: the checked configs are those that are applied."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from klamm.policy import Override
from klamm.protocol.errors import ErrorCode, KafkaApiError, PolicyViolationError
from klamm.protocol.types import ResourceType
from tests.support.configs import (
    ANNA,
    APPEND,
    SET,
    MemoryConfigStore,
    alteration,
    make_service,
    operation,
    topic,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from klamm.broker.configs.rules import ResourceAlteration
    from klamm.broker.configs.service import ConfigService
    from klamm.configs.operations import ConfigDecision
    from klamm.history.change import Author

TOPIC = ResourceType.TOPIC


class SlowGuard:
    """Takes a turn of the event loop for each verdict; ``meanwhile`` runs during the first one."""

    resource_types = frozenset(ResourceType)

    def __init__(self, meanwhile: Callable[[], object] = lambda: None, *, rejects: str | None = None) -> None:
        self.lock = asyncio.Lock()
        self.seen: list[tuple[str, dict[str, str]]] = []
        self._meanwhile: Callable[[], object] | None = meanwhile
        self._rejects = rejects

    def turn(self) -> asyncio.Lock:
        return self.lock

    async def check(
        self, decision: ConfigDecision, author: Author, overridden: Override | None, *, validate_only: bool
    ) -> Override | None:
        assert author is ANNA
        assert not validate_only
        self.seen.append((decision.resource_name, dict(decision.result)))
        await asyncio.sleep(0)
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()
        if decision.resource_name == self._rejects:
            raise PolicyViolationError("hands off")
        return None


async def alter(service: ConfigService, *alterations: ResourceAlteration) -> list[ErrorCode]:
    outcomes = await service.alter(alterations, node_id=1, author=ANNA, validate_only=False)
    return [outcome.error_code if isinstance(outcome, KafkaApiError) else ErrorCode.NONE for outcome in outcomes]


async def test_topic_deleted_during_policy_check_is_not_changed() -> None:
    store = MemoryConfigStore(topics=["t", "u"])
    guard = SlowGuard(lambda: service.drop_topic("t"))
    service = make_service(store, guards=(guard,))
    flush = operation("flush.ms", SET, "5")
    assert await alter(service, topic("t", flush), topic("u", flush)) == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NONE,
    ]
    assert store.values(TOPIC, "t") == {}
    assert store.values(TOPIC, "u") == {"flush.ms": "5"}


async def test_policy_decides_on_a_broker_with_the_other_resources_applied() -> None:
    """Topics inherit from brokers, so each change could be allowed alone."""

    class Noting(SlowGuard):
        async def check(
            self, decision: ConfigDecision, author: Author, overridden: Override | None, *, validate_only: bool
        ) -> Override | None:
            applied.append([store.values(*each) for each in ((TOPIC, "t"), (ResourceType.BROKER, ""), (TOPIC, "u"))])
            return await super().check(decision, author, overridden, validate_only=validate_only)

    applied: list[list[dict[str, str]]] = []
    store = MemoryConfigStore(topics=["t", "u"])
    service = make_service(store, guards=(Noting(),))
    flush, retention = operation("flush.ms", SET, "5"), operation("log.retention.ms", SET, "9")
    requests = topic("t", flush), alteration(ResourceType.BROKER, "", retention), topic("u", flush)
    assert await alter(service, *requests) == [ErrorCode.NONE] * 3
    one, nine = {"flush.ms": "5"}, {"log.retention.ms": "9"}
    assert applied == [[{}, {}, {}], [one, {}, {}], [one, nine, {}]]


async def test_resource_changed_during_policy_check_is_checked_again() -> None:
    def recreate() -> None:
        service.drop_topic("t")
        service.create_topic("t", {"segment.ms": "7"})

    guard = SlowGuard(recreate)
    service = make_service(MemoryConfigStore(), guards=(guard,))
    assert await alter(service, topic("t", operation("flush.ms", SET, "5"))) == [ErrorCode.NONE]
    assert guard.seen == [("t", {"flush.ms": "5"}), ("t", {"segment.ms": "7", "flush.ms": "5"})]
    assert service.topic_config("t")["segment.ms"] == 7


async def test_change_is_checked_again_for_another_topic_of_the_same_name() -> None:
    """A policy may decide by the number of replicas."""
    topics = {"t": "three replicas"}

    def recreate() -> None:
        topics["t"] = "one replica"
        service.drop_topic("t")
        service.create_topic("t", {})

    guard = SlowGuard(recreate)
    service = make_service(MemoryConfigStore(), guards=(guard,), topic=topics.get)
    assert await alter(service, topic("t", operation("flush.ms", SET, "5"))) == [ErrorCode.NONE]
    assert guard.seen == [("t", {"flush.ms": "5"})] * 2


async def test_concurrent_updates_survive_policy_checks() -> None:
    store = MemoryConfigStore()
    service = make_service(store, guards=(SlowGuard(),))
    listed = "leader.replication.throttled.replicas"
    outcomes = await asyncio.gather(
        *(alter(service, topic("t", operation(listed, APPEND, f"{n}:1"))) for n in range(50))
    )
    assert outcomes == [[ErrorCode.NONE]] * 50
    assert set(store.values(TOPIC, "t")[listed].split(",")) == {f"{n}:1" for n in range(50)}


async def test_thousand_resources_are_checked_once_in_few_commits() -> None:
    names = [f"t{n}" for n in range(1000)]
    store = MemoryConfigStore(topics=names)
    guard = SlowGuard(rejects="t7")
    service = make_service(store, guards=(guard,))
    outcomes = await alter(service, *(topic(name, operation("flush.ms", SET, "5")) for name in names))
    assert [index for index, code in enumerate(outcomes) if code is ErrorCode.POLICY_VIOLATION] == [7]
    assert len(guard.seen) == 1000
    assert len(store.committed) < 10
    assert store.values(TOPIC, "t7") == {}


async def test_policy_turn_is_released_while_waiting_for_the_disk() -> None:
    store = MemoryConfigStore()
    guard = SlowGuard()
    service = make_service(store, guards=(guard,))
    store.hold = True
    change = asyncio.create_task(alter(service, topic("t", operation("flush.ms", SET, "5"))))
    other = asyncio.create_task(
        alter(service, alteration(ResourceType.GROUP, "g", operation("consumer.session.timeout.ms", SET, "50000")))
    )
    for _ in range(10):
        await asyncio.sleep(0)
    assert [name for name, _ in guard.seen] == ["t", "g"]
    store.release()
    assert (await change, await other) == ([ErrorCode.NONE], [ErrorCode.NONE])


async def test_guards_run_in_order_and_the_first_error_rejects() -> None:
    store = MemoryConfigStore(topics=["t", "u"])
    first, second = SlowGuard(rejects="t"), SlowGuard(rejects="u")
    service = make_service(store, guards=(first, second))
    flush = operation("flush.ms", SET, "5")
    codes = await alter(service, topic("t", flush), topic("u", flush))
    assert codes == [ErrorCode.POLICY_VIOLATION, ErrorCode.POLICY_VIOLATION]
    assert {name for name, _ in first.seen} == {"t", "u"}
    assert {name for name, _ in second.seen} == {"u"}, "a change that one guard rejects is not shown to the next"


class OverridingGuard(SlowGuard):
    """Sets flush.ms to 5, once."""

    async def check(
        self, decision: ConfigDecision, author: Author, overridden: Override | None, *, validate_only: bool
    ) -> Override | None:
        await super().check(decision, author, overridden, validate_only=validate_only)
        return Override(reason="flushed", configs={"flush.ms": "5"}) if overridden is None else None


async def test_override_without_a_change_does_not_bypass_the_next_guard() -> None:
    store = MemoryConfigStore(topics=["t"])
    first, second = OverridingGuard(), SlowGuard(rejects="t")
    service = make_service(store, guards=(first, second))
    codes = await alter(service, topic("t", operation("flush.ms", SET, "5")))
    assert codes == [ErrorCode.POLICY_VIOLATION]
    assert len(second.seen) == 1
    assert store.values(TOPIC, "t") == {}

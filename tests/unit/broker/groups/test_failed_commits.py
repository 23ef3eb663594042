"""Consumer groups whose commit succeeds while the next one fails: the stored groups replace those in memory."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest

from klamm.broker.groups.consumer.group import ConsumerGroup
from klamm.broker.groups.consumer.model import HeartbeatAttempt, MemberTimings
from klamm.broker.groups.consumer_coordinator import ConsumerGroupCoordinator
from klamm.broker.groups.errors import NotCoordinatorError
from klamm.broker.groups.registry import GroupRegistry
from klamm.broker.groups.settings import GroupCoordinatorSettings
from klamm.protocol.errors import ErrorCode
from klamm.storage.metadata.changes import PutGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.broker.groups.consumer.model import Assignment, HeartbeatReply
    from klamm.storage.metadata.changes import Change

TOPIC_ID = UUID(int=5)
TIMINGS = MemberTimings(session_timeout_ms=30_000, heartbeat_interval_ms=100_000, assignment_interval_ms=0)


class Topic:
    """Topic of two partitions, and the catalog that has it."""

    topic_id, name, partitions, changes = TOPIC_ID, "t", ((0,), (0,)), 1

    def get(self, _: str) -> Topic:
        return self

    def by_id(self, _: UUID) -> Topic:
        return self

    def existing(self, names: frozenset[str]) -> dict[str, Topic]:
        return {"t": self} if "t" in names else {}


class Store:
    """Metadata store whose commits and their reports are steps of the test."""

    def __init__(self) -> None:
        self.disk: dict[str, PutGroup] = {}
        self.queue: list[tuple[Sequence[Change], asyncio.Future[None]]] = []

    def submit(self, changes: Sequence[Change]) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.queue.append((changes, future))
        return future

    def commit(self) -> list[asyncio.Future[None]]:
        """Store what was submitted, and return the futures that report it."""
        queue, self.queue = self.queue, []
        self.disk |= {each.group_id: each for changes, _ in queue for each in changes if isinstance(each, PutGroup)}
        return [future for _, future in queue]

    def load_groups(self) -> list[PutGroup]:
        return list(self.disk.values())

    def load_group_offsets(self) -> list[Any]:
        return []

    load_pending_offsets = load_group_offsets


class Rig:
    """The group ``g``."""

    def __init__(self) -> None:
        self.store, settings, topic = Store(), GroupCoordinatorSettings(), cast("Any", Topic())
        self.registry = GroupRegistry(
            cast("Any", self.store), settings, topic, lambda _: 300, now=time.monotonic, wall_ms=lambda: 1
        )
        self.coordinator = ConsumerGroupCoordinator(self.registry, settings, topic, cast("Any", None))

    def beat(self, member_id: str, epoch: int, owned: Assignment | None = None) -> asyncio.Task[HeartbeatReply]:
        attempt = HeartbeatAttempt(
            member_id=member_id,
            member_epoch=epoch,
            client_id="",
            client_host="",
            timings=TIMINGS,
            resolve=lambda _: frozenset(),
            rebalance_timeout_ms=30_000,
            topic_names=frozenset({"t"}),
            owned={} if owned is None else owned,
        )
        return asyncio.create_task(self.coordinator.heartbeat("g", attempt))

    async def committed(self) -> None:
        """Store and report all changes, until there are none."""
        for _ in range(20):
            await asyncio.sleep(0)
            for future in self.store.commit():
                future.set_result(None)

    async def committed_before_a_failure(self) -> None:
        """Store the changes. They are reported only after the next commit has failed."""
        stored = self.store.commit()
        self.registry.disband(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.registry.load()
        for future in stored:
            future.set_result(None)
        for _ in range(20):
            await asyncio.sleep(0)


async def test_change_that_waits_for_another_one_is_rolled_back_with_the_next_commit() -> None:
    rig = Rig()
    for member in ("a", "b"):
        held = rig.beat(member, 0)
        await rig.committed()
    revoking = rig.beat("a", 2, {TOPIC_ID: frozenset({0, 1})})
    await rig.committed()
    kept = (await revoking).assignment
    assert kept is not None
    assert not held.done(), "b waits for the partition that a gives up"
    joining = rig.beat("c", 0)
    await asyncio.sleep(0)
    given_up = rig.beat("a", 2, kept)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert rig.registry.entry("g").save is not None

    await rig.committed_before_a_failure()

    assert (await joining).member_epoch > 0, "its change was stored"
    for request in (given_up, held):
        with pytest.raises(NotCoordinatorError):
            await request
    assert rig.store.queue == [], "the replaced group stores nothing more"
    group = rig.registry.find("g")
    assert isinstance(group, ConsumerGroup)
    assert group.members["a"].member_epoch == 2

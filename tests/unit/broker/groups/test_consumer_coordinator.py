"""Consumer groups with a real metadata store: restarts and failed commits."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from klamm.broker.groups import consumer_coordinator
from klamm.broker.groups.classic.model import SyncAttempt
from klamm.broker.groups.consumer.group import ConsumerGroup
from klamm.broker.groups.consumer.model import HeartbeatAttempt, HeartbeatReply, MemberTimings
from klamm.broker.groups.coordinator import GroupCoordinator
from klamm.broker.groups.errors import GroupIdNotFoundError, NotCoordinatorError, StaleMemberEpochError
from klamm.broker.groups.offset_coordinator import Committer
from klamm.broker.groups.offsets import OffsetToCommit
from klamm.protocol.errors import ErrorCode
from klamm.storage.metadata.changes import PutGroup
from klamm.storage.metadata.store import MetadataStore
from tests.support.consumer_groups import FakeTopics
from tests.support.failing_disk import Disk
from tests.support.groups import COORDINATOR_CONFIG, GROUP_CONFIGS, attempt

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from klamm.broker.groups.classic.model import JoinReply, Moment
    from klamm.broker.groups.consumer.model import SubscribableTopics
    from klamm.storage.metadata.changes import Change

CONFIG: dict[str, Any] = {**COORDINATOR_CONFIG}


class CoordinatorHost:
    """A coordinator over a file that outlives it."""

    def __init__(self, path: Path) -> None:
        self.disk = Disk()
        self.topics = FakeTopics(t=4)
        self.timings = dict(GROUP_CONFIGS)
        self.heartbeat_interval_ms = 50
        self._path = path / "metadata.sqlite"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[GroupCoordinator]:
        store = MetadataStore.open(self._path, connect=self.disk.connect)
        coordinator = GroupCoordinator(
            store,
            CONFIG.__getitem__,
            self.topics,
            group_config=lambda _: self.timings,
            now=time.monotonic,
            wall_ms=lambda: time.time_ns() // 1_000_000,
        )
        store.on_failure = lambda _: coordinator.reload()
        self.store = store
        try:
            await coordinator.start()
            yield coordinator
        finally:
            await coordinator.stop()
            await store.close()

    async def beat(self, groups: GroupCoordinator, member_id: str, epoch: int, **fields: Any) -> HeartbeatReply:
        if epoch == 0:
            fields = {"topic_names": frozenset({"t"}), "rebalance_timeout_ms": 60_000, "owned": {}} | fields
        timings = MemberTimings(session_timeout_ms=45_000, heartbeat_interval_ms=self.heartbeat_interval_ms)
        return await groups.consumers.heartbeat(
            "g",
            HeartbeatAttempt(
                member_id=member_id,
                member_epoch=epoch,
                client_id="c",
                client_host="/h",
                timings=timings,
                resolve=lambda _: frozenset({"t"}),
                **fields,
            ),
        )


def sync_attempt(joined: JoinReply) -> SyncAttempt:
    return SyncAttempt(
        member_id=joined.member_id,
        group_instance_id=None,
        generation_id=joined.generation_id,
        protocol_type=joined.protocol_type,
        protocol_name=joined.protocol_name,
        assignments=((joined.member_id, b"share"),),
    )


@pytest.fixture
def host(tmp_path: Path) -> CoordinatorHost:
    return CoordinatorHost(tmp_path)


async def test_members_offsets_and_a_rebalance_in_the_middle_survive_a_restart(host: CoordinatorHost) -> None:
    """K848-13."""
    async with host.running() as groups:
        first = await host.beat(groups, "m1", 0)
        assert first.assignment is not None
        await host.beat(groups, "m2", 0, topic_names=None, topic_regex="t")
        await host.beat(groups, "m1", 2, owned=first.assignment)  # hears that it has to revoke two
        by = Committer(group_id="g", member_id="m1", generation_id=2)
        assert await groups.offsets.commit(by, [OffsetToCommit(topic="t", partition=0, offset=7)], api_version=9) == (
            ErrorCode.NONE,
        )
        before = groups.consumers.describe("g")
    async with host.running() as groups:
        after = groups.consumers.describe("g")
        assert (after.members, after.target) == (before.members, before.target)
        assert (after.group_epoch, after.assignment_epoch, after.state) == (3, 3, before.state)
        ((_, ((_, offset),)),) = await groups.offsets.fetch("g", [("t", [0])])
        assert getattr(offset, "offset", None) == 7
        kept = after.members["m1"].assigned
        assert (await host.beat(groups, "m1", 2, owned=kept)).member_epoch == 3
        reply = await host.beat(groups, "m2", 3)
        assert reply.assignment is not None
        assert sum(map(len, reply.assignment.values())) == 2
        assert after.group_epoch == 3


async def test_session_without_heartbeats_after_a_restart_expires(host: CoordinatorHost) -> None:
    async with host.running() as groups:
        await host.beat(groups, "m1", 0)
    host.timings["consumer.session.timeout.ms"] = 50
    async with host.running() as groups:
        while groups.consumers.describe("g").members:  # noqa: ASYNC110 -- a timer ends the session
            await asyncio.sleep(0.01)


async def test_held_heartbeat_response_delivers_released_partitions(host: CoordinatorHost) -> None:
    """K848-17."""
    async with host.running() as groups:
        first = await host.beat(groups, "m1", 0)
        waits_briefly = await host.beat(groups, "m2", 0)
        assert waits_briefly.assignment == {}
        host.heartbeat_interval_ms = 3_600_000
        held = [asyncio.create_task(host.beat(groups, f"m{number}", 0)) for number in (2, 3, 4)]
        while groups.consumers.describe("g").assignment_epoch < 5:  # noqa: ASYNC110 -- until all have joined
            await asyncio.sleep(0)
        revoking = await host.beat(groups, "m1", 2, owned=first.assignment)
        assert not any(task.done() for task in held)
        await host.beat(groups, "m1", 2, owned=revoking.assignment)
        got = await asyncio.gather(*held)
        assert [sum(map(len, (reply.assignment or {}).values())) for reply in got] == [1, 1, 1]
    async with host.running() as groups:
        members = groups.consumers.describe("g").members
        assert all(members[reply.member_id].assigned == reply.assignment for reply in got)


async def test_held_heartbeat_response_is_sent_before_client_timeout(
    host: CoordinatorHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_coordinator, "MAX_HOLD_S", 0.01)
    async with host.running() as groups:
        await host.beat(groups, "m1", 0)
        host.heartbeat_interval_ms = 3_600_000
        async with asyncio.timeout(60):
            assert (await host.beat(groups, "m2", 0)).assignment == {}


async def test_stopping_coordinator_answers_held_heartbeats(host: CoordinatorHost) -> None:
    host.heartbeat_interval_ms = 3_600_000
    async with host.running() as groups:
        await host.beat(groups, "m1", 0)
        held = asyncio.create_task(host.beat(groups, "m2", 0))
        while "m2" not in groups.consumers.describe("g").members:  # noqa: ASYNC110 -- until it has joined
            await asyncio.sleep(0)
    assert (await held).assignment == {}


async def test_many_changes_at_once_are_assigned_and_written_together(
    host: CoordinatorHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K848-15, -16: also without an interval between two target assignments."""
    assigned: list[int] = []
    assign = ConsumerGroup.assign

    def count(group: ConsumerGroup, topics: SubscribableTopics, now: Moment) -> None:
        assign(group, topics, now)
        assigned.append(len(group.target))

    monkeypatch.setattr(ConsumerGroup, "assign", count)
    async with host.running() as groups:
        submitted: list[object] = []
        submit = host.store.submit

        def note(changes: Sequence[Change]) -> asyncio.Future[None]:
            submitted.extend(changes)
            return submit(changes)

        host.store.submit = note  # type: ignore[method-assign]

        replies = await asyncio.gather(*(host.beat(groups, f"m{number}", 0) for number in range(50)))

        assert len(assigned) < 10
        assert assigned[-1] == 50
        group = groups.consumers.describe("g")
        assert {reply.member_epoch for reply in replies} == {2, group.group_epoch}
        assert len([change for change in submitted if isinstance(change, PutGroup)]) < 10
    async with host.running() as groups:
        assert len(groups.consumers.describe("g").members) == 50


async def test_failed_write_rolls_back_the_change(host: CoordinatorHost) -> None:
    async with host.running() as groups:
        await host.beat(groups, "m1", 0)
        host.disk.failures = 1
        failed = await asyncio.gather(
            *(host.beat(groups, f"n{number}", 0) for number in range(3)), return_exceptions=True
        )
        assert [type(error) for error in failed] == [NotCoordinatorError] * 3
        assert list(groups.consumers.describe("g").members) == ["m1"]
        assert (await host.beat(groups, "m1", 2)).member_epoch == 2


async def test_group_deleted_during_write_stays_deleted(host: CoordinatorHost) -> None:
    async with host.running() as groups:
        await asyncio.gather(*(host.beat(groups, f"m{number}", 0) for number in range(3)))
        leaving = [asyncio.create_task(groups.consumers.leave("g", f"m{number}", None, -1)) for number in range(3)]
        await asyncio.sleep(0)
        await asyncio.gather(groups.delete("g"), *leaving)
    async with host.running() as groups:
        with pytest.raises(GroupIdNotFoundError):
            groups.consumers.describe("g")


async def test_offset_fetch_requires_the_member_epoch(host: CoordinatorHost) -> None:
    async with host.running() as groups:
        await host.beat(groups, "m1", 0)
        groups.offsets.admit_fetch("g", "m1", 2)
        groups.offsets.admit_fetch("other", "m1", 1)
        with pytest.raises(StaleMemberEpochError):
            groups.offsets.admit_fetch("g", "m1", 3)


async def test_empty_consumer_group_accepts_classic_members(host: CoordinatorHost) -> None:
    async with host.running() as groups:
        await host.beat(groups, "m1", 0)
        await groups.consumers.leave("g", "m1", None, -1)
        joined = await groups.classic.join("g", attempt("", version=3))
        assert (joined.error_code, joined.generation_id) == (ErrorCode.NONE, 4)
        assert [group.group_type for group in groups.list_groups()] == ["classic"]


async def test_leader_of_an_empty_consumer_group_joins_again_after_a_restart_before_its_sync(
    host: CoordinatorHost,
) -> None:
    # given
    async with host.running() as groups:
        await host.beat(groups, "m1", 0)
        await groups.consumers.leave("g", "m1", None, -1)
        joined = await groups.classic.join("g", attempt("", version=3))
    # when
    async with host.running() as groups:
        synced = await groups.classic.sync("g", sync_attempt(joined))
        # then: a stable group would ignore its assignment, and it would never have partitions
        assert synced.error_code is ErrorCode.REBALANCE_IN_PROGRESS
        again = await groups.classic.join("g", attempt(joined.member_id))
        synced = await groups.classic.sync("g", sync_attempt(again))
        assert (synced.error_code, synced.assignment) == (ErrorCode.NONE, b"share")


async def test_consumer_group_that_its_last_member_left_accepts_any_protocol_type(host: CoordinatorHost) -> None:
    # given
    async with host.running() as groups:
        await host.beat(groups, "m1", 0)
        await groups.consumers.leave("g", "m1", None, -1)
        # when
        joined = await groups.classic.join("g", attempt("", protocol_type="connect"))
        # then
        assert joined.error_code is ErrorCode.MEMBER_ID_REQUIRED
        assert [(group.group_type, group.state.value) for group in groups.list_groups()] == [("classic", "Empty")]
        joined = await groups.classic.join("g", attempt(joined.member_id, protocol_type="connect"))
        assert (joined.error_code, joined.protocol_type) == (ErrorCode.NONE, "connect")

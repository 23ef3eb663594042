"""Groups with a real metadata store, on a real event loop."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock, MagicMock
from uuid import UUID

import pytest

from klamm.broker.groups import offset_coordinator
from klamm.broker.groups.classic.model import GroupState, JoinReply, MemberIdentity, SyncAttempt, SyncReply
from klamm.broker.groups.classic_coordinator import MAX_ASSIGNMENT_BYTES, MAX_MEMBER_METADATA_BYTES
from klamm.broker.groups.coordinator import GroupCoordinator, ServedClock
from klamm.broker.groups.errors import (
    GroupIdNotFoundError,
    IllegalGenerationError,
    InvalidGroupIdError,
    NonEmptyGroupError,
    NotCoordinatorError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from klamm.broker.groups.offset_coordinator import Committer
from klamm.broker.groups.offsets import OffsetToCommit
from klamm.broker.groups.registry import MAX_ID_BYTES
from klamm.broker.topics.catalog import Topic, TopicCatalog
from klamm.protocol.errors import ErrorCode
from klamm.server.time_slice import InSlices, Item, TimeSlice
from klamm.storage.metadata.changes import DropTopic, PutGroup, PutGroupOffset
from klamm.storage.metadata.store import MetadataStore
from tests.support.failing_disk import Disk
from tests.support.groups import COORDINATOR_CONFIG, GROUP_CONFIGS, attempt

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path


CONFIG: dict[str, Any] = {**COORDINATOR_CONFIG, "offset.metadata.max.bytes": 10}


def fake_topic(topic_id: UUID, name: str) -> Topic:
    return Topic(name=name, topic_id=topic_id, partitions=((1,), (1,), (1,)))


class FakeTopics(TopicCatalog):
    def __init__(self) -> None:
        self.changes = 0
        self.topics = [fake_topic(UUID(int=1), "a"), fake_topic(UUID(int=2), "b")]

    def get(self, name: str) -> Topic | None:
        return next((topic for topic in self.topics if topic.name == name), None)

    def existing(self, names: AbstractSet[str]) -> dict[str, Topic]:
        return {topic.name: topic for topic in self.topics if topic.name in names}

    def by_id(self, topic_id: UUID) -> Topic | None:
        return next((topic for topic in self.topics if topic.topic_id == topic_id), None)


class Clock:
    """Real time, plus what a test skips."""

    def __init__(self) -> None:
        self.skipped_s = 0.0

    def now(self) -> float:
        return time.monotonic() + self.skipped_s

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + round(self.now() * 1000)


class CoordinatorHost:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.disk = Disk()
        self.clock = Clock()
        self.topics = FakeTopics()
        self.config = dict(CONFIG)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[GroupCoordinator]:
        store = MetadataStore.open(self.path / "metadata.sqlite", connect=self.disk.connect)
        coordinator = GroupCoordinator(
            store,
            self.config.__getitem__,
            self.topics,
            group_config=lambda _: GROUP_CONFIGS,
            now=self.clock.now,
            wall_ms=self.clock.wall_ms,
        )
        store.on_failure = lambda _: coordinator.reload()
        self.store = store
        try:
            await coordinator.start()
            yield coordinator
        finally:
            await coordinator.stop()
            await store.close()


@pytest.fixture
def host(tmp_path: Path) -> CoordinatorHost:
    return CoordinatorHost(tmp_path)


async def join(groups: GroupCoordinator, group_id: str = "g", **settings: Any) -> JoinReply:
    first = await groups.classic.join(group_id, attempt(**settings))
    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
    return await groups.classic.join(group_id, attempt(first.member_id, **settings))


def sync_attempt(member_id: str, generation_id: int, **shares: bytes) -> SyncAttempt:
    return SyncAttempt(
        member_id=member_id,
        group_instance_id=None,
        generation_id=generation_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=((member_id, shares["own"]),) if shares else (),
    )


async def stable(groups: GroupCoordinator, group_id: str = "g", **settings: Any) -> JoinReply:
    joined = await join(groups, group_id, **settings)
    synced = await groups.classic.sync(group_id, sync_attempt(joined.member_id, joined.generation_id, own=b"share"))
    assert synced.error_code == ErrorCode.NONE
    return joined


def offset(topic: str = "a", partition: int = 0, value: int = 7, metadata: str = "") -> OffsetToCommit:
    return OffsetToCommit(topic=topic, partition=partition, offset=value, leader_epoch=0, metadata=metadata)


async def commit(groups: GroupCoordinator, *offsets: OffsetToCommit, **by: Any) -> tuple[ErrorCode, ...]:
    """Commit offsets. They are submitted in one turn of the event loop."""
    by_group = Committer(**{"group_id": "g", **by})
    return await groups.offsets.commit(by_group, offsets, api_version=9, time_slice=TimeSlice(math.inf))


async def fetch(groups: GroupCoordinator, group_id: str = "g") -> dict[tuple[str, int], int]:
    fetched = await groups.offsets.fetch(group_id, None)
    return {
        (name, partition): row.offset
        for name, rows in fetched
        for partition, row in rows
        if isinstance(row, PutGroupOffset)
    }


# ---- members


async def test_group_continues_after_a_restart(host: CoordinatorHost) -> None:
    async with host.running() as groups:
        joined = await stable(groups)
        await commit(groups, offset(), member_id=joined.member_id, generation_id=1)
    async with host.running() as groups:
        await groups.classic.heartbeat("g", joined.member_id, None, joined.generation_id)
        assert await commit(groups, offset(value=8), member_id=joined.member_id, generation_id=1) == (ErrorCode.NONE,)
        assert await fetch(groups) == {("a", 0): 8}
        synced = await groups.classic.sync("g", sync_attempt(joined.member_id, 1))
        assert synced.assignment == b"share"


async def test_rebalance_interrupted_by_restart_resumes_from_last_generation(host: CoordinatorHost) -> None:
    async with host.running() as groups:
        joined = await stable(groups)
        parked = asyncio.create_task(join(groups, protocols=(("range", b"other"),)))
        await asyncio.sleep(0.01)
        with pytest.raises(RebalanceInProgressError):
            await groups.classic.heartbeat("g", joined.member_id, None, 1)
    assert (await parked).error_code == ErrorCode.NOT_COORDINATOR
    async with host.running() as groups:
        await groups.classic.heartbeat("g", joined.member_id, None, 1)
        assert groups.describe("g").state is GroupState.STABLE


def static_sync(joined: JoinReply, **shares: bytes) -> SyncAttempt:
    request = sync_attempt(joined.member_id, joined.generation_id, **shares)
    return replace(request, group_instance_id="i", protocol_name=joined.protocol_name)


async def test_replaced_static_member_is_not_fenced_after_a_restart_before_its_sync(host: CoordinatorHost) -> None:
    # given: its next instance prefers another assignor, so that the group rebalances
    protocols = (("sticky", b"subscription"), ("range", b"subscription"))
    async with host.running() as groups:
        first = await groups.classic.join("g", attempt(instance_id="i"))
        await groups.classic.sync("g", static_sync(first, own=b"share"))
        joined = await groups.classic.join("g", attempt(instance_id="i", protocols=protocols))
    # when
    async with host.running() as groups:
        synced = await groups.classic.sync("g", static_sync(joined))
    # then
    assert (joined.generation_id, synced.error_code) == (2, ErrorCode.REBALANCE_IN_PROGRESS)


async def test_static_member_that_left_and_joined_is_not_fenced_after_a_restart_before_its_sync(
    host: CoordinatorHost,
) -> None:
    # given
    async with host.running() as groups:
        first = await groups.classic.join("g", attempt(instance_id="i"))
        await groups.classic.sync("g", static_sync(first, own=b"share"))
        parked = asyncio.create_task(groups.classic.join("g", attempt(version=3)))
        await asyncio.sleep(0)
        await groups.classic.leave("g", [MemberIdentity(member_id="", group_instance_id="i")])
        other = await parked
        joined, _ = await asyncio.gather(
            groups.classic.join("g", attempt(instance_id="i")), groups.classic.join("g", attempt(other.member_id))
        )
    # when
    async with host.running() as groups:
        synced = await groups.classic.sync("g", static_sync(joined))
    # then: it joins again
    assert (joined.generation_id, synced.error_code) == (3, ErrorCode.ILLEGAL_GENERATION)


async def test_static_member_that_leaves_during_the_initial_delay_leaves_no_group_behind(host: CoordinatorHost) -> None:
    # given
    host.config["group.initial.rebalance.delay.ms"] = 60_000
    async with host.running() as groups:
        parked = asyncio.create_task(groups.classic.join("g", attempt(instance_id="i")))
        await asyncio.sleep(0)
        # when
        codes = await groups.classic.leave("g", [MemberIdentity(member_id="", group_instance_id="i")])
        # then
        assert (codes, (await parked).error_code) == ((ErrorCode.NONE,), ErrorCode.UNKNOWN_MEMBER_ID)
        assert list(groups.list_groups()) == []
    async with host.running() as groups:
        assert list(groups.list_groups()) == []


async def test_stopping_coordinator_parks_no_request(host: CoordinatorHost) -> None:
    async with host.running() as groups:
        joined = await stable(groups)
        await groups.stop()
        unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await groups.classic.join("g", attempt(joined.member_id))).error_code == unavailable
        assert (await groups.classic.sync("g", sync_attempt(joined.member_id, 1))).error_code == unavailable


async def test_assignment_is_durable_before_it_is_returned(host: CoordinatorHost) -> None:
    async with host.running() as groups:
        joined = await join(groups)
        await groups.classic.sync("g", sync_attempt(joined.member_id, 1, own=b"share"))
        assert b'"generation_id":1' in host.store.load_groups()[0].payload


async def test_silent_member_expires_by_timer(host: CoordinatorHost) -> None:
    host.config["group.min.session.timeout.ms"] = 1
    async with host.running() as groups:
        await stable(groups, session_timeout_ms=1500)
        while groups.describe("g").state is not GroupState.EMPTY:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.01)
    async with host.running() as groups:
        assert groups.describe("g").state is GroupState.EMPTY


async def test_raised_session_timeout_extends_membership(host: CoordinatorHost) -> None:
    """K649-78: Changed session.timeout.ms is sent to the coordinator by a new JoinGroup; a stable group must not
    rebalance for that alone.
    """
    host.config["group.min.session.timeout.ms"] = 1
    async with host.running() as groups:
        joined = await stable(groups, session_timeout_ms=2000)
        again = await groups.classic.join("g", attempt(joined.member_id, session_timeout_ms=30_000))
        assert (again.error_code, again.generation_id) == (ErrorCode.NONE, 1)
        await asyncio.sleep(2.2)
        await groups.classic.heartbeat("g", joined.member_id, None, 1)
        assert b'"session_timeout_ms":30000' in host.store.load_groups()[0].payload


async def test_sessions_expire_with_a_moved_clock_before_a_waiting_heartbeat_extends_them(
    host: CoordinatorHost,
) -> None:
    async with host.running() as groups:
        joined = await stable(groups)
        host.clock.skipped_s = 60
        groups.expire_sessions()
        with pytest.raises(UnknownMemberIdError):
            await groups.classic.heartbeat("g", joined.member_id, None, 1)


async def test_clock_that_stands_after_a_pause_follows_when_it_is_moved() -> None:
    elapsed_s, moved_s = 0.0, 0.0
    clock = ServedClock(lambda: elapsed_s + moved_s, lambda: elapsed_s)
    assert clock.now() == 0
    clock.start()
    elapsed_s = 3
    assert clock.now() == 0, "requests that waited for 3 s are served"
    moved_s = 60
    assert clock.now() == 60
    elapsed_s = 6
    clock.stop()
    assert clock.now() == 66


async def test_member_rejoins_after_disconnect_of_parked_join(host: CoordinatorHost) -> None:
    async with host.running() as groups:
        joined = await stable(groups)
        gone = asyncio.create_task(join(groups))
        await asyncio.sleep(0.01)
        gone.cancel()
        assert (await groups.classic.join("g", attempt(joined.member_id))).generation_id == 2


@pytest.mark.parametrize(
    ("group_id", "change", "error_code"),
    [
        ("", {}, ErrorCode.INVALID_GROUP_ID),
        ("x" * (MAX_ID_BYTES + 1), {}, ErrorCode.INVALID_GROUP_ID),
        ("g", {"session_timeout_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ("g", {"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ("g", {"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("g", {"instance_id": "ä" * MAX_ID_BYTES}, ErrorCode.INVALID_REQUEST),
        ("g", {"protocols": (("range", b"x" * MAX_MEMBER_METADATA_BYTES),)}, ErrorCode.INVALID_REQUEST),
        ("g", {"protocols": (("", b""),) * 20_000}, ErrorCode.INVALID_REQUEST),
    ],
    ids=[
        "no group",
        "long group",
        "short session",
        "long session",
        "no such group",
        "long instance",
        "large metadata",
        "many protocols",
    ],
)
async def test_join_above_limits_is_rejected_and_creates_no_group(
    host: CoordinatorHost, group_id: str, change: dict[str, Any], error_code: ErrorCode
) -> None:
    async with host.running() as groups:
        reply = await groups.classic.join(group_id, attempt(**change))
        assert reply == JoinReply(error_code=error_code, member_id=change.get("member_id", ""))
        assert list(groups.list_groups()) == []


async def test_member_ids_name_their_client(host: CoordinatorHost) -> None:
    async with host.running() as groups:
        dynamic = await groups.classic.join("g", attempt())
        static = await groups.classic.join("s", attempt(instance_id="i"))
        assert dynamic.member_id.startswith("client-")
        assert static.member_id.startswith("i-")


async def test_requests_to_unknown_group_are_rejected(host: CoordinatorHost) -> None:
    async with host.running() as groups:
        assert await groups.classic.sync("g", sync_attempt("m", 1)) == SyncReply(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        identities = [MemberIdentity(member_id="m", group_instance_id=None)] * 2
        assert await groups.classic.leave("g", identities) == (ErrorCode.UNKNOWN_MEMBER_ID,) * 2
        with pytest.raises(UnknownMemberIdError):
            await groups.classic.heartbeat("g", "m", None, 1)
        assert await groups.classic.sync("", sync_attempt("m", 1)) == SyncReply(error_code=ErrorCode.INVALID_GROUP_ID)
        with pytest.raises(InvalidGroupIdError):
            await groups.classic.leave("", identities)
        with pytest.raises(InvalidGroupIdError):
            await groups.classic.heartbeat("", "m", None, 1)


async def test_oversized_assignment_is_rejected(host: CoordinatorHost) -> None:
    async with host.running() as groups:
        joined = await join(groups)
        too_much = sync_attempt(joined.member_id, 1, own=bytes(MAX_ASSIGNMENT_BYTES + 1))
        assert (await groups.classic.sync("g", too_much)).error_code == ErrorCode.INVALID_REQUEST


# ---- offsets


async def test_committed_offsets_survive_a_restart(host: CoordinatorHost) -> None:
    async with host.running() as groups:
        codes = await commit(groups, offset(value=1), offset("b", 2, 5, "note"))
        assert codes == (ErrorCode.NONE, ErrorCode.NONE)
    async with host.running() as groups:
        assert await fetch(groups) == {("a", 0): 1, ("b", 2): 5}
        ((_, ((_, row),)),) = await groups.offsets.fetch("g", [("b", [2])])
        assert isinstance(row, PutGroupOffset)
        assert (row.metadata, row.leader_epoch) == ("note", 0)
        assert groups.describe("g").protocol_type == ""


async def test_uncommitted_group_has_no_offset(host: CoordinatorHost) -> None:
    async with host.running() as groups:
        await commit(groups, offset())
        assert await groups.offsets.fetch("g", [("a", [1]), ("nowhere", [0])]) == (
            ("a", ((1, None),)),
            ("nowhere", ((0, None),)),
        )
        assert await groups.offsets.fetch("unknown", [("a", [0])]) == (("a", ((0, None),)),)
        assert await groups.offsets.fetch("unknown", None) == ()


async def test_valid_offsets_are_committed_beside_invalid_partitions_and_metadata(host: CoordinatorHost) -> None:
    async with host.running() as groups:
        codes = await commit(
            groups,
            offset("nowhere"),
            offset("a", 3),
            offset("a", -1),
            offset("a", 0, metadata="x" * 11),
            offset("a", 1, metadata="x" * 10),
            offset("a", 2, metadata="\N{GRINNING FACE}" * 6),
            offset("b", 0, metadata="\N{GRINNING FACE}" * 5),
        )
        unknown, large, none = (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.OFFSET_METADATA_TOO_LARGE,
            ErrorCode.NONE,
        )
        assert codes == (unknown, unknown, unknown, large, none, large, none)
        assert await fetch(groups) == {("a", 1): 7, ("b", 0): 7}


async def test_unknown_topic_is_reported_before_group_errors(host: CoordinatorHost) -> None:
    async with host.running() as groups:
        codes = await commit(groups, offset("nowhere"), member_id="stranger", generation_id=4)
        assert codes == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,)
        codes = await commit(groups, offset("nowhere"), offset("a"), member_id="stranger", generation_id=4)
        assert codes == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.GROUP_ID_NOT_FOUND)


@pytest.mark.parametrize(("version", "error_code"), [(8, "ILLEGAL_GENERATION"), (9, "GROUP_ID_NOT_FOUND")])
async def test_commit_to_deleted_group_has_the_error_of_its_version(
    host: CoordinatorHost, version: int, error_code: str
) -> None:
    async with host.running() as groups:
        by = Committer(group_id="g", member_id="m", generation_id=3)
        codes = await groups.offsets.commit(by, [offset()], api_version=version)
        assert codes == (ErrorCode[error_code],)


async def test_commit_by_outsider_to_active_group_is_rejected(host: CoordinatorHost) -> None:
    async with host.running() as groups:
        joined = await stable(groups)
        await commit(groups, offset(value=9), member_id=joined.member_id, generation_id=1)
        assert await commit(groups, offset(value=0)) == (ErrorCode.UNKNOWN_MEMBER_ID,)
        assert await fetch(groups) == {("a", 0): 9}


async def test_recreated_topic_inherits_no_offsets(host: CoordinatorHost) -> None:
    async with host.running() as groups:
        await commit(groups, offset("a"), offset("b"))
        host.topics.topics[0] = fake_topic(UUID(int=3), "a")
        groups.forget_topic(UUID(int=1))
        await host.store.submit((DropTopic(topic_id=UUID(int=1)),))
        assert await fetch(groups) == {("b", 0): 7}
        assert await groups.offsets.fetch("g", [("a", [0])]) == (("a", ((0, None),)),)
    async with host.running() as groups:
        assert await fetch(groups) == {("b", 0): 7}


@pytest.mark.parametrize("retention_ms", [2**63 - 1, -(2**63)])
async def test_extreme_retention_of_one_commit_does_not_fail_the_store(
    host: CoordinatorHost, retention_ms: int
) -> None:
    async with host.running() as groups:
        codes = await groups.offsets.commit(
            Committer(group_id="g"), [offset()], retention_ms=retention_ms, api_version=2
        )
        assert codes == (ErrorCode.NONE,)
        await groups.offsets.expire()
        assert await fetch(groups) == ({("a", 0): 7} if retention_ms > 0 else {})


async def test_thousands_of_offset_commits_share_few_disk_commits(host: CoordinatorHost) -> None:
    async with host.running() as groups:
        await asyncio.gather(*(commit(groups, offset(value=n), group_id=f"g{n % 50}") for n in range(2000)))
        assert host.store.commits < 20
        assert len(host.store.load_group_offsets()) == 50


@pytest.mark.parametrize("is_commit", [True, False])
async def test_end_of_transaction_changes_each_group_once(
    host: CoordinatorHost, monkeypatch: pytest.MonkeyPatch, *, is_commit: bool
) -> None:
    """Changed offset by offset, 20,000 offsets held the event loop for 0.4 seconds."""
    async with host.running() as groups:
        for group_id in ("g", "h"):
            await groups.offsets.commit_in_transaction(
                Committer(group_id=group_id), 7, [offset("a"), offset("b"), offset("b", 1)], AsyncMock()
            )
        submit = MagicMock(wraps=host.store.submit)
        monkeypatch.setattr(host.store, "submit", submit)
        groups.offsets.end_transaction(7, is_commit=is_commit)
        assert submit.call_count == 2
    expected = {("a", 0): 7, ("b", 0): 7, ("b", 1): 7} if is_commit else {}
    async with host.running() as groups:
        groups.offsets.end_transaction(7, is_commit=True)  # nothing is left
        assert [await fetch(groups, group_id) for group_id in ("g", "h")] == [expected, expected]


async def pend(groups: GroupCoordinator, producer_id: int, value: int) -> None:
    await groups.offsets.commit_in_transaction(Committer(group_id="g"), producer_id, [offset(value=value)], AsyncMock())


@pytest.mark.parametrize("restarts", [False, True])
async def test_older_pending_offset_does_not_replace_newer_one_that_was_committed_first(
    host: CoordinatorHost, *, restarts: bool
) -> None:
    # given
    async with host.running() as groups:
        await pend(groups, 8, 10)
        await pend(groups, 7, 20)
        # when
        groups.offsets.end_transaction(7, is_commit=True)
        if not restarts:
            groups.offsets.end_transaction(8, is_commit=True)
            # then
            assert await fetch(groups) == {("a", 0): 20}
    async with host.running() as groups:
        groups.offsets.end_transaction(8, is_commit=True)
        assert await fetch(groups) == {("a", 0): 20}


async def test_older_pending_offset_is_committed_after_newer_one_was_aborted(host: CoordinatorHost) -> None:
    # given
    async with host.running() as groups:
        await pend(groups, 8, 10)
        await pend(groups, 7, 20)
        # when
        groups.offsets.end_transaction(7, is_commit=False)
        groups.offsets.end_transaction(8, is_commit=True)
        # then
        assert await fetch(groups) == {("a", 0): 10}


async def test_offset_deletion_discards_pending_offsets_too(host: CoordinatorHost) -> None:
    # given
    async with host.running() as groups:
        await commit(groups, offset(value=5))
        await pend(groups, 7, 10)
        # when
        assert await groups.offsets.delete("g", [("a", 0)]) == (ErrorCode.NONE,)
    # then
    async with host.running() as groups:
        groups.offsets.end_transaction(7, is_commit=True)
        assert await fetch(groups) == {}


async def test_offsets_are_deleted_unless_the_group_uses_them(host: CoordinatorHost) -> None:
    """KIP-496."""
    subscription = b"\0\0\0\0\0\1\0\1a"
    async with host.running() as groups:
        joined = await stable(groups, protocols=(("range", subscription),))
        by = {"member_id": joined.member_id, "generation_id": 1}
        await commit(groups, offset("a"), offset("b"), offset("b", 1), **by)
        codes = await groups.offsets.delete("g", [("a", 0), ("b", 0), ("b", 2), ("b", 9), ("nowhere", 0)])
        assert codes == (
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
            ErrorCode.NONE,
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )
    async with host.running() as groups:
        assert await fetch(groups) == {("a", 0): 7, ("b", 1): 7}


async def test_offset_delete_of_active_group_with_other_protocol_type_is_rejected(host: CoordinatorHost) -> None:
    async with host.running() as groups:
        await join(groups, protocol_type="connect", protocols=(("default", b""),))
        with pytest.raises(NonEmptyGroupError):
            await groups.offsets.delete("g", [("a", 0)])
        with pytest.raises(GroupIdNotFoundError):
            await groups.offsets.delete("unknown", [("a", 0)])


async def test_old_offsets_expire_and_their_group_with_them(host: CoordinatorHost) -> None:
    """KIP-211."""
    host.config["offsets.retention.check.interval.ms"] = 20
    async with host.running() as groups:
        await commit(groups, offset())
        await asyncio.sleep(0.1)
        assert await fetch(groups) == {("a", 0): 7}
        host.clock.skipped_s = 3601
        await asyncio.sleep(0.1)
        assert list(groups.list_groups()) == []
    async with host.running() as groups:
        assert await fetch(groups) == {}


async def test_offsets_of_deleted_topics_expire(host: CoordinatorHost) -> None:
    async with host.running() as groups:
        await commit(groups, offset("a"))
        host.topics.topics = []
        await groups.offsets.expire()
        assert list(groups.list_groups()) == []


async def test_subscriptions_are_parsed_once_in_a_generation(
    host: CoordinatorHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parsed for every topic or request, the subscriptions of a large group would hold the event loop for seconds."""
    read_topics = MagicMock(return_value=("a",))
    monkeypatch.setattr(offset_coordinator, "read_topics", read_topics)
    async with host.running() as groups:
        joined = await stable(groups)
        await commit(groups, offset("a"), offset("b"), member_id=joined.member_id, generation_id=1)
        assert await groups.offsets.delete("g", [("a", 0)]) == (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,)
        assert await groups.offsets.delete("g", [("b", 1)]) == (ErrorCode.NONE,)
        host.clock.skipped_s = 3601
        await groups.offsets.expire()
        assert read_topics.call_count == 1
        assert await fetch(groups) == {("a", 0): 7}


async def test_expiration_lets_other_requests_run_between_groups(host: CoordinatorHost) -> None:
    async with host.running() as groups:
        for group_id in ("deleted", "kept", "old"):
            await commit(groups, offset(), group_id=group_id)
        host.clock.skipped_s = 3601
        expiration = asyncio.create_task(groups.offsets.expire(TimeSlice(0)))
        await asyncio.sleep(0)
        await groups.delete("old")
        await commit(groups, offset(), group_id="kept")
        await expiration
        assert [group.group_id for group in groups.list_groups()] == ["kept"]


# ---- administration


async def test_group_filters_ignore_case(host: CoordinatorHost) -> None:
    async with host.running() as groups:
        await stable(groups, "s")
        await commit(groups, offset(), group_id="e")

        def listed(**filters: Any) -> list[str]:
            return sorted(group.group_id for group in groups.list_groups(**filters))

        assert listed() == ["e", "s"]
        assert listed(states=["stable"]) == ["s"]
        assert listed(states=[" EMPTY ", "Dead"]) == ["e"]
        assert listed(states=["nonsense"]) == []
        assert listed(types=["Classic", "consumer"]) == ["e", "s"]
        assert listed(types=["consumer"]) == []


async def test_stable_group_is_described_with_its_protocol(host: CoordinatorHost) -> None:
    async with host.running() as groups:
        joined = await stable(groups)
        group = groups.describe("g")
        assert (group.state, group.protocol_type, group.protocol_name) == (GroupState.STABLE, "consumer", "range")
        (member,) = group.members
        assert (member.member_id, member.client_id, member.client_host, member.metadata, member.assignment) == (
            joined.member_id,
            "client",
            "/127.0.0.1",
            b"subscription",
            b"share",
        )
        with pytest.raises(GroupIdNotFoundError, match="Group unknown not found"):
            groups.describe("unknown")


async def test_only_an_empty_group_is_deleted_with_its_offsets(host: CoordinatorHost) -> None:
    async with host.running() as groups:
        joined = await stable(groups)
        await commit(groups, offset(), member_id=joined.member_id, generation_id=1)
        with pytest.raises(NonEmptyGroupError):
            await groups.delete("g")
        await groups.classic.leave("g", [MemberIdentity(member_id=joined.member_id, group_instance_id=None)])
        await groups.delete("g")
        assert await fetch(groups) == {}
        with pytest.raises(GroupIdNotFoundError):
            await groups.delete("g")
    async with host.running() as groups:
        assert list(groups.list_groups()) == []
        assert await fetch(groups) == {}


# ---- when the disk rejects


async def test_failed_commit_is_rejected_and_rolled_back(host: CoordinatorHost) -> None:
    async with host.running() as groups:
        await commit(groups, offset(value=1))
        host.disk.failures = 1
        assert await commit(groups, offset(value=2)) == (ErrorCode.NOT_COORDINATOR,)
        assert await fetch(groups) == {("a", 0): 1}
        assert await commit(groups, offset(value=3)) == (ErrorCode.NONE,)
        assert await fetch(groups) == {("a", 0): 3}


async def test_offset_is_not_fetched_before_it_is_durable(host: CoordinatorHost) -> None:
    async with host.running() as groups:
        host.disk.failures = 1
        committing = asyncio.create_task(commit(groups, offset(value=2)))
        await asyncio.sleep(0)
        with pytest.raises(NotCoordinatorError):
            await groups.offsets.fetch("g", None)
        assert await committing == (ErrorCode.NOT_COORDINATOR,)


async def test_fetch_that_pauses_during_a_failed_commit_does_not_return_its_offset(host: CoordinatorHost) -> None:
    class WaitingSlice(TimeSlice):
        def over(self, items: Iterable[Item]) -> InSlices[Item]:
            self.ends_at = 0.0  # pause before the first topic
            return super().over(items)

        async def give_way(self) -> None:
            await asyncio.wait([committing])
            await super().give_way()

    async with host.running() as groups:
        await commit(groups, offset(value=1))
        host.disk.failures = 1
        committing = asyncio.create_task(commit(groups, offset(value=2)))
        await asyncio.sleep(0)
        with pytest.raises(NotCoordinatorError):
            await groups.offsets.fetch("g", [("a", [0])], time_slice=WaitingSlice())
        assert await committing == (ErrorCode.NOT_COORDINATOR,)
        assert await fetch(groups) == {("a", 0): 1}


async def test_group_is_not_reported_missing_before_its_deletion_is_durable(host: CoordinatorHost) -> None:
    async with host.running() as groups:

        async def delete_twice_and_fetch() -> list[object]:
            steps = (groups.delete("g"), groups.delete("g"), fetch(groups))
            return [*await asyncio.gather(*steps, return_exceptions=True)]

        await commit(groups, offset(value=1))
        host.disk.failures = 1
        assert [type(outcome) for outcome in await delete_twice_and_fetch()] == [NotCoordinatorError] * 3
        assert await fetch(groups) == {("a", 0): 1}
        deleted, missing, fetched = await delete_twice_and_fetch()
        assert (deleted, type(missing), fetched) == (None, GroupIdNotFoundError, {})


async def test_assignment_that_failed_to_be_stored_is_not_returned(host: CoordinatorHost) -> None:
    async with host.running() as groups:
        joined = await join(groups)
        host.disk.failures = 1
        synced = await groups.classic.sync("g", sync_attempt(joined.member_id, 1, own=b"share"))
        assert synced.error_code == ErrorCode.NOT_COORDINATOR
        with pytest.raises(UnknownMemberIdError):
            await groups.classic.heartbeat("g", joined.member_id, None, 1)
        assert (await stable(groups)).generation_id == 1


async def test_join_waiting_during_disk_failure_gets_retriable_error(host: CoordinatorHost) -> None:
    async with host.running() as groups:
        joined = await stable(groups)
        parked = asyncio.create_task(join(groups))
        await asyncio.sleep(0.01)
        host.disk.failures = 1
        await commit(groups, offset(), group_id="other")
        assert (await parked).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        await groups.classic.heartbeat("g", joined.member_id, None, 1)
        with pytest.raises(IllegalGenerationError):
            await groups.classic.heartbeat("g", joined.member_id, None, 2)


async def test_unreadable_stored_group_is_skipped(host: CoordinatorHost, caplog: pytest.LogCaptureFixture) -> None:
    async with host.running() as groups:
        await commit(groups, offset(), group_id="broken")
        await host.store.submit((PutGroup(group_id="broken", payload=b"[" * 100_000),))
    async with host.running() as groups:
        assert len(await fetch(groups, "broken")) == 1
        assert not groups.describe("broken").members
    assert "Stored group 'broken' cannot be read" in caplog.text


async def test_hundred_members_join_and_leave(host: CoordinatorHost) -> None:
    host.config["group.initial.rebalance.delay.ms"] = 50
    async with host.running() as groups:
        replies = await asyncio.gather(*(join(groups) for _ in range(100)))
        assert {reply.generation_id for reply in replies} == {1}
        leader = next(reply for reply in replies if reply.members)
        shares = tuple((member.member_id, member.member_id.encode()) for member in leader.members)
        synced = await asyncio.gather(
            *(
                groups.classic.sync("g", replace(sync_attempt(reply.member_id, 1), assignments=shares))
                for reply in replies
            )
        )
        assert [sync.assignment.decode() for sync in synced] == [reply.member_id for reply in replies]
        identities = [MemberIdentity(member_id=reply.member_id, group_instance_id=None) for reply in replies]
        assert set(await groups.classic.leave("g", identities)) == {ErrorCode.NONE}
        assert groups.describe("g").state is GroupState.EMPTY


async def test_fetch_is_a_consistent_snapshot_during_commits(
    host: CoordinatorHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("klamm.server.time_slice.SLICE_S", 0)
    names = [f"many-{number}" for number in range(550)]
    host.topics.topics += [fake_topic(UUID(int=100 + number), name) for number, name in enumerate(names)]

    async def commit_all(groups: GroupCoordinator, value: int) -> None:
        codes = await commit(groups, *(offset(name, value=value) for name in names))
        assert set(codes) == {ErrorCode.NONE}

    async def committed_offsets(
        groups: GroupCoordinator, topics: Sequence[tuple[str, Sequence[int]]] | None, turns: int
    ) -> set[int]:
        for _ in range(turns):
            await asyncio.sleep(0)
        fetched = await groups.offsets.fetch("g", topics)
        offsets = [row.offset for _, rows in fetched for _, row in rows if isinstance(row, PutGroupOffset)]
        assert len(offsets) == len(names if topics is None else topics)
        return set(offsets)

    async with host.running() as groups:
        await commit_all(groups, 1)
        everything = [(name, [0]) for name in names]
        seen = await asyncio.gather(
            commit_all(groups, 2),
            *(
                committed_offsets(groups, names, 150 * n)
                for n in range(5)
                for names in (None, everything, everything[:400])
            ),
        )
        assert [offsets for offsets in seen if offsets is not None and len(offsets) != 1] == []
        assert await committed_offsets(groups, None, 0) == {2}

from __future__ import annotations

from uuid import UUID

import pytest

from klamm.broker.groups.classic.model import MemberIdentity
from klamm.broker.groups.offsets import OffsetTable
from klamm.storage.metadata.changes import DropGroupOffset, PutGroupOffset
from tests.support.groups import WALL_START_MS, ClassicGroupClients

TOPIC, OTHER = UUID(int=1), UUID(int=2)
DAY_MS = 86_400_000


def commit(
    partition: int = 0,
    *,
    topic_id: UUID = TOPIC,
    group_id: str = "group",
    at_ms: int = WALL_START_MS,
    expire_ms: int | None = None,
    offset: int = 5,
) -> PutGroupOffset:
    return PutGroupOffset(
        group_id=group_id,
        topic_id=topic_id,
        partition=partition,
        offset=offset,
        leader_epoch=-1,
        metadata="",
        commit_timestamp_ms=at_ms,
        expire_timestamp_ms=expire_ms,
    )


def removal(partition: int = 0, topic_id: UUID = TOPIC) -> DropGroupOffset:
    return DropGroupOffset(group_id="group", topic_id=topic_id, partition=partition)


def expired(
    table: OffsetTable, clients: ClassicGroupClients, at_ms: int, *, in_use: frozenset[UUID] = frozenset()
) -> list[DropGroupOffset]:
    return table.expired(clients.group, wall_ms=at_ms, retention_ms=7 * DAY_MS, in_use=lambda: in_use)


def test_last_commit_wins_even_with_lower_offset() -> None:
    table = OffsetTable([commit(offset=9), commit(offset=3)])

    committed = table.get("group", TOPIC, 0)

    assert committed is not None
    assert committed.offset == 3


def test_dropped_offsets_are_removed_completely() -> None:
    table = OffsetTable([commit(), commit(1), commit(topic_id=OTHER), commit(group_id="other")])

    table.drop(removal(0))
    table.drop(removal(1))
    table.drop(removal(7))
    assert set(table.of_group("group")) == {OTHER}
    table.drop_topic(OTHER)
    assert list(table.group_ids()) == ["other"]
    table.drop_group("other")
    assert table.topic_ids() == frozenset()


def test_offsets_of_outside_commits_expire_individually() -> None:
    """KIP-211."""
    table = OffsetTable([commit(0), commit(1, at_ms=WALL_START_MS + DAY_MS)])
    clients = ClassicGroupClients()

    assert expired(table, clients, WALL_START_MS + 7 * DAY_MS - 1) == []
    assert expired(table, clients, WALL_START_MS + 7 * DAY_MS) == [removal(0)]


def test_offsets_of_an_empty_group_expire_from_when_it_became_empty() -> None:
    """KIP-211."""
    table = OffsetTable([commit(0)])
    clients = ClassicGroupClients()
    clients.stable("m1")
    clients.seconds += 5 * 86_400
    clients.group.leave([MemberIdentity(member_id="m1", group_instance_id=None)], clients.now)

    assert expired(table, clients, WALL_START_MS + 12 * DAY_MS) == []
    assert expired(table, clients, WALL_START_MS + 12 * DAY_MS + 3000) == [removal(0)]


def test_newer_outside_commit_expires_after_full_retention() -> None:
    table = OffsetTable([commit(0, at_ms=WALL_START_MS + 6 * DAY_MS)])
    clients = ClassicGroupClients()
    clients.stable("m1")
    clients.group.leave([MemberIdentity(member_id="m1", group_instance_id=None)], clients.now)

    assert expired(table, clients, WALL_START_MS + 8 * DAY_MS) == []
    assert expired(table, clients, WALL_START_MS + 13 * DAY_MS) == [removal(0)]


def test_stable_group_keeps_offsets_of_subscribed_topics_only() -> None:
    """KIP-211."""
    table = OffsetTable([commit(0), commit(0, topic_id=OTHER)])
    clients = ClassicGroupClients()
    clients.stable("m1")

    assert expired(table, clients, WALL_START_MS + 8 * DAY_MS, in_use=frozenset({TOPIC})) == [removal(0, OTHER)]


@pytest.mark.parametrize("protocol_type", ["consumer", "connect"])
def test_offsets_do_not_expire_during_rebalance_or_with_other_protocol_type(protocol_type: str) -> None:
    table = OffsetTable([commit(0)])
    clients = ClassicGroupClients()
    if protocol_type == "consumer":
        clients.new_dynamic("m1")
    else:
        clients.new_dynamic("m1", protocol_type="connect")
        clients.wait(3)
        clients.send_sync("m1", 1, {"m1": b""}, protocol_type=None, protocol_name=None)

    assert expired(table, clients, WALL_START_MS + 100 * DAY_MS) == []


def test_retention_of_the_commit_request_takes_precedence() -> None:
    table = OffsetTable([commit(0, expire_ms=WALL_START_MS + 1000)])

    assert expired(table, ClassicGroupClients(), WALL_START_MS + 999) == []
    assert expired(table, ClassicGroupClients(), WALL_START_MS + 1000) == [removal(0)]

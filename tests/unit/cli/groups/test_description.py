"""Lag of groups."""

from __future__ import annotations

from klamm.admin import GroupDescription, GroupMember, OffsetAndMetadata, TopicPartition
from klamm.cli.groups.description import lags_of

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def member(name: str, *partitions: TopicPartition) -> GroupMember:
    return GroupMember(
        member_id=name, group_instance_id=None, client_id="c", host="/h", metadata=b"", assignment=b"",
        assigned_partitions=partitions,
    )  # fmt: skip


def test_members_are_sorted_by_partition_count() -> None:
    # given
    group = GroupDescription(
        group_id="g",
        state="Stable",
        protocol_type="consumer",
        protocol="range",
        members=(member("m1", B0), member("m2")),
    )
    committed = {A0: OffsetAndMetadata(3), A1: OffsetAndMetadata(4, leader_epoch=2), B0: OffsetAndMetadata(5)}
    # when
    rows = list(lags_of(group, committed, {A0: 10, A1: None, B0: 5}))
    # then
    assert [(row.partition, row.lag, row.member.member_id if row.member else None) for row in rows] == [
        (B0, 0, "m1"),
        (A0, 7, None),
        (A1, None, None),
    ]
    assert rows[2].cells("g", verbose=True) == ["g", "a", "1", "2", "4", "-", "-", "-", "-", "-"]

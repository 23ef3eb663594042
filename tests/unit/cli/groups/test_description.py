"""List of groups, and their lag."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm import cli
from klamm.admin import GroupDescription, GroupMember, OffsetAndMetadata, TopicPartition
from klamm.cli.groups.description import lags_of
from klamm.protocol.messages.list_groups import ListGroupsResponse
from tests.support.stub_broker import StubBroker, form_cluster

if TYPE_CHECKING:
    import pytest

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


def test_list_prints_groups_of_other_brokers_and_names_the_failed_one(capsys: pytest.CaptureFixture[str]) -> None:
    # given
    group = ListGroupsResponse.ListedGroup(group_id="g", protocol_type="consumer")
    with StubBroker(versions={16: (0, 4)}) as healthy, StubBroker(versions={16: (0, 4)}) as failed:
        form_cluster({1: healthy, 2: failed})
        healthy.answer(16, lambda _: ListGroupsResponse(groups=[group]))
        failed.answer(16, lambda _: ListGroupsResponse(error_code=-1))
        # when
        code = cli.main(["groups", "--list", "--bootstrap-server", healthy.bootstrap_servers, "--timeout", "30000"])
    # then
    output = capsys.readouterr()
    assert (code, output.out) == (cli.EXIT_FAILED, "g\n")
    assert output.err.startswith("Warning: the groups of broker 2 are missing: Unknown server error")


def test_list_fails_if_no_broker_has_groups_to_print(capsys: pytest.CaptureFixture[str]) -> None:
    # given
    with StubBroker(versions={16: (0, 4)}) as broker:
        broker.answer(16, lambda _: ListGroupsResponse(error_code=-1))
        # when
        code = cli.main(["groups", "--list", "--bootstrap-server", broker.bootstrap_servers, "--timeout", "30000"])
    # then
    output = capsys.readouterr()
    assert (code, output.err) == (cli.EXIT_FAILED, "")
    assert "failed due to Unknown server error" in output.out

"""Descriptions of consumer groups of KIP-848, and of classic groups on a broker that has both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.admin import AdminClient, KafkaApiError, TopicPartition
from klamm.cli.groups.description import describe
from klamm.cli.groups.options import parse
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.consumer_group_describe import ConsumerGroupDescribeResponse
from klamm.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tests.support.stub_broker import NODE_ID, StubBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from klamm.protocol.schema import Message
    from tests.support.stub_broker import Request

FIND_COORDINATOR, DESCRIBE_GROUPS, CONSUMER_GROUP_DESCRIBE = 10, 15, 69

Group = ConsumerGroupDescribeResponse.DescribedGroup
Member = ConsumerGroupDescribeResponse.Member
Topics = ConsumerGroupDescribeResponse.TopicPartitions


def assignment(*partitions: int) -> ConsumerGroupDescribeResponse.Assignment:
    topics = [Topics(topic_name="orders", partitions=list(partitions))] if partitions else []
    return ConsumerGroupDescribeResponse.Assignment(topic_partitions=topics)


MIGRATING = Group(
    group_id="next",
    group_state="Reconciling",
    group_epoch=7,
    assignment_epoch=6,
    assignor_name="uniform",
    members=[
        Member(
            member_id="a", member_epoch=6, assignment=assignment(0, 1), target_assignment=assignment(0), member_type=1
        ),
        Member(member_id="b", member_epoch=5, assignment=assignment(), target_assignment=assignment(1), member_type=0),
    ],
)


@pytest.fixture
def broker() -> Iterator[StubBroker]:
    """A broker with one group of KIP-848, the classic group g, and the group old, which it cannot describe."""
    versions = {FIND_COORDINATOR: (4, 6), DESCRIBE_GROUPS: (0, 6), CONSUMER_GROUP_DESCRIBE: (0, 1)}
    with StubBroker(versions=versions) as stub:

        def coordinators(request: Request) -> Message:
            decoded = request.read(FindCoordinatorRequest)
            assert isinstance(decoded, FindCoordinatorRequest)
            Found = FindCoordinatorResponse.Coordinator  # noqa: N806 - a class
            return FindCoordinatorResponse(
                coordinators=[Found(key=key, node_id=NODE_ID) for key in decoded.coordinator_keys]
            )

        def classic(request: Request) -> Message:
            decoded = request.read(DescribeGroupsRequest)
            assert isinstance(decoded, DescribeGroupsRequest)
            Found = DescribeGroupsResponse.DescribedGroup  # noqa: N806 - a class
            return DescribeGroupsResponse(
                groups=[
                    Found(group_id=group, group_state="Dead" if group == "old" else "Empty") for group in decoded.groups
                ]
            )

        stub.answer(FIND_COORDINATOR, coordinators)
        stub.answer(DESCRIBE_GROUPS, classic)
        others = [
            Group(group_id="g", error_code=ErrorCode.GROUP_ID_NOT_FOUND),
            Group(group_id="old", error_code=ErrorCode.UNSUPPORTED_VERSION),
        ]
        stub.answer(CONSUMER_GROUP_DESCRIBE, lambda _: ConsumerGroupDescribeResponse(groups=[MIGRATING, *others]))
        yield stub


def test_groups_of_both_protocols_are_described(broker: StubBroker) -> None:
    with AdminClient(broker.bootstrap_servers) as admin:
        # when
        groups = admin.describe_groups(["next", "g", "old"]).values()
        group = groups["next"].result(60)
        # then
        assert (group.group_epoch, group.target_assignment_epoch, group.protocol) == (7, 6, "uniform")
        first, second = group.members
        assert first.assigned_partitions == (TopicPartition("orders", 0), TopicPartition("orders", 1))
        assert (first.target_partitions, first.member_epoch) == ((TopicPartition("orders", 0),), 6)
        assert (first.is_upgraded, second.is_upgraded) == (True, False)
        assert (groups["g"].result(60).state, groups["g"].result(60).group_epoch) == ("Empty", None)
        assert isinstance(groups["old"].exception(10), KafkaApiError)


def test_member_table_shows_upgraded_column(broker: StubBroker, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"--bootstrap-server {broker.bootstrap_servers} --describe --members --verbose --group next"
    with AdminClient(broker.bootstrap_servers) as admin:
        # when
        describe(admin, parse(words.split()))
    # then
    head, *rows = (line.split() for line in capsys.readouterr().out.splitlines() if line.strip())
    assert head[-5:] == ["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT", "UPGRADED"]
    assert [row[-5:] for row in rows] == [
        ["6", "orders:0,1", "6", "orders:0", "true"],
        ["5", "-", "6", "orders:1", "false"],
    ]

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.broker.handlers import (
    api_015_describe_groups,
    api_016_list_groups,
    api_042_delete_groups,
    api_068_consumer_group_heartbeat,
    api_069_consumer_group_describe,
)
from klamm.client_configs.enforcement import NOTHING_ENFORCED, Enforced
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from klamm.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from klamm.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from klamm.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from klamm.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from klamm.security.acls import AclOperation
from tests.support.group_broker import TOPIC_ID, GroupBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

HEARTBEAT = api_068_consumer_group_heartbeat.ROUTE


@pytest.fixture
def broker() -> Iterator[GroupBroker]:
    with GroupBroker() as running:
        yield running


def beat(broker: GroupBroker, epoch: int, **fields: object) -> ConsumerGroupHeartbeatResponse:
    request = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=epoch, **fields)  # type: ignore[arg-type]
    return broker.ask(HEARTBEAT, request, ConsumerGroupHeartbeatResponse, 1)


def join(broker: GroupBroker, **fields: object) -> ConsumerGroupHeartbeatResponse:
    return beat(
        broker, 0, **{"rebalance_timeout_ms": 1000, "subscribed_topic_names": ["t"], "topic_partitions": [], **fields}
    )


def describe(broker: GroupBroker, version: int = 1) -> ConsumerGroupDescribeResponse.DescribedGroup:
    request = ConsumerGroupDescribeRequest(group_ids=["g"], include_authorized_operations=False)
    (group,) = broker.ask(api_069_consumer_group_describe.ROUTE, request, ConsumerGroupDescribeResponse, version).groups
    return group


def test_member_joins_and_is_described(broker: GroupBroker) -> None:
    """K848-01, -11."""
    reply = join(broker)

    assert (reply.error_code, reply.member_id, reply.member_epoch) == (0, "m", 2)
    assert reply.heartbeat_interval_ms == 5_000
    assert reply.assignment is not None
    assert [(topic.topic_id, topic.partitions) for topic in reply.assignment.topic_partitions] == [(TOPIC_ID, [0, 1])]
    group = describe(broker)
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", 2, 2)
    assert (group.assignor_name, group.authorized_operations) == ("uniform", -(1 << 31))
    (member,) = group.members
    assert (member.member_id, member.client_id, member.client_host) == ("m", "tester", "/10.0.0.1")
    assert (member.subscribed_topic_names, member.member_type, member.member_epoch) == (["t"], 1, 2)
    (topic,) = member.assignment.topic_partitions
    assert (topic.topic_name, topic.partitions) == ("t", [0, 1])
    assert member.target_assignment.topic_partitions[0].partitions == [0, 1]
    assert describe(broker, 0).members[0].member_type == -1


def test_enforced_heartbeat_interval_applies_from_the_next_heartbeat(broker: GroupBroker) -> None:
    """K649-95."""
    join(broker)
    broker.enforcement.values = Enforced(is_on=True, heartbeat_interval_ms=7_000)
    assert beat(broker, 2).heartbeat_interval_ms == 7_000
    broker.enforcement.values = Enforced(is_on=True, heartbeat_interval_ms=90_000)
    assert beat(broker, 2).heartbeat_interval_ms == 15_000, "the broker's limit"
    broker.enforcement.values = NOTHING_ENFORCED
    assert beat(broker, 2).heartbeat_interval_ms == 5_000


def test_group_is_listed_with_its_type_and_state(broker: GroupBroker) -> None:
    """K848-11."""
    join(broker)

    def listed(**filters: list[str]) -> list[tuple[str, str, str, str]]:
        request = ListGroupsRequest(**filters)
        response = broker.ask(api_016_list_groups.ROUTE, request, ListGroupsResponse, 5)
        return [(group.group_id, group.group_type, group.group_state, group.protocol_type) for group in response.groups]

    assert listed() == listed(types_filter=["Consumer"]) == [("g", "consumer", "Stable", "consumer")]
    assert listed(states_filter=["stable"]) == listed()
    assert listed(types_filter=["classic"]) == listed(states_filter=["Empty"]) == []


def test_describe_groups_reports_consumer_group_as_not_classic(broker: GroupBroker) -> None:
    join(broker)

    (group,) = broker.ask(
        api_015_describe_groups.ROUTE, DescribeGroupsRequest(groups=["g"]), DescribeGroupsResponse, 6
    ).groups

    assert (group.error_code, group.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    assert group.error_message == "Group g is not a classic group."


def test_group_with_members_is_not_deleted(broker: GroupBroker) -> None:
    """K848-11."""

    def delete() -> int:
        request = DeleteGroupsRequest(groups_names=["g"])
        return broker.ask(api_042_delete_groups.ROUTE, request, DeleteGroupsResponse, 2).results[0].error_code

    join(broker)
    assert delete() == ErrorCode.NON_EMPTY_GROUP
    left = beat(broker, -1)
    assert (left.error_code, left.member_epoch) == (0, -1)
    assert describe(broker).group_state == "Empty"
    assert delete() == 0
    assert describe(broker).error_code == ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(
    ("epoch", "code", "words"),
    [
        (1, ErrorCode.GROUP_ID_NOT_FOUND, "Consumer group g not found."),
        (-1, ErrorCode.GROUP_ID_NOT_FOUND, "Group g not found."),
        (-5, ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid."),
    ],
)
def test_errors_have_a_message(broker: GroupBroker, epoch: int, code: ErrorCode, words: str) -> None:
    reply = beat(broker, epoch)

    assert (reply.error_code, reply.error_message) == (code, words)


def test_invalid_regular_expression_creates_no_group(broker: GroupBroker) -> None:
    reply = join(broker, subscribed_topic_regex="(")

    assert reply.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert (reply.error_message or "").startswith("SubscribedTopicRegex `(` is not a valid regular expression: ")
    assert describe(broker).error_message == "Group g not found."
    assert join(broker, subscribed_topic_names=None, subscribed_topic_regex="t|u").assignment is not None


def test_rights_are_needed_on_the_group_and_on_its_topics(broker: GroupBroker) -> None:
    denied_group, denied_topic = ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    broker.denied = {(AclOperation.READ, "g")}
    assert join(broker).error_code == denied_group
    broker.denied = {(AclOperation.DESCRIBE, "t")}
    assert join(broker).error_code == denied_topic
    by_regex = join(broker, subscribed_topic_names=None, subscribed_topic_regex="t")
    assert (by_regex.error_code, by_regex.assignment) == (0, ConsumerGroupHeartbeatResponse.Assignment())

    broker.denied = set()
    assert beat(broker, by_regex.member_epoch, subscribed_topic_names=["t"]).error_code == 0
    broker.denied = {(AclOperation.DESCRIBE, "g")}
    assert describe(broker).error_code == denied_group
    broker.denied = {(AclOperation.DESCRIBE, "t")}
    assert (describe(broker).error_code, describe(broker).members) == (denied_topic, [])


def test_version_0_returns_a_generated_member_id(broker: GroupBroker) -> None:
    request = ConsumerGroupHeartbeatRequest(
        group_id="g", rebalance_timeout_ms=1000, subscribed_topic_names=["t"], topic_partitions=[]
    )

    reply = broker.ask(HEARTBEAT, request, ConsumerGroupHeartbeatResponse, 0)

    assert reply.error_code == 0
    assert reply.member_id

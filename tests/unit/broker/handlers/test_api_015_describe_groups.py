from __future__ import annotations

import pytest

from klamm.broker.cluster import coordinator_for
from klamm.broker.handlers.api_015_describe_groups import ROUTE
from klamm.broker.requests.checks import OPERATIONS_OMITTED
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from tests.support.group_broker import GroupBroker

ALL_OPERATIONS = sum(1 << operation for operation in (3, 6, 8, 10, 11))
"""READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS."""


@pytest.mark.parametrize("version", range(7))
def test_unknown_group_is_dead_and_has_an_error_since_v6(version: int) -> None:
    with GroupBroker() as broker:
        answer = broker.ask(ROUTE, DescribeGroupsRequest(groups=["g"]), DescribeGroupsResponse, version)

    (group,) = answer.groups
    assert (group.group_id, group.group_state, group.members) == ("g", "Dead", [])
    assert group.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)
    assert group.error_message == ("Group g not found." if version >= 6 else None)


@pytest.mark.parametrize(("includes_operations", "operations"), [(True, ALL_OPERATIONS), (False, OPERATIONS_OMITTED)])
def test_authorized_operations_contain_all_without_authorizer(includes_operations: bool, operations: int) -> None:
    with GroupBroker() as broker:
        request = DescribeGroupsRequest(groups=["g"], include_authorized_operations=includes_operations)
        answer = broker.ask(ROUTE, request, DescribeGroupsResponse, 5)

    assert answer.groups[0].authorized_operations == operations


def test_group_of_another_coordinator_does_not_fail_others() -> None:
    with GroupBroker(brokers=2) as broker:
        groups = [f"g{number}" for number in range(10)]
        answer = broker.ask(ROUTE, DescribeGroupsRequest(groups=groups), DescribeGroupsResponse, 5)

    assert [group.error_code == ErrorCode.NOT_COORDINATOR for group in answer.groups] == [
        coordinator_for(group, (1, 2)) == 2 for group in groups
    ]

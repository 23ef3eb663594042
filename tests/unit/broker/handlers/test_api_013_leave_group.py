from __future__ import annotations

import pytest

from klamm.broker.handlers.api_013_leave_group import ROUTE
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from tests.support.group_broker import GroupBroker

Identity = LeaveGroupRequest.MemberIdentity


@pytest.mark.parametrize("version", range(3))
def test_single_member_versions_report_error_at_top_level(version: int) -> None:
    with GroupBroker() as broker:
        answer = broker.ask(ROUTE, LeaveGroupRequest(group_id="g", member_id="m"), LeaveGroupResponse, version)

    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", [3, 4, 5])
def test_multi_member_versions_report_one_error_per_member(version: int) -> None:
    """KIP-345."""
    with GroupBroker() as broker:
        request = LeaveGroupRequest(
            group_id="g", members=[Identity(member_id="m"), Identity(member_id="", group_instance_id="i")]
        )
        answer = broker.ask(ROUTE, request, LeaveGroupResponse, version)

    assert answer.error_code == 0
    assert [(m.member_id, m.group_instance_id, m.error_code) for m in answer.members] == [
        ("m", None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", "i", ErrorCode.UNKNOWN_MEMBER_ID),
    ]


def test_leave_on_other_broker_is_not_coordinator() -> None:
    with GroupBroker(brokers=2) as broker:
        request = LeaveGroupRequest(group_id="g", members=[Identity(member_id="m")])
        codes = [broker.ask(ROUTE, request, LeaveGroupResponse, 5, node_id=node_id).error_code for node_id in (1, 2)]

    assert sorted(codes) == [ErrorCode.NONE, ErrorCode.NOT_COORDINATOR]

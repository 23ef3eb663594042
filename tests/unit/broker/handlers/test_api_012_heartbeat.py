from __future__ import annotations

import pytest

from klamm.broker.handlers.api_012_heartbeat import ROUTE
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tests.support.group_broker import GroupBroker


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize(("group_id", "error_code"), [("g", "UNKNOWN_MEMBER_ID"), ("", "INVALID_GROUP_ID")])
def test_unknown_member_is_rejected(version: int, group_id: str, error_code: str) -> None:
    with GroupBroker() as broker:
        request = HeartbeatRequest(group_id=group_id, generation_id=1, member_id="m")
        answer = broker.ask(ROUTE, request, HeartbeatResponse, version)

    assert answer.error_code == ErrorCode[error_code]


def test_heartbeat_on_other_broker_is_not_coordinator() -> None:
    with GroupBroker(brokers=2) as broker:
        request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        codes = [broker.ask(ROUTE, request, HeartbeatResponse, 4, node_id=node_id).error_code for node_id in (1, 2)]

    assert sorted(codes) == [ErrorCode.NOT_COORDINATOR, ErrorCode.UNKNOWN_MEMBER_ID]

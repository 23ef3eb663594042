from __future__ import annotations

import pytest

from klamm.broker.cluster import coordinator_for
from klamm.broker.handlers.api_011_join_group import ROUTE
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tests.support.group_broker import GroupBroker

Protocol = JoinGroupRequest.JoinGroupRequestProtocol


def request(member_id: str = "", *, group_id: str = "g", session_timeout_ms: int = 10_000) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[Protocol(name="range", metadata=b"sub")],
    )


def join(broker: GroupBroker, version: int) -> JoinGroupResponse:
    answer = broker.ask(ROUTE, request(), JoinGroupResponse, version)
    if version < 4:
        return answer
    assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
    return broker.ask(ROUTE, request(answer.member_id), JoinGroupResponse, version)


@pytest.mark.parametrize("version", range(10))
def test_first_member_leads_generation_1(version: int) -> None:
    with GroupBroker() as broker:
        answer = join(broker, version)

    assert (answer.error_code, answer.generation_id, answer.protocol_name) == (0, 1, "range")
    assert answer.leader == answer.member_id
    assert [(member.member_id, member.metadata) for member in answer.members] == [(answer.member_id, b"sub")]
    assert answer.member_id.startswith("tester-")
    assert answer.protocol_type == ("consumer" if version >= 7 else None)


@pytest.mark.parametrize("version", range(10))
def test_rejection_is_encoded_in_every_version(version: int) -> None:
    with GroupBroker() as broker:
        answer = broker.ask(ROUTE, request(session_timeout_ms=1), JoinGroupResponse, version)

    assert (answer.error_code, answer.generation_id) == (ErrorCode.INVALID_SESSION_TIMEOUT, -1)
    assert answer.protocol_name == (None if version >= 7 else "")


def test_member_is_described_with_client_id_and_host() -> None:
    with GroupBroker() as broker:
        join(broker, 9)
        (member,) = broker.groups.describe("g").members

    assert (member.client_id, member.client_host) == ("tester", "/10.0.0.1")


@pytest.mark.parametrize("version", [0, 9])
def test_join_on_other_broker_is_not_coordinator(version: int) -> None:
    with GroupBroker(brokers=2) as broker:
        wrong = 3 - coordinator_for("g", (1, 2))
        answer = broker.ask(ROUTE, request(), JoinGroupResponse, version, node_id=wrong)

    assert answer.error_code == ErrorCode.NOT_COORDINATOR

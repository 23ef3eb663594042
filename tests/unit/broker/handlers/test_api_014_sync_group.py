from __future__ import annotations

import pytest

from klamm.broker.handlers import api_011_join_group
from klamm.broker.handlers.api_014_sync_group import ROUTE
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from klamm.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from tests.support.group_broker import GroupBroker

Share = SyncGroupRequest.SyncGroupRequestAssignment


def join(broker: GroupBroker) -> str:
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    return broker.ask(api_011_join_group.ROUTE, request, JoinGroupResponse, 3).member_id


@pytest.mark.parametrize("version", range(6))
def test_leader_gets_its_own_assignment(version: int) -> None:
    with GroupBroker() as broker:
        member_id = join(broker)
        request = SyncGroupRequest(
            group_id="g",
            generation_id=1,
            member_id=member_id,
            protocol_type="consumer" if version >= 5 else None,
            protocol_name="range" if version >= 5 else None,
            assignments=[Share(member_id=member_id, assignment=b"share")],
        )
        answer = broker.ask(ROUTE, request, SyncGroupResponse, version)

    assert (answer.error_code, answer.assignment) == (0, b"share")
    assert answer.protocol_name == ("range" if version >= 5 else None)


@pytest.mark.parametrize(
    ("protocol_type", "protocol_name", "error_code"),
    [
        ("consumer", "range", "NONE"),
        ("consumer", "other", "INCONSISTENT_GROUP_PROTOCOL"),
        ("other", "range", "INCONSISTENT_GROUP_PROTOCOL"),
        ("consumer", None, "INCONSISTENT_GROUP_PROTOCOL"),
        (None, "range", "INCONSISTENT_GROUP_PROTOCOL"),
    ],
)
def test_protocol_and_its_type_must_be_those_of_the_group(
    protocol_type: str | None, protocol_name: str | None, error_code: str
) -> None:
    """KIP-559."""
    with GroupBroker() as broker:
        request = SyncGroupRequest(
            group_id="g",
            generation_id=1,
            member_id=join(broker),
            protocol_type=protocol_type,
            protocol_name=protocol_name,
        )
        answer = broker.ask(ROUTE, request, SyncGroupResponse, 5)

    assert answer.error_code == ErrorCode[error_code]


def test_sync_on_other_broker_is_not_coordinator() -> None:
    with GroupBroker(brokers=2) as broker:
        request = SyncGroupRequest(
            group_id="g", generation_id=1, member_id="m", protocol_type="consumer", protocol_name="range"
        )
        codes = [broker.ask(ROUTE, request, SyncGroupResponse, 5, node_id=node_id).error_code for node_id in (1, 2)]

    assert sorted(codes) == [ErrorCode.NOT_COORDINATOR, ErrorCode.UNKNOWN_MEMBER_ID]


def test_missing_protocol_is_reported_before_the_coordinator() -> None:
    with GroupBroker(brokers=2) as broker:
        request = SyncGroupRequest(group_id="g", generation_id=1, member_id="m")
        codes = {broker.ask(ROUTE, request, SyncGroupResponse, 5, node_id=node_id).error_code for node_id in (1, 2)}

    assert codes == {ErrorCode.INCONSISTENT_GROUP_PROTOCOL}

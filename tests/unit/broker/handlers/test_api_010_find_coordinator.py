from __future__ import annotations

import pytest

from klamm.broker.cluster import coordinator_for
from klamm.broker.handlers.api_010_find_coordinator import ROUTE
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tests.support.group_broker import GroupBroker


@pytest.mark.parametrize("version", range(4))
def test_one_key_is_answered_with_an_address(version: int) -> None:
    with GroupBroker() as broker:
        answer = broker.ask(ROUTE, FindCoordinatorRequest(key="g"), FindCoordinatorResponse, version)

    assert (answer.error_code, answer.node_id, answer.host, answer.port) == (0, 1, "host-1", 9001)
    assert answer.error_message == ("NONE" if version else "")


@pytest.mark.parametrize("version", [4, 5, 6])
@pytest.mark.parametrize("key_type", [0, 1], ids=["group", "transaction"])
def test_each_key_is_answered_with_its_coordinator(version: int, key_type: int) -> None:
    keys = [f"key-{number}" for number in range(20)]
    with GroupBroker(brokers=3) as broker:
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=keys)
        answer = broker.ask(ROUTE, request, FindCoordinatorResponse, version)

    assert [(c.key, c.node_id, c.error_code) for c in answer.coordinators] == [
        (key, coordinator_for(key, (1, 2, 3)), 0) for key in keys
    ]
    assert {c.node_id for c in answer.coordinators} == {1, 2, 3}


@pytest.mark.parametrize("version", [1, 6])
@pytest.mark.parametrize("key_type", [2, 3, -1])
def test_other_key_types_have_no_coordinator(version: int, key_type: int) -> None:
    with GroupBroker() as broker:
        request = FindCoordinatorRequest(
            key="" if version >= 4 else "g", key_type=key_type, coordinator_keys=["g"] if version >= 4 else []
        )
        answer = broker.ask(ROUTE, request, FindCoordinatorResponse, version)

    coordinator = answer.coordinators[0] if version >= 4 else answer
    assert (coordinator.error_code, coordinator.node_id, coordinator.host, coordinator.port) == (
        ErrorCode.INVALID_REQUEST,
        -1,
        "",
        -1,
    )

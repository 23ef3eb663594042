"""Parts of frames that the relay reads without decoding the message."""

from __future__ import annotations

import struct
from itertools import product

import pytest

from klamm.gateway.apis.api_000_produce import acks_of, put_acks
from klamm.gateway.apis.api_011_join_group import session_timeout_at
from klamm.gateway.apis.api_068_consumer_group_heartbeat import heartbeat_interval_at
from klamm.gateway.frames.wire import (
    INT32,
    REQUEST_HEAD,
    end_of_client_id,
    request_frame,
    response_frame,
)
from klamm.protocol.errors import ProtocolError
from klamm.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from klamm.protocol.messages.join_group import JoinGroupRequest
from klamm.protocol.messages.produce import ProduceRequest
from tests.support.cases import case


def test_acks_are_found_in_every_version() -> None:
    for version, transactional_id, acks in product(range(3, 14), (None, "", "tx-1", "x" * 300), (-1, 0, 1)):
        with case(version, transactional_id, acks):
            request = ProduceRequest(transactional_id=transactional_id, acks=acks, timeout_ms=1)
            frame = memoryview(request_frame(request, version, 1, "client"))
            body = end_of_client_id(len("client"))
            found_acks, after = acks_of(frame, version, body)
            assert (found_acks, bytes(frame[after - 2 : after])) == (acks, acks.to_bytes(2, signed=True))
            answered = 0
            for end in range(body, len(frame)):
                try:
                    assert acks_of(frame[:end], version, body) == (acks, after)
                    answered += 1
                except (IndexError, struct.error, ProtocolError):
                    assert not answered  # once there are enough bytes, the answer does not change


def test_client_id_of_negative_length_other_than_null_is_rejected() -> None:
    assert end_of_client_id(-1) == end_of_client_id(0) == REQUEST_HEAD.size
    with pytest.raises(ProtocolError, match="-2 bytes"):
        end_of_client_id(-2)


@pytest.mark.parametrize("version", range(10))
@pytest.mark.parametrize("group_id", ["", "g", "x" * 300])
def test_session_timeout_of_a_join_is_found_in_every_version(version: int, group_id: str) -> None:
    request = JoinGroupRequest(
        group_id=group_id, session_timeout_ms=12_345, rebalance_timeout_ms=7, member_id="", protocol_type="consumer"
    )
    frame = memoryview(request_frame(request, version, 1, "client"))
    position = session_timeout_at(frame, version, end_of_client_id(len("client")))
    assert INT32.unpack_from(frame, position) == (12_345,)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("member_id", [None, "", "m", "x" * 300])
def test_interval_of_a_heartbeat_response_is_found(version: int, member_id: str | None) -> None:
    response = ConsumerGroupHeartbeatResponse(
        throttle_time_ms=9, member_id=member_id, member_epoch=3, heartbeat_interval_ms=5_000
    )
    frame = memoryview(response_frame(response, version, 1))
    position = heartbeat_interval_at(frame)
    assert position is not None
    assert INT32.unpack_from(frame, position) == (5_000,)
    with pytest.raises((IndexError, struct.error)):
        INT32.unpack_from(frame[:position], heartbeat_interval_at(frame[:position]) or 0)


def test_error_of_a_heartbeat_has_no_interval() -> None:
    response = ConsumerGroupHeartbeatResponse(error_code=25, error_message="unknown member")
    assert heartbeat_interval_at(memoryview(response_frame(response, 1, 1))) is None


def test_acks_are_replaced() -> None:
    frame = bytearray(request_frame(ProduceRequest(transactional_id="tx", acks=0, timeout_ms=1), 9, 1, "client"))
    body = end_of_client_id(len("client"))
    _, end = acks_of(memoryview(frame), 9, body)
    put_acks(memoryview(frame), end, -1)
    expected = request_frame(ProduceRequest(transactional_id="tx", acks=-1, timeout_ms=1), 9, 1, "client")
    assert bytes(frame) == expected

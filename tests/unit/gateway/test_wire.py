"""Parts of frames that the relay reads without decoding the message."""

from __future__ import annotations

import struct

import pytest

from klamm.gateway.wire import REQUEST_HEAD, acks_of, end_of_client_id, request_frame
from klamm.protocol.errors import ProtocolError
from klamm.protocol.messages.produce import ProduceRequest


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("transactional_id", [None, "", "tx-1", "x" * 300])
@pytest.mark.parametrize("acks", [-1, 0, 1])
def test_acks_are_found_in_every_version(version: int, transactional_id: str | None, acks: int) -> None:
    request = ProduceRequest(transactional_id=transactional_id, acks=acks, timeout_ms=1)
    frame = memoryview(request_frame(request, version, 1, "client"))
    body = end_of_client_id(len("client"))
    found_acks, after = acks_of(frame, version, body)
    assert (found_acks, bytes(frame[after - 2 : after])) == (acks, acks.to_bytes(2, signed=True))
    found = 0
    for end in range(body, len(frame)):
        try:
            assert acks_of(frame[:end], version, body) == (acks, after)
            found += 1
        except (IndexError, struct.error, ProtocolError):
            assert not found  # once there are enough bytes, the answer does not change


def test_a_client_id_may_be_null_but_not_of_another_negative_length() -> None:
    assert end_of_client_id(-1) == end_of_client_id(0) == REQUEST_HEAD.size
    with pytest.raises(ProtocolError, match="-2 bytes"):
        end_of_client_id(-2)

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.connection import Connection, negotiate
from klamm.kafka_client.connection.transport import PlainTransport
from klamm.kafka_client.errors import ConnectionLostError
from klamm.protocol.codec import encode
from klamm.protocol.errors import UnsupportedVersionError
from klamm.protocol.messages.api_versions import ApiVersionsResponse
from klamm.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    Connect: TypeAlias = Callable[..., tuple[Connection, "Peer"]]

WAIT_S = 5.0
OFFERED = ApiVersionsResponse(
    api_keys=[ApiVersionsResponse.ApiVersion(api_key=3, min_version=4, max_version=9)], finalized_features_epoch=-1
)
METADATA = MetadataResponse(cluster_id="here", controller_id=1)


class Peer:
    """The broker's end: answers each request with what a function makes of its correlation id."""

    def __init__(self, end: socket.socket, answer: Callable[[int, int], bytes | None]) -> None:
        self._end = end
        self._answer = answer
        self.requests: list[bytes] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # the test is over
            while len(size := self._end.recv(4, socket.MSG_WAITALL)) == 4:
                request = self._end.recv(int.from_bytes(size), socket.MSG_WAITALL)
                self.requests.append(request)
                answer = self._answer(int.from_bytes(request[:2]), int.from_bytes(request[4:8]))
                if answer is None:
                    self._end.close()
                    return
                # Byte by byte: a frame may come in any pieces.
                for at in range(len(answer)):
                    self._end.send(answer[at : at + 1])


def frame(correlation_id: int, body: bytes | bytearray, *, tags: bool) -> bytes:
    content = correlation_id.to_bytes(4) + (b"\0" if tags else b"") + bytes(body)
    return len(content).to_bytes(4) + content


def usual(api_key: int, correlation_id: int) -> bytes:
    if api_key == 18:
        return frame(correlation_id, encode(OFFERED, 3), tags=False)
    return frame(correlation_id, encode(METADATA, 9), tags=True)


@pytest.fixture
def connect() -> Iterator[Connect]:
    ends: list[Any] = []

    def connect(answer: Callable[[int, int], bytes | None] = usual) -> tuple[Connection, Peer]:
        listener = socket.create_server(("127.0.0.1", 0))
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
        listener.close()
        made = Connection(PlainTransport(ours), client_id="me", pool=BufferPool(max_free_bytes=0))
        ends.extend((made, theirs))
        return made, Peer(theirs, answer)

    yield connect
    for end in ends:
        end.close()


def test_versions_are_negotiated_and_responses_reassembled(connect: Connect) -> None:
    connection, peer = connect()
    connection.handshake(WAIT_S)
    assert connection.version_of(MetadataRequest) == 9
    answer = connection.call(MetadataRequest(topics=[]), MetadataResponse, timeout_s=WAIT_S)
    assert answer == METADATA
    assert [int.from_bytes(request[:2]) for request in peer.requests] == [18, 3]
    assert peer.requests[1][8:12] == b"\0\x02me"


def test_api_versions_falls_back_to_version_0(connect: Connect) -> None:
    keys: list[int] = []

    def old(api_key: int, correlation_id: int) -> bytes:
        keys.append(api_key)
        rejection = ApiVersionsResponse(error_code=35, api_keys=[])
        return frame(correlation_id, encode(rejection if len(keys) == 1 else OFFERED, 0), tags=False)

    connection, peer = connect(old)
    connection.handshake(WAIT_S)
    assert [int.from_bytes(request[2:4]) for request in peer.requests] == [3, 0]
    assert connection.version_of(MetadataRequest) == 9


def test_missing_api_raises_unsupported_version(connect: Connect) -> None:
    connection, _ = connect()
    connection.handshake(WAIT_S)
    with pytest.raises(UnsupportedVersionError, match="does not offer IncrementalAlterConfigsRequest"):
        connection.version_of(IncrementalAlterConfigsRequest)
    with pytest.raises(UnsupportedVersionError, match="requires a version in 10-"):
        connection.version_of(MetadataRequest, at_least=10)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda _, __: None, "closed the connection|reset"),
        (lambda _, correlation_id: frame(correlation_id + 1, b"", tags=False), "correlation id 1, expected 0"),
        (lambda _, __: (0x7FFFFFFF).to_bytes(4), "Frame of 2147483647 bytes"),
        (lambda _, __: (-1 & 0xFFFFFFFF).to_bytes(4), "Frame of -1 bytes"),
        (lambda _, correlation_id: frame(correlation_id, b"\0\0\x7f", tags=False), "api_keys declares length 126"),
    ],
    ids=["closed", "strange id", "huge", "negative", "cut"],
)
def test_invalid_response_closes_the_connection(
    connect: Connect, answer: Callable[[int, int], bytes | None], message: str
) -> None:
    connection, _ = connect(answer)
    with pytest.raises(ConnectionLostError, match=message):
        connection.handshake(WAIT_S)
    assert connection.closed


def test_missing_response_closes_the_connection(connect: Connect) -> None:
    connection, _ = connect(lambda _, __: b"")
    with pytest.raises(ConnectionLostError, match=r"No response to ApiVersionsRequest within 0\.05 s"):
        connection.handshake(0.05)
    assert connection.closed


def test_request_is_silent_since_the_last_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    clock = Mock(return_value=100.0)
    monkeypatch.setattr("klamm.kafka_client.connection.connection.time", Mock(monotonic=clock))
    arriving = [(1000).to_bytes(4), b"part"]

    def receive_into(view: memoryview) -> int | None:
        if not arriving:
            return None
        data = arriving.pop(0)
        view[: len(data)] = data
        return len(data)

    transport = Mock(send_views=lambda views: sum(map(len, views)), receive_into=receive_into)
    connection = Connection(transport, client_id="me", pool=BufferPool(max_free_bytes=0))
    assert connection.silent_s(500.0) == 0.0, "no request is in flight"
    # when
    connection.submit(MetadataRequest, 9, [b"body"], MetadataResponse, lambda *_: None)
    # then
    assert connection.silent_s(110.0) == 10.0
    # when
    clock.return_value = 150.0
    connection.write()
    # then
    assert connection.silent_s(151.0) == 1.0
    # when
    clock.return_value = 200.0
    connection.read()
    # then
    assert (connection.silent_s(230.0), connection.oldest_wait_s(230.0)) == (30.0, 130.0)


KEY = MetadataRequest.API_KEY


def test_highest_common_version_is_negotiated() -> None:
    assert negotiate(MetadataRequest, {KEY: (0, 9)}) == 9
    assert negotiate(MetadataRequest, {KEY: (0, 99)}) == MetadataRequest.VERSIONS[1]
    assert negotiate(MetadataRequest, {KEY: (0, 9)}, max_version=4) == 4


def test_missing_api_is_an_unsupported_version() -> None:
    """K339-40: If the broker does not offer key 44, the admin call fails with an "unsupported version" error; the API
    itself does not silently fall back.
    """
    with pytest.raises(UnsupportedVersionError, match=r"does not offer MetadataRequest \(key 3\)"):
        negotiate(MetadataRequest, {})


def test_no_common_version_is_an_unsupported_version() -> None:
    with pytest.raises(
        UnsupportedVersionError, match="offers MetadataRequest 0-3, but this call requires a version in 4-"
    ):
        negotiate(MetadataRequest, {KEY: (0, 3)}, min_version=4)

"""States of a connection over a transport in memory: order of responses, and ends of the connection."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest

from klamm.protocol.api import Api, ApiKey
from klamm.protocol.codec import decode, encode
from klamm.protocol.errors import StorageError
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.server.client_registry import ClientRegistry
from klamm.server.connection import LOGIN_TIMEOUT_S, MAX_WAITING_FRAMES, ClientConnection, SharedByConnections, Traffic
from klamm.server.connection_limits import ConnectionLimits
from klamm.server.context import HandlerContext
from klamm.server.outbox import UnreadBudget
from klamm.server.quotas.throttles import Throttles
from klamm.server.route import Route
from klamm.server.security.endpoints import Endpoint
from klamm.server.security.login import Login, LoginSettings
from klamm.server.session import Session
from klamm.server.time_slice import Turns
from tests.support.quotas import NoQuotas
from tests.support.wire import request_frame

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

IDLE_S = 10.0


@dataclass
class Transport:
    """Transport that keeps the written bytes until the test reads them."""

    written: bytearray = field(default_factory=bytearray)
    unread: int = 0
    is_reading: bool = True
    ended: str = ""
    """How the connection was ended: close or abort."""

    def get_extra_info(self, name: str) -> object:
        return None

    def get_write_buffer_size(self) -> int:
        return self.unread

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, buffers: Sequence[bytes]) -> None:
        self.written += b"".join(bytes(buffer) for buffer in buffers)

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def is_closing(self) -> bool:
        return bool(self.ended)

    def close(self) -> None:
        self.ended = self.ended or "close"

    def abort(self) -> None:
        self.ended = "abort"


async def metadata(_: MetadataRequest, __: HandlerContext) -> MetadataResponse:
    return MetadataResponse(cluster_id="here")


async def versions(_: ApiVersionsRequest, __: HandlerContext) -> ApiVersionsResponse:
    return ApiVersionsResponse()


class Peer:
    """A client of one connection of a server with two APIs. Create it on a running loop."""

    def __init__(
        self,
        handle: Callable[[Any, Any], Awaitable[Any]] = metadata,
        *,
        configs: dict[str, object] | None = None,
        max_frame_bytes: int = 1 << 20,
        login: Login | None = None,
        may_wait: bool = False,
    ) -> None:
        values = configs or {}
        self.limits = ConnectionLimits(lambda name: values.get(name, 2**31 - 1 if "max." in name else ""))
        self.shared = SharedByConnections(
            new_context=HandlerContext,
            routes={
                ApiKey.METADATA: Route(
                    api=Api(key=ApiKey.METADATA, min_version=0, max_version=12),
                    request=MetadataRequest,
                    handle=cast("Any", handle),
                    may_wait=may_wait,
                ),
                ApiKey.API_VERSIONS: Route(
                    api=Api(key=ApiKey.API_VERSIONS, min_version=0, max_version=3),
                    request=ApiVersionsRequest,
                    handle=versions,
                ),
            },
            client_registry=ClientRegistry(now_ms=lambda: 0),
            throttles=Throttles(NoQuotas(), lambda _: 2**31 - 1),
            traffic=Traffic(),
            budget=UnreadBudget(),
            turns=Turns(),
            max_frame_bytes=max_frame_bytes,
        )
        self.transport = Transport()
        session = Session(connection_id=1, node_id=1, client_host="127.0.0.1", client_port=5000, login=login)
        slot = self.limits.admit(session.client_host, session.listener)
        assert slot is not None
        self.connection = ClientConnection(session, Endpoint(name="PLAINTEXT"), self.shared, slot)
        self.connection.connection_made(cast("asyncio.Transport", self.transport))

    async def send(self, data: bytes) -> None:
        """Deliver bytes in the pieces that the connection's buffers take, then let the server work."""
        view = memoryview(data)
        while view:
            buffer = self.connection.get_buffer(-1)
            size = min(len(buffer), len(view))
            buffer[:size] = view[:size]
            self.connection.buffer_updated(size)
            view = view[size:]
        await settle()

    def correlation_ids(self) -> list[int]:
        """Return those of the whole responses so far."""
        ids, at = [], 0
        while at < len(self.transport.written):
            size = int.from_bytes(self.transport.written[at : at + 4])
            ids.append(int.from_bytes(self.transport.written[at + 4 : at + 8]))
            at += 4 + size
        return ids


async def settle() -> None:
    for _ in range(2 * MAX_WAITING_FRAMES + 10):
        await asyncio.sleep(0)


def ask(correlation_id: int = 1, *, version: int = 9) -> bytes:
    return request_frame(MetadataRequest(topics=[]), version, correlation_id=correlation_id)


@pytest.mark.parametrize("piece", [1, 3, 7, 1000])
async def test_requests_are_answered_in_order_however_the_bytes_arrive(piece: int) -> None:
    peer = Peer()
    data = b"".join(ask(number) for number in range(5))
    for at in range(0, len(data), piece):
        await peer.send(data[at : at + piece])
    assert peer.correlation_ids() == [0, 1, 2, 3, 4]


async def test_next_request_starts_after_the_previous_response() -> None:
    started: list[int] = []
    gate = asyncio.Event()

    async def slow(_: object, __: object) -> MetadataResponse:
        started.append(len(started))
        await gate.wait()
        return MetadataResponse()

    peer = Peer(slow)
    await peer.send(ask(1) + ask(2))
    assert (started, peer.correlation_ids(), peer.connection.is_idle) == ([0], [], False)
    gate.set()
    await settle()
    assert (peer.correlation_ids(), peer.connection.is_idle) == ([1, 2], True)


async def test_pipelined_frames_are_limited() -> None:
    gate = asyncio.Event()

    async def slow(_: object, __: object) -> MetadataResponse:
        await gate.wait()
        return MetadataResponse()

    peer = Peer(slow)
    await peer.send(b"".join(ask(number) for number in range(MAX_WAITING_FRAMES + 10)))
    assert not peer.transport.is_reading
    gate.set()
    await settle()
    assert peer.transport.is_reading
    assert peer.correlation_ids() == list(range(MAX_WAITING_FRAMES + 10))


async def test_reading_resumes_when_few_enough_bytes_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = asyncio.Semaphore(0)

    async def slow(_: object, __: object) -> MetadataResponse:
        await gate.acquire()
        return MetadataResponse()

    monkeypatch.setattr("klamm.server.connection.MAX_WAITING_BYTES", 2 * len(ask()))
    peer = Peer(slow)
    await peer.send(b"".join(ask(number) for number in range(5)))  # the first one is being processed
    states = [peer.transport.is_reading]
    for _ in range(3):
        gate.release()
        await settle()
        states.append(peer.transport.is_reading)
    assert states == [False, False, False, True]
    assert peer.correlation_ids() == [0, 1, 2]


async def test_peer_that_does_not_read_gets_no_further_response() -> None:
    peer = Peer()
    peer.connection.pause_writing()
    await peer.send(ask(1))
    assert peer.correlation_ids() == []
    peer.connection.resume_writing()
    await settle()
    assert peer.correlation_ids() == [1]


async def test_request_without_a_response_does_not_delay_the_next() -> None:
    """As Produce with acks=0."""
    answers = iter([None, MetadataResponse()])

    async def silent(_: object, __: object) -> MetadataResponse | None:
        return next(answers)

    peer = Peer(silent)
    await peer.send(ask(1) + ask(2))
    assert peer.correlation_ids() == [2]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x7f\xff\xff\xff", "2147483647"),
        (b"\xff\xff\xff\xff", "-1"),
        (request_frame(MetadataRequest(topics=[]), 9)[:4] + b"\x00\x63" + ask()[6:], "API key 99 is not served"),
        (ask()[:6] + b"\x00\x0d" + ask()[8:], "METADATA v13 is not served, only v0-12"),
        (b"\x00\x00\x00\x0e" + ask()[4:18], ""),
    ],
    ids=["too large", "negative size", "unknown api", "unserved version", "cut request"],
)
async def test_protocol_errors_close_the_connection(caplog: pytest.LogCaptureFixture, data: bytes, reason: str) -> None:
    peer = Peer()
    with caplog.at_level(logging.WARNING):
        await peer.send(data)
    assert peer.transport.ended == "close"
    assert "Connection of 127.0.0.1:5000 closed: " in caplog.text
    assert reason in caplog.text


async def test_unsupported_api_versions_version_is_answered_in_version_0() -> None:
    """KIP-511."""
    peer = Peer()
    frame = bytearray(request_frame(ApiVersionsRequest(), 3, correlation_id=7))
    frame[6:8] = (99).to_bytes(2)
    await peer.send(bytes(frame))
    answer = decode(ApiVersionsResponse, 0, memoryview(peer.transport.written), 8)
    assert (answer.error_code, peer.transport.ended) == (35, "")
    assert [(api.api_key, api.min_version, api.max_version) for api in answer.api_keys] == [(18, 0, 3)]


@pytest.mark.parametrize(
    ("error", "ended"), [(ZeroDivisionError(), "close"), (StorageError("the disk is gone"), "abort")]
)
async def test_handler_error_closes_its_connection_and_is_logged(
    caplog: pytest.LogCaptureFixture, error: Exception, ended: str
) -> None:
    async def fail(_: object, __: object) -> MetadataResponse:
        raise error

    with caplog.at_level(logging.WARNING):
        peer, other = Peer(fail), Peer()
        await peer.send(ask(1) + ask(2))
        assert (peer.transport.ended, peer.correlation_ids()) == (ended, [])
        await other.send(ask(3))
        assert other.correlation_ids() == [3]
    assert "127.0.0.1:5000" in caplog.text


async def test_lost_connection_is_released_from_the_limits() -> None:
    peer = Peer(configs={"max.connections.per.ip": 1})
    assert peer.limits.admit("127.0.0.1", "PLAINTEXT") is None
    peer.connection.connection_lost(None)
    assert peer.limits.admit("127.0.0.1", "PLAINTEXT") is not None


@pytest.mark.parametrize(("unread", "ended"), [(0, "close"), (100, "abort")])
async def test_idle_connection_is_closed_and_aborted_if_responses_are_unread(unread: int, ended: str) -> None:
    peer = Peer()
    await peer.send(ask())
    peer.transport.unread = unread
    for now in (0.0, IDLE_S - 1):
        peer.connection.close_if_idle(now, IDLE_S)
    assert peer.transport.ended == ""
    peer.connection.close_if_idle(2 * IDLE_S, IDLE_S)
    assert peer.transport.ended == ended


async def test_connection_with_a_request_on_its_way_is_not_idle() -> None:
    """On a slow link, a large request takes longer than connections.max.idle.ms."""
    peer = Peer()
    data = ask()
    for at in range(len(data)):
        await peer.send(data[at : at + 1])
        peer.connection.close_if_idle(at * IDLE_S / 2, IDLE_S)
    assert (peer.transport.ended, peer.correlation_ids()) == ("", [1])


async def test_connection_without_a_login_is_aborted_although_its_client_sends() -> None:
    now = asyncio.get_running_loop().time()
    peer, plaintext = Peer(login=Login(LoginSettings(mechanisms={}, now=lambda: 0.0))), Peer()
    await peer.send(request_frame(ApiVersionsRequest(), 3))
    assert peer.correlation_ids()
    for connection in (peer.connection, plaintext.connection):
        connection.close_if_not_logged_in(now + LOGIN_TIMEOUT_S - 1)
    assert peer.transport.ended == ""
    for connection in (peer.connection, plaintext.connection):
        connection.close_if_not_logged_in(now + LOGIN_TIMEOUT_S + 1)
    assert (peer.transport.ended, plaintext.transport.ended) == ("abort", "")


async def test_request_in_progress_keeps_its_connection_open() -> None:
    async def slow(_: object, __: object) -> MetadataResponse:
        await asyncio.Event().wait()
        raise AssertionError

    peer = Peer(slow)
    await peer.send(ask())
    for now in range(0, 100, 5):
        peer.connection.close_if_idle(float(now), IDLE_S)
    assert peer.transport.ended == ""


class Held:
    """Handler that waits until it is released. Without a response it is like Produce with acks=0."""

    def __init__(self, response: MetadataResponse | None = None) -> None:
        self.started = 0
        self.handled = 0
        self.released = asyncio.Event()
        self._response = response

    async def __call__(self, _: object, __: object) -> MetadataResponse | None:
        self.started += 1
        await self.released.wait()
        self.handled += 1
        return self._response


@pytest.mark.parametrize("response", [None, MetadataResponse()], ids=["acks=0", "acks=1"])
@pytest.mark.parametrize("lost", [None, ConnectionResetError()], ids=["closed", "reset"])
async def test_received_requests_are_completed_after_the_client_has_closed(
    response: MetadataResponse | None, lost: Exception | None
) -> None:
    # given
    handler = Held(response)
    peer = Peer(handler, configs={"max.connections.per.ip": 1})
    await peer.send(ask(1) + ask(2) + ask(3))
    peer.connection.pause_writing()  # the peer has not read everything
    # when
    peer.connection.connection_lost(lost)
    await settle()
    # then: until then it counts as a connection
    assert (handler.started, handler.handled, peer.shared.connections) == (1, 0, {peer.connection})
    assert peer.limits.admit("127.0.0.1", "PLAINTEXT") is None
    # when
    handler.released.set()
    await settle()
    # then
    assert (handler.handled, len(peer.transport.written), peer.shared.connections) == (3, 0, set())
    assert peer.limits.admit("127.0.0.1", "PLAINTEXT") is not None
    assert [client.connections for client in peer.shared.client_registry.clients()] == [0]


async def test_requests_left_by_closed_client_end_at_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    monkeypatch.setattr("klamm.server.connection.FINISH_S", 0.0)
    handler = Held()
    peer = Peer(handler)
    await peer.send(ask(1) + ask(2))
    # when
    peer.connection.connection_lost(None)
    await settle()
    # then
    assert (handler.started, handler.handled, peer.shared.connections) == (1, 0, set())


async def test_server_that_closes_waits_for_requests_left_by_closed_client() -> None:
    # given
    handler = Held()
    peer = Peer(handler)
    await peer.send(ask(1) + ask(2))
    peer.connection.connection_lost(None)
    # when
    peer.connection.finish()
    await settle()
    # then
    assert (peer.connection.is_idle, peer.shared.connections) == (False, {peer.connection})
    # when
    peer.connection.abort()
    await settle()
    # then
    assert (handler.handled, peer.shared.connections) == (0, set())


async def test_request_of_closed_connection_is_canceled_if_it_waits_for_others() -> None:
    """As Fetch."""
    cancelled = []

    async def slow(_: object, __: object) -> MetadataResponse:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        raise AssertionError

    peer = Peer(slow, may_wait=True)
    await peer.send(ask())
    peer.connection.connection_lost(None)
    await settle()
    assert (cancelled, peer.shared.connections) == ([True], set())


async def test_queued_request_that_may_wait_is_dropped_after_the_client_has_closed() -> None:
    handler = Held()
    peer = Peer(handler, may_wait=True)
    await peer.send(ask(1)[:-1])
    # when
    peer.connection.get_buffer(-1)[:1] = ask(1)[-1:]
    peer.connection.buffer_updated(1)
    peer.connection.connection_lost(None)
    await settle()
    # then
    assert (handler.started, peer.shared.connections) == (0, set())


async def test_bytes_are_counted_in_both_directions() -> None:
    peer = Peer()
    await peer.send(ask())
    body = encode(MetadataResponse(cluster_id="here"), 9)
    assert peer.shared.traffic.received_bytes == len(ask()) - 4
    assert peer.shared.traffic.sent_bytes == len(body)

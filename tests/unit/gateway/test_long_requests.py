"""Intercepted requests of many parts: decoded and encoded beside the event loop, rejected like short ones."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from klamm.gateway.frames.wire import response_frame
from klamm.gateway.relay import current_request as requests
from klamm.gateway.relay import forwarding
from klamm.gateway.relay.filter import Filter
from klamm.kafka_client.connection.transport import PlainTransport
from klamm.kafka_client.errors import ConnectionLostError
from klamm.protocol.codec import decode
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from klamm.server.attempt import ApiError
from klamm.server.codec import LARGE_FRAME_BYTES
from tests.support.held_loop import callbacks_of_this_thread
from tests.support.relay_rig import RelayRig, feature, filter_of, request, response, shared_objects, until
from tests.support.wire import request_frame

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Sequence

    from klamm.gateway.frames.cutter import Piece
    from klamm.gateway.relay.features import Feature
    from klamm.gateway.relay.filter import FilterContext

WAIT_S = 120.0
VERSION = 5
TOPICS = [
    CreateTopicsRequest.CreatableTopic(name=f"topic-{number}", num_partitions=1, replication_factor=1)
    for number in range(LARGE_FRAME_BYTES // 16)
]
LONG = request_frame(CreateTopicsRequest(topics=TOPICS, timeout_ms=1), VERSION, correlation_id=1)
ANSWER = CreateTopicsResponse(
    throttle_time_ms=0,
    topics=[CreateTopicsResponse.CreatableTopicResult(name=topic.name, error_code=0) for topic in TOPICS],
)


async def forward(request: Any, context: FilterContext) -> CreateTopicsResponse:
    answer: CreateTopicsResponse = await context.forward(request)
    return answer


async def answer_here(_request: Any, _context: FilterContext) -> CreateTopicsResponse:
    return ANSWER


def intercepted(handle: Callable[[Any, FilterContext], Awaitable[CreateTopicsResponse]]) -> Feature:
    interceptor = Filter.serving(CreateTopicsRequest, CreateTopicsResponse, handle)
    return feature(filters={CreateTopicsRequest.API_KEY: interceptor})


COMMIT = request_frame(
    OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name="t",
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=number, committed_offset=0)
                    for number in range(LARGE_FRAME_BYTES // 8)
                ],
            )
        ],
    ),
    9,
    correlation_id=1,
)
MAX_HELD_S = 0.03
"""Of processor time, in one callback of the event loop. A turn is 5 ms."""


class Gate:
    """A function that waits until the test releases it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._released = threading.Event()
        self.is_entered = False
        self.was_released = False

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        self.is_entered = True
        self.was_released = self._released.wait(WAIT_S)
        return self._function(*arguments, **more)

    def release(self) -> None:
        self._released.set()


def gated(step: str, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Gate a function, but not the attempt to decode a few elements on the event loop."""
    original = getattr(requests, step)
    gate = Gate(original)
    monkeypatch.setattr(
        requests, step, lambda *args, **more: (original if "max_elements" in more else gate)(*args, **more)
    )
    return gate


@pytest.mark.parametrize("step", ["decode_request", "response_frame"])
async def test_other_connections_are_served_while_a_long_message_is_coded(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = gated(step, monkeypatch)
    shared = shared_objects(intercepted(answer_here))
    with RelayRig(shared) as rig, RelayRig(shared) as other:
        sending = asyncio.create_task(rig.client.send(LONG))
        await until(lambda: gate.is_entered)
        assert await other.is_served()
        gate.release()
        assert (await rig.client.read_frame())[:4] == (1).to_bytes(4)
        await sending
    assert gate.was_released


@pytest.mark.parametrize(("step", "is_denied"), [("decode_request", False), ("_rejection", True)])
async def test_other_connections_are_served_during_long_offset_commit(
    step: str, is_denied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[OffsetCommitRequest] = []

    def judge(commit: OffsetCommitRequest, _context: FilterContext) -> ApiError | None:
        judged.append(commit)
        return ApiError(ErrorCode.INVALID_GROUP_ID, None) if is_denied else None

    gate = gated(step, monkeypatch)
    commits = filter_of(OffsetCommitRequest, OffsetCommitResponse, judge)
    shared = shared_objects(feature(filters={OffsetCommitRequest.API_KEY: commits}))
    with RelayRig(shared) as rig, RelayRig(shared) as other:
        sending = asyncio.create_task(rig.client.send(COMMIT))
        await until(lambda: gate.is_entered)
        assert await other.is_served()
        gate.release()
        if not is_denied:
            assert await rig.upstream.read(len(COMMIT)) == COMMIT
            await rig.upstream.send(response(1, b"answer"))
        assert (await rig.client.read_frame())[:4] == (1).to_bytes(4)
        await sending
        assert shared.figures.requests.counts.total() == len(judged) + 1
    assert gate.was_released


class Everything(PlainTransport):
    """Connection whose first read returns all of ``received``, and whose peer takes any number of bytes at once."""

    __slots__ = ("received", "taken")

    def __init__(self, connected: socket.socket, received: bytes) -> None:
        super().__init__(connected)
        self.received = received
        self.taken = 0

    def receive_into(self, view: memoryview) -> int | None:
        if super().receive_into(view[:1]) is None:
            return None
        view[: len(self.received)] = self.received
        return len(self.received)

    def send_views(self, views: Sequence[memoryview]) -> int:
        size = sum(map(len, views))
        self.taken += size
        return size


@pytest.mark.parametrize(
    ("frame", "count"),
    [
        pytest.param(request(18, 99), 20_000, id="answered by the gateway"),
        pytest.param(request_frame(ApiVersionsRequest(), 3), 1_000, id="with a response that it decodes"),
    ],
)
def test_pipelined_requests_of_one_connection_do_not_hold_the_event_loop(frame: bytes, count: int) -> None:
    api = ApiVersionsResponse.ApiVersion
    answer = ApiVersionsResponse(api_keys=[api(api_key=key, min_version=0, max_version=9) for key in range(80)])
    ends: list[Everything] = []
    """Of the client and of the upstream broker, of the latest try."""

    def transport(connected: socket.socket) -> Everything:
        received = response_frame(answer, 3, 1) if ends else frame
        ends.append(Everything(connected, received * count))
        return ends[-1]

    async def test() -> None:
        ends.clear()
        with RelayRig(shared_objects(), transport, upstream_transport=transport) as rig:
            await rig.client.send(b"x")
            await until(lambda: len(rig.relay.exchanges) == count or ends[0].taken > 0)
            if not ends[0].taken:
                await rig.upstream.send(b"x")
            await until(lambda: ends[0].taken > 0 and rig.relay.is_idle)

    with callbacks_of_this_thread() as held:
        assert held.longest_s_of(lambda: asyncio.run(test()), limit_s=MAX_HELD_S) < MAX_HELD_S
    assert ends[0].taken >= 20 * count


COORDINATORS = FindCoordinatorResponse(
    coordinators=[
        FindCoordinatorResponse.Coordinator(key=f"group-{number}", node_id=number % 3, host="broker", port=9092)
        for number in range(LARGE_FRAME_BYTES // 16)
    ]
)
LOOK_UP = request_frame(FindCoordinatorRequest(coordinator_keys=["g"]), 4, correlation_id=1)
LOOKED_UP = response_frame(COORDINATORS, 4, 1)


async def test_other_connections_are_served_while_addresses_in_a_long_response_are_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate(decode)
    monkeypatch.setattr(forwarding, "decode", gate)
    shared = shared_objects()
    heartbeat = request(12, 0, b"body", correlation_id=7)
    with RelayRig(shared) as rig, RelayRig(shared) as other:
        await rig.client.send(LOOK_UP + heartbeat)
        assert await rig.upstream.read(len(LOOK_UP + heartbeat)) == LOOK_UP + heartbeat
        sending = asyncio.create_task(rig.upstream.send(LOOKED_UP + response(7, b"answer")))
        await until(lambda: gate.is_entered)
        assert await other.is_served()
        gate.release()
        answer = decode(FindCoordinatorResponse, 4, await rig.client.read_frame(), 5)
        assert {(each.node_id, each.host, each.port) for each in answer.coordinators} == {
            (number, "gateway-for-broker", 9092 + number) for number in range(3)
        }
        assert [each.key for each in answer.coordinators] == [each.key for each in COORDINATORS.coordinators]
        assert await rig.client.read_frame() == response(7, b"answer")[4:]
        await sending
    assert gate.was_released


async def test_one_long_response_is_decoded_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded, it takes some ten times its size, and a client can open many connections."""
    running, most = 0, 0
    rewrite = forwarding.AddressRewriter.rewrite_slowly

    async def counted(rewriter: forwarding.AddressRewriter, frame: memoryview) -> Sequence[Piece]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return await rewrite(rewriter, frame)
        finally:
            running -= 1

    monkeypatch.setattr(forwarding.AddressRewriter, "rewrite_slowly", counted)
    shared = shared_objects()
    with RelayRig(shared) as first, RelayRig(shared) as second:
        for rig in (first, second):
            await rig.client.send(LOOK_UP)
            assert await rig.upstream.read(len(LOOK_UP)) == LOOK_UP
        sending = [asyncio.create_task(rig.upstream.send(LOOKED_UP)) for rig in (first, second)]
        for rig in (first, second):
            answer = decode(FindCoordinatorResponse, 4, await rig.client.read_frame(), 5)
            assert len(answer.coordinators) == len(COORDINATORS.coordinators)
        await asyncio.gather(*sending)
    assert most == 1


@pytest.mark.parametrize("ends", ["client", "upstream", "malformed"])
async def test_connection_that_ends_while_addresses_are_replaced_is_closed(
    ends: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(decode)
    monkeypatch.setattr(forwarding, "decode", gate)
    shared = shared_objects()
    answer = LOOKED_UP if ends != "malformed" else response(1, b"\0" + b"\xff" * 2 * LARGE_FRAME_BYTES)
    with RelayRig(shared) as rig, RelayRig(shared) as other:
        await rig.client.send(LOOK_UP)
        assert await rig.upstream.read(len(LOOK_UP)) == LOOK_UP
        sending = asyncio.create_task(rig.upstream.send(answer))
        await until(lambda: gate.is_entered)
        if ends == "client":
            rig.client.reset()
            await until(lambda: rig.relay.is_closed)
        elif ends == "upstream":
            await sending
            rig.upstream.close()
        gate.release()
        if ends == "upstream":
            assert await rig.client.read(len(LOOKED_UP))
        await until(lambda: rig.relay.is_closed)
        assert await other.is_served()
        assert shared.figures.closed["response"] == (ends == "malformed")
        sending.cancel()
    assert "the relay failed" not in caplog.text


async def test_requests_before_a_long_malformed_one_are_answered_and_those_after_it_are_not_forwarded() -> None:
    shared = shared_objects(intercepted(forward))
    heartbeat = request(12, 0, b"body", correlation_id=7)
    malformed = request(CreateTopicsRequest.API_KEY, VERSION, b"\xff" * 2 * LARGE_FRAME_BYTES)
    with RelayRig(shared) as rig:
        sending = asyncio.create_task(rig.client.send(heartbeat + malformed + heartbeat))
        assert await rig.upstream.read(len(heartbeat)) == heartbeat
        await until(lambda: shared.figures.closed["request"] == 1)
        await rig.upstream.send(response(7, b"answer"))
        assert await rig.client.read_frame() == response(7, b"answer")[4:]
        assert await rig.upstream.read(1) == b""
        assert await rig.client.is_closed()
        sending.cancel()


async def test_long_malformed_response_to_filter_closes_its_connection_only() -> None:
    lost: list[ConnectionLostError] = []

    async def forward_in_vain(request: Any, context: FilterContext) -> CreateTopicsResponse:
        try:
            return await forward(request, context)
        except ConnectionLostError as error:
            lost.append(error)
            raise

    shared = shared_objects(intercepted(forward_in_vain))
    with RelayRig(shared) as rig, RelayRig(shared) as other:
        sending = asyncio.create_task(rig.client.send(LONG))
        assert await rig.upstream.read(len(LONG)) == LONG
        await rig.upstream.send(response(1, b"\xff" * 2 * LARGE_FRAME_BYTES))
        assert await rig.client.is_closed()
        assert shared.figures.closed["response"] == len(lost) == 1
        assert await other.is_served()
        await sending

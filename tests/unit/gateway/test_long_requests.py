"""Intercepted requests of many parts: decoded and encoded beside the event loop, refused like short ones."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from klamm.client.errors import ConnectionLostError
from klamm.gateway import requests
from klamm.gateway.interceptors import Interception, Interceptor
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.server.codec import LARGE_FRAME_BYTES
from tests.support.relay_rig import RelayRig, request, response, shared_objects, until
from tests.support.wire import request_frame

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from klamm.gateway.interceptors import InterceptedCall

WAIT_S = 20.0
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


async def forward(request: Any, context: InterceptedCall) -> CreateTopicsResponse:
    answer: CreateTopicsResponse = await context.forward(request)
    return answer


async def answer_here(_request: Any, _context: InterceptedCall) -> CreateTopicsResponse:
    return ANSWER


def intercepted(handle: Callable[[Any, InterceptedCall], Awaitable[CreateTopicsResponse]]) -> Interception:
    interceptor = Interceptor(request=CreateTopicsRequest, response=CreateTopicsResponse, handle=handle)
    return Interception(interceptors={CreateTopicsRequest.API_KEY: interceptor})


def played(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(3 * WAIT_S):
            await test()

    asyncio.run(limited())


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


@pytest.mark.parametrize("step", ["decode_request", "response_frame"])
def test_other_connections_are_served_while_a_long_message_is_coded(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        gate = Gate(getattr(requests, step))
        monkeypatch.setattr(requests, step, gate)
        shared = shared_objects(intercepted(answer_here))
        with RelayRig(shared) as rig, RelayRig(shared) as other:
            sending = asyncio.create_task(rig.client.send(LONG))
            await until(lambda: gate.is_entered)
            assert await other.is_served()
            gate.release()
            assert (await rig.client.read_frame())[:4] == (1).to_bytes(4)
            await sending
        assert gate.was_released

    played(test)


def test_requests_before_a_long_malformed_one_are_answered_and_those_after_it_are_not_forwarded() -> None:
    async def test() -> None:
        shared = shared_objects(intercepted(forward))
        heartbeat = request(12, 0, b"body", correlation_id=7)
        malformed = request(CreateTopicsRequest.API_KEY, VERSION, b"\xff" * 2 * LARGE_FRAME_BYTES)
        with RelayRig(shared) as rig:
            sending = asyncio.create_task(rig.client.send(heartbeat + malformed + heartbeat))
            assert await rig.upstream.read(len(heartbeat)) == heartbeat
            await until(lambda: shared.refused["request"] == 1)
            await rig.upstream.send(response(7, b"answer"))
            assert await rig.client.read_frame() == response(7, b"answer")[4:]
            assert await rig.upstream.read(1) == b""
            assert await rig.client.is_closed()
            sending.cancel()

    played(test)


def test_a_long_malformed_response_to_an_interceptor_closes_its_connection_only() -> None:
    lost: list[ConnectionLostError] = []

    async def forward_in_vain(request: Any, context: InterceptedCall) -> CreateTopicsResponse:
        try:
            return await forward(request, context)
        except ConnectionLostError as error:
            lost.append(error)
            raise

    async def test() -> None:
        shared = shared_objects(intercepted(forward_in_vain))
        with RelayRig(shared) as rig, RelayRig(shared) as other:
            sending = asyncio.create_task(rig.client.send(LONG))
            assert await rig.upstream.read(len(LONG)) == LONG
            await rig.upstream.send(response(1, b"\xff" * 2 * LARGE_FRAME_BYTES))
            assert await rig.client.is_closed()
            assert shared.refused["response"] == len(lost) == 1
            assert await other.is_served()
            await sending

    played(test)

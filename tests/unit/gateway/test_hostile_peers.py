"""Clients that try to fill the memory of a gateway, and brokers that do not answer: others are served meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast

import pytest

from klamm.gateway.frames.cutter import HeldBudget
from klamm.gateway.frames.wire import response_frame
from klamm.gateway.relay.filter import Divide, Filter, Wait
from klamm.gateway.relay.requests import MAX_HELD_BYTES
from klamm.gateway.relay.stalls import ENDED_S, STUCK_S, close_stalled
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tests.support.relay_rig import RelayRig, feature, filter_of, request, response, shared_objects, until
from tests.support.wire import request_frame

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from klamm.gateway.relay.shared import Shared

ANSWER = JoinGroupResponse(member_id="x" * 10_000, members=[])
JOIN = request_frame(JoinGroupRequest(group_id="g", protocols=[]), 0, correlation_id=1)
PROTOCOL = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=bytes(200_000))
HEARTBEAT = request(12, 0, b"first")
CREATE = CreateTopicsRequest(
    topics=[
        CreateTopicsRequest.CreatableTopic(
            name="t" * 20_000, num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
    ]
)
LARGE = request_frame(CREATE, 2)


def judged(judge: Callable[[Any, Any], Any], **more: Any) -> Shared:
    joins = filter_of(JoinGroupRequest, JoinGroupResponse, judge)
    return shared_objects(feature(filters={11: joins}), **more)


def intercepted(handle: Callable[[Any, Any], Awaitable[Any]], **more: Any) -> Shared:
    interceptor = Filter.serving(CreateTopicsRequest, CreateTopicsResponse, handle)
    return shared_objects(feature(filters={19: interceptor}), **more)


async def test_client_cannot_hide_the_outcome_of_its_request_by_a_reset() -> None:
    """The history of changes needs the response."""
    outcomes: list[Any] = []

    async def handle(message: Any, context: Any) -> Any:
        outcomes.append(await context.forward(message))
        return outcomes[0]

    shared = intercepted(handle)
    with RelayRig(shared) as rig:
        await rig.client.send(LARGE)
        await rig.upstream.read_frame()
        rig.client.reset()
        await until(lambda: rig.relay.has_ended)
        await rig.upstream.send(response_frame(CreateTopicsResponse(topics=[]), 2, 1))
        await until(lambda: bool(outcomes))
        await until(lambda: rig.relay.is_closed)
    assert len(outcomes) == 1


async def test_answers_that_wait_for_a_slow_broker_are_few() -> None:
    shared = judged(lambda _request, _context: ANSWER)
    with RelayRig(shared) as rig, RelayRig(shared) as other:
        await rig.client.send(HEARTBEAT + JOIN * 200)
        await until(lambda: rig.relay.held_bytes > MAX_HELD_BYTES)
        assert await other.is_served()
        assert rig.relay.held_bytes < MAX_HELD_BYTES + 11_000
        assert shared.memory.backlog.kept_bytes == rig.relay.held_bytes == rig.relay.kept_bytes
        await rig.upstream.send(response(1, b"answer"))
        assert await rig.client.read_frame() == response(1, b"answer")[4:]
        for _ in range(200):
            assert len(await rig.client.read_frame()) > 10_000
        assert rig.relay.held_bytes == shared.memory.backlog.kept_bytes == 0


async def test_memory_of_divided_requests_is_limited_and_released() -> None:
    def divide(message: JoinGroupRequest, _context: object) -> Divide:
        return Divide(request=message, merge=lambda _response: ANSWER, kept_bytes=MAX_HELD_BYTES // 2)

    shared = judged(divide)
    with RelayRig(shared) as rig:
        await rig.client.send(JOIN * 50)
        for _ in range(3):
            await rig.upstream.read_frame()
        await until(lambda: rig.relay.held_bytes > MAX_HELD_BYTES)
        assert len(rig.relay.exchanges) == 3
        await rig.upstream.send(response_frame(JoinGroupResponse(members=[]), 0, 1))
        await rig.upstream.read_frame()
        assert len(await rig.client.read_frame()) > 10_000
        rig.relay.close(None)
        assert shared.memory.backlog.kept_bytes == 0


async def test_connection_with_the_same_number_of_divided_requests_in_flight_stays_open() -> None:
    def divide(message: JoinGroupRequest, _context: object) -> Divide:
        return Divide(request=message, merge=lambda _response: ANSWER, kept_bytes=600)

    shared = judged(divide)
    with RelayRig(shared) as rig:
        for number in range(3):
            await rig.client.send(JOIN)
            await rig.upstream.read_frame()
            # when: it is checked while a request is in flight, each time another one
            close_stalled(shared, number * STUCK_S)
            # then
            assert not rig.relay.is_closed
            await rig.upstream.send(response_frame(JoinGroupResponse(members=[]), 0, 1))
            await rig.client.read_frame()


async def test_requests_in_progress_share_the_memory_limit() -> None:
    release = asyncio.Event()

    async def waiting(_asked: object, _context: object) -> CreateTopicsResponse:
        await release.wait()
        return CreateTopicsResponse(topics=[])

    shared = intercepted(waiting, request_budget=HeldBudget(250_000))
    with RelayRig(shared) as first, RelayRig(shared) as two, RelayRig(shared) as three:
        await first.client.send(LARGE)
        await two.client.send(LARGE)
        await until(lambda: first.relay.is_busy and two.relay.is_busy)
        # when
        await three.client.send(LARGE)
        assert await three.client.is_closed()
        release.set()
        # then
        for rig in (first, two):
            await rig.client.read_frame()
            assert await rig.is_served()
        assert shared.memory.request_budget.held_bytes == 0


async def test_requests_of_client_that_wait_leave_room_for_other_clients() -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    def judge(_request: object, context: Any) -> Wait | None:
        return Wait(work=forever) if context.client_host == "hostile" else None

    # given: a client fills the memory with requests that wait
    shared = judged(judge, request_budget=HeldBudget(500_000))
    join = request_frame(JoinGroupRequest(group_id="g", protocols=[PROTOCOL]), 0)
    with ExitStack() as stack, RelayRig(shared) as other:
        hostile = [stack.enter_context(RelayRig(shared)) for _ in range(3)]
        for rig in hostile:
            rig.relay.peer.host = "hostile"
            await rig.client.send(join)
            await until(lambda rig=rig: rig.relay.is_busy)  # type: ignore[misc]
        assert shared.memory.request_budget.held_bytes > 400_000
        # when
        await other.client.send(join)
        # then
        assert await other.upstream.read(len(join)) == join
        assert [rig.relay.is_closed for rig in hostile] == [True, False, False]


async def test_request_rejected_for_its_memory_takes_none_until_its_connection_is_closed() -> None:
    shared = intercepted(lambda *_: asyncio.sleep(0), request_budget=HeldBudget(50_000))
    with RelayRig(shared) as rig:
        # when: the connection stays open until the first request is answered
        await rig.client.send(HEARTBEAT + LARGE)
        await until(lambda: rig.relay.has_ended)
        # then
        assert not rig.relay.is_closed
        assert shared.memory.request_budget.held_bytes == 0


@pytest.mark.parametrize("starts", [False, True], ids=["before it starts", "while it works"])
async def test_disconnected_client_returns_its_share(starts: bool) -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    shared = judged(lambda _request, _context: Wait(work=forever, kept_bytes=900_000))
    with RelayRig(shared) as rig:
        await rig.client.send(JOIN)
        await until(lambda: rig.relay.is_busy)
        if starts:
            await asyncio.sleep(0)
        assert shared.memory.request_budget.held_bytes > 800_000
        rig.relay.close("the client is gone")
        await asyncio.sleep(0)
        assert shared.memory.request_budget.held_bytes == 0


async def test_stuck_broker_behind_unread_requests_is_closed() -> None:
    shared = intercepted(lambda message, context: cast("Awaitable[Any]", context.forward(message)))
    with RelayRig(shared) as rig, RelayRig(shared) as other:
        await rig.client.send(LARGE + HEARTBEAT)
        await rig.upstream.read(len(LARGE))
        await until(lambda: not rig.relay.is_idle and rig.relay.is_busy)
        rig.client.close()  # unseen, because nothing more is read from this client
        for now in (1.0, STUCK_S):
            close_stalled(shared, now)
            assert not rig.relay.is_closed
        close_stalled(shared, 1.0 + STUCK_S)
        assert rig.relay.is_closed
        assert not other.relay.is_closed
        assert await other.is_served()


@pytest.mark.parametrize("garbage", [response(99), response(1, b"\xff\xff"), b"\x7f\xff\xff\xff\0\0\0\1", b"\0\0", b""])
async def test_malformed_response_to_filter_closes_its_connection_only(garbage: bytes) -> None:
    shared = intercepted(lambda message, context: cast("Awaitable[Any]", context.forward(message)))
    with RelayRig(shared) as rig, RelayRig(shared) as other:
        await rig.client.send(LARGE)
        assert await rig.upstream.read(len(LARGE)) == LARGE
        await rig.upstream.send(garbage)
        rig.upstream.end()
        assert await rig.client.is_closed()
        assert await other.is_served()
        await until(lambda: shared.memory.request_budget.held_bytes == 0)


async def test_request_with_too_many_elements_is_rejected_before_decoding(caplog: pytest.LogCaptureFixture) -> None:
    shared = intercepted(lambda message, context: cast("Awaitable[Any]", context.forward(message)))
    topic = (b"\0\x12" + b"t" * 18 + bytes(14)) * 110_000  # num_partitions, factor, assignments, configs
    body = (110_000).to_bytes(4) + topic + bytes(5)
    with RelayRig(shared) as rig, RelayRig(shared) as other:
        sending = asyncio.create_task(rig.client.send(request(19, 2, body)))
        assert await rig.client.is_closed()
        await asyncio.gather(sending, return_exceptions=True)
        assert await other.is_served()
        assert shared.figures.closed["request"] == 1
    assert "Arrays hold more elements than a request of" in caplog.text


async def test_half_a_header_on_many_connections_holds_no_other_up() -> None:
    shared = shared_objects()
    with ExitStack() as stack, RelayRig(shared) as other:
        for _ in range(100):
            rig = stack.enter_context(RelayRig(shared))
            await rig.client.send(HEARTBEAT[:7])
        assert await other.is_served()
        assert shared.memory.request_budget.held_bytes == shared.memory.backlog.kept_bytes == 0


async def test_unfinished_requests_of_silent_clients_leave_room_for_complete_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shared = intercepted(
        lambda message, context: cast("Awaitable[Any]", context.forward(message)),
        request_budget=HeldBudget(1_000_000),
    )
    complete = request_frame(CREATE, 2, correlation_id=1)
    unfinished = request(19, 2, bytes(200_000))[:-1]
    with ExitStack() as stack, RelayRig(shared) as other:
        for _ in range(10):
            await stack.enter_context(RelayRig(shared)).client.send(unfinished)
        await until(lambda: shared.memory.request_budget.held_bytes > 800_000)
        # when: the decoded request counts eight times its size
        await other.client.send(complete)
        # then
        assert await other.upstream.read(len(complete)) == complete
        await other.upstream.send(response_frame(CreateTopicsResponse(topics=[]), 2, 1))
        assert await other.client.read_frame()
        assert shared.memory.request_budget.held_bytes <= 1_000_000
    assert "closed: its requests and responses hold the most memory" in caplog.text


async def test_request_expires_when_its_rest_does_not_arrive() -> None:
    shared = intercepted(lambda *_: asyncio.sleep(0))
    with RelayRig(shared) as late, RelayRig(shared) as slow:
        unfinished = request(19, 2, bytes(200_000))
        for rig in (late, slow):
            await rig.client.send(unfinished[:100_000])
        await until(lambda: shared.memory.request_budget.held_bytes > 60_000)
        close_stalled(shared, 1.0)
        # when
        before = shared.memory.request_budget.held_bytes
        await slow.client.send(unfinished[100_000:150_000])
        await until(lambda: shared.memory.request_budget.held_bytes >= before + 50_000)
        close_stalled(shared, 1.0 + ENDED_S)
        # then
        assert await late.client.is_closed()
        assert not slow.relay.is_closed

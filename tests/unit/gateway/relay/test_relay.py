"""The relay of one connection: hostile clients and brokers, lost peers, defects. Others are served meanwhile."""

from __future__ import annotations

import asyncio
import gc
import os
import struct
from typing import TYPE_CHECKING, Any

import pytest

from klamm.gateway.frames.cutter import HeldBudget
from klamm.gateway.frames.wire import REQUEST_HEAD, response_frame
from klamm.gateway.relay import relay
from klamm.gateway.relay.filter import Filter
from klamm.gateway.relay.requests import MAX_IN_FLIGHT
from klamm.gateway.relay.shared import MAX_CLIENT_ID_LENGTH, MAX_CLIENT_IDS, OTHER, RequestCounts
from klamm.gateway.relay.stalls import ENDED_S, STUCK_S, close_stalled
from klamm.history.change import Author
from klamm.kafka_client.connection.transport import PlainTransport
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from klamm.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tests.support.relay_rig import RelayRig, feature, filter_of, request, response, shared_objects, until
from tests.support.wire import request_frame

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Sequence

    from klamm.gateway.relay.filter import FilterContext
    from klamm.gateway.relay.shared import Shared
    from klamm.protocol.schema import Message

UNKNOWN_VERSION = 99
"""Version of ApiVersions that the gateway answers itself."""


async def test_own_gateway_responses_keep_the_request_order() -> None:
    with RelayRig(shared_objects()) as rig:
        count = 5000
        frames = [request(18, UNKNOWN_VERSION, correlation_id=number) for number in range(count)]
        sending = asyncio.create_task(rig.client.send(b"".join(frames)))
        answered = [int.from_bytes((await rig.client.read_frame())[:4]) for _ in range(count)]
        await sending
        assert answered == list(range(count))
        assert await rig.is_served()


async def test_unread_gateway_responses_fill_no_memory() -> None:
    shared = shared_objects()
    with RelayRig(shared) as rig, RelayRig(shared) as other:
        # when
        sent = await rig.client.send_until_blocked(request(18, UNKNOWN_VERSION) * 1000)
        # then
        assert shared.memory.backlog.kept_bytes < 1_000_000
        assert await other.is_served()
        # when it reads again
        for _ in range(sent // len(request(18, UNKNOWN_VERSION))):
            await rig.client.read_frame()


async def test_relay_of_disconnected_client_closes_although_broker_is_silent() -> None:
    shared = shared_objects()
    with RelayRig(shared) as gone, RelayRig(shared) as waiting:
        for rig in (gone, waiting):
            await rig.client.send(request(1, 4, b"a fetch that waits"))
            await rig.upstream.read_frame()
        gone.client.close()
        await until(lambda: gone.relay.has_ended)
        for now in (100.0, 100.0 + ENDED_S - 1):
            close_stalled(shared, now)
            assert not gone.relay.is_closed
        close_stalled(shared, 100.0 + ENDED_S)
        assert await gone.upstream.is_closed()
        assert not waiting.relay.is_closed


async def test_connection_without_login_is_closed_despite_requests() -> None:
    shared = shared_objects(needs_login=True)
    with RelayRig(shared) as rig:
        for now in (100.0, 100.0 + ENDED_S - 1):
            await rig.client.send(request(18, 0))
            await rig.upstream.read_frame()
            close_stalled(shared, now)
            assert not rig.relay.is_closed
        close_stalled(shared, 100.0 + ENDED_S)
        assert rig.relay.is_closed
        assert dict(shared.figures.closed) == {"login": 1}


@pytest.mark.parametrize("side", ["client", "upstream"])
async def test_peer_that_reads_no_bytes_is_disconnected(side: str) -> None:
    shared = shared_objects()
    with RelayRig(shared) as stuck, RelayRig(shared) as other:
        if side == "upstream":
            await stuck.client.send_until_blocked(request(12, 0, bytes(100_000)))
        else:
            await stuck.client.send(request(1, 4))
            await stuck.upstream.read_frame()
            await stuck.upstream.send((1 << 30).to_bytes(4) + (1).to_bytes(4))
            await stuck.upstream.send_until_blocked(bytes(100_000))
        assert shared.memory.backlog.kept_bytes > 0
        for now in (5.0, 5.0 + STUCK_S - 1):
            close_stalled(shared, now)
            assert not stuck.relay.is_closed
        close_stalled(shared, 5.0 + STUCK_S)
        assert stuck.relay.is_closed
        assert shared.memory.backlog.kept_bytes == 0
        assert await other.is_served()


async def test_connection_with_repeated_correlation_ids_stays_open_while_responses_arrive() -> None:
    shared = shared_objects()
    with RelayRig(shared) as rig:
        await rig.client.send(request(12, 0) * (MAX_IN_FLIGHT + 10))
        await until(lambda: len(rig.relay.exchanges) == MAX_IN_FLIGHT)
        close_stalled(shared, 5.0)
        await rig.upstream.send(response(1))
        await rig.client.read_frame()
        close_stalled(shared, 5.0 + STUCK_S)
        assert not rig.relay.is_closed
        close_stalled(shared, 5.0 + 2 * STUCK_S)
        assert rig.relay.is_closed


async def test_largest_stalled_connections_are_closed_above_the_byte_limit() -> None:
    shared = shared_objects()
    with RelayRig(shared) as large, RelayRig(shared) as small:
        for rig, size in ((large, 3_000_000), (small, 200_000)):
            await rig.client.send(request(3, 1, b"\0\0\0\0"))
            await rig.upstream.read_frame()
            metadata = b"\0\0\0\0\0\0\0\0" + (size // 10).to_bytes(4)  # no brokers, a controller, topics
            await rig.upstream.send(response(1, metadata + bytes(size)))
            await until(lambda each=rig.relay, least=size - 150_000: each.kept_bytes >= least)  # type: ignore[misc]
        for now in (1.0, 9.0):
            close_stalled(shared, now, max_bytes=10_000_000)
        assert not large.relay.is_closed
        close_stalled(shared, 10.0, max_bytes=1_000_000)
        assert large.relay.is_closed
        assert not small.relay.is_closed


class SlowClient(PlainTransport):
    """Client that takes a limited number of bytes, which are lost."""

    room = 0

    def send_views(self, views: Sequence[memoryview]) -> int:
        sent = min(self.room, sum(map(len, views)))
        self.room -= sent
        return sent


async def test_moving_and_empty_connections_stay_open_above_the_byte_limit() -> None:
    shared = shared_objects()
    transports: list[SlowClient] = []

    def transport(sock: socket.socket) -> SlowClient:
        transports.append(SlowClient(sock))
        return transports[-1]

    with RelayRig(shared, transport) as slow, RelayRig(shared) as waiting:
        await waiting.client.send(request(12, 0) * (MAX_IN_FLIGHT + 10))
        await until(lambda: len(waiting.relay.exchanges) == MAX_IN_FLIGHT)
        await slow.client.send(request(1, 4))
        await slow.upstream.read_frame()
        await slow.upstream.send((1 << 30).to_bytes(4) + (1).to_bytes(4) + bytes(92))
        for now in (1.0, 10.0, 20.0):
            await until(lambda: slow.relay.kept_bytes == 100)
            close_stalled(shared, now, max_bytes=50)
            assert not slow.relay.is_closed
            assert not waiting.relay.is_closed
            transports[0].room = 100
            await until(lambda: slow.relay.kept_bytes == 0)
            await slow.upstream.send(bytes(100))
        await until(lambda: slow.relay.kept_bytes == 100)
        for now in (21.0, 23.0):
            close_stalled(shared, now, max_bytes=50)
        assert slow.relay.is_closed
        assert not waiting.relay.is_closed


async def test_unfinished_requests_of_a_hostile_client_leave_room_for_responses_to_others() -> None:
    shared = shared_objects(feature(filters={19: _interceptor(_forwarded)}), request_budget=HeldBudget(200_000))
    with RelayRig(shared) as hostile, RelayRig(shared) as other:
        await hostile.client.send(request(19, 2, bytes(180_000))[:-1])
        await until(lambda: shared.memory.request_budget.held_bytes >= 100_000)
        await other.client.send(request(3, 1, b"\0\0\0\0"))
        await other.upstream.read_frame()
        answer = response(1, bytes(400_000))
        sending = asyncio.create_task(other.upstream.send(answer))
        assert await other.client.read(len(answer)) == answer
        await sending


def _interceptor(handle: Callable[[Any, FilterContext], Awaitable[Message]], *, is_exclusive: bool = False) -> Filter:
    return Filter.serving(CreateTopicsRequest, CreateTopicsResponse, handle, is_exclusive=is_exclusive)


async def _forwarded(message: Any, context: FilterContext) -> Message:
    answer: Message = await context.forward(message)
    return answer


def _with_turn() -> Shared:
    """Return a gateway with the turn of a policy, for which the changes of all other clients wait."""
    turn = asyncio.Lock()

    async def in_turn(message: Any, context: FilterContext) -> Message:
        async with turn:
            return await _forwarded(message, context)

    return shared_objects(feature(filters={19: _interceptor(in_turn, is_exclusive=True)}))


async def test_turn_is_not_held_behind_a_long_poll() -> None:
    shared = _with_turn()
    with RelayRig(shared) as polling, RelayRig(shared) as other:
        poll, creation = request(1, 4), request_frame(CreateTopicsRequest(topics=[]), 5)
        await polling.client.send(poll + creation)
        assert await polling.upstream.read(len(poll)) == poll
        await other.client.send(creation)
        assert await other.upstream.read(len(creation)) == creation
        answer = response_frame(CreateTopicsResponse(topics=[]), 5, REQUEST_HEAD.unpack_from(creation)[3])
        await other.upstream.send(answer)
        # A part of the response has arrived, and the client may not read the rest.
        poll_answer = response(1, bytes(100))
        await polling.upstream.send(poll_answer[:50])
        assert await polling.client.read(50) == poll_answer[:50]
        await other.client.send(creation)
        assert await other.upstream.read(len(creation)) == creation
        await other.upstream.send(answer)
        await polling.upstream.send(poll_answer[50:])
        assert await polling.upstream.read(len(creation)) == creation


async def test_requests_are_relayed_in_turn_however_many_connections_wait() -> None:
    """A turn may be so short that it is over before anything was relayed in it."""
    # given
    shared = shared_objects()
    for _ in range(100_000):
        shared.turns.wait()
    frames = [request(12, 0, correlation_id=number) for number in range(3)]
    with RelayRig(shared) as rig:
        # when
        await rig.client.send(b"".join(frames))
        # then
        received = await rig.upstream.read(len(b"".join(frames)))
        assert received == b"".join(frames)
        # when
        answers = [response(number, bytes(2)) for number in range(3)]
        await rig.upstream.send(b"".join(answers))
        # then
        assert await rig.client.read(len(b"".join(answers))) == b"".join(answers)


async def test_client_that_does_not_read_does_not_delay_a_filter() -> None:
    shared = _with_turn()
    with RelayRig(shared) as stuck, RelayRig(shared) as other:
        creation = request_frame(CreateTopicsRequest(topics=[]), 5)
        answer = response_frame(CreateTopicsResponse(topics=[]), 5, REQUEST_HEAD.unpack_from(creation)[3])

        async def send_all() -> None:
            while True:
                await stuck.client.send(request(18, UNKNOWN_VERSION) + creation)

        async def answer_all() -> None:
            while await stuck.upstream.read(len(creation)) == creation:
                await stuck.upstream.send(answer)

        tasks = [asyncio.create_task(send_all()), asyncio.create_task(answer_all())]
        # The client reads none of the gateway's responses.
        await until(lambda: stuck.relay.kept_bytes > stuck.relay.held_bytes)
        await other.client.send(creation)
        assert await other.upstream.read(len(creation)) == creation
        for task in tasks:
            task.cancel()


async def test_exception_in_filter_closes_connection_without_forwarding(caplog: pytest.LogCaptureFixture) -> None:
    def judge(_request: object, _context: object) -> None:
        raise LookupError("a defect")

    shared = shared_objects(feature(filters={12: filter_of(HeartbeatRequest, HeartbeatResponse, judge)}))
    with RelayRig(shared) as rig, RelayRig(shared) as other:
        await rig.client.send(request_frame(HeartbeatRequest(group_id="g", member_id="m"), 0))
        assert await rig.upstream.read(1) == b""
        assert await rig.client.is_closed()
        await other.client.send(request(10, 1, b"forwarded"))
        assert await other.upstream.read_frame() == request(10, 1, b"forwarded")[4:]
    assert "the relay failed" in caplog.text


async def test_policy_sees_principal_client_id_and_listener() -> None:
    seen: list[Author] = []

    def judge(_request: object, context: FilterContext) -> None:
        seen.append(context.author)

    heartbeats = filter_of(HeartbeatRequest, HeartbeatResponse, judge)
    with RelayRig(shared_objects(feature(filters={12: heartbeats}), listener="PUBLIC")) as rig:
        heartbeat = request_frame(HeartbeatRequest(group_id="g", member_id="m"), 0, client_id="app")
        await rig.client.send(heartbeat)
        assert await rig.upstream.read(len(heartbeat)) == heartbeat
    assert seen == [Author(principal="User:ANONYMOUS", client_id="app", listener="PUBLIC")]


async def test_request_before_the_token_of_a_login_is_rejected_by_the_upstream() -> None:
    judged: list[object] = []

    async def judge(message: Any, context: FilterContext) -> Message:
        judged.append(message)
        return await _forwarded(message, context)

    handshake, early = request(17, 1, b"\0\5PLAIN"), request(19, 5, b"anything")
    interception = feature(filters={19: _interceptor(judge)}, admit=judged.append)
    shared = shared_objects(interception, needs_login=True)
    with RelayRig(shared) as rig:
        await rig.client.send(handshake)
        assert await rig.upstream.read(len(handshake)) == handshake
        await rig.upstream.send(response(1, b"\0\0\0\0\0\0"))
        await rig.client.read_frame()
        # when
        await rig.client.send(early)
        # then
        assert await rig.upstream.read(len(early)) == early
        await rig.upstream.send(response(1, b"rejected"))
        assert await rig.client.read_frame() == response(1, b"rejected")[4:]
        await rig.client.send(early)
        assert await rig.upstream.read(1) == b""
        assert await rig.client.is_closed()
    assert judged == []


@pytest.mark.parametrize("is_accepted", [True, False])
async def test_requests_behind_a_token_wait_until_the_upstream_has_accepted_or_rejected_it(is_accepted: bool) -> None:
    authors: list[Author] = []

    def judge(_request: object, context: FilterContext) -> None:
        authors.append(context.author)

    def token(user: bytes) -> bytes:
        return request(36, 1, (len(user) + 3).to_bytes(4) + b"\0" + user + b"\0x")

    handshake = request(17, 1, b"\0\5PLAIN")
    heartbeat = request_frame(HeartbeatRequest(group_id="g", member_id="m"), 0)
    frames = [handshake, token(b"a"), heartbeat, handshake, token(b"admin"), heartbeat]
    accepted = b"\0\0\xff\xff\0\0\0\0" + bytes(8)
    last = accepted if is_accepted else b"\0\x3a" + accepted[2:]
    heartbeats = filter_of(HeartbeatRequest, HeartbeatResponse, judge)
    with RelayRig(shared_objects(feature(filters={12: heartbeats}), needs_login=True)) as rig:
        # when: the client waits for no response
        await rig.client.send(b"".join(frames))
        # then
        answers = [b"\0\0\0\0\0\0", accepted, b"ok", b"\0\0\0\0\0\0", last, b"ok"]
        for frame, answer in zip(frames, answers, strict=True):
            assert await rig.upstream.read(len(frame)) == frame
            await rig.upstream.send(response(1, answer))
        await rig.client.read(sum(len(response(1, answer)) for answer in answers))
    assert [author.principal for author in authors] == ["User:a", "User:admin" if is_accepted else "User:a"]


async def test_client_logs_in_again_while_other_requests_are_in_flight() -> None:
    with RelayRig(shared_objects(needs_login=True)) as rig:
        for user in (b"a", b"c"):
            login = request(17, 1, b"\0\5PLAIN"), request(36, 1, b"\0\0\0\4\0" + user + b"\0b")
            for step, answer in zip(login, (b"\0\0\0\0\0\0", b"\0\0\xff\xff\0\0\0\0" + bytes(8)), strict=True):
                await rig.client.send(step)
                assert await rig.upstream.read(len(step)) == step
                if user == b"c" and step is login[0]:
                    await rig.upstream.send(response(77, b"late"))
                    assert await rig.client.read_frame() == response(77, b"late")[4:]
                await rig.upstream.send(response(1, answer))
                assert await rig.client.read_frame() == response(1, answer)[4:]
            assert rig.relay.peer.principal == f"User:{user.decode()}"
            heartbeat = request(12, 0, b"body", correlation_id=77)
            await rig.client.send(heartbeat)
            assert await rig.upstream.read(len(heartbeat)) == heartbeat


@pytest.mark.parametrize("end", ["half-closed", "malformed request"])
async def test_last_response_arrives_whole_at_a_client_that_sends_no_more(end: str) -> None:
    with RelayRig(shared_objects()) as rig:
        # given
        heartbeat, answer = request(12, 0, b"body", correlation_id=7), response(7, b"x" * 1000)
        await rig.client.send(heartbeat)
        assert await rig.upstream.read(len(heartbeat)) == heartbeat
        # when
        if end == "half-closed":
            rig.client.end()
        else:
            await rig.client.send(request(999, 0))
        await until(lambda: rig.relay.has_ended)
        await rig.upstream.send(answer[:100])
        assert await rig.client.read(100) == answer[:100]
        await rig.upstream.send(answer[100:])
        # then
        assert await rig.client.read(1000) == answer[100:]
        assert await rig.client.is_closed()


async def test_hanging_filter_delays_its_own_connection_only() -> None:
    async def hanging(_asked: object, _context: object) -> Message:
        await asyncio.Event().wait()
        raise AssertionError("never")

    shared = shared_objects(feature(filters={19: _interceptor(hanging)}))
    with RelayRig(shared) as rig, RelayRig(shared) as other:
        await rig.client.send(request_frame(CreateTopicsRequest(topics=[]), 2))
        sent = await rig.client.send_until_blocked(request(12, 0, bytes(10_000)))
        assert sent < 10_000_000
        assert await other.is_served()
        assert rig.relay.is_busy


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", id="HTTP"),
        pytest.param(response(99), id="the response to another request"),
        pytest.param(b"\xff\xff\xff\xff\0\0\0\1", id="a negative size"),
        pytest.param(b"\0\0\0\3\0\0\0\1", id="a size without a correlation id"),
        pytest.param(response(1, b"\xff\xff"), id="a cut body"),
        pytest.param(response(1, b"\x7f\xff\xff\xff"), id="too many brokers"),
        pytest.param(b"\x7f\xff\xff\xff\0\0\0\1", id="two gigabytes"),
        pytest.param(b"", id="the end"),
    ],
)
async def test_broker_that_sends_garbage_loses_that_connection_only(garbage: bytes) -> None:
    shared = shared_objects()
    with RelayRig(shared) as rig, RelayRig(shared) as other:
        await rig.client.send(request(3, 1, b"\0\0\0\0"))
        await rig.upstream.read_frame()
        await rig.upstream.send(garbage)
        rig.upstream.end()
        assert await rig.client.read(1) == b""
        assert await other.is_served()


async def test_broker_reset_during_filter_is_not_logged_as_defect(caplog: pytest.LogCaptureFixture) -> None:
    async def handle(message: Any, context: FilterContext) -> Message:
        rig.upstream.reset()
        return await _forwarded(message, context)

    topics = request_frame(CreateTopicsRequest(topics=[]), 5)
    with RelayRig(shared_objects(feature(filters={19: _interceptor(handle)}))) as rig:
        await rig.client.send(topics)
        assert await rig.client.is_closed()
    await asyncio.sleep(0)
    gc.collect()
    assert "never retrieved" not in caplog.text


@pytest.mark.process
def test_forked_process_has_a_read_buffer_of_its_own() -> None:
    """Two gateways of one process would otherwise read into each other's frames."""
    relay.READ_BUFFER[:6] = b"parent"
    child = os.fork()
    if not child:
        relay.READ_BUFFER[:6] = b"child!"
        os._exit(0)
    os.waitpid(child, 0)
    assert bytes(relay.READ_BUFFER[:6]) == b"parent"


def test_few_client_ids_of_moderate_length_have_their_own_counters() -> None:
    counts = RequestCounts()
    longest, too_long = "x" * MAX_CLIENT_ID_LENGTH, "x" * (MAX_CLIENT_ID_LENGTH + 1)
    for client_id in (None, longest, too_long, *map(str, range(MAX_CLIENT_IDS)), "late", longest):
        counts.count(0, client_id)
    assert len(counts.counts) == MAX_CLIENT_IDS + 1
    assert (counts.counts[0, None], counts.counts[0, longest], counts.counts[0, OTHER]) == (1, 2, 4)


async def _list_by_call(_: ListGroupsRequest, context: FilterContext) -> ListGroupsResponse:
    return await context.call(ListGroupsRequest(), ListGroupsResponse)


LISTS_BY_CALL = feature(filters={16: Filter.serving(ListGroupsRequest, ListGroupsResponse, _list_by_call)})
"""A feature whose filter of ListGroups chooses the version itself."""


async def test_call_uses_versions_of_the_clients_own_api_versions() -> None:
    """A second ApiVersions would replace the name of the client's software at the upstream."""
    versions = [
        ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=3),
        ApiVersionsResponse.ApiVersion(api_key=16, min_version=0, max_version=1),
    ]
    shared = shared_objects(LISTS_BY_CALL)
    with RelayRig(shared) as rig, RelayRig(shared) as other:
        # given
        for each in (rig, other):
            await each.client.send(request_frame(ApiVersionsRequest(), 3))
            await each.upstream.read_frame()
            await each.upstream.send(response_frame(ApiVersionsResponse(api_keys=versions), 3, 1))
            await each.client.read_frame()
        # when
        await rig.client.send(request(16, 0))
        # then
        assert struct.unpack(">hh", (await rig.upstream.read_frame())[:4]) == (16, 1)
        # and
        assert rig.relay.upstream_versions is other.relay.upstream_versions, "thousands of copies take too much memory"


async def test_call_requests_versions_after_rejected_api_versions() -> None:
    own = ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=2)
    rejected = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[own])
    with RelayRig(shared_objects(LISTS_BY_CALL)) as rig:
        # given
        await rig.client.send(request_frame(ApiVersionsRequest(), 3))
        await rig.upstream.read_frame()
        await rig.upstream.send(response_frame(rejected, 0, 1))
        await rig.client.read_frame()
        # when
        await rig.client.send(request(16, 0))
        # then
        assert struct.unpack(">hh", (await rig.upstream.read_frame())[:4]) == (18, 3)


async def test_versions_of_an_old_upstream_are_negotiated() -> None:
    """Before Kafka 2.4, a broker rejects the version of ApiVersions by a response of version 0."""
    versions = [
        ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=2),
        ApiVersionsResponse.ApiVersion(api_key=16, min_version=0, max_version=1),
    ]
    with RelayRig(shared_objects(LISTS_BY_CALL)) as rig:
        await rig.client.send(request(16, 0))
        request_heads = [(await rig.upstream.read_frame())[:4]]
        rejected = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=versions[:1])
        await rig.upstream.send(response_frame(rejected, 0, 1))
        request_heads.append((await rig.upstream.read_frame())[:4])
        await rig.upstream.send(response_frame(ApiVersionsResponse(api_keys=versions), 0, 1))
        request_heads.append((await rig.upstream.read_frame())[:4])
        await rig.upstream.send(response_frame(ListGroupsResponse(groups=[]), 1, 1))
        assert await rig.client.read_frame() == response_frame(ListGroupsResponse(groups=[]), 0, 1)[4:]
    assert [struct.unpack(">hh", each) for each in request_heads] == [(18, 3), (18, 0), (16, 1)]

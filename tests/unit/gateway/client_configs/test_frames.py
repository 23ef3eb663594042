"""Enforced values in the frames that pass a relay."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Any

import pytest

from klamm.gateway.frames.wire import RESPONSE_HEAD, RequestHead, decode_request, end_of_client_id, request_frame
from klamm.gateway.frames.wire import response_frame as response_of
from klamm.gateway.relay.filter import Filter, Wait
from klamm.protocol.codec import decode
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from klamm.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse
from klamm.protocol.types import CLIENT_CONFIGS_FEATURE
from tests.support.relay_rig import RelayRig, feature, filter_of, shared_objects

if TYPE_CHECKING:
    from klamm.gateway.frames.peer import Peer
    from klamm.gateway.relay.features import Feature
    from klamm.protocol.schema import Message


class FixedWatch:
    """Observer that enforces the same values for all requests of the client ``app``."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.timeouts_ms: list[int] = []
        self.is_closed = False

    def open(self, _peer: Peer) -> FixedWatch:
        return self

    def on_software(self, name: str, version: str) -> None:
        self.seen.append((name, version))

    def on_request(self, api_key: int, client_id: str | None, *, is_heartbeat: bool) -> None:
        if (api_key, client_id) not in self.seen:
            self.seen.append((api_key, client_id))

    def acks(self, requested: int, client_id: str | None) -> int:
        return -1 if client_id == "app" else requested

    def session_timeout_ms(self, requested: int, client_id: str | None) -> int:
        self.timeouts_ms.append(requested)
        return 9_000 if client_id == "app" else requested

    def heartbeat_interval_ms(self, offered: int, client_id: str | None) -> int:
        return 777 if client_id == "app" else offered

    def close(self) -> None:
        self.is_closed = True


async def forwarded(rig: RelayRig, request: Message, version: int, client_id: str = "app") -> Any:
    """Send a request, and return it as the upstream receives it."""
    await rig.client.send(request_frame(request, version, 7, client_id))
    frame = await rig.upstream.read_frame()
    head = RequestHead(len(frame), request.API_KEY, version, 7, client_id)
    size = len(frame).to_bytes(4)
    return decode_request(type(request), head, memoryview(size + frame), end_of_client_id(len(client_id)))


def watched(watch: FixedWatch, filters: dict[int, Filter] | None = None) -> Feature:
    return feature(watch=watch.open, filters=filters or {}, supported_features={CLIENT_CONFIGS_FEATURE: (1, 1)})


def passing(request: type[Message], response: type[Message], answer: Any = None) -> dict[int, Filter]:
    """Return a filter that decodes an API, and forwards the request or another one in its place."""
    judge = lambda _request, _context: answer  # noqa: E731
    return {request.API_KEY: filter_of(request, response, judge)}


PRODUCED = ProduceRequest(transactional_id=None, acks=0, timeout_ms=5, topic_data=[])
FILTERS = [{}, passing(ProduceRequest, ProduceResponse), passing(ProduceRequest, ProduceResponse, PRODUCED)]


@pytest.mark.parametrize("filters", FILTERS, ids=["relayed", "decoded", "replaced"])
@pytest.mark.parametrize("version", [3, 9, 12])
async def test_acks_are_raised_and_unexpected_response_is_dropped(version: int, filters: dict[int, Filter]) -> None:
    """K649-98."""

    watch = FixedWatch()
    with RelayRig(shared_objects(watched(watch, filters))) as rig:
        assert (await forwarded(rig, PRODUCED, version)).acks == -1
        assert (await forwarded(rig, PRODUCED, version, "other")).acks == 0
        heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        await forwarded(rig, heartbeat, 0)
        await rig.upstream.send(response_of(ProduceResponse(responses=[]), version, 7))
        expected = response_of(HeartbeatResponse(error_code=27), 0, 7)
        await rig.upstream.send(expected)
        assert await rig.client.read_frame() == expected[4:]
    assert watch.is_closed


def produced(error_code: ErrorCode, *, partitions: int = 1) -> ProduceResponse:
    """Return a response with an error of the last partition."""
    entries = [ProduceResponse.PartitionProduceResponse(index=index) for index in range(partitions)]
    entries[-1].error_code = error_code
    return ProduceResponse(responses=[ProduceResponse.TopicProduceResponse(name="t", partition_responses=entries)])


@pytest.mark.parametrize(
    ("filters", "version"),
    [(FILTERS[0], 0), *((filters, version) for filters in FILTERS for version in (3, 9, 12))],
    ids=lambda value: (
        str(value) if isinstance(value, int) else ["relayed", "decoded", "replaced"][FILTERS.index(value)]
    ),
)
@pytest.mark.parametrize("partitions", [1, 3_000])
async def test_error_behind_raised_acks_closes_the_connection(
    version: int, filters: dict[int, Filter], partitions: int, caplog: pytest.LogCaptureFixture
) -> None:
    """As in Kafka with ``acks=0``: a producer refreshes its metadata when it is disconnected."""
    shared = shared_objects(watched(FixedWatch(), filters))
    with RelayRig(shared) as rig:
        for code in (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.NOT_LEADER_OR_FOLLOWER):
            await rig.client.send(request_frame(PRODUCED, version, 7, "app"))
            await rig.upstream.read_frame()
            await rig.upstream.send(response_of(produced(code, partitions=partitions), version, 7))
            is_error = code is ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert await (rig.client.is_closed() if is_error else rig.is_served())
    assert "closed: Produce with acks=0 failed: NOT_LEADER_OR_FOLLOWER" in caplog.text
    assert shared.figures.closed["response"] == 1


async def test_error_behind_raised_acks_of_a_long_request_closes_the_connection() -> None:
    partitions = [ProduceRequest.PartitionProduceData(index=index, records=bytes(50)) for index in range(2_000)]
    topics = [ProduceRequest.TopicProduceData(name="t", partition_data=partitions)]
    request = ProduceRequest(acks=0, timeout_ms=5, topic_data=topics)
    with RelayRig(shared_objects(watched(FixedWatch(), passing(ProduceRequest, ProduceResponse, request)))) as rig:
        for code in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER):
            sending = asyncio.create_task(rig.client.send(request_frame(request, 9, 7, "app")))
            await rig.upstream.read_frame()
            await sending
            await rig.upstream.send(response_of(produced(code), 9, 7))
            assert await (rig.client.is_closed() if code else rig.is_served())


@pytest.mark.parametrize("filters", FILTERS, ids=["relayed", "decoded", "replaced"])
async def test_acks_of_a_client_id_outside_utf_8_are_raised(
    filters: dict[int, Filter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The id is longer in a request that replaces the client's own."""
    monkeypatch.setattr(FixedWatch, "acks", lambda *_: -1)

    with RelayRig(shared_objects(watched(FixedWatch(), filters))) as rig:
        await rig.client.send(request_frame(PRODUCED, 9, 7, "???").replace(b"???", b"\xff\xfe\xfd"))
        frame = await rig.upstream.read_frame()
        (id_length,) = struct.unpack_from(">h", frame, 8)
        head = RequestHead(len(frame), ProduceRequest.API_KEY, 9, 7, "")
        whole = memoryview(len(frame).to_bytes(4) + frame)
        assert decode_request(ProduceRequest, head, whole, end_of_client_id(id_length)).acks == -1


async def test_oversized_client_id_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    with RelayRig(shared_objects(watched(FixedWatch(), FILTERS[2]))) as rig:
        await rig.client.send(request_frame(PRODUCED, 9, 7, "?" * 20_000).replace(b"?", b"\xff"))
        assert await rig.client.is_closed()
    assert "A client id of 60000 bytes cannot be forwarded" in caplog.text


@pytest.mark.parametrize("filters", [{}, passing(JoinGroupRequest, JoinGroupResponse)], ids=["relayed", "decoded"])
@pytest.mark.parametrize("version", [0, 5, 9])
async def test_session_timeout_of_a_join_is_replaced(version: int, filters: dict[int, Filter]) -> None:
    with RelayRig(shared_objects(watched(FixedWatch(), filters))) as rig:
        join = JoinGroupRequest(
            group_id="g", session_timeout_ms=1_000, rebalance_timeout_ms=2, member_id="", protocol_type="consumer"
        )
        assert (await forwarded(rig, join, version)).session_timeout_ms == 9_000
        assert (await forwarded(rig, join, version, "other")).session_timeout_ms == 1_000


async def test_join_in_parts_is_handled_like_a_whole_one() -> None:
    with RelayRig(shared_objects(watched(FixedWatch()))) as rig:
        join = JoinGroupRequest(group_id="g", session_timeout_ms=1_000, member_id="", protocol_type="consumer")
        frame = request_frame(join, 9, 7, "app")
        for number in range(len(frame)):
            await rig.client.send(frame[number : number + 1])
            await asyncio.sleep(0)
        assert (9_000).to_bytes(4) in await rig.upstream.read_frame()


@pytest.mark.parametrize("length", [b"\x82\x80\x80\x80\x10", b"\xff\x7f"], ids=["33 bits", "beyond the frame"])
async def test_join_with_unreadable_session_timeout_closes_connection(length: bytes) -> None:
    """Kafka's brokers drop the 33rd bit of a length, and would accept the requested timeout."""
    join = JoinGroupRequest(group_id="g", session_timeout_ms=1_000, member_id="", protocol_type="consumer")
    body = request_frame(join, 9, 7, "app")[4:].replace(b"\x02g", length + b"g", 1)
    with RelayRig(shared_objects(watched(FixedWatch()))) as rig:
        await rig.client.send(len(body).to_bytes(4) + body)
        assert await rig.upstream.read(1) == b"", "closed without a request"


@pytest.mark.parametrize(
    "filters", [{}, passing(ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse)], ids=["relayed", "decoded"]
)
async def test_heartbeat_interval_in_a_response_is_replaced(filters: dict[int, Filter]) -> None:
    """K649-98."""

    with RelayRig(shared_objects(watched(FixedWatch(), filters))) as rig:
        beat = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0)
        answer = ConsumerGroupHeartbeatResponse(member_id="m", member_epoch=1, heartbeat_interval_ms=5_000)
        for client_id, expected in (("app", 777), ("other", 5_000)):
            await forwarded(rig, beat, 1, client_id)
            await rig.upstream.send(response_of(answer, 1, 7))
            frame = await rig.client.read_frame()
            received = decode(ConsumerGroupHeartbeatResponse, 1, frame, RESPONSE_HEAD.size - 4 + 1)
            assert (received.heartbeat_interval_ms, received.member_epoch) == (expected, 1)
        await forwarded(rig, beat, 1)
        error = response_of(ConsumerGroupHeartbeatResponse(error_code=25, error_message="unknown member"), 1, 7)
        await rig.upstream.send(error)
        assert await rig.client.read_frame() == error[4:]


async def test_api_versions_announce_the_feature_and_name_the_software() -> None:
    watch = FixedWatch()
    with RelayRig(shared_objects(watched(watch))) as rig:
        await forwarded(rig, ApiVersionsRequest(client_software_name="lib", client_software_version="3"), 3)
        own = ApiVersionsResponse.SupportedFeatureKey(name="group.version", min_version=0, max_version=1)
        old = ApiVersionsResponse.SupportedFeatureKey(name=CLIENT_CONFIGS_FEATURE, min_version=0, max_version=9)
        level = ApiVersionsResponse.FinalizedFeatureKey(name="group.version", min_version_level=1, max_version_level=1)
        answer = ApiVersionsResponse(supported_features=[own, old], finalized_features=[level])
        await rig.upstream.send(response_of(answer, 3, 7))
        received = decode(ApiVersionsResponse, 3, await rig.client.read_frame(), RESPONSE_HEAD.size - 4)
        features = {each.name: (each.min_version, each.max_version) for each in received.supported_features}
        assert features == {"group.version": (0, 1), CLIENT_CONFIGS_FEATURE: (1, 1)}
        assert [each.name for each in received.finalized_features] == ["group.version"]
    assert ("lib", "3") in watch.seen


@pytest.mark.parametrize("software", [("", "3"), ("lib", "a b"), ("a/b", "3")])
async def test_invalid_software_is_rejected_and_not_recorded(software: tuple[str, str]) -> None:
    # given
    watch = FixedWatch()
    request = ApiVersionsRequest(client_software_name=software[0], client_software_version=software[1])
    with RelayRig(shared_objects(watched(watch))) as rig:
        # when
        await rig.client.send(request_frame(request, 3, 7, "app"))
        # then
        received = decode(ApiVersionsResponse, 3, await rig.client.read_frame(), RESPONSE_HEAD.size - 4)
    assert received.error_code == ErrorCode.INVALID_REQUEST
    assert software not in watch.seen


async def test_frames_without_watch_are_forwarded_unread() -> None:
    with RelayRig(shared_objects(feature(supported_features={CLIENT_CONFIGS_FEATURE: (1, 1)}))) as rig:
        assert (await forwarded(rig, PRODUCED, 9)).acks == 0
        assert rig.relay.peer.watch is None


async def test_join_group_that_waits_for_policy_reports_client_timeout() -> None:
    # given
    async def work() -> object:
        await asyncio.sleep(0)
        return "allowed"

    joins = filter_of(
        JoinGroupRequest,
        JoinGroupResponse,
        lambda _, context: Wait(work=work) if context.wait_result is None else None,
    )
    watch = FixedWatch()
    with RelayRig(shared_objects(watched(watch, {JoinGroupRequest.API_KEY: joins}))) as rig:
        # when
        request = JoinGroupRequest(group_id="g", session_timeout_ms=7_000, protocols=[])
        sent = await forwarded(rig, request, 4)
    # then
    assert (sent.session_timeout_ms, watch.timeouts_ms) == (9_000, [7_000])

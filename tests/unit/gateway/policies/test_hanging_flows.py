"""A policy on flows that hangs, between relays and scripted brokers: only what it judges is delayed."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias
from uuid import uuid4

import pytest

from klamm.gateway.apis.table import POLICIES, UNFILTERED
from klamm.gateway.frames.wire import response_frame
from klamm.gateway.policies.feature import PolicyFeature
from klamm.policy.kinds import FLOW
from klamm.protocol.api import ApiKey
from klamm.protocol.codec import decode
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse
from tests.support.held_loop import callbacks_of_this_thread
from tests.support.relay_rig import RelayRig, request, shared_objects, until
from tests.support.wire import request_frame

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path


VERSION = 9
POLICY = """
import threading
from klamm.policy import Override, PolicyViolationError

ASKED = []
GO_ON = threading.Event()

class Hanging:
    only_computes = True

    def validate_flow(self, details):
        name = getattr(details, "topic", None) or details.group_id
        ASKED.append(name)
        if name.startswith("loop"):
            while True: pass
        if name.startswith("wait"): GO_ON.wait(20)
        if name.startswith("denied"): raise PolicyViolationError("no")
        if name.startswith("all"): return Override(acks=-1, reason="no loss")
"""
TOPICS = 2_000
"""Topics of a long Produce request that are allowed; as many are denied."""
MAX_HELD_S = 0.03
"""Of processor time, in one callback of the event loop. A slice is 5 ms."""


def produce(*names: str, records: bytes = b"", acks: int = 1) -> bytes:
    data = ProduceRequest.PartitionProduceData(index=0, records=records)
    topics = [ProduceRequest.TopicProduceData(name=topic, partition_data=[data]) for topic in names]
    return request_frame(ProduceRequest(acks=acks, timeout_ms=5, topic_data=topics), VERSION)


def produced(*names: str) -> bytes:
    entry = ProduceResponse.PartitionProduceResponse(index=0)
    topics = [ProduceResponse.TopicProduceResponse(name=topic, partition_responses=[entry]) for topic in names]
    return response_frame(ProduceResponse(responses=topics), VERSION, 1)


async def errors(rig: RelayRig) -> list[tuple[str, int]]:
    """Return the topics and error codes of the next response to Produce."""
    return errors_in(await rig.client.read_frame())


def errors_in(frame: bytes) -> list[tuple[str, int]]:
    answer = decode(ProduceResponse, VERSION, frame, 5)
    return [(topic.name, each.error_code) for topic in answer.responses for each in topic.partition_responses]


async def is_produced(rig: RelayRig, topic: str) -> bool:
    """Return whether a Produce request is forwarded as it is, and its response returned."""
    frame = produce(topic)
    await rig.client.send(frame)
    forwarded = await rig.upstream.read(len(frame))
    await rig.upstream.send(produced(topic))
    return forwarded == frame and await errors(rig) == [(topic, 0)]


Played: TypeAlias = "Callable[..., AbstractAsyncContextManager[tuple[PolicyFeature, list[str], Callable[[], None]]]]"


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    """Function that loads the policy: its feature, the subjects it was asked about, and what lets it decide."""
    name = f"hanging_{uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(POLICY)
    monkeypatch.syspath_prepend(tmp_path)

    @asynccontextmanager
    async def play(timeout_ms: int = 20_000) -> AsyncIterator[tuple[PolicyFeature, list[str], Callable[[], None]]]:
        configs = {"flow.policy.class.name": f"{name}:Hanging", "policy.timeout.ms": str(timeout_ms)}
        interception = await PolicyFeature.load(configs, POLICIES, UNFILTERED)
        module = __import__(name)
        try:
            async with asyncio.timeout(30):
                yield interception, module.ASKED, module.GO_ON.set
        finally:
            module.GO_ON.set()
            await interception.close()

    return play


async def test_hanging_policy_delays_its_own_requests_only(played: Played) -> None:
    async with played() as (interception, subjects, decide):
        shared = shared_objects(interception)
        with RelayRig(shared) as judged, RelayRig(shared) as other:
            assert await is_produced(other, "known")
            # when
            await judged.client.send(produce("waits"))
            await until(lambda: "waits" in subjects)
            for _number in range(5):
                assert await other.is_served()
                assert await is_produced(other, "known")
            # then
            assert judged.relay.is_busy
            decide()
            assert await judged.upstream.read(len(produce("waits"))) == produce("waits")
            assert subjects == ["known", "waits"]
            assert shared.figures.requests.counts[ApiKey.PRODUCE, "wire"] == 7


async def test_request_gets_an_error_when_the_policy_computes_forever(played: Played) -> None:
    async with played(timeout_ms=1500) as (interception, subjects, _):
        shared = shared_objects(interception)
        with RelayRig(shared) as judged, RelayRig(shared) as other:
            await judged.client.send(produce("loops") + request(ApiKey.HEARTBEAT, 0, b"next", correlation_id=3))
            await until(lambda: "loops" in subjects)
            assert await other.is_served()
            assert await errors(judged) == [("loops", ErrorCode.UNKNOWN_SERVER_ERROR)]
            assert (await judged.upstream.read_frame())[4:8] == (3).to_bytes(4)
            # an equal request gets its error at once, and the policy decides on others
            await judged.client.send(produce("loops"))
            await other.client.send(produce("denied"))
            assert await errors(other) == [("denied", ErrorCode.POLICY_VIOLATION)]
            assert subjects == ["loops", "denied"]


async def test_requests_behind_waiting_request_keep_their_order(played: Played) -> None:
    async with played() as (interception, subjects, decide):
        with RelayRig(shared_objects(interception)) as rig:
            frames = [produce("first"), produce("waits"), produce("first"), produce("denied"), produce("last")]
            await rig.client.send(b"".join(frames))
            await until(lambda: "waits" in subjects)
            assert await rig.upstream.read(len(frames[0])) == frames[0]
            decide()
            assert await rig.upstream.read(sum(map(len, frames[1:3] + frames[4:]))) == b"".join(
                frames[1:3] + frames[4:]
            )
            for topic in ("first", "waits", "first", "last"):
                await rig.upstream.send(produced(topic))
            answers = [await errors(rig) for _ in frames]
            assert [name for ((name, _),) in answers] == ["first", "waits", "first", "denied", "last"]
            assert subjects == ["first", "waits", "denied", "last"], "each question is asked once"


async def test_records_of_waiting_request_are_not_overwritten_by_other_clients(
    played: Played,
) -> None:
    async with played() as (interception, subjects, decide):
        shared = shared_objects(interception)
        with RelayRig(shared) as rig, RelayRig(shared) as other:
            await rig.client.send(produce("waits", "denied", records=b"a" * 1_000))
            await until(lambda: "waits" in subjects)
            await other.client.send(produce("waits", records=b"b" * 2_000))
            await until(lambda: other.relay.is_busy)
            decide()
            forwarded = produce("waits", records=b"a" * 1_000)
            assert await rig.upstream.read(len(forwarded)) == forwarded


@pytest.mark.parametrize("acks", [1, 0])
def test_produce_request_of_many_topics_does_not_hold_the_event_loop(played: Played, acks: int) -> None:
    allowed = [f"t{number}" for number in range(TOPICS)]
    denied = [f"denied{number}" for number in range(TOPICS)]
    topics = [topic for pair in zip(allowed, denied, strict=True) for topic in pair]
    received, forwarded, answer = produce(*topics, acks=acks), produce(*allowed), produced(*allowed)
    answers: list[bytes] = []

    async def test() -> None:
        async with played() as (interception, subjects, _):
            answers.clear()
            subjects.clear()
            shared = shared_objects(interception)
            with RelayRig(shared) as rig:
                sending = asyncio.create_task(rig.client.send(received))
                if acks == 0:
                    assert await rig.client.is_closed(), "no response can report the denied topics"
                else:
                    assert await rig.upstream.read(len(forwarded)) == forwarded
                    await rig.upstream.send(answer)
                    answers.append(await rig.client.read_frame())
                await sending
                assert len(subjects) == 2 * TOPICS
                assert shared.memory.request_budget.held_bytes == 0

    with callbacks_of_this_thread() as held:
        assert held.longest_s_of(lambda: asyncio.run(test()), limit_s=MAX_HELD_S) < MAX_HELD_S
    codes = dict.fromkeys(allowed, ErrorCode.NONE) | dict.fromkeys(denied, ErrorCode.POLICY_VIOLATION)
    assert [errors_in(frame) for frame in answers] == [[(topic, codes[topic]) for topic in topics]] * acks


async def test_acks_of_a_long_produce_request_are_overridden(played: Played) -> None:
    topics = [f"all{number}" for number in range(TOPICS)]
    async with played() as (interception, _, _):
        with RelayRig(shared_objects(interception)) as rig:
            for acks in (1, 0):
                sending = asyncio.create_task(rig.client.send(produce(*topics, acks=acks)))
                forwarded = produce(*topics, acks=-1)
                assert await rig.upstream.read(len(forwarded)) == forwarded
                await rig.upstream.send(produced(*topics))
                if acks:
                    assert [name for name, _ in await errors(rig)] == topics
                await sending
            assert await is_produced(rig, "next")


async def test_disconnect_during_policy_decision_leaves_other_clients_served(played: Played) -> None:
    async with played() as (interception, subjects, decide):
        shared = shared_objects(interception)
        with RelayRig(shared) as gone, RelayRig(shared) as other:
            await gone.client.send(produce("waits"))
            await until(lambda: "waits" in subjects)
            gone.relay.close("the client is gone")
            await other.client.send(request_frame(JoinGroupRequest(group_id="denied", protocols=[]), 4))
            decide()
            frame = await other.client.read_frame()
            assert decode(JoinGroupResponse, 4, frame, 4).error_code == ErrorCode.INVALID_GROUP_ID
            assert await gone.upstream.read(1) == b""
            assert shared.memory.request_budget.held_bytes == 0


async def test_unanswered_change_does_not_delay_flows(played: Played) -> None:
    async with played() as (interception, subjects, _):
        policies = interception.policies
        assert policies is not None
        with RelayRig(shared_objects(interception)) as rig:
            # when: a request holds the turn of the same policy
            async with policies.turn(FLOW):
                assert await is_produced(rig, "new")
        assert subjects == ["new"]


async def test_endless_number_of_questions_is_not_remembered(played: Played) -> None:
    async with played() as (interception, subjects, _):
        with RelayRig(shared_objects(interception)) as rig:
            for _number in range(2):
                assert await is_produced(rig, "x" * 2_000)
            assert len(subjects) == 2

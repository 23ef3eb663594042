"""Clients whose client id is rejected: the response to each API, and what passes before and after."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from klamm.gateway.apis.table import APIS, POLICIES, UNFILTERED
from klamm.gateway.frames.wire import REQUEST_HEAD, RequestHead, decode_request, response_body, response_frame
from klamm.gateway.policies.feature import PolicyFeature, decide_on_client
from klamm.gateway.relay.filter import Wait
from klamm.policy import PolicyViolationError
from klamm.policy.kinds import CLIENT, GATEWAY_KINDS
from klamm.policy_runtime import PolicyRuntime
from klamm.policy_runtime.worker import PolicyOutcome
from klamm.protocol.api import ApiKey
from klamm.protocol.codec import decode
from klamm.protocol.error_response import ERROR_FIELDS, request_class
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from klamm.protocol.messages.elect_leaders import ElectLeadersRequest
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.protocol.messages.heartbeat import HeartbeatResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.messages.produce import ProduceRequest
from klamm.server.attempt import ApiError
from tests.support.cases import case
from tests.support.gateway_context import FakeContext
from tests.support.random_requests import frame_of, random_struct
from tests.support.relay_rig import SERVED, RelayRig, feature, request, response, shared_objects
from tests.support.wire import request_frame

if TYPE_CHECKING:
    from pathlib import Path

    from klamm.gateway.relay.filter import FilterContext
    from klamm.gateway.relay.shared import Shared

DENIED = ApiError(ErrorCode.POLICY_VIOLATION, "no such name")
APIS_BY_KEY = {api.key: api for api in APIS}
EXPECTED: dict[int, ErrorCode] = {
    ApiKey.FETCH: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.LIST_OFFSETS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.INIT_PRODUCER_ID: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}
"""Error in place of POLICY_VIOLATION."""
VERSIONS = [
    (key, version)
    for key, (first, last) in SERVED.items()
    if not APIS_BY_KEY[key].is_always_admitted and (message := APIS_BY_KEY[key].rejected_request) is not None
    for version in range(max(first, message.VERSIONS[0]), last + 1)
]


def errors_in(struct: Any) -> list[int]:
    """Return all error codes of a response, its own first."""
    codes = [getattr(struct, name) for name in ERROR_FIELDS if hasattr(struct, name)]
    for field in type(struct).FIELDS:
        if field.is_array and field.struct is not None:
            codes += [code for each in getattr(struct, field.name) or () for code in errors_in(each)]
    return codes


def test_every_response_carries_the_error() -> None:
    for key, version in VERSIONS:
        with case(key, version):
            message = request_class(key)
            assert message is not None
            frame = frame_of(random_struct(message, version, random.Random(2)), message, version)
            size, api_key, api_version, correlation_id, length = REQUEST_HEAD.unpack_from(frame)
            head = RequestHead(size, api_key, api_version, correlation_id, "tool")
            decoded = decode_request(message, head, memoryview(frame), REQUEST_HEAD.size + length)
            rejected = APIS_BY_KEY[key].rejection(decoded, version, DENIED)
            if rejected is None:  # ElectLeaders v0 of all partitions
                assert isinstance(decoded, ElectLeadersRequest)
                assert (version, decoded.topic_partitions) == (0, None)
                continue
            answer = memoryview(response_frame(rejected, version, 1))
            read = decode(type(rejected), version, answer, response_body(type(rejected), version, answer))
            wanted = EXPECTED.get(key, DENIED.error_code)
            if isinstance(decoded, FindCoordinatorRequest) and decoded.key_type == 1:
                wanted = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            assert {code for code in errors_in(read) if code} == {wanted}
            pause_ms = 1000 if key == ApiKey.INIT_PRODUCER_ID else 0
            assert getattr(read, "throttle_time_ms", 0) == pause_ms


def test_entries_are_those_of_the_request() -> None:
    partitions = [FetchRequest.FetchPartition(partition=index) for index in (3, 5)]
    fetch = FetchRequest(topics=[FetchRequest.FetchTopic(topic="t", partitions=partitions)])
    fetched = APIS_BY_KEY[ApiKey.FETCH].rejection(fetch, 12, DENIED)
    assert isinstance(fetched, FetchResponse)
    (topic,) = fetched.responses
    assert (topic.topic, [each.partition_index for each in topic.partitions]) == ("t", [3, 5])
    rejection = APIS_BY_KEY[ApiKey.FIND_COORDINATOR].rejection(
        FindCoordinatorRequest(coordinator_keys=["g"]), 4, DENIED
    )
    assert isinstance(rejection, FindCoordinatorResponse)
    assert [(each.key, each.error_message) for each in rejection.coordinators] == [("g", "no such name")]
    rejection = APIS_BY_KEY[ApiKey.FIND_COORDINATOR].rejection(FindCoordinatorRequest(key="t", key_type=1), 3, DENIED)
    assert isinstance(rejection, FindCoordinatorResponse)
    assert rejection.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def judging(client_ids: list[str | None]) -> Shared:
    def admit(context: FilterContext) -> ApiError | Wait | None:
        if context.wait_result is None:

            async def learn() -> bool:
                return True

            return Wait(work=learn)
        client_ids.append(context.author.client_id)
        return DENIED if context.author.client_id == "bad" else None

    return shared_objects(feature(admit=admit))


async def test_client_id_is_decided_on_once_per_connection() -> None:
    client_ids: list[str | None] = []
    shared = judging(client_ids)
    with RelayRig(shared) as rig:
        for _ in range(3):
            assert await rig.is_served()
        metadata = request_frame(MetadataRequest(topics=None), 9, client_id="bad")
        await rig.client.send(metadata)
        assert await rig.upstream.read(len(metadata)) == metadata
        await rig.upstream.send(response_frame(MetadataResponse(), 9, 1))
        assert await rig.client.read_frame()
        create = CreateTopicsRequest.CreatableTopic(
            name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[]
        )
        frame = request_frame(CreateTopicsRequest(topics=[create]), 7, client_id="bad")
        await rig.client.send(frame[:30])
        await rig.client.send(frame[30:] + request(12, 0, b"next", correlation_id=4))
        assert await rig.upstream.read_frame() == request(12, 0, b"next", correlation_id=4)[4:]
        assert client_ids == [None, "bad", None]
        answer = await rig.client.read_frame()
        (topic,) = decode(CreateTopicsResponse, 7, answer, 5).topics
        assert (topic.name, topic.error_code, topic.error_message) == ("t", DENIED.error_code, "no such name")


async def test_api_is_decided_on_at_every_request() -> None:
    keys: list[int] = []

    def admit(context: FilterContext) -> ApiError | None:
        keys.append(context.api_key)
        return DENIED if context.api_key == ApiKey.CREATE_TOPICS else None

    with RelayRig(shared_objects(feature(admit_request=admit))) as rig:
        create = request_frame(CreateTopicsRequest(topics=[]), 7)
        for number in range(3):
            heartbeat = request(12, 0, b"body", correlation_id=number)
            await rig.client.send(heartbeat + heartbeat + create)
            assert await rig.upstream.read(2 * len(heartbeat)) == heartbeat + heartbeat
            await rig.upstream.send(response(number) + response(number))
            assert [await rig.client.read_frame() for _ in range(2)] == [response(number)[4:]] * 2
            decode(CreateTopicsResponse, 7, await rig.client.read_frame(), 5)
        assert keys == [12, 12, ApiKey.CREATE_TOPICS] * 3, "requests with equal headers are decided on one by one"


async def test_connected_client_stays_admitted_while_its_requests_are_decided_on(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("rules: [{name: tools, forbidden_apis: [DeleteRecords]}]")
    configs = {
        "client.policy.class.name": "klamm.policy.rules:RulesPolicy",
        "api.policy.class.name": "klamm.policy.rules:RulesPolicy",
        "policy.rules.file": str(rules),
        "policy.reload.interval.ms": "0",
    }
    runtime = await PolicyRuntime.load(configs, GATEWAY_KINDS, in_threads=True)
    policies = runtime.policies
    shared = shared_objects(PolicyFeature(runtime, POLICIES, UNFILTERED))
    decided = Counter({("client", "allow"): 1, ("api", "allow"): 3})

    def counted() -> Counter[tuple[str, str]]:
        return Counter({(each.policy, each.action): count for each, count in policies.decisions.items()})

    try:
        with RelayRig(shared) as connected, RelayRig(shared) as new:
            for _ in range(3):
                assert await connected.is_served()
            assert counted() == decided
            # when
            rules.write_text("rules: [{name: names, client_id_naming: 'app-.*'}]")
            assert await runtime.reloader.reload()
            # then
            assert await connected.is_served()
            decided["api", "allow"] += 1
            assert counted() == decided
            await new.client.send(request(12, 0, b"".join([b"\0\1g", bytes(4), b"\0\1m"])))
            answer = decode(HeartbeatResponse, 0, await new.client.read_frame(), 4)
            assert answer.error_code == ErrorCode.POLICY_VIOLATION
            decided["client", "deny"] += 1
            assert counted() == decided, "the API of a denied client matters to nobody"
    finally:
        await policies.close()


async def test_request_with_the_header_of_the_one_before_is_decided_on_by_the_present_rules() -> None:
    """A client whose correlation ids are all the same could otherwise ignore every reload of the rules."""
    denied = False

    def admit(_: FilterContext) -> ApiError | None:
        return DENIED if denied else None

    create = request_frame(CreateTopicsRequest(topics=[]), 7)
    with RelayRig(shared_objects(feature(admit_request=admit))) as rig:
        for denied in (False, True, False):
            await rig.client.send(create)
            if not denied:
                assert await rig.upstream.read(len(create)) == create
                await rig.upstream.send(response_frame(CreateTopicsResponse(topics=[]), 7, 1))
            decode(CreateTopicsResponse, 7, await rig.client.read_frame(), 5)


@pytest.mark.parametrize("version", [3, 9])
async def test_denied_produce_request_without_acks_is_malformed(version: int, caplog: pytest.LogCaptureFixture) -> None:
    # given
    shared = shared_objects(feature(admit=lambda context: DENIED if context.author.client_id == "bad" else None))
    heartbeat = request(12, 0, b"body", correlation_id=7)
    produce = REQUEST_HEAD.pack(REQUEST_HEAD.size - 4 + 4, 0, version, 8, 3) + b"bad" + b"\0"
    with RelayRig(shared) as rig:
        # when
        await rig.client.send(heartbeat + produce)
        # then
        assert await rig.upstream.read(len(heartbeat)) == heartbeat
        await rig.upstream.send(response(7))
        assert await rig.client.read_frame() == response(7)[4:]
        assert await rig.client.is_closed()
    assert shared.figures.closed == {"request": 1}
    assert all(record.levelname != "ERROR" for record in caplog.records)


@pytest.mark.parametrize(
    "frame",
    [
        request_frame(ProduceRequest(acks=0, timeout_ms=5, topic_data=[]), 9, client_id="bad"),
        request_frame(ProduceRequest(acks=1, timeout_ms=5, topic_data=[]), 9, client_id="bad")[:-3],
        request_frame(DescribeUserScramCredentialsRequest(users=None), 0, client_id="bad"),
        request_frame(ElectLeadersRequest(topic_partitions=None), 0, client_id="bad"),
    ],
    ids=["no response", "malformed", "two kinds of requests", "no error in this version"],
)
async def test_request_without_a_response_for_it_closes_the_connection(frame: bytes) -> None:
    shared = judging([])
    sized = (len(frame) - 4).to_bytes(4) + frame[4:]
    with RelayRig(shared) as rig, RelayRig(shared) as other:
        await rig.client.send(sized)
        assert await rig.client.is_closed()
        assert await rig.upstream.read(1) == b""
        assert await other.is_served()


def test_metadata_and_logins_are_admitted() -> None:
    admitted = {api.key for api in APIS if api.is_always_admitted}
    assert admitted == {ApiKey.METADATA, ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}


def test_remembered_rejection_does_not_keep_the_request() -> None:
    error = PolicyViolationError("no such name")

    class Rejecting:
        """Policies that remember a rejection of every client id."""

        def guards_kind(self, kind: object) -> bool:
            return kind is CLIENT

        def cached_outcome(self, *_: object) -> PolicyOutcome:
            return PolicyOutcome(None, error)

        def answer(self, *_: object) -> None:
            raise error

    policies: Any = Rejecting()
    context: Any = FakeContext(lambda message: message)
    assert decide_on_client(policies, context) == DENIED
    assert error.__traceback__ is None

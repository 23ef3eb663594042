"""Requests of random content, in every version of every API that policies judge: what reaches the upstream.

Every struct of a request has a tagged field that the gateway does not know, in the versions that have tagged fields.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final

import pytest

from klamm.gateway.apis.table import POLICIES
from klamm.gateway.frames.wire import REQUEST_HEAD, RequestHead, decode_request, response_body, response_frame
from klamm.gateway.policies.policy_api import ResourceTurns
from klamm.policy import PolicyViolationError, ProduceDetails
from klamm.policy_runtime.worker import PolicyOutcome
from klamm.protocol.api import ApiKey
from klamm.protocol.codec import decode
from klamm.protocol.messages.alter_configs import AlterConfigsResponse
from klamm.protocol.messages.alter_partition_reassignments import AlterPartitionReassignmentsResponse
from klamm.protocol.messages.api_versions import ApiVersionsResponse
from klamm.protocol.messages.create_partitions import CreatePartitionsResponse
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.delete_topics import DeleteTopicsResponse
from klamm.protocol.messages.describe_cluster import DescribeClusterResponse
from klamm.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.messages.produce import ProduceResponse
from tests.support.gateway_context import FakeAdmin, FakePolicies
from tests.support.random_requests import CORRELATION_ID, frame_of, random_struct
from tests.support.relay_rig import SERVED, RelayRig, feature, shared_objects, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from klamm.gateway.relay.features import Feature
    from klamm.protocol.schema import Message

MESSAGES_OF_EACH_VERSION: Final = 5
PARTS: Final = {
    ApiKey.CREATE_TOPICS: ("topics", "name", "topics", "name"),
    ApiKey.CREATE_PARTITIONS: ("topics", "name", "results", "name"),
    ApiKey.DELETE_TOPICS: ("topics", "name", "responses", "name"),
    ApiKey.ALTER_CONFIGS: ("resources", "resource_name", "responses", "resource_name"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ("resources", "resource_name", "responses", "resource_name"),
    ApiKey.PRODUCE: ("topic_data", "name", "responses", "name"),
}
"""Names of the parts of a request and of their keys, and of the entries of its response and of their keys."""


class Denied:
    """Names that begin with ``denied``."""

    def __contains__(self, name: object) -> bool:
        return str(name).startswith("denied")


class Policies(FakePolicies):
    """Policies that know all answers about flows."""

    def cached_outcome(self, _kind: object, details: Any) -> PolicyOutcome:
        name = details.topic if isinstance(details, ProduceDetails) else details.group_id
        return PolicyOutcome(None, PolicyViolationError("no") if name in self.denied else None)

    def override_of(self, *_: object) -> None:
        return None

    def answer(self, _kind: object, _details: Any, outcome: PolicyOutcome, _overridden: object) -> None:
        if outcome.error is not None:
            raise outcome.error


class AllTopics(dict[str, Any]):
    """Topics with one partition, of any name."""

    def __contains__(self, _name: object) -> bool:
        return True

    def __missing__(self, _name: object) -> Any:
        return [[1]]


class AllConfigs(dict[Any, Any]):
    """Resources of any name without configs."""

    def get(self, _key: object, _default: object = None) -> Any:
        return {}

    def __bool__(self) -> bool:
        return True


def interception(policies: Policies) -> Feature:
    turns = ResourceTurns()
    return feature(filters={api.key: api.filter(policies.as_policies(), turns) for api in POLICIES})


FILTERS: Final = interception(Policies()).filters
REQUESTS: Final[dict[int, type[Any]]] = {key: used.request for key, used in FILTERS.items() if used.request is not None}
LAST_VERSIONS: Final = {api.key: api.last_version for api in POLICIES if api.last_version is not None}
CASES: Final = [
    (request, version)
    for key, request in REQUESTS.items()
    for version in range(max(request.VERSIONS[0], SERVED[key][0]), min(SERVED[key][1], LAST_VERSIONS.get(key, 99)) + 1)
]


def head_of(frame: bytes) -> tuple[RequestHead, int]:
    size, api_key, api_version, correlation_id, id_length = REQUEST_HEAD.unpack_from(frame)
    return RequestHead(size, api_key, api_version, correlation_id, "tool"), REQUEST_HEAD.size + max(id_length, 0)


def decoded(frame: bytes) -> Any:
    head, body = head_of(frame)
    return decode_request(REQUESTS[head.api_key], head, memoryview(frame), body)


def _answers() -> dict[int, Callable[[Any], Message]]:
    """Return a function for each API that returns a response without errors, its entries in reverse order."""
    created = CreateTopicsResponse.CreatableTopicResult
    grown = CreatePartitionsResponse.CreatePartitionsTopicResult
    deleted = DeleteTopicsResponse.DeletableTopicResult
    replaced = AlterConfigsResponse.AlterConfigsResourceResponse
    altered = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    written, seen = ProduceResponse.TopicProduceResponse, MetadataResponse.MetadataResponseTopic
    versions = [
        ApiVersionsResponse.ApiVersion(api_key=key, min_version=0, max_version=SERVED[key][1]) for key in (3, 19, 60)
    ]

    def resources(entry: Any, request: Any) -> list[Any]:
        return [
            entry(resource_type=each.resource_type, resource_name=each.resource_name)
            for each in reversed(request.resources)
        ]

    return {
        ApiKey.API_VERSIONS: lambda _: ApiVersionsResponse(api_keys=versions),
        ApiKey.DESCRIBE_CLUSTER: lambda _: DescribeClusterResponse(cluster_authorized_operations=-1),
        ApiKey.CREATE_TOPICS: lambda request: CreateTopicsResponse(
            topics=[
                created(name=each.name, num_partitions=1, replication_factor=1) for each in reversed(request.topics)
            ]
        ),
        ApiKey.CREATE_PARTITIONS: lambda request: CreatePartitionsResponse(
            results=[grown(name=each.name) for each in reversed(request.topics)]
        ),
        ApiKey.DELETE_TOPICS: lambda request: DeleteTopicsResponse(
            responses=[
                deleted(name=name)
                for name in reversed([each.name for each in request.topics] + list(request.topic_names))
            ]
        ),
        ApiKey.ALTER_CONFIGS: lambda request: AlterConfigsResponse(responses=resources(replaced, request)),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: lambda request: IncrementalAlterConfigsResponse(
            responses=resources(altered, request)
        ),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: lambda _: AlterPartitionReassignmentsResponse(),
        ApiKey.PRODUCE: lambda request: ProduceResponse(
            responses=[written(name=each.name) for each in reversed(request.topic_data)]
        ),
        ApiKey.METADATA: lambda request: MetadataResponse(
            topics=[seen(name=each.name) for each in request.topics or ()]
        ),
    }


ANSWERS: Final = _answers()


async def relayed(frame: bytes, policies: Policies) -> tuple[list[bytes], bytes]:
    """Send a request through a gateway; return the requests that reach the upstream, and the client's response."""
    shared = shared_objects(interception(policies), admin=FakeAdmin(AllTopics(), AllConfigs()))
    forwarded: list[bytes] = []
    with RelayRig(shared) as rig:

        async def serve() -> None:
            while size := await rig.upstream.read(4):
                received = size + await rig.upstream.read(int.from_bytes(size))
                forwarded.append(received)
                head, _ = head_of(received)
                if head.api_key in ANSWERS:
                    response = ANSWERS[head.api_key](decoded(received) if head.api_key in REQUESTS else None)
                    await rig.upstream.send(response_frame(response, head.api_version, head.correlation_id))

        serving = asyncio.create_task(serve())
        await rig.client.send(frame)
        head, _ = head_of(frame)
        answer = b""
        if head.api_key in ANSWERS:
            answer = await rig.client.read_frame()
        else:
            await until(lambda: bool(forwarded))
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    return forwarded, answer


def random_request(request: type[Message], version: int, generator: random.Random) -> Any:
    made = random_struct(request, version, generator)
    if isinstance(made, MetadataRequest):
        made.allow_auto_topic_creation = False
        if version < 4:  # versions that cannot forbid the creation of topics
            made.topics = None if version else []
    return made


@pytest.mark.parametrize(("request_class", "version"), CASES, ids=lambda each: getattr(each, "__name__", str(each)))
async def test_allowed_request_is_forwarded_as_it_was_received(request_class: type[Message], version: int) -> None:
    generator = random.Random(version)
    for _ in range(MESSAGES_OF_EACH_VERSION):
        frame = frame_of(random_request(request_class, version, generator), request_class, version)
        forwarded, _ = await relayed(frame, Policies())
        assert forwarded.count(frame) == 1


@pytest.mark.parametrize(
    ("request_class", "version"),
    [(request, version) for request, version in CASES if request.API_KEY in PARTS],
    ids=lambda each: getattr(each, "__name__", str(each)),
)
async def test_rest_of_a_request_is_forwarded_field_by_field(request_class: type[Message], version: int) -> None:
    key = ApiKey(request_class.API_KEY)
    parts, part_name, entries, entry_name = PARTS[key]
    if key == ApiKey.DELETE_TOPICS and version < 6:
        parts = "topic_names"
    response_class = FILTERS[key].response

    def name_of(part: Any) -> str:
        return str(part if isinstance(part, str) else getattr(part, part_name))

    generator = random.Random(version)
    for _ in range(MESSAGES_OF_EACH_VERSION):
        made = random_request(request_class, version, generator)
        if hasattr(made, "validate_only"):
            made.validate_only = False  # otherwise all parts are forwarded
        frame = frame_of(made, request_class, version)
        forwarded, answer = await relayed(frame, Policies(denied=Denied()))  # type: ignore[arg-type]
        wanted = decoded(frame)
        names = list(map(name_of, getattr(wanted, parts)))
        kept = [part for part in getattr(wanted, parts) if name_of(part) not in Denied()]
        setattr(wanted, parts, kept)
        real = [each for each in forwarded if head_of(each)[0].api_key == key]
        assert not kept or decoded(real[-1]) == wanted
        body = memoryview(b"\0\0\0\0" + answer)
        response = decode(response_class, version, body, response_body(response_class, version, body))
        answered = [getattr(entry, entry_name) for entry in getattr(response, entries)]
        # the response to a request that is forwarded as it is passes in the order of the upstream
        assert answered == (names[::-1] if real == [frame] and key == ApiKey.PRODUCE else names)


async def test_only_the_creation_of_topics_is_taken_from_a_request_for_metadata() -> None:
    generator = random.Random(5)
    for version in range(4, SERVED[ApiKey.METADATA][1] + 1):
        made = random_struct(MetadataRequest, version, generator)
        made.allow_auto_topic_creation = True
        frame = frame_of(made, MetadataRequest, version)
        forwarded, _ = await relayed(frame, Policies())
        wanted = decoded(frame)
        wanted.allow_auto_topic_creation = wanted.topics is None or not wanted.topics
        assert [decoded(each) for each in forwarded] == [wanted]


def test_generator_makes_unknown_tags_and_denied_names() -> None:
    generator = random.Random(3)
    frames = [frame_of(random_struct(CreateTopicsRequest, 7, generator), CreateTopicsRequest, 7) for _ in range(20)]
    assert all(frame.count(b"\x01\x4d") > 2 for frame in frames)
    assert sum(b"denied-" in frame for frame in frames) > 5
    assert head_of(frames[0])[0].correlation_id == CORRELATION_ID

"""Each served API in each served version with each kind of fault, by the handlers of a broker without sockets."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID, uuid4

import pytest

from klamm.broker.app import BrokerApp
from klamm.broker.cluster import AdvertisedBroker
from klamm.broker.context import RequestContext
from klamm.broker.faults.exchanges import api_name, filters_of, served_requests
from klamm.broker.faults.injector import InjectedEndError, Injector
from klamm.broker.faults.requests import RequestLog
from klamm.broker.routes import ROUTES
from klamm.broker.settings import parse_arguments
from klamm.faults.fault import FaultQueue, parse_fault
from klamm.protocol.codec import decode
from klamm.protocol.error_response import response_class
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from klamm.protocol.messages.fetch import FetchRequest
from klamm.protocol.messages.metadata import MetadataRequest
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest
from klamm.server.codec import write
from klamm.server.session import Session
from tests.support.cases import case
from tests.support.sample_requests import TOPIC_IDS, TOPICS, sample

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from klamm.broker.context import Services
    from klamm.broker.topics.catalog import TopicCatalog
    from klamm.protocol.schema import Message

OF_A_PART: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
"""An error that Kafka reports for the part that it concerns."""
OF_THE_REQUEST: Final = ErrorCode.COORDINATOR_NOT_AVAILABLE
"""An error that Kafka reports for a request as a whole, where the response can express that."""


class Place(NamedTuple):
    """Where a response reports errors, from a version on. Paths of arrays; an empty one is the response itself."""

    version: int
    of_a_part: str
    of_the_request: str


TOP: Final = (Place(0, "", ""),)
PARTITIONS: Final = (Place(0, "topics.partitions", "topics.partitions"),)
RESOURCES: Final = (Place(0, "responses", "responses"),)
PLACES: Final = {
    "Produce": (Place(0, "responses.partition_responses", "responses.partition_responses"),),
    "Fetch": (Place(0, "responses.partitions", "responses.partitions"), Place(7, "responses.partitions", "")),
    "ListOffsets": PARTITIONS,
    "Metadata": (Place(0, "topics", "topics"), Place(13, "topics", "")),
    "OffsetCommit": PARTITIONS,
    "OffsetFetch": (
        Place(0, "topics.partitions", "topics.partitions"),
        Place(2, "topics.partitions", ""),
        Place(8, "groups.topics.partitions", "groups"),
    ),
    "FindCoordinator": (Place(0, "", ""), Place(4, "coordinators", "coordinators")),
    "JoinGroup": TOP,
    "Heartbeat": TOP,
    "LeaveGroup": (Place(0, "", ""), Place(3, "members", "")),
    "SyncGroup": TOP,
    "DescribeGroups": (Place(0, "groups", "groups"),),
    "ListGroups": TOP,
    "SaslHandshake": TOP,
    "ApiVersions": TOP,
    "CreateTopics": (Place(0, "topics", "topics"),),
    "DeleteTopics": RESOURCES,
    "DeleteRecords": PARTITIONS,
    "InitProducerId": TOP,
    "OffsetForLeaderEpoch": PARTITIONS,
    "AddPartitionsToTxn": (
        Place(
            0,
            "results_by_topic_v3_and_below.results_by_partition",
            "results_by_topic_v3_and_below.results_by_partition",
        ),
        Place(4, "results_by_transaction.topic_results.results_by_partition", ""),
    ),
    "AddOffsetsToTxn": TOP,
    "EndTxn": TOP,
    "WriteTxnMarkers": (Place(0, "markers.topics.partitions", "markers.topics.partitions"),),
    "TxnOffsetCommit": PARTITIONS,
    "DescribeAcls": TOP,
    "CreateAcls": (Place(0, "results", "results"),),
    "DeleteAcls": (Place(0, "filter_results", "filter_results"),),
    "DescribeConfigs": (Place(0, "results", "results"),),
    "AlterConfigs": RESOURCES,
    "DescribeLogDirs": (Place(0, "results", "results"), Place(3, "", "")),
    "SaslAuthenticate": TOP,
    "CreatePartitions": (Place(0, "results", "results"),),
    "DeleteGroups": (Place(0, "results", "results"),),
    "ElectLeaders": (
        Place(0, "replica_election_results.partition_result", "replica_election_results.partition_result"),
        Place(1, "replica_election_results.partition_result", ""),
    ),
    "IncrementalAlterConfigs": RESOURCES,
    "AlterPartitionReassignments": (Place(0, "responses.partitions", ""),),
    "ListPartitionReassignments": TOP,
    "OffsetDelete": (Place(0, "topics.partitions", ""),),
    "DescribeClientQuotas": TOP,
    "AlterClientQuotas": (Place(0, "entries", "entries"),),
    "DescribeClientConfigs": TOP,
    "AlterClientConfigs": (Place(0, "entries", "entries"),),
    "DescribeUserScramCredentials": (Place(0, "results", ""),),
    "AlterUserScramCredentials": (Place(0, "results", "results"),),
    "DescribeCluster": TOP,
    "DescribeProducers": PARTITIONS,
    "DescribeTransactions": (Place(0, "transaction_states", "transaction_states"),),
    "ListTransactions": TOP,
    "ConsumerGroupHeartbeat": TOP,
    "ConsumerGroupDescribe": (Place(0, "groups", "groups"),),
    "GetTelemetrySubscriptions": TOP,
    "PushTelemetry": TOP,
    "ListConfigResources": TOP,
    "DescribeTopicPartitions": (Place(0, "topics", "topics"),),
}
"""Where Kafka's messages have the error codes, by API."""

PARTS: Final = {"DescribeLogDirs": 1, "AlterUserScramCredentials": 4}
"""Number of results, where it is not two for each level."""

REQUESTS: Final = {api_name(request): request for request in served_requests(ROUTES)}
VERSIONS: Final = {
    name: range(
        max(ROUTES[request.API_KEY].api.min_version, request.VERSIONS[0]),
        ROUTES[request.API_KEY].api.max_version + 1,
    )
    for name, request in REQUESTS.items()
}
EVERY_VERSION: Final = [(name, version) for name, versions in VERSIONS.items() for version in versions]
FILTERS: Final = filters_of(ROUTES)
WITH_TOPICS: Final = [(name, version) for name, version in EVERY_VERSION if "topic" in FILTERS[name]]
WITH_PARTITIONS: Final = [(name, version) for name, version in EVERY_VERSION if "partition" in FILTERS[name]]


def place_of(name: str, version: int) -> Place:
    return [place for place in PLACES[name] if place.version <= version][-1]


class Rig:
    """A broker without sockets, whose handlers have faults."""

    def __init__(self, services: Services, loop: asyncio.AbstractEventLoop) -> None:
        self.services = services
        self._loop = loop
        self.faults = FaultQueue(random.random)
        self.requests = RequestLog(services.now_ms)
        self.injector = Injector(self.faults, self.requests)
        self._routes = self.injector.routes(ROUTES)

    def inject(self, api: str | None = None, **options: Any) -> None:
        self.faults.add(parse_fault({"api": api, **options}, apis=FILTERS))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(work, 10))

    async def response(
        self, request: Message, version: int, client_id: str = "tests", sent_version: int | None = None
    ) -> Any:
        """Return the decoded response, as a client gets it; None if there is none."""
        session = Session(connection_id=1, node_id=1, listener="PLAINTEXT", login=None)
        context = RequestContext(services=self.services, session=session, api_version=version, client_id=client_id)
        response = await self._routes[request.API_KEY].handle(request, context)
        if response is None:
            return None
        body = b"".join(
            bytes(piece) if isinstance(piece, (bytes, bytearray, memoryview)) else piece.read(0, len(piece))
            for piece in write(response, version)
        )
        sent = version if sent_version is None else sent_version
        return decode(response_class(type(request)), sent, body, is_whole=True)

    def ask(self, name: str, version: int) -> Any:
        return self.run(self.response(sample(REQUESTS[name], version), version))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Services, asyncio.AbstractEventLoop]]:
    """Provide an open broker."""
    loop = asyncio.new_event_loop()
    directory = tmp_path_factory.mktemp("broker")
    settings = parse_arguments(
        ["--listen", "127.0.0.1:0", "--data-dir", str(directory), "--set", "group.initial.rebalance.delay.ms=0"]
    )
    node = AdvertisedBroker(node_id=1, host="127.0.0.1", port=9092)
    app = loop.run_until_complete(BrokerApp.start(settings, {settings.listeners[0].name: (node,)}))
    yield app.services, loop
    loop.run_until_complete(app.stop())
    loop.close()


@pytest.fixture
def new_rig(running: tuple[Services, asyncio.AbstractEventLoop]) -> Callable[[], Rig]:
    """Provide a function that returns a rig without faults, on the broker with its topics."""
    services, loop = running

    def new() -> Rig:
        loop.run_until_complete(create_topics(services.topics))
        return Rig(services, loop)

    return new


@pytest.fixture
def rig(new_rig: Callable[[], Rig]) -> Rig:
    return new_rig()


async def create_topics(topics: TopicCatalog) -> None:
    """Create the topics of the sample requests, unless they exist with their ids: some requests delete them."""
    for name, topic_id in zip(TOPICS, TOPIC_IDS, strict=True):
        current = topics.get(name)
        if current is not None and current.topic_id == topic_id:
            continue
        if current is not None:
            await topics.begin_delete(current)
        topics.new_topic_id = partial(UUID, str(topic_id))
        await topics.create(name, [(1,), (1,)], configs={})
        topics.new_topic_id = uuid4


def codes(response: Any, path: str) -> list[int]:
    """Return the error codes at a place of a response."""
    parts = [response]
    for array in path.split(".") if path else ():
        parts = [inner for outer in parts for inner in getattr(outer, array) or ()]
    return [part.error_code if hasattr(part, "error_code") else part.partition_error_code for part in parts]


def all_codes(response: Any) -> list[int]:
    """Return all error codes of a response."""
    own = [getattr(response, name) for name in ("error_code", "partition_error_code") if hasattr(response, name)]
    arrays = [getattr(response, field.name) or () for field in response.FIELDS if field.is_array and field.struct]
    return own + [code for array in arrays for element in array for code in all_codes(element)]


def test_table_covers_every_served_api() -> None:
    assert set(PLACES) == set(REQUESTS)


def test_partition_error_is_reported_for_every_partition(new_rig: Callable[[], Rig]) -> None:
    for name in REQUESTS:
        with case(name):
            rig = new_rig()
            for version in VERSIONS[name]:
                rig.inject(name, error=OF_A_PART.name)
                response = rig.ask(name, version)
                place = place_of(name, version).of_a_part
                error_codes = codes(response, place)
                assert (version, set(error_codes)) == (version, {OF_A_PART})
                count = PARTS.get(name, 2 ** len(place.split(".")) if place else 1)
                assert (version, len(error_codes)) == (version, count)
                assert all_codes(response).count(OF_A_PART) == len(error_codes)
                assert set(all_codes(response)) <= {0, OF_A_PART}


def test_top_level_error_is_reported_at_the_outermost_level(new_rig: Callable[[], Rig]) -> None:
    for name in REQUESTS:
        with case(name):
            rig = new_rig()
            for version in VERSIONS[name]:
                rig.inject(name, error=OF_THE_REQUEST.name)
                response = rig.ask(name, version)
                error_codes = codes(response, place_of(name, version).of_the_request)
                assert (version, set(error_codes)) == (version, {OF_THE_REQUEST})
                assert all_codes(response).count(OF_THE_REQUEST) == len(error_codes)


def test_topic_filter_does_not_affect_other_topics(new_rig: Callable[[], Rig]) -> None:
    for name in sorted({name for name, _ in WITH_TOPICS}):
        with case(name):
            rig = new_rig()
            rig.ask("OffsetCommit", 8)  # the group exists, for OffsetDelete
            for version in VERSIONS[name]:
                place = place_of(name, version).of_a_part
                rig.inject(name, error=OF_THE_REQUEST.name, topic=TOPICS[1])
                error_codes = codes(rig.ask(name, version), place)
                groups = 2 ** (len(place.split(".")) - (2 if "partition" in FILTERS[name] else 1))
                halves = len(error_codes) // groups // 2
                assert (version, [code == OF_THE_REQUEST for code in error_codes]) == (
                    version,
                    ([False] * halves + [True] * halves) * groups,
                )


def test_partition_filter_does_not_affect_other_partitions(new_rig: Callable[[], Rig]) -> None:
    for name in sorted({name for name, _ in WITH_PARTITIONS}):
        with case(name):
            rig = new_rig()
            rig.ask("OffsetCommit", 8)  # the group exists, for OffsetDelete
            for version in VERSIONS[name]:
                rig.inject(name, error=OF_A_PART.name, topic=TOPICS[0], partition=1)
                error_codes = codes(rig.ask(name, version), place_of(name, version).of_a_part)
                assert (version, [code == OF_A_PART for code in error_codes]) == (
                    version,
                    [False, True, False, False] * (len(error_codes) // 4),
                )


def test_error_after_serving_replaces_the_same_results(new_rig: Callable[[], Rig]) -> None:
    for name in REQUESTS:
        with case(name):
            rig = new_rig()
            version = VERSIONS[name][-1]
            rig.inject(name, error=OF_A_PART.name, after_serving=True)
            response = rig.ask(name, version)
            error_codes = codes(response, place_of(name, version).of_a_part)
            assert set(error_codes) == {OF_A_PART}
            assert all_codes(response).count(OF_A_PART) == len(error_codes)


def test_dropped_connection_ends_the_request(new_rig: Callable[[], Rig]) -> None:
    for name, after_serving in product(REQUESTS, (False, True)):
        with case(name, after_serving):
            rig = new_rig()
            rig.inject(name, drop_connection=True, after_serving=after_serving)
            with pytest.raises(InjectedEndError):
                rig.ask(name, VERSIONS[name][-1])


async def wait_until_the_broker_stops(rig: Rig, request: Message, version: int) -> None:
    waiting = asyncio.ensure_future(rig.response(request, version))
    await asyncio.sleep(0.002)
    assert not waiting.done()
    rig.injector.release()
    with pytest.raises(InjectedEndError):
        await waiting


def test_request_without_a_response_waits_until_the_broker_stops(new_rig: Callable[[], Rig]) -> None:
    for name in REQUESTS:
        with case(name):
            rig = new_rig()
            rig.inject(name, no_answer=True)
            version = VERSIONS[name][-1]
            rig.run(wait_until_the_broker_stops(rig, sample(REQUESTS[name], version), version))


@pytest.mark.parametrize("after_serving", [False, True])
def test_delay_ends_with_the_connection_when_the_broker_stops(rig: Rig, after_serving: bool) -> None:
    rig.inject("Heartbeat", delay_s=60.0, after_serving=after_serving)
    rig.run(wait_until_the_broker_stops(rig, sample(REQUESTS["Heartbeat"], 4), 4))


@pytest.mark.parametrize(
    ("name", "faults"),
    [
        ("Heartbeat", [{"drop_connection": True, "after_serving": True, "delay_s": 60.0}]),
        ("Heartbeat", [{"drop_connection": True}, {"after_serving": True, "delay_s": 60.0}]),
        ("Produce", [{"error": "NOT_LEADER_OR_FOLLOWER"}, {"after_serving": True, "delay_s": 60.0}]),
    ],
)
def test_connection_is_closed_after_the_delay(rig: Rig, name: str, faults: list[dict[str, Any]]) -> None:
    for fault in faults:
        rig.inject(name, **fault)
    request = sample(REQUESTS[name], 4)
    if name == "Produce":
        request.acks = 0  # type: ignore[attr-defined]  # a ProduceRequest
    rig.run(wait_until_the_broker_stops(rig, request, 4))


async def delayed_response(rig: Rig, name: str) -> Any:
    version, began = VERSIONS[name][-1], asyncio.get_running_loop().time()
    response = await rig.response(sample(REQUESTS[name], version), version)
    assert asyncio.get_running_loop().time() - began >= 0.009
    return response


def test_delayed_request_is_served(new_rig: Callable[[], Rig]) -> None:
    for name in REQUESTS:
        with case(name):
            rig = new_rig()
            rig.inject(name, delay_s=0.01)
            assert set(all_codes(rig.run(delayed_response(rig, name)))) & {OF_A_PART, OF_THE_REQUEST} == set()
            assert [entry["fault"] for entry in rig.requests] == ["delay"]


def test_requests_are_logged_with_topics_and_fault(rig: Rig) -> None:
    rig.inject("Produce", error=OF_A_PART.name, topic=TOPICS[0])
    rig.ask("Produce", 13)
    rig.ask("Heartbeat", 4)
    produce, heartbeat = rig.requests
    assert produce["partitions"] == [(name, index) for name in TOPICS for index in (0, 1)]
    assert (produce["api"], produce["version"], produce["client_id"]) == ("Produce", 13, "tests")
    assert (produce["fault"], heartbeat["fault"]) == ("TOPIC_AUTHORIZATION_FAILED", None)
    assert (heartbeat["group_id"], heartbeat["partitions"]) == ("group_id-0", [])


async def delete_topic(rig: Rig, name: str) -> None:
    topic = rig.services.topics.get(name)
    assert topic is not None
    await rig.services.topics.begin_delete(topic)


def test_request_log_has_the_name_of_a_topic_id_after_the_topic_is_deleted(rig: Rig) -> None:
    rig.ask("Produce", 13)
    rig.run(delete_topic(rig, TOPICS[0]))
    (produce,) = rig.requests
    assert produce["partitions"] == [(name, index) for name in TOPICS for index in (0, 1)]


def test_client_id_filter_does_not_affect_other_clients(rig: Rig) -> None:
    rig.inject(error=OF_A_PART.name, client_id="other")
    assert OF_A_PART not in all_codes(rig.ask("ListOffsets", 7))
    response = rig.run(rig.response(sample(REQUESTS["ListOffsets"], 7), 7, client_id="other"))
    assert set(all_codes(response)) == {OF_A_PART}


def test_api_versions_error_is_sent_in_version_0(rig: Rig) -> None:
    """As KIP-511 has it: the client cannot know in which version to read the response."""
    rig.inject("ApiVersions", error="UNSUPPORTED_VERSION")
    response = rig.run(rig.response(sample(REQUESTS["ApiVersions"], 3), 3, sent_version=0))
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_error_with_acks_zero_closes_the_connection(rig: Rig) -> None:
    rig.inject("Produce", error="NOT_LEADER_OR_FOLLOWER")
    request = sample(REQUESTS["Produce"], 9)
    request.acks = 0  # type: ignore[attr-defined]  # a ProduceRequest
    with pytest.raises(InjectedEndError, match="NOT_LEADER_OR_FOLLOWER, and acks is 0"):
        rig.run(rig.response(request, 9))


def test_topic_fault_applies_to_metadata_of_all_topics(rig: Rig) -> None:
    rig.inject("Metadata", error="LEADER_NOT_AVAILABLE", topic=TOPICS[1])
    response = rig.run(rig.response(MetadataRequest(topics=None), 12))
    code_of = {topic.name: topic.error_code for topic in response.topics}
    assert [code_of[name] for name in TOPICS] == [0, 5]
    assert [node.port for node in response.brokers] == [9092]


def test_topic_fault_of_every_api_ignores_requests_that_name_no_topic(rig: Rig) -> None:
    for effect in ({"error": OF_A_PART.name}, {"drop_connection": True}, {"throttle_s": 1.0}):
        rig.inject(topic=TOPICS[1], **effect)
    for name in REQUESTS:
        if "topic" not in FILTERS[name]:
            with case(name):
                assert OF_A_PART not in all_codes(rig.ask(name, VERSIONS[name][-1]))
    assert [fault.count for fault in rig.faults] == [0, 0, 0]


@pytest.mark.parametrize(
    ("request_without_topics", "version", "is_affected"),
    [
        (MetadataRequest(topics=[]), 0, True),
        (MetadataRequest(topics=[]), 1, False),
        (MetadataRequest(topics=None), 1, True),
        (DescribeTopicPartitionsRequest(topics=[]), 0, True),
        (OffsetFetchRequest(group_id="g", topics=[]), 7, False),
        (OffsetFetchRequest(group_id="g", topics=None), 7, True),
        (FetchRequest(session_id=99, session_epoch=3, topics=[]), 12, False),
        (FetchRequest(session_id=99, session_epoch=-1, topics=[]), 12, False),
    ],
)
def test_topic_fault_affects_a_request_without_topics_only_if_it_asks_for_all(
    rig: Rig, request_without_topics: Message, version: int, is_affected: bool
) -> None:
    rig.inject(error=OF_A_PART.name, topic=TOPICS[1])
    rig.run(rig.response(request_without_topics, version))
    assert [fault.count for fault in rig.faults] == [int(is_affected)]


def test_partition_fault_ignores_metadata_of_all_topics(rig: Rig) -> None:
    rig.inject(error=OF_A_PART.name, topic=TOPICS[1], partition=0)
    assert OF_A_PART not in all_codes(rig.run(rig.response(MetadataRequest(topics=None), 12)))
    assert OF_A_PART in all_codes(rig.ask("ListOffsets", 7))


def test_offsets_of_a_whole_group_have_the_error_of_the_group(rig: Rig) -> None:
    rig.inject("OffsetFetch", error="NOT_COORDINATOR")
    group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", member_id=None, topics=None)
    response = rig.run(rig.response(OffsetFetchRequest(groups=[group]), 9))
    assert [(group.group_id, group.error_code, group.topics) for group in response.groups] == [("g", 16, [])]


def fetch(*partitions: int, session: tuple[int, int], topic_ids: bool) -> FetchRequest:
    wanted = [
        FetchRequest.FetchPartition(
            partition=each, current_leader_epoch=-1, last_fetched_epoch=-1, partition_max_bytes=1000
        )
        for each in partitions
    ]
    named = {"topic_id": TOPIC_IDS[0]} if topic_ids else {"topic": TOPICS[0]}
    topics = [FetchRequest.FetchTopic(partitions=wanted, **named)] if partitions else []
    return FetchRequest(
        max_wait_ms=60_000, min_bytes=1, max_bytes=1000, session_id=session[0], session_epoch=session[1], topics=topics
    )


@pytest.mark.parametrize("version", [12, 17])
def test_fetch_session_partition_gets_error_and_then_records(rig: Rig, version: int) -> None:
    def ask(*partitions: int, session: tuple[int, int]) -> Any:
        return rig.run(rig.response(fetch(*partitions, session=session, topic_ids=version >= 13), version))

    def codes_by_partition(response: Any) -> list[tuple[int, int]]:
        return [(each.partition_index, each.error_code) for topic in response.responses for each in topic.partitions]

    # given
    rig.inject("Fetch", error="NOT_LEADER_OR_FOLLOWER", topic=TOPICS[0], partition=1, times=2)
    opened = ask(0, 1, session=(0, 0))
    assert sorted(codes_by_partition(opened)) == [(0, 0), (1, 6)]
    # when: the error does not wait for max_wait_ms, which is longer than the rig waits
    second = ask(session=(opened.session_id, 1))
    # then
    assert (1, 6) in codes_by_partition(second)
    rig.run(produce(rig))
    third = ask(session=(opened.session_id, 2))
    assert sorted(codes_by_partition(third)) == [(0, 0), (1, 0)]


async def produce(rig: Rig) -> None:
    """Append a record to every partition, so that no fetch has to wait."""
    await rig.response(sample(REQUESTS["Produce"], 12), 12)


def test_injected_error_applies_to_acl_creations(rig: Rig) -> None:
    """Their results have no names: the order counts."""
    request = sample(REQUESTS["CreateAcls"], 3)
    rig.inject("CreateAcls", error="SECURITY_DISABLED", after_serving=True)
    served = rig.run(rig.response(request, 3))
    assert [result.error_code for result in served.results] == [54, 54]


LIKE_THE_BROKERS_OWN: Final = {
    "Produce",
    "ListOffsets",
    "Heartbeat",
    "LeaveGroup",
    "SyncGroup",
    "CreateTopics",
    "DeleteRecords",
    "OffsetForLeaderEpoch",
    "WriteTxnMarkers",
    "TxnOffsetCommit",
    "DescribeAcls",
    "CreateAcls",
    "DeleteAcls",
    "DescribeConfigs",
    "AlterConfigs",
    "CreatePartitions",
    "DeleteGroups",
    "ElectLeaders",
    "IncrementalAlterConfigs",
    "DescribeClientQuotas",
    "AlterClientQuotas",
    "DescribeClientConfigs",
    "AlterClientConfigs",
    "DescribeProducers",
}
"""APIs whose sample requests fail on a broker without the topics and members that they name."""


@pytest.mark.parametrize("name", sorted(LIKE_THE_BROKERS_OWN))
def test_injected_response_equals_the_brokers_own(rig: Rig, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    if name != "CreateTopics":
        monkeypatch.setattr("tests.support.sample_requests.TOPICS", ("unknown-1", "unknown-2"))
        monkeypatch.setattr("tests.support.sample_requests.TOPIC_IDS", (uuid4(), uuid4()))
    for version in {VERSIONS[name][0], VERSIONS[name][-1]}:
        own = rig.ask(name, version)
        (code,) = set(all_codes(own)) - {0}
        # when
        rig.inject(name, error=code)
        injected = rig.ask(name, version)
        # then
        assert without_messages(injected) == without_messages(own)


def without_messages(response: Any) -> Any:
    """Return a response whose error messages are empty, for comparison."""
    for field in response.FIELDS:
        if field.name == "error_message":
            response.error_message = None
        elif field.is_array and field.struct is not None:
            for element in getattr(response, field.name) or ():
                without_messages(element)
    return response

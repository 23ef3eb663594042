"""klamm's messages adapted for kafka-python, and joins whose outcome arrives between two polls."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar
from unittest.mock import MagicMock, Mock
from urllib.error import URLError

import pytest
from kafka.consumer.subscription_state import SubscriptionState
from kafka.coordinator.base import Generation, MemberState
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.errors import IllegalGenerationError, NodeNotReadyError, RebalanceInProgressError
from kafka.future import Future
from kafka.net.connection import KafkaConnection
from kafka.net.selector import NetworkSelector
from kafka.protocol.api_header import ResponseClassRegistry
from kafka.protocol.consumer import ConsumerProtocolAssignment
from kafka.protocol.frame import KafkaBytes
from kafka.protocol.metadata import MetadataRequest as TheirRequest
from kafka.protocol.parser import KafkaProtocol

from klamm.client_configs.definitions import ACKS
from klamm.clients.dynamic_config import DynamicConfigs, normalise_producer
from klamm.clients.kafka_python import (
    MAX_IN_FLIGHT,
    BridgedRequest,
    BridgedResponse,
    KafkaPythonLoop,
    _Joins,
    send_in_turn,
)
from klamm.protocol.codec import encode
from klamm.protocol.errors import ProtocolError
from klamm.protocol.frames import response_header
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsRequest, DescribeClientConfigsResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from klamm.protocol.schema import Message

EMPTY = DescribeClientConfigsResponse(error_message=None, entries=[], throttle_time_ms=3)


@pytest.mark.parametrize("version", range(1, 14))
def test_bridged_request_has_kafka_pythons_bytes(version: int) -> None:
    ours = BridgedRequest(MetadataRequest(topics=None), MetadataResponse, version)
    theirs = TheirRequest[version](
        topics=None,
        allow_auto_topic_creation=True,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    sent = []
    for request in (ours, theirs):
        protocol = KafkaProtocol(client_id="app1")
        protocol.send_request(request)
        sent.append(protocol.send_bytes())
    assert sent[0] == sent[1]


@pytest.mark.parametrize("client_id", [None, "", "ü"])
def test_any_client_id_is_encoded(client_id: str | None) -> None:
    request = BridgedRequest(DescribeClientConfigsRequest(), DescribeClientConfigsResponse, 0)
    request.with_header(correlation_id=5, client_id=client_id)
    name = b"\xff\xff" if client_id is None else len(client_id.encode()).to_bytes(2, "big") + client_id.encode()
    assert request.encode(header=True).startswith(bytes.fromhex("0032 0000 00000005") + name)


def answered(
    request: BridgedRequest[DescribeClientConfigsResponse], body: bytes
) -> BridgedResponse[DescribeClientConfigsResponse]:
    protocol = KafkaProtocol(client_id="app1")
    correlation_id = protocol.send_request(request)
    header = response_header(correlation_id, len(body), flexible=False)
    ((_, response),) = protocol.receive_bytes(header + body)
    assert isinstance(response, BridgedResponse)
    return response


def test_response_is_decoded_without_changing_kafka_pythons_registry() -> None:
    """O649-A."""
    before = dict(ResponseClassRegistry._response_class_registry)
    request = BridgedRequest(DescribeClientConfigsRequest(), DescribeClientConfigsResponse, 0)
    response = answered(request, bytes(encode(EMPTY, 0)))
    assert response.unwrap() == EMPTY
    assert response.throttle_time_ms == 3
    assert ResponseClassRegistry._response_class_registry == before


@pytest.mark.parametrize("body", [b"", b"\x00", b"\xff" * 7, bytes(encode(EMPTY, 0))[:-1]])
def test_only_the_caller_gets_the_error_of_an_unreadable_response(body: bytes) -> None:
    request = BridgedRequest(DescribeClientConfigsRequest(), DescribeClientConfigsResponse, 0)
    response = answered(request, body)
    assert response.throttle_time_ms == 0
    with pytest.raises(ProtocolError, match="Cannot decode DescribeClientConfigsResponse"):
        response.unwrap()


def test_trailing_bytes_are_rejected_only_if_two_apis_share_the_key() -> None:
    body = bytes(encode(EMPTY, 0)) + b"x"
    request = BridgedRequest(DescribeClientConfigsRequest(), DescribeClientConfigsResponse, 0)
    assert answered(request, body).unwrap() == EMPTY
    strict = BridgedRequest(DescribeClientConfigsRequest(), DescribeClientConfigsResponse, 0, is_whole=True)
    with pytest.raises(ProtocolError, match="after its end in the frame"):
        answered(strict, body).unwrap()


def test_flexible_response_header_is_skipped_except_for_api_versions() -> None:
    request = BridgedRequest(ApiVersionsRequest(), ApiVersionsResponse, 3)
    request.with_header(1, "app1")
    assert request.header is not None
    reader = request.header.get_response_class()
    body = KafkaBytes(4)
    body.extend(encode(ApiVersionsResponse(), 3))
    assert reader.parse_header(body).correlation_id == 0
    assert reader.decode(body).unwrap() == ApiVersionsResponse()


def test_request_repr_hides_values() -> None:
    request = BridgedRequest(
        DescribeClientConfigsRequest(supported_configs=["secret"]), DescribeClientConfigsResponse, 0
    )
    assert repr(request) == "DescribeClientConfigsRequest(version=0)"


@pytest.fixture
def coordinator() -> Any:
    """A consumer whose join is in flight, and which kafka-python would not repeat: nothing requests it any more."""
    return SimpleNamespace(
        config={"session_timeout_ms": 10_000},
        group_protocols=lambda: [],
        request_rejoin=Mock(),
        rejoining=True,
        _join_task=Future(),
        _net=Mock(),
        _process_sync_group_response=Mock(),
    )


def test_join_that_failed_between_polls_is_repeated(coordinator: Any) -> None:
    joins = _Joins(coordinator)
    coordinator._join_task.failure(RebalanceInProgressError("g"))
    joins.catch_up()
    coordinator.request_rejoin.assert_called_once_with()


def test_join_that_succeeded_between_polls_is_finished(coordinator: Any) -> None:
    joins = _Joins(coordinator)
    coordinator._join_task.success(b"assignment")
    joins.catch_up()
    coordinator._net.run.assert_called_once_with(joins._finish, b"assignment")
    coordinator.request_rejoin.assert_not_called()


def test_join_in_flight_is_not_touched(coordinator: Any) -> None:
    _Joins(coordinator).catch_up()
    coordinator.request_rejoin.assert_not_called()
    coordinator._net.run.assert_not_called()


class Network:
    """kafka-python's connections to one broker, without a socket.

    Args:
        net: Event loop of the client.
        connection_error: Error of the first attempt to connect; None if it succeeds.
        answers: Answers to the requests for configs, in their order. An error fails the request; NodeNotReadyError does
            so before it is sent.
    """

    config: ClassVar[dict[str, int]] = {"request_timeout_ms": 30_000}
    connected = True
    paused: ClassVar[set[str]] = set()
    broker_version_data = SimpleNamespace(api_versions={18: (0, 3)})

    def __init__(
        self, net: NetworkSelector, connection_error: Exception | None, answers: Iterable[Message | Exception]
    ):
        self._net = net
        self._connection_error = connection_error
        self._answers = iter(answers)

    def __await__(self) -> Iterator[Any]:
        yield from ()

    def least_loaded_node(self) -> int:
        return 1

    def get_connection(self, node_id: int) -> Any:
        if self._connection_error is None:
            return self
        connection = KafkaConnection(self._net, node_id=node_id)
        connection.close(self._connection_error)  # as kafka-python does if the login fails
        self._connection_error = None
        return connection

    def send_request(self, request: Any) -> Any:
        if request.API_KEY == 18:
            feature = ApiVersionsResponse.SupportedFeatureKey(name="client.configs", min_version=1, max_version=1)
            return Future().success(BridgedResponse(ApiVersionsResponse(supported_features=[feature])))
        answer = next(self._answers)
        if not isinstance(answer, NodeNotReadyError):
            request.with_header()
        return Future().failure(answer) if isinstance(answer, Exception) else Future().success(BridgedResponse(answer))


def with_acks(value: str) -> DescribeClientConfigsResponse:
    entry = DescribeClientConfigsResponse.EntryData(
        values=[DescribeClientConfigsResponse.ValueData(key=ACKS, value=value)]
    )
    return DescribeClientConfigsResponse(error_message=None, entries=[entry])


def producer_configs() -> DynamicConfigs:
    return DynamicConfigs(
        client_id="app1",
        static={ACKS: "1"},
        normalise=lambda values: normalise_producer(values, is_idempotent=False),
        interval_s=0.01,
        retry_backoff_s=0.01,
    )


def test_configs_are_followed_after_errors_of_the_applications_login() -> None:
    """kafka-python fails a connection with what the token provider raises, also at a later login on the connection."""
    away = URLError("the identity provider is away")
    has_changed = threading.Event()
    configs = producer_configs()
    with contextlib.closing(NetworkSelector()) as net:
        net.start()
        network = Network(net, away, itertools.chain([with_acks("1"), away], itertools.repeat(with_acks("all"))))
        loop = KafkaPythonLoop(client=network, manager=network, configs=configs, apply=lambda *_: has_changed.set())
        # when, then
        assert loop.start()
        assert has_changed.wait(30)
        assert configs.effective == {ACKS: "all"}


def test_unsent_first_request_is_retried() -> None:
    has_changed = threading.Event()
    configs = producer_configs()
    with contextlib.closing(NetworkSelector()) as net:
        net.start()
        network = Network(
            net, None, itertools.chain([NodeNotReadyError("throttled")], itertools.repeat(with_acks("all")))
        )
        loop = KafkaPythonLoop(client=network, manager=network, configs=configs, apply=lambda *_: has_changed.set())
        # when
        loop.start()
        # then
        assert configs.disabled_because is None
        assert has_changed.wait(30)


def test_loop_ends_when_its_client_is_garbage_collected() -> None:
    # given
    class Client: ...

    client = Client()
    with contextlib.closing(NetworkSelector()) as net:
        network = Network(net, None, itertools.repeat(with_acks("all")))
        loop = KafkaPythonLoop(client=client, manager=network, configs=producer_configs(), apply=lambda *_: None)
        ends = net.call_soon_with_future(loop._run)
        # when
        del client
        net.poll(timeout_ms=30_000, future=ends)
        # then
        assert ends.succeeded()


def test_request_is_not_sent_if_the_awaited_response_throttles_the_connection() -> None:
    # given
    connection = KafkaConnection(Mock())
    connection.connected, connection.initializing = True, False
    oldest = Future()
    connection.in_flight_requests.append((1, oldest, 0.0, 0.0, None))
    connection.pause(MAX_IN_FLIGHT)
    request = BridgedRequest(DescribeClientConfigsRequest(), DescribeClientConfigsResponse, 0)
    outcome = send_in_turn(connection, request)
    # when
    connection.pause("throttle")
    oldest.success(None)
    # then
    assert outcome is not None
    assert isinstance(outcome.exception, NodeNotReadyError)
    assert request.header is None


TOPIC = "orders"
SESSION_TIMEOUT_S = 10.0


class Member:
    """kafka-python's coordinator of a consumer that joins its group and is not polled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, net: NetworkSelector) -> None:
        self.now = time.monotonic()
        monkeypatch.setattr("klamm.clients.kafka_python.time", SimpleNamespace(monotonic=lambda: self.now))
        client = MagicMock()
        client._manager._net = net
        self.subscription = SubscriptionState()
        self.subscription.subscribe(topics=[TOPIC])
        self.coordinator = ConsumerCoordinator(
            client, self.subscription, group_id="g", enable_auto_commit=False, session_timeout_ms=10_000
        )
        self.joins = _Joins(self.coordinator)
        self.coordinator.group_protocols()  # as for a JoinGroup
        self.coordinator._generation = Generation(1, "m", "range")
        self.coordinator.state = MemberState.REBALANCING
        self.coordinator.rejoining = True

    def end_join(self) -> None:
        """Read the response to SyncGroup, as the last step of the task that joins."""
        assignment = ConsumerProtocolAssignment(0, [(TOPIC, [0])], b"").encode()
        response = SimpleNamespace(error_code=0, protocol_type=None, protocol_name=None, assignment=assignment)
        self.coordinator._join_task = Future().success(self.coordinator._process_sync_group_response(response, 0.0))

    @property
    def partitions(self) -> set[Any]:
        return set(self.subscription.assigned_partitions())

    @property
    def sends_heartbeats(self) -> bool:
        return bool(self.coordinator._heartbeat_enabled)


@pytest.fixture
def member(monkeypatch: pytest.MonkeyPatch) -> Iterator[Member]:
    with contextlib.closing(NetworkSelector()) as net:
        yield Member(monkeypatch, net)


def test_assignment_is_taken_and_heartbeats_count_from_the_join(member: Member) -> None:
    member.end_join()
    joined_at = member.now
    member.now += SESSION_TIMEOUT_S - 1
    # when
    member.joins.catch_up()
    # then
    assert member.partitions == {(TOPIC, 0)}
    assert member.coordinator.state is MemberState.STABLE
    assert member.sends_heartbeats
    assert member.coordinator.heartbeat.last_reset == joined_at


def test_assignment_is_dropped_after_the_member_has_left(member: Member) -> None:
    member.end_join()
    member.coordinator.reset_generation()  # as unsubscribe does
    # when
    member.joins.catch_up()
    # then
    assert member.partitions == set()
    assert member.coordinator.state is MemberState.UNJOINED
    assert not member.sends_heartbeats
    assert member.coordinator.need_rejoin()


def test_assignment_is_dropped_after_the_session_timeout(member: Member) -> None:
    """The broker has removed the member, because kafka-python sends no heartbeats before its next poll."""
    member.end_join()
    member.now += SESSION_TIMEOUT_S
    # when
    member.joins.catch_up()
    # then
    assert member.partitions == set()
    assert not member.sends_heartbeats
    assert member.coordinator.need_rejoin()


def test_join_fails_if_the_member_has_left_before_its_end(member: Member) -> None:
    member.coordinator.reset_generation()
    with pytest.raises(IllegalGenerationError, match="left its group"):
        member.end_join()


@pytest.mark.parametrize(
    ("generation", "added", "joins_again"),
    [(1, {1}, True), (1, set(), False), (2, {1}, False)],
    ids=["added partition", "same partitions", "rebalance"],
)
def test_leader_joins_again_if_its_group_kept_an_assignment_without_added_partitions(
    member: Member, generation: int, added: set[int], joins_again: bool
) -> None:
    """A join with a changed session timeout causes no rebalance, so the leader's new assignment is dropped."""
    # given
    coordinator = member.coordinator
    coordinator._assignment_snapshot = {TOPIC: {0}}
    coordinator._metadata_snapshot = {TOPIC: {0} | added}
    # when
    coordinator.group_protocols()
    coordinator._generation = Generation(generation, "m", "range")
    coordinator._perform_assignment("m", "range", [])
    member.end_join()
    member.joins.catch_up()
    # then
    assert coordinator.need_rejoin() is joins_again

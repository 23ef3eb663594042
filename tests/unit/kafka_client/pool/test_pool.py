"""The connection pool while brokers fail and others replace them: no failed node stays cached."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Never

import pytest

from klamm.kafka_client.connection.transport import ConnectionSettings, PlainTransport, connect
from klamm.kafka_client.errors import ConnectionLostError, SaslAuthenticationFailedError, UnreadableResponseError
from klamm.kafka_client.pool.keyed_calls import KeyedCall, find_coordinators
from klamm.kafka_client.pool.pool import CONTROLLER, ConnectionPool
from klamm.protocol.errors import ErrorCode, ProtocolError
from klamm.protocol.messages.api_versions import ApiVersionsResponse
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.support.stub_broker import CLOSE, SILENCE, StubBroker, closed_after_versions, form_cluster, take_turns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from klamm.kafka_client.pool.calls import Deadline
    from tests.support.stub_broker import Answer, Request

CREATE_TOPICS = 19
METADATA = 3
API_VERSIONS = 18


class Cluster:
    """Stub brokers with the ids 0, 1, ... that answer Metadata alike."""

    def __init__(self, *brokers: StubBroker) -> None:
        self.brokers = dict(enumerate(brokers))
        self.known = set(self.brokers)
        """The ids that Metadata names."""
        self.controller_id = 0
        for broker in brokers:
            broker.answer(METADATA, self._metadata)
            broker.answer(CREATE_TOPICS, lambda _: CreateTopicsResponse())

    def _metadata(self, request: Request) -> Answer:
        request.read(MetadataRequest)
        return MetadataResponse(
            brokers=[
                MetadataResponse.MetadataResponseBroker(node_id=node, host="127.0.0.1", port=self.brokers[node].port)
                for node in sorted(self.known)
            ],
            cluster_id="stub",
            controller_id=self.controller_id,
        )

    def lose(self, node_id: int) -> None:
        """End a broker; Metadata does not name it any more."""
        self.known.discard(node_id)
        self.brokers[node_id].__exit__(None, None, None)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with contextlib.ExitStack() as stack:
        yield Cluster(*(stack.enter_context(StubBroker(versions={CREATE_TOPICS: (2, 7)})) for _ in range(3)))


def create_topics(
    pool: ConnectionPool, *, node_id: int | None, looked_up: bool = False, timeout_ms: int = 10_000
) -> None:
    async def work(deadline: Deadline) -> None:
        await pool.send(
            CreateTopicsRequest(), CreateTopicsResponse, deadline=deadline, node_id=node_id, looked_up=looked_up
        )

    pool.submit(work, timeout_ms=timeout_ms).result(20)


@contextlib.contextmanager
def connected(*brokers: StubBroker, **settings: Any) -> Iterator[ConnectionPool]:
    servers = [broker.bootstrap_servers for broker in brokers]
    pool = ConnectionPool(ConnectionSettings.of_keywords(servers, settings))
    try:
        yield pool
    finally:
        pool.close()


def test_lost_controller_is_looked_up_again(cluster: Cluster) -> None:
    with connected(cluster.brokers[2]) as pool:
        create_topics(pool, node_id=CONTROLLER)
        assert len(cluster.brokers[0].requests(CREATE_TOPICS)) == 1
        # when
        cluster.controller_id = 1
        cluster.lose(0)
        # then
        create_topics(pool, node_id=CONTROLLER)
        assert len(cluster.brokers[1].requests(CREATE_TOPICS)) == 1


def test_controller_closing_the_connection_is_looked_up_again(cluster: Cluster) -> None:
    with connected(cluster.brokers[2]) as pool:
        create_topics(pool, node_id=CONTROLLER)
        cluster.controller_id = 1
        cluster.brokers[0].answer(CREATE_TOPICS, lambda _: CLOSE)
        # when
        create_topics(pool, node_id=CONTROLLER)
        # then
        assert len(cluster.brokers[1].requests(CREATE_TOPICS)) == 1


def test_controller_that_joined_later_is_reached(cluster: Cluster) -> None:
    """The connections' own metadata are older than the response that names the controller."""
    cluster.known = {1, 2}
    cluster.controller_id = 1
    with connected(cluster.brokers[2]) as pool:
        create_topics(pool, node_id=CONTROLLER)
        # when
        cluster.known = {0, 1, 2}
        cluster.controller_id = 0
        cluster.brokers[1].answer(CREATE_TOPICS, lambda _: CLOSE)
        # then
        create_topics(pool, node_id=CONTROLLER)
        assert len(cluster.brokers[0].requests(CREATE_TOPICS)) == 1


def test_bootstrap_servers_are_used_when_all_brokers_are_lost(cluster: Cluster) -> None:
    """KIP-899: the metadata named one broker only, and that is not the one that came back."""
    cluster.known = {0}
    with connected(*cluster.brokers.values()) as pool:
        create_topics(pool, node_id=None)
        # when
        cluster.known = {0, 1, 2}
        cluster.controller_id = 2
        cluster.lose(0)
        # then
        create_topics(pool, node_id=None)
        create_topics(pool, node_id=CONTROLLER)


def test_bootstrap_server_with_an_invalid_host_name_is_skipped(cluster: Cluster) -> None:
    servers = ("a..b:9092", cluster.brokers[0].bootstrap_servers)
    with contextlib.closing(ConnectionPool(ConnectionSettings(bootstrap_servers=servers, client_id="test"))) as pool:
        create_topics(pool, node_id=None)


def test_broker_closing_after_api_versions_is_connected_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closed_after_versions() as closed, connected(cluster.brokers[0]) as pool:
        openings: list[object] = []

        def connect_closed_first(*arguments: Any) -> object:
            openings.append(arguments)
            return PlainTransport(closed) if len(openings) == 1 else connect(*arguments)

        monkeypatch.setattr("klamm.kafka_client.connection.login.connect", connect_closed_first)
        # when
        create_topics(pool, node_id=0)
    # then
    assert len(openings) > 1


def test_unexpected_error_of_new_connection_fails_the_call_only(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connected(cluster.brokers[0]) as pool:
        add_reader = pool._loop.add_reader

        def fail_once(*_: object) -> Never:
            monkeypatch.setattr(pool._loop, "add_reader", add_reader)
            raise OSError(errno.ENOSPC, "too many descriptors to poll")

        monkeypatch.setattr(pool._loop, "add_reader", fail_once)
        # when
        with pytest.raises(OSError, match="too many descriptors"):
            create_topics(pool, node_id=0)
        # then
        create_topics(pool, node_id=0)


def test_looked_up_node_fails_without_retry(cluster: Cluster) -> None:
    with connected(cluster.brokers[2]) as pool:
        create_topics(pool, node_id=0, looked_up=True)
        cluster.lose(0)
        with pytest.raises(ConnectionLostError):
            create_topics(pool, node_id=0, looked_up=True)


def test_node_with_a_new_address_is_found(cluster: Cluster) -> None:
    with connected(cluster.brokers[2]) as pool:
        create_topics(pool, node_id=0)
        # when
        old, cluster.brokers[0] = cluster.brokers[0], cluster.brokers[1]
        cluster.known = {0, 2}
        old.__exit__(None, None, None)
        # then
        create_topics(pool, node_id=0)
        assert len(cluster.brokers[0].requests(CREATE_TOPICS)) == 1


def test_offered_versions_come_from_any_live_broker(cluster: Cluster) -> None:
    rejected: list[Request] = []

    def close_first(request: Request) -> Answer:
        rejected.append(request)
        if len(rejected) <= len(cluster.brokers):
            return CLOSE
        return ApiVersionsResponse(
            api_keys=[
                ApiVersionsResponse.ApiVersion(api_key=CREATE_TOPICS, min_version=2, max_version=7),
                ApiVersionsResponse.ApiVersion(api_key=METADATA, min_version=1, max_version=9),
            ]
        )

    with connected(*cluster.brokers.values()) as pool:
        pool.submit(pool.offered_versions).result(20)
        for node, broker in cluster.brokers.items():
            if node:
                broker.answer(18, close_first)
        cluster.lose(0)
        # when
        offered = [pool.submit(pool.offered_versions).result(20) for _ in range(5)]
    # then
    assert all(CREATE_TOPICS in versions for versions in offered)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["new broker first", "old broker first"])
def test_coordinators_are_found_while_brokers_differ_in_version(
    monkeypatch: pytest.MonkeyPatch, order: tuple[int, int]
) -> None:
    # given
    key = FindCoordinatorRequest.API_KEY
    coordinator = FindCoordinatorResponse.Coordinator(key="g", node_id=1)
    with StubBroker(versions={key: (0, 4)}) as new, StubBroker(versions={key: (0, 3)}) as old:
        form_cluster({0: new, 1: old})
        for broker in (new, old):
            broker.answer(key, lambda _: FindCoordinatorResponse(coordinators=[coordinator], node_id=1))
        take_turns(monkeypatch, *order)
        with connected(new) as pool:
            # when
            places = pool.submit(lambda deadline: find_coordinators(pool, deadline, iter(["g"]))).result(20)
    # then
    assert places == {"g": 1}


class _PatientBroker(StubBroker):
    """A broker that answers CreateTopics only when a number of these requests have arrived."""

    expected = 3

    def __init__(self) -> None:
        super().__init__(versions={CREATE_TOPICS: (2, 7)})
        self.held: list[tuple[socket.socket, bytes]] = []
        self._answered = 0

    def _answer(self, connection: socket.socket, frame: bytes) -> bool:
        if int.from_bytes(frame[:2]) != CREATE_TOPICS:
            return super()._answer(connection, frame)
        with self._changed:
            self.held.append((connection, frame))
            self._changed.notify_all()
        if len(self.held) >= self.expected:
            assert len({held for held, _ in self.held}) == 1
            waiting, self._answered = self.held[self._answered :], len(self.held)
            return all(StubBroker._answer(self, *held) for held in waiting)
        return True


def test_calls_share_a_connection_and_do_not_wait_for_each_other() -> None:
    with _PatientBroker() as broker, connected(broker) as pool:
        broker.answer(CREATE_TOPICS, lambda _: CreateTopicsResponse())

        async def work(deadline: Deadline) -> None:
            await pool.send(CreateTopicsRequest(), CreateTopicsResponse, deadline=deadline)

        calls = [pool.submit(work, timeout_ms=10_000) for _ in range(broker.expected)]
        for call in calls:
            call.result(60)


def test_unresponsive_connection_is_replaced(cluster: Cluster) -> None:
    silent = [SILENCE]
    cluster.brokers[0].answer(CREATE_TOPICS, lambda _: silent.pop() if silent else CreateTopicsResponse())
    with connected(cluster.brokers[2], request_timeout_ms=1000) as pool:
        create_topics(pool, node_id=0)
    assert len(cluster.brokers[0].requests(CREATE_TOPICS)) == 2
    assert len(cluster.brokers[0].requests(API_VERSIONS)) == 2


def test_unreadable_response_fails_at_once(cluster: Cluster) -> None:
    cluster.brokers[0].answer(CREATE_TOPICS, lambda _: b"\x00")
    with connected(cluster.brokers[2]) as pool, pytest.raises(ProtocolError, match="Cannot decode CreateTopicsResp"):
        create_topics(pool, node_id=0)
    assert len(cluster.brokers[0].requests(CREATE_TOPICS)) == 1


def test_unreadable_response_fails_only_its_own_call() -> None:
    """The end of its frame is known, so the responses after it are read as usual."""
    with _PatientBroker() as broker, connected(broker) as pool:
        answers: list[Answer] = [CreateTopicsResponse(), b"\x00", CreateTopicsResponse()]
        broker.answer(CREATE_TOPICS, lambda _: answers.pop(0))

        async def work(deadline: Deadline) -> None:
            await pool.send(CreateTopicsRequest(), CreateTopicsResponse, deadline=deadline)

        # when
        calls = [pool.submit(work, timeout_ms=10_000) for _ in range(broker.expected)]
        errors = [call.exception(10) for call in calls]
    # then
    assert [type(error) for error in errors] == [type(None), UnreadableResponseError, type(None)]
    assert len(broker.requests(API_VERSIONS)) == 1


def test_timed_out_call_does_not_close_the_shared_connection() -> None:
    """A request of another call, which might be a change, is not sent twice."""
    with _PatientBroker() as broker, connected(broker) as pool:
        broker.answer(CREATE_TOPICS, lambda _: CreateTopicsResponse())

        async def work(deadline: Deadline) -> None:
            await pool.send(CreateTopicsRequest(), CreateTopicsResponse, deadline=deadline)

        broker.expected = 100
        others = [pool.submit(work, timeout_ms=60_000) for _ in range(2)]
        broker.wait_for(lambda: len(broker.held) == len(others))
        # when
        with pytest.raises(TimeoutError):
            pool.submit(work, timeout_ms=200).result(30)
        broker.expected = len(broker.held) + 1
        pool.submit(work, timeout_ms=60_000).result(30)
        # then
        for call in others:
            call.result(30)
    assert len(broker.requests(API_VERSIONS)) == 1


def test_connection_with_only_timed_out_calls_is_replaced(cluster: Cluster) -> None:
    """A broker that hangs is found out even if no call waits as long as ``request.timeout.ms``."""
    cluster.brokers[0].answer(CREATE_TOPICS, lambda _: SILENCE)
    with connected(cluster.brokers[2], request_timeout_ms=300) as pool:
        until = time.monotonic() + 20
        while len(cluster.brokers[0].requests(API_VERSIONS)) < 2:
            assert time.monotonic() < until
            with pytest.raises(TimeoutError):
                create_topics(pool, node_id=0, timeout_ms=100)


def test_rejected_login_fails_the_keys_of_its_broker(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    rejection = SaslAuthenticationFailedError("wrong password")

    def reject(*_: object) -> Never:
        raise rejection

    with connected(cluster.brokers[2]) as pool:
        pool.submit(pool.offered_versions).result(20)
        monkeypatch.setattr("klamm.kafka_client.pool.pool.open_connection", reject)
        outcomes: list[object] = []

        async def find(keys: list[str]) -> dict[str, int]:
            return dict.fromkeys(keys, 1)

        async def ask(node_id: int | None, keys: list[str], deadline: Deadline) -> dict[str, None]:
            await pool.send(
                CreateTopicsRequest(), CreateTopicsResponse, deadline=deadline, node_id=node_id, looked_up=True
            )
            return dict.fromkeys(keys)

        call: KeyedCall[str, None] = KeyedCall(
            what="Test", ask=ask, find=find, settle=lambda *outcome: outcomes.append(outcome)
        )
        # when
        pool.submit(lambda deadline: call.run(pool, deadline, ["g"])).result(20)
    # then
    assert outcomes == [("g", rejection)]


def test_throttled_connection_pauses(cluster: Cluster) -> None:
    """KIP-219."""
    cluster.brokers[0].answer(CREATE_TOPICS, lambda _: CreateTopicsResponse(throttle_time_ms=300))
    with connected(cluster.brokers[2]) as pool:
        began = time.monotonic()  # the pause begins before this thread knows of the first response
        create_topics(pool, node_id=0)
        create_topics(pool, node_id=0)
    assert time.monotonic() - began >= 0.3


def test_call_for_any_node_avoids_a_throttled_connection(cluster: Cluster) -> None:
    # given
    cluster.brokers[0].answer(CREATE_TOPICS, lambda _: CreateTopicsResponse(throttle_time_ms=60_000))
    with connected(cluster.brokers[2]) as pool:
        create_topics(pool, node_id=0)
        # when: node 0 is the only one with a connection
        for _ in range(3):
            create_topics(pool, node_id=None)
    # then
    assert len(cluster.brokers[0].requests(CREATE_TOPICS)) == 1


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_closed_pool_ends_handshakes_with_a_silent_server(protocol: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        pool = ConnectionPool(ConnectionSettings.of((address,), {"security.protocol": protocol}, "test"))
        pool.submit(pool.check_connection)
        accepted, _ = server.accept()
        with accepted:
            accepted.recv(1)  # of ApiVersions, or of the TLS handshake
            (connecting,) = (thread for thread in threading.enumerate() if thread.name == f"klamm-connect-{address}")
            # when
            pool.close()
            # then
            connecting.join(3.0)
            assert not connecting.is_alive()


def test_pool_can_be_closed_from_its_own_thread() -> None:
    with StubBroker() as broker:
        pool = ConnectionPool(ConnectionSettings.of_keywords(broker.bootstrap_servers, {}))
        ended = threading.Event()

        def close(_: object) -> None:
            pool.close()
            ended.set()

        pool.submit(pool.offered_versions).add_done_callback(close)
        assert ended.wait(60)


def test_pool_can_be_abandoned_during_garbage_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even while the same thread starts a call."""
    with StubBroker() as broker:
        pool = ConnectionPool(ConnectionSettings.of_keywords(broker.bootstrap_servers, {}))
        wake = pool._loop.call_soon_threadsafe

        def collect_and_wake(*arguments: Any) -> object:
            monkeypatch.undo()
            pool.abandon()
            return wake(*arguments)

        monkeypatch.setattr(pool._loop, "call_soon_threadsafe", collect_and_wake)
        # when
        call = pool.submit(pool.offered_versions)
        # then
        assert isinstance(call.exception(10), ConnectionLostError)
        pool.close()


def test_retriable_api_versions_error_is_retried(cluster: Cluster) -> None:
    versions = cluster.brokers[0].handler(API_VERSIONS)
    answers = [ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT]
    cluster.brokers[0].answer(
        API_VERSIONS,
        lambda request: ApiVersionsResponse(error_code=answers.pop()) if answers else versions(request),
    )
    with connected(cluster.brokers[0]) as pool:
        create_topics(pool, node_id=0)
    assert not answers


def test_bootstrap_server_port_is_optional() -> None:
    ConnectionPool(ConnectionSettings.of_keywords("localhost", {})).close()
    ConnectionPool(ConnectionSettings.of_keywords(["PLAINTEXT://localhost:1"], {})).close()
    with pytest.raises(ValueError, match="bootstrap_servers is empty: expected host:port"):
        ConnectionPool(ConnectionSettings.of_keywords("", {}))
    with pytest.raises(ValueError, match="bootstrap_servers='a:b': expected host:port"):
        ConnectionPool(ConnectionSettings.of_keywords("a:b", {}))

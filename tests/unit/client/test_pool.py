"""The connection pool while brokers go away and others take over: nothing that failed stays in its memory."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from klamm.client.errors import ConnectionLostError
from klamm.client.pool import CONTROLLER, ConnectionPool
from klamm.client.transport import ConnectionSettings
from klamm.protocol.errors import ProtocolError
from klamm.protocol.messages.api_versions import ApiVersionsResponse
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.support.stub_broker import CLOSE, SILENCE, StubBroker

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from klamm.client.pool import Deadline
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


def create_topics(pool: ConnectionPool, *, node_id: int | None, looked_up: bool = False) -> None:
    async def work(deadline: Deadline) -> None:
        await pool.send(
            CreateTopicsRequest(), CreateTopicsResponse, deadline=deadline, node_id=node_id, looked_up=looked_up
        )

    pool.submit(work, timeout_ms=10_000).result(20)


@contextlib.contextmanager
def connected(*brokers: StubBroker, **settings: Any) -> Iterator[ConnectionPool]:
    servers = [broker.bootstrap_servers for broker in brokers]
    pool = ConnectionPool(ConnectionSettings.of_keywords(servers, settings))
    try:
        yield pool
    finally:
        pool.close()


def test_a_controller_that_is_gone_is_looked_up_again(cluster: Cluster) -> None:
    with connected(cluster.brokers[2]) as pool:
        create_topics(pool, node_id=CONTROLLER)
        assert len(cluster.brokers[0].requests(CREATE_TOPICS)) == 1
        # when
        cluster.controller_id = 1
        cluster.lose(0)
        # then
        create_topics(pool, node_id=CONTROLLER)
        assert len(cluster.brokers[1].requests(CREATE_TOPICS)) == 1


def test_a_controller_that_closes_the_connection_is_looked_up_again(cluster: Cluster) -> None:
    with connected(cluster.brokers[2]) as pool:
        create_topics(pool, node_id=CONTROLLER)
        cluster.controller_id = 1
        cluster.brokers[0].answer(CREATE_TOPICS, lambda _: CLOSE)
        # when
        create_topics(pool, node_id=CONTROLLER)
        # then
        assert len(cluster.brokers[1].requests(CREATE_TOPICS)) == 1


def test_a_controller_that_joined_later_is_reached(cluster: Cluster) -> None:
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


def test_when_all_known_brokers_are_gone_the_bootstrap_servers_are_asked_again(cluster: Cluster) -> None:
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


def test_a_node_that_the_caller_has_looked_up_fails_at_once(cluster: Cluster) -> None:
    with connected(cluster.brokers[2]) as pool:
        create_topics(pool, node_id=0, looked_up=True)
        cluster.lose(0)
        with pytest.raises(ConnectionLostError):
            create_topics(pool, node_id=0, looked_up=True)


def test_a_node_that_moved_to_another_address_is_found(cluster: Cluster) -> None:
    with connected(cluster.brokers[2]) as pool:
        create_topics(pool, node_id=0)
        # when
        old, cluster.brokers[0] = cluster.brokers[0], cluster.brokers[1]
        cluster.known = {0, 2}
        old.__exit__(None, None, None)
        # then
        create_topics(pool, node_id=0)
        assert len(cluster.brokers[0].requests(CREATE_TOPICS)) == 1


def test_the_versions_of_any_broker_come_from_one_that_lives(cluster: Cluster) -> None:
    refused: list[Request] = []

    def close_first(request: Request) -> Answer:
        refused.append(request)
        if len(refused) <= len(cluster.brokers):
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


class _PatientBroker(StubBroker):
    """A broker that answers CreateTopics only when a number of these requests have arrived."""

    expected = 3

    def __init__(self) -> None:
        super().__init__(versions={CREATE_TOPICS: (2, 7)})
        self._held: list[tuple[socket.socket, bytes]] = []

    def _answer(self, connection: socket.socket, frame: bytes) -> bool:
        if int.from_bytes(frame[:2]) != CREATE_TOPICS:
            return super()._answer(connection, frame)
        self._held.append((connection, frame))
        if len(self._held) == self.expected:
            assert len({held for held, _ in self._held}) == 1
            return all(StubBroker._answer(self, *held) for held in self._held)
        return True


def test_calls_share_a_connection_and_do_not_wait_for_each_other() -> None:
    with _PatientBroker() as broker, connected(broker) as pool:
        broker.answer(CREATE_TOPICS, lambda _: CreateTopicsResponse())

        async def work(deadline: Deadline) -> None:
            await pool.send(CreateTopicsRequest(), CreateTopicsResponse, deadline=deadline)

        calls = [pool.submit(work, timeout_ms=10_000) for _ in range(broker.expected)]
        for call in calls:
            call.result(10)


def test_a_connection_without_a_response_in_time_is_replaced(cluster: Cluster) -> None:
    silent = [SILENCE]
    cluster.brokers[0].answer(CREATE_TOPICS, lambda _: silent.pop() if silent else CreateTopicsResponse())
    with connected(cluster.brokers[2], request_timeout_ms=200) as pool:
        create_topics(pool, node_id=0)
    assert len(cluster.brokers[0].requests(CREATE_TOPICS)) == 2
    assert len(cluster.brokers[0].requests(API_VERSIONS)) == 2


def test_an_unreadable_response_fails_at_once(cluster: Cluster) -> None:
    cluster.brokers[0].answer(CREATE_TOPICS, lambda _: b"\x00")
    with connected(cluster.brokers[2]) as pool, pytest.raises(ProtocolError, match="Cannot decode CreateTopicsResp"):
        create_topics(pool, node_id=0)
    assert len(cluster.brokers[0].requests(CREATE_TOPICS)) == 1


def test_a_throttled_connection_pauses(cluster: Cluster) -> None:
    """KIP-219."""
    cluster.brokers[0].answer(CREATE_TOPICS, lambda _: CreateTopicsResponse(throttle_time_ms=150))
    with connected(cluster.brokers[2]) as pool:
        create_topics(pool, node_id=0)
        began = time.monotonic()
        create_topics(pool, node_id=0)
    assert time.monotonic() - began > 0.1


def test_a_pool_that_is_closed_within_its_own_thread_ends() -> None:
    with StubBroker() as broker:
        pool = ConnectionPool(ConnectionSettings.of_keywords(broker.bootstrap_servers, {}))
        ended = threading.Event()

        def close(_: object) -> None:
            pool.close()
            ended.set()

        pool.submit(pool.offered_versions).add_done_callback(close)
        assert ended.wait(10)


def test_an_address_is_a_host_with_or_without_a_port() -> None:
    ConnectionPool(ConnectionSettings.of_keywords("localhost", {})).close()
    with pytest.raises(ValueError, match="bootstrap_servers='a:b': expected host:port"):
        ConnectionPool(ConnectionSettings.of_keywords("a:b", {}))

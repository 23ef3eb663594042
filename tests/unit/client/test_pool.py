"""The connection pool while brokers go away and others take over: nothing that failed stays in its memory."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from klamm.client.errors import ConnectionLostError
from klamm.client.pool import CONTROLLER, ConnectionPool
from klamm.protocol.messages.api_versions import ApiVersionsResponse
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.support.stub_broker import CLOSE, StubBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from klamm.client.pool import Deadline
    from tests.support.stub_broker import Answer, Request

CREATE_TOPICS = 19
METADATA = 3


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
def connected(*brokers: StubBroker) -> Iterator[ConnectionPool]:
    pool = ConnectionPool([broker.bootstrap_servers for broker in brokers])
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


def test_the_versions_of_any_broker_come_from_one_that_lives(cluster: Cluster) -> None:
    refused: list[Request] = []

    def close_first(request: Request) -> Answer:
        refused.append(request)
        if len(refused) <= len(cluster.brokers):
            return CLOSE
        return ApiVersionsResponse(
            api_keys=[ApiVersionsResponse.ApiVersion(api_key=CREATE_TOPICS, min_version=2, max_version=7)]
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

"""Reads from a broker that has applied all committed metadata."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from klamm.admin import AdminClient, ConfigResource, KafkaApiError, ResourceType
from klamm.admin._quorum import current_node
from klamm.kafka_client.pool.calls import Deadline
from klamm.kafka_client.pool.pool import CONTROLLER
from klamm.protocol.api import ApiKey
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.api_versions import ApiVersionsResponse
from klamm.protocol.messages.describe_configs import DescribeConfigsResponse
from klamm.protocol.messages.describe_quorum import DescribeQuorumResponse
from tests.support.stub_broker import Request, StubBroker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from klamm.kafka_client.pool.pool import ConnectionPool
    from klamm.protocol.schema import Message

TOPIC: Final = ConfigResource(ResourceType.TOPIC, "stub")
QUORUM: Final[dict[int, tuple[int, int]]] = {ApiKey.DESCRIBE_QUORUM: (0, 1)}
CONFIGS: Final[dict[int, tuple[int, int]]] = {ApiKey.DESCRIBE_CONFIGS: (1, 1)}


def described(_: Request) -> Message:
    result = DescribeConfigsResponse.DescribeConfigsResult(
        error_message=None, resource_type=int(TOPIC.type), resource_name=TOPIC.name, configs=[]
    )
    return DescribeConfigsResponse(results=[result])


def quorum(high_watermark: int, error_code: ErrorCode = ErrorCode.NONE) -> Message:
    partition = DescribeQuorumResponse.PartitionData(high_watermark=high_watermark)
    topic = DescribeQuorumResponse.TopicData(topic_name="__cluster_metadata", partitions=[partition])
    return DescribeQuorumResponse(error_code=error_code, topics=[topic])


@pytest.mark.parametrize("is_topic", [False, True])
def test_lagging_broker_is_read_after_it_applied_committed_metadata(is_topic: bool) -> None:
    applied, watermarks, events = iter([3, 8, 9]), iter([-1, 10]), list[object]()
    with StubBroker(versions={**QUORUM, **CONFIGS}) as broker, AdminClient(broker.bootstrap_servers) as admin:
        admin.describe_cluster().result(60)
        announced, metadata = broker.handler(ApiKey.API_VERSIONS), broker.handler(ApiKey.METADATA)

        def versions(request: Request) -> object:
            response = announced(request)
            assert isinstance(response, ApiVersionsResponse)
            response.finalized_features_epoch = next(applied)
            events.append(response.finalized_features_epoch)
            return response

        def read(request: Request) -> object:
            events.append("read")
            return metadata(request) if request.api_key == ApiKey.METADATA else described(request)

        broker.answer(ApiKey.API_VERSIONS, versions)
        broker.answer(ApiKey.DESCRIBE_QUORUM, lambda _: quorum(next(watermarks)))
        broker.answer(ApiKey.METADATA if is_topic else ApiKey.DESCRIBE_CONFIGS, read)
        if is_topic:
            admin.describe_topics(["stub"], is_current=True).result(60)
        else:
            admin.describe_configs([TOPIC], is_current=True).result(60)
    assert events[-4:] == [3, 8, 9, "read"]


def test_principal_without_describe_cluster_gets_authorization_error() -> None:
    with StubBroker(versions={**QUORUM, **CONFIGS}) as broker, AdminClient(broker.bootstrap_servers) as admin:
        broker.answer(ApiKey.DESCRIBE_QUORUM, lambda _: quorum(1, ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
        with pytest.raises(KafkaApiError) as caught:
            admin.describe_configs([TOPIC], is_current=True).result(60)
        assert caught.value.error_code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert caught.value.missing_right == "User:ANONYMOUS needs DESCRIBE on the cluster"
        assert broker.requests(ApiKey.DESCRIBE_CONFIGS) == []


def test_cluster_without_a_metadata_quorum_is_read_at_once() -> None:
    with StubBroker(versions=CONFIGS) as broker, AdminClient(broker.bootstrap_servers) as admin:
        broker.answer(ApiKey.DESCRIBE_CONFIGS, described)
        assert admin.describe_configs([TOPIC], is_current=True).result(60) == {TOPIC: {}}


class MovingPool:
    """Connections to a cluster whose controller moves from node 1 to node 2 while the first connection is opened."""

    def __init__(self) -> None:
        self.controller_id = 1
        self.asked: list[int] = []
        """Node of each request."""

    async def connection(self, _: Deadline, node_id: int) -> Link:
        if node_id != CONTROLLER:
            return Link(self, node_id)
        link = Link(self, self.controller_id)
        self.controller_id = 2
        return link

    async def until_answered(self, attempt: Callable[[], Awaitable[int]], *_: object, **__: object) -> int:
        return await attempt()

    def check(self, _: object) -> None:
        """Accept every response."""


class Link:
    """Connection to a broker that has applied all metadata."""

    versions = QUORUM

    def __init__(self, pool: MovingPool, node_id: int) -> None:
        self._pool = pool
        self._node_id = node_id

    def version_of(self, *_: object, **__: object) -> int:
        return 0

    async def call(self, _: object, response_class: Any, *__: object, **___: object) -> Message:
        self._pool.asked.append(self._node_id)
        return (
            quorum(1) if response_class is DescribeQuorumResponse else ApiVersionsResponse(finalized_features_epoch=0)
        )


def test_returned_node_is_the_one_that_was_asked_when_the_controller_moves() -> None:
    pool = MovingPool()
    chosen = asyncio.run(current_node(cast("ConnectionPool", pool), Deadline(10_000)))
    assert set(pool.asked) == {chosen}

"""Log ends of partitions whose leader has changed."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.cluster import LATEST, Cluster
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tests.support.stub_broker import StubBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.stub_broker import Answer, Request


def follower(request: Request) -> Answer:
    """Reject a request with a leader epoch, and answer any other: so does Kafka with the debugging replica id."""
    body = request.read(ListOffsetsRequest)
    assert isinstance(body, ListOffsetsRequest)
    is_fenced = body.topics[0].partitions[0].current_leader_epoch == 0
    code = ErrorCode.FENCED_LEADER_EPOCH if is_fenced else ErrorCode.NONE
    partition = ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=0, error_code=code, offset=3)
    topic = ListOffsetsResponse.ListOffsetsTopicResponse(name="stub", partitions=[partition])
    return ListOffsetsResponse(topics=[topic])


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with StubBroker(versions={ListOffsetsRequest.API_KEY: (1, 9)}) as broker:
        broker.answer(ListOffsetsRequest.API_KEY, follower)
        settings = ConnectionSettings(bootstrap_servers=(broker.bootstrap_servers,), client_id="test")
        with contextlib.closing(Cluster(settings, BufferPool(max_free_bytes=0))) as cluster:
            cluster.refresh(["stub"])
            yield cluster


def test_log_end_of_a_former_leader_is_rejected(cluster: Cluster) -> None:
    """Kafka lets followers answer the debugging replica id. Only the leader epoch shows that they do not lead."""
    assert cluster.list_offsets([("stub", 0)], LATEST, unreplicated=True) == {}


def test_log_bounds_of_another_leader_epoch_are_missing(cluster: Cluster) -> None:
    assert cluster.log_bounds([("stub", 0)]) == {}
    assert cluster.list_offsets([("stub", 0)], LATEST) == {("stub", 0): 3}

"""Log ends of partitions whose leader has changed."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.cluster import LATEST, Cluster
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tests.support.stub_broker import StubBroker

if TYPE_CHECKING:
    from tests.support.stub_broker import Answer, Request


def test_log_end_of_a_former_leader_is_rejected() -> None:
    """Kafka lets followers answer the debugging replica id. Only the leader epoch shows that they do not lead."""

    def follower(request: Request) -> Answer:
        body = request.read(ListOffsetsRequest)
        assert isinstance(body, ListOffsetsRequest)
        is_fenced = body.topics[0].partitions[0].current_leader_epoch == 0
        code = ErrorCode.FENCED_LEADER_EPOCH if is_fenced else ErrorCode.NONE
        partition = ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=0, error_code=code, offset=3)
        topic = ListOffsetsResponse.ListOffsetsTopicResponse(name="stub", partitions=[partition])
        return ListOffsetsResponse(topics=[topic])

    with StubBroker(versions={ListOffsetsRequest.API_KEY: (1, 9)}) as broker:
        broker.answer(ListOffsetsRequest.API_KEY, follower)
        settings = ConnectionSettings(bootstrap_servers=(broker.bootstrap_servers,), client_id="test")
        with contextlib.closing(Cluster(settings, BufferPool(max_free_bytes=0))) as cluster:
            cluster.refresh(["stub"])
            assert cluster.list_offsets([("stub", 0)], LATEST, unreplicated=True) == {}

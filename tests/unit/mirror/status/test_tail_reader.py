"""Newest timestamps of topics, read from a scripted broker."""

from __future__ import annotations

from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.cluster import Cluster
from klamm.mirror.status.tail_reader import newest_timestamps
from klamm.protocol.messages.fetch import FetchResponse
from klamm.protocol.messages.list_offsets import ListOffsetsResponse
from klamm.protocol.records import Record, encode_batch
from tests.support.stub_broker import StubBroker, redirect_fetches


def test_newest_timestamp_is_read_from_the_preferred_read_replica() -> None:
    """KIP-392. The leader has no records, like a klamm that leads the partitions of a mirror."""
    # given
    start = ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=0, offset=0)
    starts = ListOffsetsResponse(topics=[ListOffsetsResponse.ListOffsetsTopicResponse(name="stub", partitions=[start])])
    last = FetchResponse.PartitionData(high_watermark=9, records=bytes(encode_batch([Record(None, b"v", (), 5, 8)])))
    records = FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="stub", partitions=[last])])
    versions = {FetchResponse.API_KEY: (4, 11), ListOffsetsResponse.API_KEY: (1, 5)}
    with StubBroker(versions=versions) as leader, StubBroker(versions=versions) as replica:
        redirect_fetches(leader, replica)
        leader.answer(ListOffsetsResponse.API_KEY, lambda _: starts)
        replica.answer(FetchResponse.API_KEY, lambda _: records)
        settings = ConnectionSettings(bootstrap_servers=(leader.bootstrap_servers,), client_id="test")
        with Cluster.connected(settings, ["stub"]) as cluster:
            # when
            result = newest_timestamps(cluster, {("stub", 0): 9}, budget_s=60.0)
    # then
    assert result == ({"stub": 5}, True)

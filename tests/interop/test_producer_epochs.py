"""Producer epochs of many transactional ids at a time, from Apache Kafka and from klamm."""

from __future__ import annotations

from contextlib import closing
from uuid import uuid4

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.batches import ProducerStamp
from klamm.kafka_client.data.cluster import Cluster
from klamm.kafka_client.data.transactions import init_all
from klamm.kafka_client.errors import TransactionLostError


def test_each_transactional_id_gets_a_new_epoch_and_a_stale_one_is_fenced(address: str) -> None:
    settings = ConnectionSettings(bootstrap_servers=(address,), client_id="many")
    ids = [f"{uuid4().hex}-{number}" for number in range(150)]
    with closing(Cluster(settings, BufferPool(max_free_bytes=0))) as cluster:
        cluster.refresh([])
        first = init_all(cluster, dict.fromkeys(ids), timeout_ms=60_000)
        stamps = {key: stamp for key, stamp in first.items() if isinstance(stamp, ProducerStamp)}
        second = init_all(cluster, stamps, timeout_ms=60_000)
        init_all(cluster, dict.fromkeys(ids[:3]), timeout_ms=60_000)
        newer = init_all(cluster, {key: stamps[key] for key in ids[:3]}, timeout_ms=60_000)
        open_connections = len(cluster.connections())

    assert list(stamps) == ids
    assert len({stamp.producer_id for stamp in stamps.values()}) == len(ids)
    for key in ids:
        raised = second[key]
        assert isinstance(raised, ProducerStamp)
        assert (raised.producer_id, raised.producer_epoch) == (stamps[key].producer_id, stamps[key].producer_epoch + 1)
    assert all(isinstance(result, TransactionLostError) for result in newer.values())
    assert open_connections == 1

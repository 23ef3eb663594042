"""Producer epochs of many transactional ids at a time, from Apache Kafka and from klamm."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING
from uuid import uuid4

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.batches import ProducerStamp
from klamm.kafka_client.data.cluster import Cluster
from klamm.kafka_client.data.transactions import init_all
from klamm.kafka_client.errors import ConnectionLostError, TransactionLostError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.kafka_client.data.transactions import InitResult


def init(cluster: Cluster, current: Mapping[str, ProducerStamp | None]) -> dict[str, InitResult]:
    """Request the epochs until each has a result: a busy broker may take longer than the ten seconds of a call."""
    results: dict[str, InitResult] = {}
    while left := {key: stamp for key, stamp in current.items() if is_without_result(results.get(key))}:
        results |= init_all(cluster, left, timeout_ms=60_000)
    return results


def is_without_result(result: InitResult | None) -> bool:
    return result is None or isinstance(result, ConnectionLostError)


def test_each_transactional_id_gets_a_new_epoch_and_a_stale_one_is_fenced(address: str) -> None:
    settings = ConnectionSettings(bootstrap_servers=(address,), client_id="many")
    ids = [f"{uuid4().hex}-{number}" for number in range(150)]
    with closing(Cluster(settings, BufferPool(max_free_bytes=0))) as cluster:
        cluster.refresh([])
        first = init(cluster, dict.fromkeys(ids))
        stamps = {key: stamp for key, stamp in first.items() if isinstance(stamp, ProducerStamp)}
        second = init(cluster, stamps)
        init(cluster, dict.fromkeys(ids[:3]))
        newer = init(cluster, {key: stamps[key] for key in ids[:3]})
        open_connections = len(cluster.connections())

    assert list(stamps) == ids
    assert len({stamp.producer_id for stamp in stamps.values()}) == len(ids)
    for key in ids:
        raised = second[key]
        assert isinstance(raised, ProducerStamp)
        assert (raised.producer_id, raised.producer_epoch) == (stamps[key].producer_id, stamps[key].producer_epoch + 1)
    assert all(isinstance(result, TransactionLostError) for result in newer.values())
    assert open_connections == 1

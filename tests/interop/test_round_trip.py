"""Round-trip time of a cluster, measured on a data connection."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from klamm.embedded.broker import Broker

DELAY_S = 0.4


def test_round_trip_is_the_minimum_time_of_first_responses(klamm_broker: Broker) -> None:
    with contextlib.closing(cluster_at(klamm_broker.bootstrap_servers)) as near:
        began = time.monotonic()
        near.refresh([])
        assert 0 < near.round_trip_s < time.monotonic() - began
    with slow(klamm_broker.bootstrap_servers) as address, contextlib.closing(cluster_at(address)) as far:
        far.refresh([])
        assert far.round_trip_s >= DELAY_S


def cluster_at(address: str) -> Cluster:
    return Cluster(ConnectionSettings.of((address,), {}, "test"), BufferPool(max_free_bytes=0))


@contextlib.contextmanager
def slow(address: str) -> Iterator[str]:
    """Carry one connection, each request DELAY_S later."""
    host, _, port = address.rpartition(":")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def carry() -> None:
            with contextlib.suppress(OSError):
                client, _ = server.accept()
                with client, socket.create_connection((host, int(port))) as broker:
                    while request := client.recv(65536):
                        time.sleep(DELAY_S)
                        broker.sendall(request)
                        client.sendall(broker.recv(65536))

        thread = threading.Thread(target=carry)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
    thread.join(10)

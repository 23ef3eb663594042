"""IncrementalAlterConfigs, durable: one request at a time on each of 1 and 16 connections."""

from __future__ import annotations

import itertools
import multiprocessing
import socket
import struct
import time
from typing import TYPE_CHECKING, Final

from benchmarks.measure import Measurement, Plan, alternate, percentile
from benchmarks.sides import apache_kafka, klamm_broker
from tests.support.wire import SET, WireClient, alter_topic_request, request_frame

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from multiprocessing.connection import Connection

    from tests.support.probe import Cluster

_CONNECTIONS: Final = (1, 16)
_WARM_UP_S: Final = 1.0
_FRAMES: Final = 64
_SIZE: Final = struct.Struct(">i")
_ERROR_CODE_AT: Final = 4 + 1 + 4 + 1  # correlation id, tags, throttle time, array length


def run(plan: Plan) -> Iterator[Measurement]:
    """Measure klamm, Apache Kafka as shipped, and Apache Kafka with its controller told not to linger."""
    duration_s = 5.0 if plan.quick else 30.0
    for connections in _CONNECTIONS:

        def with_klamm(connections: int = connections) -> Mapping[str, float]:
            with klamm_broker() as broker:
                return _load(broker, connections, duration_s)

        def with_kafka(
            connections: int = connections, properties: Mapping[str, str] | None = None
        ) -> Mapping[str, float]:
            with apache_kafka(properties) as cluster:
                return _load(cluster, connections, duration_s)

        sides = {
            "klamm": with_klamm,
            "Apache Kafka": with_kafka,
            "Apache Kafka, append.linger.ms=0": lambda: with_kafka(
                properties={"controller.quorum.append.linger.ms": "0"}
            ),
        }
        yield from alternate(
            sides,
            benchmark=f"config changes, {connections} connection{'s' * (connections > 1)}",
            plan=plan,
            rounds=plan.rounds(3),
        )


def _load(cluster: Cluster, connections: int, duration_s: float) -> Mapping[str, float]:
    address = cluster.bootstrap_servers
    topics = [f"configured-{number}" for number in range(connections)]
    with WireClient(address) as client:
        for topic in topics:
            client.create_topic(topic)
        time.sleep(_WARM_UP_S)
    context = multiprocessing.get_context("fork")
    start_at = time.monotonic() + 0.5 + _WARM_UP_S
    pipes = []
    processes = []
    for topic in topics:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_alter_forever, args=(address, topic, start_at, duration_s, theirs))
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    latencies = [latency for pipe in pipes for latency in pipe.recv()]
    for process in processes:
        process.join()
    return {
        "changes/s": len(latencies) / duration_s,
        "p50 ms": percentile(latencies, 0.50) * 1e3,
        "p99 ms": percentile(latencies, 0.99) * 1e3,
    }


def _alter_forever(address: str, topic: str, start_at: float, duration_s: float, results: Connection) -> None:
    """Send a change, wait for its answer, and so on; report the latencies after ``start_at`` in seconds."""
    frames = [
        request_frame(alter_topic_request(topic, [("retention.ms", SET, str(value))]), 1, correlation_id=value)
        for value in range(1, _FRAMES + 1)
    ]
    host, _, port = address.rpartition(":")
    latencies = []
    with socket.create_connection((host, int(port)), timeout=60.0) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for frame in itertools.cycle(frames):
            sent = time.monotonic()
            connection.sendall(frame)
            _check_answer(connection)
            answered = time.monotonic()
            if sent >= start_at + duration_s:
                break
            if sent >= start_at:
                latencies.append(answered - sent)
    results.send(latencies)
    results.close()


def _check_answer(connection: socket.socket) -> None:
    data = b""
    while len(data) < _SIZE.size or len(data) < _SIZE.size + _SIZE.unpack_from(data)[0]:
        chunk = connection.recv(4096)
        if not chunk:
            raise ConnectionResetError("The broker closed the connection")
        data += chunk
    (error_code,) = struct.unpack_from(">h", data, _SIZE.size + _ERROR_CODE_AT)
    if error_code != 0:
        raise RuntimeError(f"A change was rejected with error code {error_code}")

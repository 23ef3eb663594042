"""Fetches from the page cache: klamm with and without ``os.sendfile``, and Apache Kafka."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import socket
import struct
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.encrypted_sides import encrypted_sides
from benchmarks.fetching_consumers import Consumers
from benchmarks.measure import Measurement, Plan, alternate, cpu_seconds
from benchmarks.sides import apache_kafka, klamm_broker
from klamm.protocol.messages.fetch import FetchRequest
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse
from klamm.protocol.records import Record, encode_batch
from tests.support.kafka import NO_PROPERTIES
from tests.support.klamm import KlammBroker
from tests.support.security import RSA, Certificates
from tests.support.wire import WireClient, request_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from multiprocessing.connection import Connection

    from tests.support.probe import Cluster

_TOPIC: Final = "fetched"
_STORED_BYTES: Final = 400_000_000
_PARTITIONS_PER_FETCH: Final = 4
_PARTITION_BYTES: Final = 1 << 20
_RECORDS: Final = 32
"""Number of records in a batch."""
_PRODUCED_AT_ONCE: Final = 800_000
_BUFFER_BYTES: Final = 8 << 20
_SIZE: Final = struct.Struct(">i")
_FETCH_VERSION: Final = 11
_PRODUCE_VERSION: Final = 9
_TIMEOUT_S: Final = 60.0
_GIGA: Final = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    label: str
    partitions: int
    connections: int
    batch_bytes: int

    @property
    def batches(self) -> int:
        """Number of batches in each partition."""
        return _STORED_BYTES // self.partitions // self.batch_bytes

    @property
    def shares(self) -> Sequence[range]:
        """Partitions of each connection."""
        return [range(number, self.partitions, self.connections) for number in range(self.connections)]


_LOADS: Final = (
    _Load(label="4 partitions, 1 connection", partitions=4, connections=1, batch_bytes=128 * 1024),
    _Load(label="1,000 partitions, 50 connections", partitions=1_000, connections=50, batch_bytes=16 * 1024),
)


class _WithoutSendfile(KlammBroker):
    """A broker in a Python whose ``os`` lacks ``sendfile``, as on Windows: it reads the records and writes them."""

    def command(self) -> list[str | Path]:
        """Return the command line that starts it."""
        program = "import os, sys; del os.sendfile; from klamm.cli import main; sys.exit(main(sys.argv[1:]))"
        return [sys.executable, "-c", program, *super().command()[1:]]


def run(plan: Plan) -> Iterator[Measurement]:
    """Measure three rounds of 4 GB, and of 2 GB for librdkafka's consumers; quick: one of 1 GB."""
    size = (1 if plan.quick else 4) * 1_000_000_000
    for load in _LOADS:
        sides = _sides(partial(_fetch, load=load, size=size))
        yield from alternate(sides, benchmark=f"fetch, {load.label}", plan=plan, rounds=plan.rounds(3))
    load, passes = _LOADS[-1], (2 if plan.quick else 5)
    sides = _sides(partial(_consume, load=load, passes=passes))
    yield from alternate(sides, benchmark=f"consume, {load.label}", plan=plan, rounds=plan.rounds(3))
    with tempfile.TemporaryDirectory(prefix="klamm-bench-") as directory:
        sides = encrypted_sides(Certificates.create(Path(directory), RSA), partial(_consume, load=load, passes=passes))
        yield from alternate(sides, benchmark=f"consume with TLS, {load.label}", plan=plan, rounds=plan.rounds(3))


def _sides(
    measured: Callable[[Cluster], Mapping[str, float]],
) -> Mapping[str, Callable[[], Mapping[str, float]]]:
    def with_klamm() -> Mapping[str, float]:
        with klamm_broker() as broker:
            return measured(broker)

    def without_sendfile() -> Mapping[str, float]:
        with _WithoutSendfile() as broker:
            return measured(broker)

    def with_kafka() -> Mapping[str, float]:
        with apache_kafka() as cluster:
            return measured(cluster)

    return {"klamm": with_klamm, "klamm without sendfile": without_sendfile, "Apache Kafka": with_kafka}


def _fetch(cluster: Cluster, *, load: _Load, size: int) -> Mapping[str, float]:
    """Read by clients that parse nothing."""
    batch_bytes = _fill(cluster.bootstrap_servers, load)
    _read_all(cluster.bootstrap_servers, load, batch_bytes, _STORED_BYTES // load.connections)  # warm up
    before, began = cpu_seconds(cluster.pids), time.monotonic()
    longest_s = _read_all(cluster.bootstrap_servers, load, batch_bytes, size // load.connections)
    elapsed_s = time.monotonic() - began
    return {
        "GB/s": size / _GIGA / elapsed_s,
        "CPU s/GB": (cpu_seconds(cluster.pids) - before) / (size / _GIGA),
        "longest wait ms": longest_s * 1e3,
    }


def _consume(
    cluster: Cluster, settings: Mapping[str, str] = NO_PROPERTIES, *, load: _Load, passes: int
) -> Mapping[str, float]:
    """Read by consumers of librdkafka with these settings, all partitions some times."""
    size = passes * load.partitions * load.batches * _fill(cluster.bootstrap_servers, load)
    settings = {"bootstrap.servers": cluster.bootstrap_servers, **settings}
    consumers = Consumers(settings, _TOPIC, load.shares, load.batches * _RECORDS)
    try:
        consumers.read(1)  # warm up
        before = cpu_seconds(cluster.pids)
        elapsed_s = consumers.read(passes)
        spent_s = cpu_seconds(cluster.pids) - before
    finally:
        consumers.close()
    return {"GB/s": size / _GIGA / elapsed_s, "CPU s/GB": spent_s / (size / _GIGA)}


def _fill(address: str, load: _Load) -> int:
    """Produce the same batch over and over; return its size."""
    value, now_ms = os.urandom(load.batch_bytes // _RECORDS - 16), time.time_ns() // 1_000_000
    batch = bytes(encode_batch([Record(None, value, (), now_ms, number) for number in range(_RECORDS)]))
    with WireClient(address, timeout_s=_TIMEOUT_S) as client:
        client.create_topic(_TOPIC, partitions=load.partitions)
        every = [number for _ in range(load.batches) for number in range(load.partitions)]
        at_once = min(max(_PRODUCED_AT_ONCE // len(batch), 1), load.partitions)
        for some in _batched(every, at_once):
            _produce(client, some, batch)
    return len(batch)


def _produce(client: WireClient, partitions: Sequence[int], batch: bytes) -> None:
    """Append the batch to each partition, once it has a leader."""
    deadline = time.monotonic() + _TIMEOUT_S
    while partitions:
        data = [ProduceRequest.PartitionProduceData(index=number, records=batch) for number in partitions]
        topic = ProduceRequest.TopicProduceData(name=_TOPIC, partition_data=data)
        request = ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=[topic])
        (answer,) = client.ask(request, ProduceResponse, _PRODUCE_VERSION).responses
        rejected = [one for one in answer.partition_responses if one.error_code]
        if rejected and time.monotonic() > deadline:
            raise RuntimeError(f"{rejected[0]}")
        partitions = [one.index for one in rejected]


def _batched(numbers: Sequence[int], count: int) -> Iterator[Sequence[int]]:
    return (numbers[at : at + count] for at in range(0, len(numbers), count))


def _read_all(address: str, load: _Load, batch_bytes: int, size: int) -> float:
    """Read in one process per connection; return the longest time that a fetch took, in seconds."""
    context = multiprocessing.get_context("fork")
    pipes = []
    processes = []
    for share in load.shares:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(
            target=_read,
            args=(address, load, share),
            kwargs={"batch_bytes": batch_bytes, "size": size, "results": theirs},
        )
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    longest_s: float = max(pipe.recv() for pipe in pipes)
    for process in processes:
        process.join()
    return longest_s


def _read(address: str, load: _Load, share: range, *, batch_bytes: int, size: int, results: Connection) -> None:
    """Fetch ``size`` bytes from some partitions in turn, each from its start to its end and again."""
    host, _, port = address.rpartition(":")
    per_fetch = min(max(_PARTITION_BYTES // batch_bytes, 1), load.batches)
    positions = dict.fromkeys(share, 0)
    turns = itertools.cycle(_batched(share, _PARTITIONS_PER_FETCH))
    buffer, longest_s = memoryview(bytearray(_BUFFER_BYTES)), 0.0
    with socket.create_connection((host, int(port)), timeout=_TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while size > 0:
            some = next(turns)
            wanted = [
                FetchRequest.FetchPartition(
                    partition=number,
                    fetch_offset=positions[number] * _RECORDS,
                    partition_max_bytes=per_fetch * batch_bytes,
                )
                for number in some
            ]
            topic = FetchRequest.FetchTopic(topic=_TOPIC, partitions=wanted)
            request = FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=50 << 20, session_epoch=-1, topics=[topic])
            began = time.monotonic()
            connection.sendall(request_frame(request, _FETCH_VERSION))
            got = _receive(connection, buffer)
            longest_s = max(longest_s, time.monotonic() - began)
            if got < per_fetch * batch_bytes * len(some):
                raise RuntimeError(f"A fetch of {len(some)} partitions brought {got} bytes")
            size -= got
            for number in some:
                following = positions[number] + per_fetch
                positions[number] = following if following + per_fetch <= load.batches else 0
    results.send(longest_s)
    results.close()


def _receive(connection: socket.socket, buffer: memoryview) -> int:
    """Receive a response and forget it; return its size."""
    head = b""
    while len(head) < _SIZE.size:
        head += connection.recv(_SIZE.size - len(head))
    size: int = _SIZE.unpack(head)[0]
    left = size
    while left:
        count = connection.recv_into(buffer, min(left, len(buffer)))
        if not count:
            raise ConnectionResetError("The broker closed the connection")
        left -= count
    return size

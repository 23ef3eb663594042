"""A bare loop that copies batches: fetch, cut, produce; what the bytes alone cost in one process of Python.

Run with ``python -m benchmarks.mirror_bare MM2.PROPERTIES``. It copies until it is ended, checks nothing, survives
nothing and forgets everything.
"""

from __future__ import annotations

import select
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.mirror_sides import PARTITIONS, REMOTE, TOPIC
from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.cluster import Cluster
from klamm.kafka_client.data.fetch import LAST_VERSION, FetchLimits, WantedRecords, fetch_request, fetched_partitions
from klamm.kafka_client.data.produce import PartitionRecords, TopicName, produce_body
from klamm.properties import read_properties
from klamm.protocol.codec import encode
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse
from klamm.protocol.records import iter_batches

if TYPE_CHECKING:
    from klamm.kafka_client.connection.buffers import FrameBuffer
    from klamm.kafka_client.connection.connection import Connection

_MIB: Final = 1024 * 1024
_LIMITS: Final = FetchLimits(8 * _MIB, 2 * _MIB, min_bytes=1, max_wait_ms=100)
_MAX_PENDING: Final = 16 * _MIB
_MAX_REQUESTS: Final = 8
_TIMEOUT_MS: Final = 30_000
_BASE_OFFSET_BYTES: Final = 8


class BareLoop:
    """One connection to each side, four partitions, a few requests in flight."""

    def __init__(self, source: str, target: str) -> None:
        pool = BufferPool(max_free_bytes=64 * _MIB)
        self._source_cluster, self._source = _connect(source, TOPIC, pool)
        self._target_cluster, self._target = _connect(target, REMOTE, pool)
        self._offsets = [0] * PARTITIONS
        self._pending = [deque[tuple[memoryview, "FrameBuffer"]]() for _ in range(PARTITIONS)]
        self._pending_bytes = 0
        self._requests = 0
        self._is_fetching = False

    def run(self) -> None:
        """Copy for ever."""
        while True:
            if not self._is_fetching and self._pending_bytes < _MAX_PENDING:
                self._fetch()
            while self._requests < _MAX_REQUESTS and any(self._pending):
                self._produce()
            poll = select.poll()
            connections = {each.fileno(): each for each in (self._source, self._target)}
            for number, connection in connections.items():
                poll.register(number, select.POLLIN | (select.POLLOUT if connection.wants_write else 0))
            for number, events in poll.poll():
                connections[number].drive(events)

    def _fetch(self) -> None:
        topic_id = self._source_cluster.topic_id(TOPIC)
        wanted = [WantedRecords(TOPIC, topic_id, number, offset) for number, offset in enumerate(self._offsets)]
        version = self._source.version_of(FetchRequest, at_most=LAST_VERSION)
        request = fetch_request(wanted, _LIMITS, read_committed=False)
        self._is_fetching = True
        self._source.submit(FetchRequest, version, [encode(request, version)], FetchResponse, self._fetched)
        self._source.write()

    def _fetched(self, response: FetchResponse, memory: FrameBuffer) -> None:
        self._is_fetching = False
        names = {self._source_cluster.topic_id(TOPIC): TOPIC}
        for fetched in fetched_partitions(response, names, with_topic_ids=True, read_committed=False):
            for batch in iter_batches(fetched.records, allow_partial_tail=True):
                next_offset = batch.last_offset + 1
                if batch.base_offset >= self._offsets[fetched.partition]:
                    memory.retain()
                    batch.buffer[:_BASE_OFFSET_BYTES] = bytes(_BASE_OFFSET_BYTES)  # what a broker demands of clients
                    self._pending[fetched.partition].append((batch.buffer, memory))
                    self._pending_bytes += len(batch.buffer)
                    self._offsets[fetched.partition] = next_offset

    def _produce(self) -> None:
        topic = TopicName(REMOTE, self._target_cluster.topic_id(REMOTE).bytes)
        taken = [(number, *queue.popleft()) for number, queue in enumerate(self._pending) if queue]
        records = [PartitionRecords(topic, number, view) for number, view, _ in taken]
        version = self._target.version_of(ProduceRequest, at_most=13)

        def produced(response: ProduceResponse, _buffer: FrameBuffer) -> None:
            self._requests -= 1
            codes = {each.error_code for topic in response.responses for each in topic.partition_responses}
            if codes != {ErrorCode.NONE}:
                raise RuntimeError(f"The target rejected: {codes}")
            for _, view, memory in taken:
                self._pending_bytes -= len(view)
                memory.release()

        self._requests += 1
        body = produce_body(version, records, timeout_ms=_TIMEOUT_MS)
        self._target.submit(ProduceRequest, version, body, ProduceResponse, produced)
        self._target.write()


def _connect(address: str, topic: str, pool: BufferPool) -> tuple[Cluster, Connection]:
    cluster = Cluster(ConnectionSettings(bootstrap_servers=(address,), client_id="bare-loop"), pool)
    cluster.refresh([topic])
    leader = cluster.leader(topic, 0)
    assert leader is not None, f"{topic} is not there"
    return cluster, cluster.connection(leader)


def main() -> None:
    """Copy what the properties file of the benchmark says; the topics are there on both sides."""
    properties = read_properties(Path(sys.argv[1]))
    BareLoop(properties["source.bootstrap.servers"], properties["target.bootstrap.servers"]).run()


if __name__ == "__main__":
    main()

"""Clients that request much and read nothing: memory stays bounded, other clients are served, connections time out."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
import struct
import time
from typing import TYPE_CHECKING, Final

import psutil  # type: ignore[import-untyped]
import pytest

import klamm
from klamm.admin import AdminClient, ConfigResource, ResourceType
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from klamm.protocol.messages.fetch import FetchRequest
from klamm.protocol.records import Record, encode_batch
from klamm.server.outbox import MAX_UNREAD_BYTES
from tests.support.long_tests import long_only
from tests.support.processes import free_port, wait_until
from tests.support.security import Certificates
from tests.support.wire import WireClient, request_frame

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

MEBI: Final = 1 << 20
IDLE_MS: Final = 6_000
"""``connections.max.idle.ms`` of the tests about it. On a busy machine, a test itself does nothing for seconds."""
TIMEOUT_S: Final = 120
CLIENTS: Final = 20
BATCH: Final = encode_batch([Record(None, bytes(1_000_000), (), int(time.time() * 1000))])
PARTITIONS: Final = 4
BATCHES: Final = 15
"""Of each partition: 60 MB in all, above the default of fetch.max.bytes."""
MANY_TOPICS: Final = 3_000
BUILT_BYTES: Final = 14 * MEBI
"""What one response about topics with different configs takes while it is made, besides the bytes that are queued then.
"""
MAX_FETCHED: Final = 57_671_680
"""Default of fetch.max.bytes."""
ENCRYPTED: Final = pytest.mark.parametrize("encrypted", [False, *long_only(True)], ids=["plain", "tls"])


class Broker:
    """A broker with a plain and an encrypted listener, and clients that only send."""

    def __init__(self, certificates: Certificates, *, idle_ms: int) -> None:
        self.plain, self.tls = free_port(), free_port()
        self.embedded = klamm.Broker(
            config={
                "listeners": f"PLAIN://127.0.0.1:{self.plain},TLS://127.0.0.1:{self.tls}",
                "listener.security.protocol.map": "PLAIN:PLAINTEXT,TLS:SSL",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(certificates.issue("broker", "/CN=broker")),
                "connections.max.idle.ms": str(idle_ms),
            }
        )
        self.context = ssl.create_default_context(cafile=str(certificates.authority))
        self.address = f"127.0.0.1:{self.plain}"

    def connect(self, *, encrypted: bool = False) -> socket.socket:
        """Open a connection that takes little before it is read."""
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        peer.settimeout(TIMEOUT_S)
        peer.connect(("127.0.0.1", self.tls if encrypted else self.plain))
        return self.context.wrap_socket(peer, server_hostname="127.0.0.1") if encrypted else peer

    @contextlib.asynccontextmanager
    async def streams(self, *, encrypted: bool) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Open a connection that is read and written at once, which two threads must not do with one SSLSocket."""
        if encrypted:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.tls, ssl=self.context)
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.plain)
        try:
            yield reader, writer
        finally:
            # close() would leave the socket open until the broker answers the end of TLS, which may be after the loop.
            writer.transport.abort()

    def memory(self) -> int:
        """Return the resident bytes of the process."""
        return int(self.process.memory_info().rss)

    @property
    def process(self) -> psutil.Process:
        """Return the broker's process."""
        return psutil.Process(self.embedded.pid)

    def connections(self) -> int:
        """Return how many connections of clients the broker has."""
        ports = {self.plain, self.tls}
        return sum(at.laddr.port in ports and at.status != "LISTEN" for at in self.process.net_connections("tcp"))

    def closed_as(self, reason: str) -> list[str]:
        """Return the addresses of the clients whose connections were closed for a reason, by the log."""
        return re.findall(f"Connection of (.*) closed: {reason}", self.embedded.log_text())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    made = Broker(Certificates.create(tmp_path_factory.mktemp("certificates")), idle_ms=IDLE_MS)
    with made.embedded:
        fill(made)
        yield made
        assert "Traceback" not in made.embedded.log_text()


def fill(broker: Broker) -> None:
    """Create the topic ``large``."""
    for number in range(PARTITIONS * BATCHES):
        with WireClient(broker.address, timeout_s=TIMEOUT_S) as client:  # a single one could be idle for too long
            if number == 0:
                client.create_topic("large", partitions=PARTITIONS)
            client.produce("large", number % PARTITIONS, BATCH)


def fetch(max_bytes: int = 2**31 - 1) -> bytes:
    partitions = [
        FetchRequest.FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=2**31 - 1)
        for number in range(PARTITIONS)
    ]
    topic = FetchRequest.FetchTopic(topic="large", partitions=partitions)
    return request_frame(FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=max_bytes, topics=[topic]), 12)


def describe(count: int = MANY_TOPICS) -> DescribeConfigsRequest:
    resource = DescribeConfigsRequest.DescribeConfigsResource
    wanted = [resource(resource_type=2, resource_name=f"many-{number}") for number in range(count)]
    return DescribeConfigsRequest(resources=wanted, include_documentation=True, include_synonyms=True)


def check_served(broker: Broker) -> None:
    """Raise an error unless an honest client is answered. It connects again when it has been idle for too long."""
    with AdminClient(broker.address, timeout_ms=TIMEOUT_S * 1000) as admin:
        admin.describe_topics(["large"]).result()
        admin.describe_configs([ConfigResource(ResourceType.TOPIC, "large")]).result()


def most_memory(broker: Broker, seconds: float, *, since: Callable[[], bool] = lambda: True) -> int:
    """Return the largest size of the broker until so many seconds after a condition holds."""
    most, began, ends = 0, time.monotonic(), 0.0
    while not ends or time.monotonic() < ends:
        if not ends and since():
            ends = time.monotonic() + seconds
        assert time.monotonic() < began + TIMEOUT_S + seconds
        most = max(most, broker.memory())
        time.sleep(0.05)
    return most


def close_all(peers: list[socket.socket]) -> None:
    for peer in peers:
        with contextlib.suppress(OSError):
            peer.close()


@ENCRYPTED
def test_unread_fetch_responses_use_no_memory_and_close_when_idle(broker: Broker, encrypted: bool) -> None:
    """Before, each connection kept a whole response forever, and every sweep logged that it was closed."""
    wait_until(lambda: broker.connections() == 0, timeout_s=TIMEOUT_S, what="connections of before to end")
    before = broker.memory()
    peers = [broker.connect(encrypted=encrypted) for _ in range(CLIENTS)]
    addresses = ["{}:{}".format(*peer.getsockname()) for peer in peers]
    try:
        for peer in peers:
            peer.sendall(fetch() * 3)
        assert most_memory(broker, 2) - before < 100 * MEBI
        check_served(broker)
        wait_until(lambda: broker.connections() == 0, timeout_s=TIMEOUT_S, what="idle connections to end")
        wait_until(lambda: broker.memory() - before < 50 * MEBI, timeout_s=TIMEOUT_S, what="memory to be free")
        time.sleep(IDLE_MS / 2000)  # two sweeps
        closed = broker.closed_as("idle")
        assert [closed.count(address) for address in addresses] == [1] * CLIENTS
    finally:
        close_all(peers)


def test_half_open_connection_closes_when_idle(broker: Broker) -> None:
    """The client has closed its side, with a response on its way that it never reads."""
    peer = broker.connect()
    try:
        peer.sendall(fetch())
        peer.shutdown(socket.SHUT_WR)
        wait_until(lambda: broker.connections() == 0, timeout_s=TIMEOUT_S, what="the connection to end")
    finally:
        peer.close()


@pytest.mark.long
def test_slow_reader_is_not_idle_and_gets_every_byte(broker: Broker) -> None:
    """It needs longer than connections.max.idle.ms for one response."""
    with broker.connect() as peer:
        peer.sendall(fetch(max_bytes=10 * MEBI))
        size = struct.unpack(">i", peer.recv(4))[0]
        left, pause_s = size, 1.5 * IDLE_MS / 1000 / 60
        while left:
            taken = 0
            while taken < size // 60 and left:
                data = peer.recv(min(left, size // 60 - taken or 1))
                assert data
                taken, left = taken + len(data), left - len(data)
            time.sleep(pause_s)
        peer.sendall(fetch(max_bytes=1))
        assert peer.recv(4)


@pytest.mark.parametrize("max_bytes", [2**31 - 1, MAX_FETCHED - MEBI, *long_only(MAX_FETCHED + 1)])
def test_response_is_bounded_by_fetch_max_bytes(crowded: Broker, max_bytes: int) -> None:
    with crowded.connect() as peer:
        peer.sendall(fetch(max_bytes))
        size = struct.unpack(">i", peer.recv(4))[0]
    assert min(max_bytes, MAX_FETCHED) - 2 * MEBI < size <= min(max_bytes, MAX_FETCHED) + 1_000


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Broker of many topics that closes no idle connection: on a busy machine, requests arrive seconds apart."""
    made = Broker(Certificates.create(tmp_path_factory.mktemp("certificates")), idle_ms=600_000)
    spec, config = CreateTopicsRequest.CreatableTopic, CreateTopicsRequest.CreatableTopicConfig
    topics = [
        spec(
            name=f"many-{number}",
            num_partitions=1,
            replication_factor=1,
            configs=[config(name="retention.ms", value=f"{number + 1_000_000_000}")],  # equal ones would be sent once
        )
        for number in range(MANY_TOPICS)
    ]
    with made.embedded:
        fill(made)
        with WireClient(made.address, timeout_s=TIMEOUT_S) as client:
            client.ask(CreateTopicsRequest(topics=topics, timeout_ms=60_000), CreateTopicsResponse, 7)
        yield made
        assert "Traceback" not in made.embedded.log_text()


@ENCRYPTED
def test_unread_built_responses_stay_within_the_memory_budget(crowded: Broker, encrypted: bool) -> None:
    """Responses built in memory: when all of them exceed the budget, the most expensive connections are closed."""
    with WireClient(crowded.address, timeout_s=TIMEOUT_S) as client:
        frame = request_frame(describe(), 4)
        size = len(repr(client.ask(describe(10), DescribeConfigsResponse, 4))) * MANY_TOPICS // 10
    assert size * CLIENTS > 4 * MAX_UNREAD_BYTES
    not_read = r"\d+ bytes of responses are not read"
    before, closed_before = crowded.memory(), len(crowded.closed_as(not_read))
    peers = [crowded.connect(encrypted=encrypted) for _ in range(CLIENTS)]
    try:
        for peer in peers:
            peer.sendall(frame)
        most = most_memory(crowded, 2, since=lambda: len(crowded.closed_as(not_read)) > closed_before)
        assert most - before < MAX_UNREAD_BYTES + CLIENTS * BUILT_BYTES
        check_served(crowded)
    finally:
        close_all(peers)


@ENCRYPTED
def test_thousands_of_requests_at_once_are_answered_in_order(crowded: Broker, encrypted: bool) -> None:
    """More than one read holds, to a broker that takes some frames at a time and keeps the rest."""
    count = 20_000
    stream = b"".join(struct.pack(">ihhih", 10, 18, 0, number, -1) for number in range(count))

    async def read_all() -> None:
        async with crowded.streams(encrypted=encrypted) as (reader, writer):
            writer.write(stream)
            for number in range(count):
                size, correlation_id = struct.unpack(">ii", await reader.readexactly(8))
                assert correlation_id == number
                await reader.readexactly(size - 4)

    try:
        asyncio.run(asyncio.wait_for(read_all(), TIMEOUT_S))
    except asyncio.IncompleteReadError:
        pytest.fail(f"The broker has closed the connection. Its log:\n{crowded.embedded.log_text()[-4_000:]}")

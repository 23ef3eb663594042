"""Damaged copies of valid requests: the broker survives, uses no more memory, and changes nothing.

Every API that is served gives its share, in every version. What is damaged could not be carried out to begin with, for
two reasons at least (names that do not exist, factors and timeouts out of range), so that no accident makes it right.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import statistics
import struct
import time
from typing import TYPE_CHECKING, Final
from uuid import UUID

import psutil  # type: ignore[import-untyped]
import pytest

import klamm
from klamm.protocol.codec import encode
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsRequest, DescribeClientConfigsResponse
from klamm.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from tests.support.damaged_requests import NOBODY, damaged, sample, valid_requests
from tests.support.klamm import KlammBroker
from tests.support.logs import batch
from tests.support.wire import SET, WireClient, alter_topic_request, request_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

IS_SOAK: Final = bool(os.environ.get("KLAMM_SOAK"))
MUTATIONS: Final = 10_000 if IS_SOAK else 2_000
CONNECTIONS: Final = 8
ANSWER_TIMEOUT_S: Final = 1.0
PATIENCE_S: Final = 30.0
"""For a request that must be answered, or end the connection, however busy the machine is."""
MEBI: Final = 1 << 20
PING: Final = 0x5EED
"""Correlation id of the request behind a damaged one, which tells that the broker has dealt with that."""

_PING_FRAME: Final = struct.pack(">ihhih", 10, 18, 0, PING, -1)


@pytest.fixture(scope="module")
def broker() -> Iterator[KlammBroker]:
    with KlammBroker({"auto.create.topics.enable": "false"}) as running:
        with WireClient(running.bootstrap_servers) as client:
            for name in ("fuzz-base-a", "fuzz-base-b"):
                client.create_topic(name, partitions=2)
                client.alter_topic(name, [("retention.ms", SET, "123456"), ("cleanup.policy", SET, "compact")])
                client.produce(name, 1, bytes(batch("x", "y")))
            partition = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=1, committed_offset=1)
            topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="fuzz-base-a", partitions=[partition])
            committed = client.ask(OffsetCommitRequest(group_id="fuzz-group", topics=[topic]), OffsetCommitResponse, 8)
            assert committed.topics[0].partitions[0].error_code == 0
            for key_type in (0, 1):  # the first of each kind makes Kafka's internal topics appear
                client.ask(
                    FindCoordinatorRequest(coordinator_keys=["x"], key_type=key_type), FindCoordinatorResponse, 4
                )
        yield running


def state_of(broker: KlammBroker) -> dict[str, object]:
    """What clients can see of topics, configs, client configs, groups and logs."""
    with WireClient(broker.bootstrap_servers) as client:
        topics = client.ask(MetadataRequest(topics=None), MetadataResponse, 12).topics
        names = sorted(topic.name or "" for topic in topics)
        resource = DescribeConfigsRequest.DescribeConfigsResource
        wanted = [(2, name) for name in names] + [(4, ""), (4, "1"), (32, "fuzz-group"), (32, NOBODY), (16, NOBODY)]
        request = DescribeConfigsRequest(
            resources=[
                resource(resource_type=kind, resource_name=name, configuration_keys=None) for kind, name in wanted
            ]
        )
        group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id="fuzz-group", topics=None)
        return {
            "topics": [(topic.name, topic.topic_id, len(topic.partitions)) for topic in topics],
            "configs": repr(client.ask(request, DescribeConfigsResponse, 4).results),
            "client configs": repr(client.ask(DescribeClientConfigsRequest(), DescribeClientConfigsResponse, 0)),
            "groups": repr(client.ask(ListGroupsRequest(), ListGroupsResponse, 4).groups),
            "offsets": repr(client.ask(OffsetFetchRequest(groups=[group]), OffsetFetchResponse, 8).groups),
            "log ends": [client.end_offset(name, index) for name in names for index in (0, 1)],
        }


class Peer:
    """A connection that is opened again when the broker has closed it."""

    def __init__(self, port: int, *, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._port = port
        self._timeout_s = timeout_s
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.answered = self.closed = self.waited = 0

    async def send(self, frame: bytes) -> None:
        """Send it and something right behind; return when that is answered or the connection is closed."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 24)
        reader, writer = self._streams
        writer.write(frame + _PING_FRAME)
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    (size,) = struct.unpack(">i", await reader.readexactly(4))
                    if (await reader.readexactly(size)).startswith(struct.pack(">i", PING)):
                        self.answered += 1
                        return
        except TimeoutError:  # it waits for what was asked for: data, or members of a group
            self.waited += 1
        except (asyncio.IncompleteReadError, ConnectionError):
            self.closed += 1
        self.hang_up()

    def hang_up(self) -> None:
        if self._streams is not None:
            # close() would leave the socket open until everything is sent, which may be after the loop.
            self._streams[1].transport.abort()
        self._streams = None


async def send_all(frames: list[bytes], peers: list[Peer]) -> None:
    waiting = iter(frames)

    async def work(peer: Peer) -> None:
        for frame in waiting:
            await peer.send(frame)
        peer.hang_up()

    await asyncio.gather(*map(work, peers))


def pss_bytes(server: KlammBroker | klamm.Gateway) -> int:
    return int(psutil.Process(server.pid).memory_full_info().pss)


def test_thousands_of_damaged_requests_change_nothing(broker: KlammBroker) -> None:
    generator = random.Random(108)
    requests = valid_requests()
    whole = [request_frame(sample(cls, version), version) for cls, version in requests]
    frames = [damaged(whole[number % len(whole)], generator) for number in range(MUTATIONS)]
    before, memory = state_of(broker), pss_bytes(broker)
    peers = [Peer(broker.ports[0]) for _ in range(CONNECTIONS)]

    asyncio.run(send_all(frames, peers))

    assert broker.is_running
    assert state_of(broker) == before
    assert pss_bytes(broker) - memory < 48 * MEBI
    assert sum(peer.answered for peer in peers) > MUTATIONS / 20
    assert sum(peer.closed for peer in peers) > MUTATIONS / 4
    assert sum(peer.waited for peer in peers) < MUTATIONS / 50
    assert "Traceback" not in broker.log_path.read_text()


@pytest.mark.parametrize("version", [10, 11])
def test_metadata_before_v12_rejects_topic_ids(broker: KlammBroker, version: int) -> None:
    wanted = [
        MetadataRequest.MetadataRequestTopic(name=None, topic_id=UUID(int=3)),
        MetadataRequest.MetadataRequestTopic(name="fuzz-base-a"),
    ]
    with WireClient(broker.bootstrap_servers) as client:
        answer = client.ask(MetadataRequest(topics=wanted), MetadataResponse, version)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [("", 42), ("fuzz-base-a", 42)]


def assert_rejected_or_closed(broker: KlammBroker, body: bytes, *, api_key: int = 44, version: int = 0) -> None:
    """Nothing changed, the broker lives, and it is not much larger than before."""
    before, memory = state_of(broker), pss_bytes(broker)
    header = struct.pack(">hhih", api_key, version, 1, -1)
    peer = Peer(broker.ports[0], timeout_s=PATIENCE_S)

    async def send() -> None:
        await peer.send(struct.pack(">i", len(header) + len(body)) + header + body)
        peer.hang_up()

    asyncio.run(send())
    assert peer.waited == 0
    assert state_of(broker) == before
    assert pss_bytes(broker) - memory < 48 * MEBI


def alter(name: str, changes: list[tuple[str, int, str | None]]) -> bytes:
    return bytes(encode(alter_topic_request(name, changes), 0))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(alter("fuzz-base-a", [(f"no.such.{n}", SET, "1") for n in range(10_000)]), id="10,000 operations"),
        pytest.param(alter("fuzz-base-a", [("retention.ms", SET, "1")] * 10_000), id="one key 10,000 times"),
        pytest.param(alter("fuzz-base\x00a", [("retention.ms", SET, "1")]), id="NUL in the topic"),
        pytest.param(alter("fuzz-base-a", [("retention\x00.ms", SET, "1")]), id="NUL in the key"),
        pytest.param(alter("fuzz-base-a", [("retention.ms", SET, "1\x000")]), id="NUL in the value"),
        pytest.param(alter("fuzz-base-a", [("retention.ms", SET, "9" * 32_000)]), id="number without end"),
        pytest.param(alter("XXXX", [("retention.ms", SET, "1")]).replace(b"XXXX", b"\xff\xfe\xc0\x80"), id="no UTF-8"),
        pytest.param(struct.pack(">i", 2**31 - 1) + b"\x02\x00\x01t", id="array longer than the frame"),
        pytest.param(struct.pack(">ib", 1, 2) + b"\x00\x01t" + struct.pack(">i", 1 << 24), id="inner array too"),
    ],
)
def test_oversized_config_changes_are_rejected_atomically(broker: KlammBroker, body: bytes) -> None:
    assert_rejected_or_closed(broker, body)


def test_megabyte_values_are_rejected_atomically(broker: KlammBroker) -> None:
    before, memory = state_of(broker), pss_bytes(broker)
    changes: list[tuple[str, int, str | None]] = [("retention.ms", SET, "1" * MEBI), ("flush.ms", SET, "7")]
    with WireClient(broker.bootstrap_servers) as client:
        answer = client.ask(alter_topic_request("fuzz-base-a", changes), IncrementalAlterConfigsResponse, 1)
    assert [result.error_code for result in answer.responses] == [40]
    assert state_of(broker) == before
    assert pss_bytes(broker) - memory < 48 * MEBI


async def test_bystander_is_served_during_decoding_of_tiny_elements(broker: KlammBroker) -> None:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    resources = [resource(resource_type=2, resource_name="a", configs=[])] * 60_000
    crumbs = bytes(encode(IncrementalAlterConfigsRequest(resources=resources), 0))[:-1]
    header = struct.pack(">hhih", 44, 0, 1, -1)
    frame = struct.pack(">i", len(header) + len(crumbs)) + header + crumbs

    hostile, bystander = (Peer(broker.ports[0], timeout_s=PATIENCE_S) for _ in range(2))
    await bystander.send(b"")
    attack = asyncio.ensure_future(hostile.send(frame))
    times: list[float] = []
    while not attack.done() or len(times) < 20:
        began = time.perf_counter()
        await bystander.send(b"")
        times.append(time.perf_counter() - began)
        await asyncio.sleep(0.001)
    await attack
    bystander.hang_up()
    hostile.hang_up()
    assert (hostile.answered, hostile.closed) == (0, 1)
    assert bystander.answered == 1 + len(times)
    logger.warning("The bystander waited %.1f ms (median)", statistics.median(times) * 1000)
    assert not IS_SOAK or statistics.median(times) < 0.1
    assert broker.is_running


@pytest.mark.long
def test_damaged_requests_through_a_gateway_change_nothing(broker: KlammBroker) -> None:
    generator = random.Random(109)
    requests = valid_requests()
    whole = [request_frame(sample(cls, version), version) for cls, version in requests]
    frames = [damaged(whole[number % len(whole)], generator) for number in range(1_000)]
    before = state_of(broker)
    with klamm.Gateway(broker.bootstrap_servers) as gateway:
        peers = [Peer(int(gateway.bootstrap_servers.rpartition(":")[2])) for _ in range(CONNECTIONS)]
        memory = pss_bytes(gateway)

        asyncio.run(send_all(frames, peers))

        assert gateway.is_running
        assert pss_bytes(gateway) - memory < 32 * MEBI
        with WireClient(gateway.bootstrap_servers) as client:
            assert client.ask(MetadataRequest(topics=None), MetadataResponse, 12).brokers
        assert "Traceback" not in gateway.log_text()
    assert state_of(broker) == before
    assert sum(peer.answered for peer in peers) > len(frames) // 20

"""The way of a request from the socket to its reply is short enough to be read in one sitting."""

from __future__ import annotations

import asyncio
import math
import socket
from typing import TYPE_CHECKING, Final

import pytest

from klamm.broker.app import BrokerApp
from klamm.broker.cluster import AdvertisedBroker
from klamm.broker.settings import parse_arguments
from klamm.protocol.messages.fetch import FetchRequest
from klamm.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from klamm.protocol.messages.produce import ProduceRequest
from klamm.protocol.types import ConfigOperation, ResourceType
from tests.support.logs import batch
from tests.support.walk import Walk, files, walked
from tests.support.wire import request_frame

if TYPE_CHECKING:
    from pathlib import Path

VALUE: Final = "86400123"


def alter(value: str) -> bytes:
    config = IncrementalAlterConfigsRequest.AlterableConfig(
        name="retention.ms", config_operation=ConfigOperation.SET, value=value
    )
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=ResourceType.TOPIC, resource_name="orders", configs=[config]
    )
    return request_frame(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), 1, client_id="cli")


def produce() -> bytes:
    data = ProduceRequest.PartitionProduceData(index=0, records=batch("x"))
    topic = ProduceRequest.TopicProduceData(name="orders", partition_data=[data])
    return request_frame(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]), 11, client_id="app")


def fetch() -> bytes:
    wanted = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topic = FetchRequest.FetchTopic(topic="orders", partitions=[wanted])
    request = FetchRequest(max_wait_ms=1000, min_bytes=1, max_bytes=1 << 20, session_epoch=-1, topics=[topic])
    return request_frame(request, 12, client_id="app")


async def walk_of(data_dir: Path, request: bytes, *earlier: bytes) -> tuple[Walk, bytes]:
    """Send requests to a broker in this process; return the walk of ``request``, the last one, and its reply."""
    settings = parse_arguments(["--listen", "127.0.0.1:0", "--data-dir", str(data_dir)])
    name, node_id = settings.listeners[0].name, settings.node_ids[0]
    sock = socket.create_server(("127.0.0.1", 0))
    host, port = sock.getsockname()[:2]
    reply = b""
    with walked(VALUE, "ClientConnection._serve") as walk:
        app = await BrokerApp.start(settings, {name: (AdvertisedBroker(node_id=node_id, host=host, port=port),)})
        app.listen(name, {node_id: sock})
        await app._services.topics.create("orders", [[node_id]], configs={})
        reader, writer = await asyncio.open_connection(host, port)
        for frame in (*earlier, request):
            walk.is_recording = frame is request
            writer.write(frame)
            size = int.from_bytes(await reader.readexactly(4))
            reply = await reader.readexactly(size)
            walk.is_recording = False
        writer.close()
        await app.stop()
    return walk, reply


@pytest.fixture(autouse=True)
def _one_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.server.time_slice.SLICE_S", math.inf)  # counting takes longer than a slice


def walk(data_dir: Path, request: bytes, *earlier: bytes) -> tuple[Walk, bytes]:
    return asyncio.run(asyncio.wait_for(walk_of(data_dir, request, *earlier), 20))


def test_a_change_of_configs(tmp_path: Path) -> None:
    found, _ = walk(tmp_path, alter(VALUE), alter("86400000"))  # the first one fills caches
    assert len(found.hops) <= 45, sorted(found.hops)
    assert len(files(found.hops)) <= 25, sorted(files(found.hops))
    assert len(found.functions) <= 115, sorted(found.functions)
    assert found.forms == {"ConfigDelta", "PutConfig", "PutHistory"}, "besides the message itself"


def test_a_produced_batch(tmp_path: Path) -> None:
    found, _ = walk(tmp_path, produce(), produce())
    assert "storage/log/partition.py:PartitionLog.append_prepared" in found.hops
    assert len(found.hops) <= 50, sorted(found.hops)
    assert len(files(found.hops)) <= 20, sorted(files(found.hops))


def test_a_fetched_batch(tmp_path: Path) -> None:
    found, reply = walk(tmp_path, fetch(), produce(), fetch())
    assert len(reply) > len(batch("x"))
    assert len(found.hops) <= 54, sorted(found.hops)
    assert len(files(found.hops)) <= 22, sorted(files(found.hops))

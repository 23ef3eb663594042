"""The tool that records the walk of a request: on a change of a config and on a produced batch."""

from __future__ import annotations

import asyncio
import math
import socket
from typing import TYPE_CHECKING, Final

import pytest

from klamm.broker.app import BrokerApp
from klamm.broker.cluster import AdvertisedBroker
from klamm.broker.settings import parse_arguments
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


async def walk_of(data_dir: Path, request: bytes, *earlier: bytes) -> Walk:
    """Send requests to a broker in this process; return the walk of ``request``, the last one."""
    settings = parse_arguments(["--listen", "127.0.0.1:0", "--data-dir", str(data_dir)])
    name, node_id = settings.listeners[0].name, settings.node_ids[0]
    sock = socket.create_server(("127.0.0.1", 0))
    host, port = sock.getsockname()[:2]
    with walked(VALUE, "ClientConnection._serve") as walk:
        app = await BrokerApp.start(settings, {name: (AdvertisedBroker(node_id=node_id, host=host, port=port),)})
        app.listen(name, {node_id: sock})
        await app.services.topics.create("orders", [[node_id]], configs={})
        reader, writer = await asyncio.open_connection(host, port)
        for frame in (*earlier, request):
            walk.is_recording = frame is request
            writer.write(frame)
            size = int.from_bytes(await reader.readexactly(4))
            await reader.readexactly(size)
            walk.is_recording = False
        writer.close()
        await app.stop()
    return walk


@pytest.fixture(autouse=True)
def _one_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.server.time_slice.SLICE_S", math.inf)  # counting takes longer than a slice


def walk(data_dir: Path, request: bytes, *earlier: bytes) -> Walk:
    return asyncio.run(asyncio.wait_for(walk_of(data_dir, request, *earlier), 20))


def test_walk_lists_classes_that_carry_the_value(tmp_path: Path) -> None:
    recorded = walk(tmp_path, alter(VALUE), alter("86400000"))  # the first request fills caches
    assert recorded.forms == {"ConfigDelta", "PutConfig", "RecordedChange"}, "besides the message itself"


def test_walk_lists_functions_that_call_others(tmp_path: Path) -> None:
    recorded = walk(tmp_path, produce(), produce())
    assert "storage/log/partition.py:PartitionLog.append_prepared" in recorded.hops
    assert "storage/log/partition.py" in files(recorded.functions)

"""The way of a request from the socket to its reply is short enough to be read in one sitting."""

from __future__ import annotations

import asyncio
import math
import socket
from typing import TYPE_CHECKING, Final

from klamm.broker.app import BrokerApp
from klamm.broker.cluster import AdvertisedBroker
from klamm.broker.settings import parse_arguments
from klamm.protocol.codec import decode
from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.protocol.types import ConfigOperation, ResourceType
from tests.support.walk import Walk, files, walked
from tests.support.wire import request_frame

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

WALKED: Final = "86400123"


def alter(value: str) -> bytes:
    config = IncrementalAlterConfigsRequest.AlterableConfig(
        name="retention.ms", config_operation=ConfigOperation.SET, value=value
    )
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=ResourceType.TOPIC, resource_name="orders", configs=[config]
    )
    return request_frame(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), 1, client_id="cli")


async def one_alteration(data_dir: Path) -> Walk:
    settings = parse_arguments(["--listen", "127.0.0.1:0", "--data-dir", str(data_dir)])
    name, node_id = settings.listeners[0].name, settings.node_ids[0]
    sock = socket.create_server(("127.0.0.1", 0))
    host, port = sock.getsockname()[:2]
    with walked(WALKED, "ClientConnection._serve") as walk:
        app = await BrokerApp.start(settings, {name: (AdvertisedBroker(node_id=node_id, host=host, port=port),)})
        await app.listen(name, {node_id: sock})
        await app._services.topics.create("orders", [[node_id]], configs={})
        reader, writer = await asyncio.open_connection(host, port)
        for value in ("86400000", WALKED):  # the first one fills caches
            walk.is_recording = value == WALKED
            writer.write(alter(value))
            size = int.from_bytes(await reader.readexactly(4))
            reply = await reader.readexactly(size)
            walk.is_recording = False
            answer = decode(IncrementalAlterConfigsResponse, 1, memoryview(reply), 5)
            assert [entry.error_code for entry in answer.responses] == [0]
        writer.close()
        await app.stop()
    return walk


def test_a_change_of_configs_is_a_short_walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.server.time_slice.SLICE_S", math.inf)  # counting takes longer than a slice
    walk = asyncio.run(asyncio.wait_for(one_alteration(tmp_path), 20))
    assert len(walk.hops) <= 45, sorted(walk.hops)
    assert len(files(walk.hops)) <= 25, sorted(files(walk.hops))
    assert len(walk.functions) <= 115, sorted(walk.functions)
    assert walk.forms == {"ConfigDelta", "PutConfig", "PutHistory"}, "besides the message itself"

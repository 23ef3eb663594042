"""Metrics of the gateway itself."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import AsyncMock, Mock

import pytest

from klamm.admin import Node
from klamm.gateway.app import GatewayApp
from klamm.gateway.frames.peer import Peer
from klamm.gateway.monitoring.metrics import GatewayMetrics
from klamm.gateway.settings import read_settings
from klamm.gateway.upstream.topology import FILE_NAME

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("content", "is_ignored"),
    [("{damaged", 1), ('{"cluster_id": "c", "nodes": {"1": ["kafka-1", 9092]}}', 0), (None, 0)],
)
async def test_ignored_topology_file_is_reported(content: str | None, is_ignored: int, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / FILE_NAME).write_text(content, encoding="utf-8")
    settings = read_settings({"upstream.bootstrap.servers": "kafka-1:9092", "data.dir": str(tmp_path)})

    app = GatewayApp(settings)
    app.topology.load()
    assert f"\nklamm_gateway_topology_file_ignored {is_ignored}\n" in GatewayMetrics(app, settings).page()
    await app.upstream.close()


async def test_brokers_that_left_the_cluster_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    settings = read_settings({"upstream.bootstrap.servers": "kafka-1:9092", "data.dir": str(tmp_path)})
    app = GatewayApp(settings)
    app.topology.learn(3, "kafka-3", 9092)  # from the file
    nodes = [Node(id=node_id, host=f"kafka-{node_id}", port=9092) for node_id in (1, 2)]
    counts = []
    for answer in (None, nodes, nodes[:1]):
        # when
        if answer is not None:
            cluster = Mock(cluster_id="c", nodes=answer)
            monkeypatch.setattr(app.upstream.admin, "describe_cluster", AsyncMock(return_value=cluster))
            await app.upstream.learn()
        page = GatewayMetrics(app, settings).page()
        counts += [line for line in page.splitlines() if line.startswith("klamm_gateway_brokers ")]
    # then
    assert counts == [f"klamm_gateway_brokers {count}" for count in (0, 2, 1)]
    await app.upstream.close()


async def test_connections_of_unknown_brokers_share_one_series(tmp_path: Path) -> None:
    """Clients choose the node id in the host name that they connect to."""
    # given
    settings = read_settings({"upstream.bootstrap.servers": "kafka-1:9092", "data.dir": str(tmp_path)})
    app = GatewayApp(settings)
    app.topology.learn(1, "kafka-1", 9092)
    # when
    for node_id in (1, 1, 0, 483920117):
        peer = Peer(host="127.0.0.1", port=1, node_id=node_id)
        app.shared.connections.add(Mock(peer=peer))
    # then
    page = GatewayMetrics(app, settings).page()
    series = [line for line in page.splitlines() if line.startswith("klamm_gateway_upstream_connections{")]
    assert series == [
        'klamm_gateway_upstream_connections{node_id="(other)"} 2',
        'klamm_gateway_upstream_connections{node_id="1"} 2',
    ]
    await app.upstream.close()

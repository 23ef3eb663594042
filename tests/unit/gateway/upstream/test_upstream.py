"""Connections to brokers: one that does not respond delays its own connections only."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import Mock

import pytest

from klamm.admin import ClusterDescription, Node
from klamm.gateway.upstream import upstream as module
from klamm.gateway.upstream.topology import Topology
from klamm.gateway.upstream.upstream import Upstream
from klamm.kafka_client.connection.transport import ConnectionSettings

if TYPE_CHECKING:
    from pathlib import Path

SILENT, PROMPT = 1, 2


class Opened:
    """Connection that remembers whether it was closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


async def test_broker_that_does_not_respond_delays_its_own_connections_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, late, prompt = threading.Event(), Opened(), Opened()

    def connect(_host: str, port: int, _settings: ConnectionSettings) -> Any:
        if port == SILENT:
            assert release.wait(60)
            return late
        return prompt

    monkeypatch.setattr(module, "connect", connect)
    monkeypatch.setattr(module, "_WAIT_S", 0.2)
    topology = Topology(tmp_path)
    for port in (SILENT, PROMPT):
        topology.learn(port, "127.0.0.1", port)
    upstream = Upstream(ConnectionSettings(bootstrap_servers=("127.0.0.1:1",), client_id="c"), {}, topology)
    waiting = [asyncio.create_task(upstream.connect(SILENT)) for _ in range(20)]
    await asyncio.sleep(0)
    assert cast("Any", await upstream.connect(PROMPT)) == (prompt, None, False)
    errors = await asyncio.gather(*waiting, return_exceptions=True)
    assert {str(error) for error in errors} == {"broker 1 at 127.0.0.1:1: no connection within 0.2 s"}
    assert not late.closed.is_set()
    release.set()
    assert await asyncio.to_thread(late.closed.wait, 60)
    await upstream.close()


async def test_another_broker_stands_in_until_its_own_one_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = {SILENT}

    def connect(_host: str, port: int, _settings: ConnectionSettings) -> Any:
        if port in refused:
            raise ConnectionRefusedError
        return Opened()

    monkeypatch.setattr(module, "connect", connect)
    topology = Topology(tmp_path)
    for port in (SILENT, PROMPT):
        topology.learn(port, "127.0.0.1", port)
    upstream = Upstream(ConnectionSettings(bootstrap_servers=("127.0.0.1:1",), client_id="c"), {}, topology)
    upstream.live = frozenset({PROMPT})
    stands_in = [(await upstream.connect(node_id, any_other=True))[2] for node_id in (SILENT, PROMPT, 77)]
    assert stands_in == [True, False, True], "the last one may have just joined"
    assert [await upstream.is_back(SILENT), await upstream.is_back(PROMPT)] == [False, True]
    refused.clear()
    assert not await upstream.is_back(SILENT), "it is not registered yet"
    upstream.live |= {SILENT}
    assert await upstream.is_back(SILENT)
    await upstream.close()


def upstream_of(topology: Topology, monkeypatch: pytest.MonkeyPatch, nodes: list[Node]) -> Upstream:
    """Return an upstream that lists these nodes, also those that are added later."""
    upstream = Upstream(ConnectionSettings(bootstrap_servers=("127.0.0.1:1",), client_id="c"), {}, topology)

    async def describe_cluster(**_: Any) -> ClusterDescription:
        await asyncio.sleep(0)  # others run until the response arrives
        return ClusterDescription(cluster_id="c", controller_id=5, nodes=tuple(nodes), features={})

    monkeypatch.setattr(upstream.admin, "describe_cluster", Mock(side_effect=describe_cluster))
    return upstream


def node(node_id: int, host: str = "127.0.0.1") -> Node:
    return Node(id=node_id, host=host, port=node_id, rack=None)


async def test_broker_that_joined_is_learned_before_its_clients_are_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another gateway, or another process of this one, has told the clients about it."""
    # given
    ports: list[int] = []

    def connect(_host: str, port: int, _settings: ConnectionSettings) -> Any:
        ports.append(port)
        return Opened()

    monkeypatch.setattr(module, "connect", connect)
    nodes = [node(PROMPT)]
    upstream = upstream_of(Topology(tmp_path), monkeypatch, nodes)
    await upstream.learn()
    nodes.append(node(7))
    # when
    opened = await asyncio.gather(*(upstream.connect(7) for _ in range(5)))
    # then
    assert ([is_stand_in for *_, is_stand_in in opened], ports) == ([False] * 5, [7] * 5)
    assert cast("Mock", upstream.admin.describe_cluster).call_count == 2, "one request for all clients"
    await upstream.close()


async def test_unknown_broker_is_stood_in_for_while_the_upstream_does_not_list_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    monkeypatch.setattr(module, "connect", lambda *_: Opened())
    nodes = [node(PROMPT)]
    upstream = upstream_of(Topology(tmp_path), monkeypatch, nodes)
    assert (await upstream.connect(7))[2]
    assert not await upstream.is_back(7)
    # when
    nodes.append(node(7))
    await upstream.learn()
    # then
    assert await upstream.is_back(7)
    await upstream.close()


async def test_brokers_that_are_not_listed_are_tried_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that is gone drops packets: each attempt to reach it would cost seconds."""
    # given
    ports: list[int] = []

    def connect(_host: str, port: int, _settings: ConnectionSettings) -> Any:
        ports.append(port)
        raise ConnectionRefusedError

    monkeypatch.setattr(module, "connect", connect)
    topology = Topology(tmp_path)
    for port in (3, 4, 5, 6):
        topology.learn(port, "127.0.0.1", port)
    upstream = upstream_of(topology, monkeypatch, [node(5), node(6)])
    await upstream.learn()
    # when
    for node_id in (3, 6):
        with pytest.raises(OSError, match=r"broker [36] at"):
            await upstream.connect(node_id, any_other=True)
    # then
    first, second = ports[:5], ports[5:]
    assert (set(first[:2]), first[2:]) == ({5, 6}, [3, 4, 1])
    assert (second[:2], set(second[2:4])) == ([6, 5], {3, 4})
    await upstream.close()


async def test_addresses_that_brokers_have_left_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one has threads and counters, and a broker may get a new address at each start."""
    # given
    monkeypatch.setattr(module, "connect", lambda *_: Opened())
    nodes = [node(5, "10.0.0.1")]
    upstream = upstream_of(Topology(tmp_path), monkeypatch, nodes)
    await upstream.learn()
    await upstream.connect(5)
    threads = [each for each in threading.enumerate() if each.name.startswith("klamm-connect-10.0.0.1:")]
    nodes[:] = [node(5, "10.0.0.2")]
    # when
    await upstream.learn()
    await upstream.connect(5)
    # then
    assert list(upstream.attempts) == [("10.0.0.2:5", True)]
    for thread in threads:
        await asyncio.to_thread(thread.join, 60)
    assert [thread.is_alive() for thread in threads] == [False]
    await upstream.close()


async def test_brokers_with_impossible_addresses_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They would make the whole file of the topology unreadable, and raise errors other than OSError on connections."""
    at = ((-1, "a", 9092), (1, "a", 70_000), (2, "a", 0), (3, "a\0", 9092), (4, "", 9092), (5, "b", 9092))
    nodes = [Node(id=node_id, host=host, port=port, rack=None) for node_id, host, port in at]
    topology = Topology(tmp_path)
    upstream = upstream_of(topology, monkeypatch, nodes)
    await upstream.learn()
    assert list(topology.nodes) == [5]
    assert caplog.text.count("The upstream says that broker") == len(nodes) - 1
    restarted = Topology(tmp_path)
    restarted.load()
    assert restarted.nodes == topology.nodes
    await upstream.close()

"""Listening sockets of a gateway."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest

from klamm.gateway.listener.ports import BrokerPorts
from klamm.gateway.settings import read_settings
from klamm.gateway.upstream.topology import Topology
from klamm.properties import SettingsError
from klamm.server.listeners import own_host_name
from tests.support.relay_rig import until
from tests.support.taps import consecutive_ports

if TYPE_CHECKING:
    from pathlib import Path

    from klamm.gateway.frames.peer import Peer


class Accepted:
    """Clients that were accepted. Their connections are closed at once."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []
        self.is_any = asyncio.Event()

    def __call__(self, sock: socket.socket, peer: Peer) -> None:
        sock.close()
        self.peers.append(peer)
        self.is_any.set()


NO_PORT = 65_535
"""Node id whose port is too large whatever port is that of the gateway."""
HOSTS = ["127.0.0.1", "::"] if socket.has_dualstack_ipv6() else ["127.0.0.1"]


@pytest.mark.parametrize("host", HOSTS)
async def test_ipv4_client_has_an_ipv4_address_on_a_listener_of_both_kinds(host: str, tmp_path: Path) -> None:
    accepted = Accepted()

    settings = read_settings({"upstream.bootstrap.servers": "kafka:9092", "listeners": f"PLAINTEXT://[{host}]:0"})
    topology = Topology(tmp_path)
    ports = BrokerPorts(settings, topology, accepted)
    ports.open(frozenset())
    try:
        with socket.create_connection(("127.0.0.1", topology.base.port)):
            await accepted.is_any.wait()
    finally:
        ports.close()
    assert [peer.host for peer in accepted.peers] == ["127.0.0.1"]


@pytest.mark.parametrize("host", ["0.0.0.0", *HOSTS[1:]])  # noqa: S104 - only names what is listened on
async def test_gateway_on_all_addresses_advertises_the_machine_name(host: str, tmp_path: Path) -> None:
    settings = read_settings({"upstream.bootstrap.servers": "kafka:9092", "listeners": f"PLAINTEXT://[{host}]:0"})
    topology = Topology(tmp_path)

    ports = BrokerPorts(settings, topology, lambda sock, _: sock.close())
    ports.open(frozenset())
    ports.close()
    assert topology.base.host == own_host_name()


async def test_port_of_a_broker_that_joined_is_opened_when_it_is_free_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("klamm.gateway.listener.ports._RETRY_S", 0.01)
    base = consecutive_ports(3)  # next to a port of the kernel's choice there may be a client's
    settings = read_settings({"upstream.bootstrap.servers": "kafka:9092", "listeners": f"PLAINTEXT://127.0.0.1:{base}"})
    topology = Topology(tmp_path)
    accepted = Accepted()

    with caplog.at_level("INFO"):
        ports = BrokerPorts(settings, topology, accepted)
        ports.open(frozenset())
        address = "127.0.0.1", base + 1
        try:
            # given
            with socket.create_server(address):
                ports.add(1)
                await asyncio.sleep(0.05)
            # when
            await until(lambda: "Broker 1 is served" in caplog.text)
            # then
            with socket.create_connection(address):
                await accepted.is_any.wait()
            # and
            with socket.create_server(("127.0.0.1", base + 2)):
                ports.add(2)
                ports.close()
                await asyncio.sleep(0.05)
            assert not ports.is_open
        finally:
            ports.close()
    assert [peer.node_id for peer in accepted.peers] == [1]
    assert caplog.text.count("Broker 1 cannot be served yet") == 1


async def test_brokers_that_left_the_cluster_do_not_prevent_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # given
    base = consecutive_ports(8)
    ports, accepted = ports_of_nodes(1, 7, NO_PORT, base=base, directory=tmp_path)
    with socket.create_server(("127.0.0.1", base + 7)):
        # when
        ports.open(frozenset({1}))
        # then
        try:
            with socket.create_connection(("127.0.0.1", base + 1)):
                await accepted.is_any.wait()
        finally:
            ports.close()
    assert [peer.node_id for peer in accepted.peers] == [1]
    assert "Broker 7 cannot be served yet" in caplog.text
    assert f"Broker {NO_PORT} cannot be served: Broker {NO_PORT} has no port" in caplog.text


async def test_start_fails_without_a_port_for_a_broker_of_the_cluster(tmp_path: Path) -> None:
    """Its port would lead clients to another server, and without a port clients would see no leader."""
    base = consecutive_ports(8)
    ports, _ = ports_of_nodes(1, 7, NO_PORT, base=base, directory=tmp_path)
    with socket.create_server(("127.0.0.1", base + 7)), pytest.raises(OSError, match=f":{base + 7}: Address already"):
        ports.open(frozenset({1, 7}))
    assert not ports.is_open
    try:
        with pytest.raises(SettingsError, match=f"Broker {NO_PORT} has no port"):
            ports.open(frozenset({1, NO_PORT}))
    finally:
        ports.close()


def ports_of_nodes(*node_ids: int, base: int, directory: Path) -> tuple[BrokerPorts, Accepted]:
    """Return the ports of a gateway whose file names these brokers."""
    settings = read_settings({"upstream.bootstrap.servers": "kafka:9092", "listeners": f"PLAINTEXT://127.0.0.1:{base}"})
    topology, accepted = Topology(directory), Accepted()
    for node_id in node_ids:
        topology.learn(node_id, f"kafka-{node_id}", 9092)
    return BrokerPorts(settings, topology, accepted), accepted

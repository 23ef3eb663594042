"""Listening sockets of a gateway."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest

from klamm.gateway.ports import BrokerPorts
from klamm.gateway.settings import read_settings
from klamm.gateway.topology import Topology
from klamm.server.listeners import own_host_name

if TYPE_CHECKING:
    from pathlib import Path

    from klamm.gateway.peer import Peer


HOSTS = ["127.0.0.1", "::"] if socket.has_dualstack_ipv6() else ["127.0.0.1"]


@pytest.mark.parametrize("host", HOSTS)
def test_an_ipv4_client_has_an_ipv4_address_on_a_listener_of_both_kinds(host: str, tmp_path: Path) -> None:
    peers: list[Peer] = []

    async def test() -> None:
        accepted = asyncio.Event()

        def on_accepted(sock: socket.socket, peer: Peer) -> None:
            sock.close()
            peers.append(peer)
            accepted.set()

        settings = read_settings({"upstream.bootstrap.servers": "kafka:9092", "listeners": f"PLAINTEXT://[{host}]:0"})
        topology = Topology(tmp_path)
        ports = BrokerPorts(settings, topology, on_accepted)
        ports.open()
        try:
            with socket.create_connection(("127.0.0.1", topology.base.port)):
                await accepted.wait()
        finally:
            ports.close()

    asyncio.run(asyncio.wait_for(test(), 60))
    assert [peer.host for peer in peers] == ["127.0.0.1"]


@pytest.mark.parametrize("host", ["0.0.0.0", *HOSTS[1:]])  # noqa: S104 - only names what is listened on
def test_clients_get_the_name_of_the_machine_if_the_gateway_listens_on_all_addresses(host: str, tmp_path: Path) -> None:
    settings = read_settings({"upstream.bootstrap.servers": "kafka:9092", "listeners": f"PLAINTEXT://[{host}]:0"})
    topology = Topology(tmp_path)

    async def test() -> None:
        ports = BrokerPorts(settings, topology, lambda sock, _: sock.close())
        ports.open()
        ports.close()

    asyncio.run(test())
    assert topology.base.host == own_host_name()

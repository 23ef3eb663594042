"""Addresses of the brokers and of the gateway, kept in a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, example, given, settings

from klamm.gateway.upstream.topology import FILE_NAME, Topology
from klamm.server.listeners import Address
from tests.support.damaged_records import EXAMPLES, NESTED, damaged

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_port_of_a_broker_is_the_base_port_plus_its_node_id(tmp_path: Path) -> None:
    topology = Topology(tmp_path)
    topology.base = Address(host="gateway", port=9000)
    assert topology.advertised(3, "broker", 1) == ("gateway", 9003)


def test_broker_above_the_last_port_is_learned_but_not_advertised(tmp_path: Path) -> None:
    topology, new = Topology(tmp_path), list[int]()
    topology.base = Address(host="gateway", port=9000)
    topology.subscribe(new.append)
    assert [topology.advertised(100_000, "broker", 1) for _ in range(2)] == [None, None]
    assert (new, topology.nodes[100_000]) == ([100_000], Address(host="broker", port=1))


def test_broker_above_the_last_port_to_listen_on_is_not_advertised(tmp_path: Path) -> None:
    """Behind a load balancer, the gateway may listen on higher ports than those that it advertises."""
    topology = Topology(tmp_path)
    topology.base, topology.listen_port = Address(host="gateway", port=9000), 64_900
    assert topology.advertised(635, "broker", 1) == ("gateway", 9635)
    assert topology.advertised(636, "broker", 1) is None


def test_restarted_gateway_knows_the_brokers(tmp_path: Path) -> None:
    before = Topology(tmp_path / "new")
    before.set_cluster_id("cluster")
    before.learn(1, "a", 9092)
    before.learn(2, "b", 9093)
    after = Topology(tmp_path / "new")
    after.load()
    assert after.nodes == {1: Address(host="a", port=9092), 2: Address(host="b", port=9093)}
    assert after.cluster_id == "cluster"


def test_new_broker_is_reported_once_and_a_moved_one_is_not(tmp_path: Path) -> None:
    topology, new = Topology(tmp_path), list[int]()
    topology.subscribe(new.append)
    for host in ("a", "a", "b"):
        topology.learn(1, host, 9092)
    assert (new, topology.nodes[1].host) == ([1], "b")


def test_brokers_of_another_cluster_are_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    topology = Topology(tmp_path)
    topology.set_cluster_id("one")
    topology.learn(1, "a", 9092)
    topology.set_cluster_id("two")
    assert not topology.nodes
    assert "belongs to cluster one, the upstream is cluster two" in caplog.text


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damaged(b'{"cluster_id": "c", "nodes": {"1": ["a", 9092], "2": ["b", 9093]}}'))
@example(NESTED)
@example(b'{"nodes": {"1": ["a", 9092]}}')
def test_damaged_file_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes) -> None:
    caplog.clear()
    (tmp_path / FILE_NAME).write_bytes(content)
    topology = Topology(tmp_path)
    topology.load()
    if "is ignored" in caplog.text:
        assert (topology.nodes, topology.cluster_id) == ({}, None)
    for node_id, at in topology.nodes.items():
        assert 0 <= node_id < 2**31
        assert at.host.encode()
        assert 0 < at.port < 2**16
    topology.save()


def test_gateway_serves_without_its_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    topology = Topology(tmp_path / "file")
    topology.learn(1, "a", 9092)
    assert topology.nodes[1].host == "a"
    assert "cannot be written" in caplog.text

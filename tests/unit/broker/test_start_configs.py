"""Flags of the broker command are described as if they were set in its properties file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import klamm
from klamm.admin import AdminClient, ConfigResource, ConfigSource, ResourceType

if TYPE_CHECKING:
    from pathlib import Path

    from klamm.admin import ConfigEntry

pytestmark = pytest.mark.process

NAMES = ("node.id", "broker.id", "process.roles", "log.dirs", "listeners", "advertised.listeners")


def described(admin: AdminClient, node_id: int) -> dict[str, ConfigEntry]:
    resource = ConfigResource(ResourceType.BROKER, str(node_id))
    entries = admin.describe_configs({resource: NAMES}, include_synonyms=True).all().result()[resource]
    return dict(entries)


def test_static_configs_describe_id_roles_directory_and_bound_port(tmp_path: Path) -> None:
    """K339-24: Sensitive values are never returned by describe and are not lost when another key is altered."""
    # given
    with klamm.Broker(brokers=2, data_dir=tmp_path / "data") as broker, AdminClient(broker.bootstrap_servers) as admin:
        # when
        of_brokers = [described(admin, node_id) for node_id in (1, 2)]
    # then
    for node_id, address, entries in zip("12", broker.bootstrap_servers.split(","), of_brokers, strict=True):
        values = {name: entry.value for name, entry in entries.items()}
        assert values == {
            "node.id": node_id,
            "broker.id": node_id,
            "process.roles": "broker,controller",
            "log.dirs": str(tmp_path / "data"),
            "listeners": f"PLAINTEXT://{address}",
            "advertised.listeners": None,
        }
        static = {name for name, entry in entries.items() if entry.source is ConfigSource.STATIC_BROKER_CONFIG}
        assert static == set(NAMES) - {"advertised.listeners"}
        assert all(
            entry.is_read_only for name, entry in entries.items() if name not in {"listeners", "advertised.listeners"}
        )


def test_listeners_are_described_as_static_broker_configs(tmp_path: Path) -> None:
    # given
    config = {"advertised.listeners": "PLAINTEXT://localhost:2"}
    with klamm.Broker(data_dir=tmp_path, config=config) as broker:
        _, _, port = broker.bootstrap_servers.rpartition(":")
    # when: the port is known, so that clients can be told one that works
    config["advertised.listeners"] = f"PLAINTEXT://localhost:{port}"
    address = f"127.0.0.1:{port}"
    with klamm.Broker(listen=address, data_dir=tmp_path, config=config), AdminClient(address) as admin:
        entries = described(admin, 1)
    # then
    assert entries["listeners"].value == f"PLAINTEXT://{address}"
    assert entries["advertised.listeners"].value == f"PLAINTEXT://localhost:{port}"
    assert [synonym.source for synonym in entries["listeners"].synonyms] == [
        ConfigSource.STATIC_BROKER_CONFIG,
        ConfigSource.DEFAULT_CONFIG,
    ]


def test_each_broker_describes_its_own_rack() -> None:
    with (
        klamm.Broker(brokers=2, config={"broker.rack": "a,b"}) as broker,
        AdminClient(broker.bootstrap_servers) as admin,
    ):
        for node_id, rack in ((1, "a"), (2, "b")):
            resource = ConfigResource(ResourceType.BROKER, str(node_id))
            assert admin.describe_configs([resource]).all().result()[resource]["broker.rack"].value == rack
        nodes = admin.describe_cluster().result().nodes
    assert [(node.id, node.rack) for node in nodes] == [(1, "a"), (2, "b")]

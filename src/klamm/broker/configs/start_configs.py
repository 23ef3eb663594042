"""Command line settings of each broker, expressed as the configs of Kafka's properties file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.server.listeners import Address

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.broker.cluster import ClusterInfo
    from klamm.broker.settings import BrokerSettings

_ROLES: Final = "broker,controller"
"""Value of ``process.roles``. Every broker id is a controller as well, because there is one process."""


def start_configs(settings: BrokerSettings, cluster: ClusterInfo) -> Mapping[int, Mapping[str, str]]:
    """Return by broker id the configs of the command line: ids, listeners with their ports, data directory."""
    return {node_id: _of_broker(settings, cluster, index) for index, node_id in enumerate(cluster.node_ids)}


def _of_broker(settings: BrokerSettings, cluster: ClusterInfo, index: int) -> Mapping[str, str]:
    node_id = cluster.node_ids[index]
    found = {
        "node.id": str(node_id),
        "broker.id": str(node_id),
        "process.roles": _ROLES,
        "log.dirs": str(settings.data_dir.absolute()),
        "listeners": ",".join(
            f"{listener.name}://{_with_port(listener.listen[index], cluster, listener.name, index)}"
            for listener in settings.listeners
        ),
    }
    if (rack := settings.racks[index]) is not None:
        found["broker.rack"] = rack
    advertised = [
        f"{listener.name}://{listener.advertise[index]}" for listener in settings.listeners if listener.advertise
    ]
    return {**found, "advertised.listeners": ",".join(advertised)} if advertised else found


def _with_port(address: Address, cluster: ClusterInfo, listener: str, index: int) -> Address:
    """Return the listen address. Port 0 is replaced by the port that was bound, as far as it is advertised."""
    return address if address.port else Address(host=address.host, port=cluster.nodes_at(listener)[index].port)

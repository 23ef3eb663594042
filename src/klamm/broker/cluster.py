"""Brokers that one process presents to clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvertisedBroker:
    """Broker id and its advertised address."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """Cluster as clients see it. One process may present several broker ids."""

    cluster_id: str
    nodes: tuple[AdvertisedBroker, ...]
    """Brokers by ascending id with their addresses of the first listener. The first broker is the controller."""
    by_listener: Mapping[str, tuple[AdvertisedBroker, ...]] = field(default_factory=dict)
    """Brokers with their addresses of each listener, by listener name."""
    leader_epoch: int = 0
    """Leader epoch of all partitions. It rises with every start after an unclean end, since records may be lost."""

    @property
    def controller_id(self) -> int:
        """Broker id to which clients send topic and config changes. Other ids accept them as well."""
        return self.nodes[0].node_id

    @property
    def node_ids(self) -> tuple[int, ...]:
        """Ids of all brokers, ascending."""
        return tuple(node.node_id for node in self.nodes)

    def nodes_at(self, listener: str) -> tuple[AdvertisedBroker, ...]:
        """Return the brokers with their addresses of a listener."""
        return self.by_listener.get(listener, self.nodes)

    def node(self, node_id: int, listener: str | None = None) -> AdvertisedBroker | None:
        """Return a broker with its address of a listener; None when the id is unknown."""
        nodes = self.nodes if listener is None else self.nodes_at(listener)
        return next((node for node in nodes if node.node_id == node_id), None)

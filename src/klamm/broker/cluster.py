"""The brokers that a process presents."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvertisedBroker:
    """One broker id and the address that clients are told for it."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """The cluster as clients see it: one process may present several broker ids."""

    cluster_id: str
    nodes: tuple[AdvertisedBroker, ...]
    """Sorted by id, with the addresses of the first listener; the first is the controller."""
    by_listener: Mapping[str, tuple[AdvertisedBroker, ...]] = field(default_factory=dict)
    """The same brokers with the addresses of each listener."""

    @property
    def controller_id(self) -> int:
        """The id that clients send topic and config changes to; any other is served as well."""
        return self.nodes[0].node_id

    @property
    def node_ids(self) -> tuple[int, ...]:
        """Ids of all brokers, ascending."""
        return tuple(node.node_id for node in self.nodes)

    def nodes_at(self, listener: str) -> tuple[AdvertisedBroker, ...]:
        """Return the brokers with their addresses at the listener that a client came through."""
        return self.by_listener.get(listener, self.nodes)

    def node(self, node_id: int, listener: str | None = None) -> AdvertisedBroker | None:
        """Return a broker by id, with its address at a listener."""
        nodes = self.nodes if listener is None else self.nodes_at(listener)
        return next((node for node in nodes if node.node_id == node_id), None)

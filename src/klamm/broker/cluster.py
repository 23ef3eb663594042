"""Brokers that one process presents to clients."""

from __future__ import annotations

import struct
from dataclasses import field
from typing import TYPE_CHECKING, Final

from klamm.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NO_LEADER: Final = -1
"""Leader of a partition that is offline: an fsync of its log failed, or all of its replicas are down."""


OFFSETS_TOPIC_PARTITIONS: Final = 50
"""``offsets.topic.num.partitions``"""


def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode``: a signed 32-bit hash of the UTF-16 units."""
    data = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for unit in struct.unpack(f">{len(data) // 2}H", data):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_for(key: str, partitions: int = OFFSETS_TOPIC_PARTITIONS) -> int:
    """Return the partition of a group id or transactional id (Kafka's ``GroupCoordinatorService.partitionFor``)."""
    value = java_hash(key)
    return (0 if value == -(1 << 31) else abs(value)) % partitions


def coordinator_for(key: str, node_ids: Sequence[int]) -> int:
    """Return the broker id that coordinates a group id or transactional id. Partitions are assigned round-robin.

    Args:
        key: Group id or transactional id.
        node_ids: Broker ids, at least one, in the same order on every broker.
    """
    return node_ids[partition_for(key) % len(node_ids)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvertisedBroker:
    """Broker id and its advertised address."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(slots=True, kw_only=True)
class ClusterInfo:
    """Cluster as clients see it. One process may present several broker ids. Used on the event loop only."""

    cluster_id: str
    nodes: tuple[AdvertisedBroker, ...]
    """All brokers by ascending id with their addresses of the first listener."""
    by_listener: Mapping[str, tuple[AdvertisedBroker, ...]] = field(default_factory=dict)
    """All brokers with their addresses of each listener, by listener name."""
    leader_epoch: int = 0
    """Leader epoch of all partitions. It rises with every start after an unclean end, since records may be lost."""
    down: frozenset[int] = frozenset()
    """Brokers that a test has stopped. Clients do not see them, and they lead and coordinate nothing."""
    moved_coordinators: dict[str, int] = field(default_factory=dict)
    """Brokers to which a test has moved the coordinator of a group id or transactional id."""

    @property
    def controller_id(self) -> int:
        """Broker id to which clients send topic and config changes. Other ids accept them as well."""
        return self.node_ids[0]

    @property
    def node_ids(self) -> tuple[int, ...]:
        """Ids of all live brokers, ascending."""
        return tuple(node.node_id for node in self._live(self.nodes))

    def nodes_at(self, listener: str) -> Sequence[AdvertisedBroker]:
        """Return the live brokers with their addresses of a listener."""
        return self._live(self.by_listener.get(listener, self.nodes))

    def node(self, node_id: int, listener: str | None = None) -> AdvertisedBroker | None:
        """Return a live broker with its address of a listener; None when there is none with this id."""
        nodes = self._live(self.nodes) if listener is None else self.nodes_at(listener)
        return next((node for node in nodes if node.node_id == node_id), None)

    def leader(self, replicas: Sequence[int]) -> int:
        """Return the broker id that leads a partition: its first live replica, NO_LEADER if none is live."""
        if not self.down:
            return replicas[0]
        return next((node_id for node_id in replicas if node_id not in self.down), NO_LEADER)

    def live_replicas(self, replicas: Sequence[int]) -> list[int]:
        """Return the replicas that are in sync: those on live brokers."""
        return [node_id for node_id in replicas if node_id not in self.down]

    def offline_replicas(self, replicas: Sequence[int]) -> list[int]:
        """Return the replicas on brokers that are down."""
        return [node_id for node_id in replicas if node_id in self.down]

    def coordinator(self, key: str) -> int:
        """Return the broker id that coordinates a group id or transactional id.

        As in Kafka, only the keys of a broker that is down move to others.
        """
        node_id = self.moved_coordinators.get(key)
        if node_id is None or node_id in self.down:
            node_id = coordinator_for(key, [node.node_id for node in self.nodes])
        return coordinator_for(key, self.node_ids) if node_id in self.down else node_id

    def _live(self, nodes: tuple[AdvertisedBroker, ...]) -> Sequence[AdvertisedBroker]:
        return [node for node in nodes if node.node_id not in self.down] if self.down else nodes

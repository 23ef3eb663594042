"""Placement of coordinators: as in Kafka, the leader of the group's partition of ``__consumer_offsets``."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from klamm.broker.groups.errors import NotCoordinatorError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.broker.cluster import ClusterInfo

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


def require_coordinator(group_id: str, node_id: int, cluster: ClusterInfo) -> None:
    """Check that a broker coordinates the group.

    Raises:
        NotCoordinatorError: Another broker coordinates the group.
    """
    if len(cluster.nodes) > 1 and cluster.coordinator(group_id) != node_id:
        raise NotCoordinatorError

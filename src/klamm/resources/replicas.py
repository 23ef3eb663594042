"""Placement of replicas when the replication factor of a partition changes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence


class NoPlacementError(ValueError):
    """The cluster has too few brokers for a replication factor."""


def new_replicas(
    replicas: Sequence[int], factor: int, racks: Mapping[int, str | None], loads: MutableMapping[int, int]
) -> tuple[int, ...]:
    """Return the replicas of a partition for a new replication factor. As few as possible move, a live leader never.

    A new replica goes to the rack with the fewest replicas of the partition, there to the broker with the lowest load.
    Replicas are removed from brokers that are not alive first, even from the preferred leader: the others may have
    records that it lacks. Then they are removed from the rack with the most of them, there from the broker with the
    highest load.

    Args:
        replicas: Present replicas, the preferred leader first.
        factor: New number of replicas.
        racks: Racks of all live brokers by id. None: the broker has no rack.
        loads: Number of replicas by broker. It is updated, so that the next partition goes elsewhere.

    Raises:
        NoPlacementError: There are fewer brokers than the factor.
    """
    if factor > len(racks):
        raise NoPlacementError(f"expected at most {len(racks)}, the number of brokers in the cluster")
    result = list(replicas)
    while len(result) < factor:
        used = Counter(racks.get(broker) for broker in result)
        free = [broker for broker in racks if broker not in result]
        broker = min(free, key=lambda candidate: (used[racks[candidate]], loads[candidate], candidate))
        loads[broker] += 1
        result.append(broker)
    while len(result) > factor:
        used = Counter(racks.get(broker) for broker in result)
        dead = [broker for broker in result[1:] if broker not in racks]
        removable = dead or (result[1:] if result[0] in racks else result[:1])
        broker = max(removable, key=lambda candidate: (used[racks.get(candidate)], loads.get(candidate, 0), candidate))
        loads[broker] = loads.get(broker, 1) - 1
        result.remove(broker)
    return tuple(result)

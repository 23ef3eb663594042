"""Throttle of reassignments (KIP-73): its configs are set before replicas move, and removed after the last one."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from klamm.admin import AlterConfigOp, ConfigEntry, ConfigResource, ConfigSource, OpType
from klamm.protocol.types import ResourceType
from klamm.resources.model import THROTTLED_RATES, THROTTLED_REPLICAS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from klamm.admin import AdminClient, TopicPartition

POLL_INTERVAL_S: Final = 1.0
_LEADERS, _FOLLOWERS = THROTTLED_REPLICAS


class MoveThrottle:
    """Limit of the replication traffic of moved replicas. What others have throttled stays as it is.

    Args:
        admin: Connection to the cluster.
        bytes_per_s: Limit of each broker, for both directions.
    """

    def __init__(self, admin: AdminClient, bytes_per_s: int) -> None:
        self._admin = admin
        self._rate = str(bytes_per_s)
        self._brokers: dict[ConfigResource, list[str]] = {}
        """Rates that this throttle has set."""
        self._topics: dict[ConfigResource, dict[str, str]] = {}
        """Elements of lists that this throttle has added."""

    def begin(self, moves: Mapping[TopicPartition, tuple[Sequence[int], Sequence[int]]]) -> None:
        """Set the throttle for some partitions more.

        Args:
            moves: Present and new replicas of each partition.
        """
        if not moves:
            return
        leaders: dict[str, list[str]] = defaultdict(list)
        followers: dict[str, list[str]] = defaultdict(list)
        for partition, (old, new) in moves.items():
            leaders[partition.topic] += [f"{partition.partition}:{broker}" for broker in old]
            added = [broker for broker in new if broker not in old]
            followers[partition.topic] += [f"{partition.partition}:{broker}" for broker in added]
        for topic, old_replicas in leaders.items():
            lists = {_LEADERS: ",".join(old_replicas), _FOLLOWERS: ",".join(followers[topic])}
            before = self._topics.get(_topic(topic), {})
            self._topics[_topic(topic)] = {
                name: ",".join(filter(None, (before.get(name), text))) for name, text in lists.items() if text
            }
        brokers = {
            ConfigResource(ResourceType.BROKER, str(broker)) for both in moves.values() for b in both for broker in b
        }
        described = self._admin.describe_configs(dict.fromkeys(sorted(brokers), THROTTLED_RATES)).result()
        for resource, entries in described.items():
            others = {
                name
                for name, entry in entries.items()
                if entry.source is ConfigSource.DYNAMIC_BROKER_CONFIG and entry.value != self._rate
            }
            self._brokers[resource] = [name for name in THROTTLED_RATES if name not in others]
        self._alter(
            {
                **{r: _operations(OpType.SET, dict.fromkeys(names, self._rate)) for r, names in self._brokers.items()},
                **{r: _operations(OpType.APPEND, lists) for r, lists in self._topics.items()},
            }
        )

    def end(self) -> None:
        """Remove what ``begin`` has set."""
        self._alter(
            {
                **{r: _operations(OpType.DELETE, dict.fromkeys(names)) for r, names in self._brokers.items()},
                **{r: _operations(OpType.SUBTRACT, lists) for r, lists in self._topics.items()},
            }
        )

    def _alter(self, operations: Mapping[ConfigResource, list[AlterConfigOp]]) -> None:
        due = {resource: changes for resource, changes in operations.items() if changes}
        if due:
            self._admin.incremental_alter_configs(due).result()


def wait_for_moves(admin: AdminClient, partitions: Collection[TopicPartition], report: Callable[[int], None]) -> None:
    """Return when no partition is being reassigned any more.

    Args:
        admin: Connection to the cluster.
        partitions: Partitions whose replicas move.
        report: Called with the number of partitions that still move, whenever it changes.
    """
    last = 0
    while partitions and (left := len(admin.list_partition_reassignments(partitions).result())):
        if left != last:
            report(left)
        last = left
        time.sleep(POLL_INTERVAL_S)


def moves_in_progress(
    admin: AdminClient, topics: Collection[str]
) -> dict[TopicPartition, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return replicas before and after the reassignments in progress of topics, as after an interrupted run."""
    moving = admin.list_partition_reassignments(None).result()
    return {
        partition: (
            tuple(broker for broker in move.replicas if broker not in move.adding_replicas),
            tuple(broker for broker in move.replicas if broker not in move.removing_replicas),
        )
        for partition, move in moving.items()
        if partition.topic in topics
    }


def _topic(name: str) -> ConfigResource:
    return ConfigResource(ResourceType.TOPIC, name)


def _operations(op_type: OpType, values: Mapping[str, str | None]) -> list[AlterConfigOp]:
    return [AlterConfigOp(ConfigEntry(name, value), op_type) for name, value in values.items()]

"""Throttle of reassignments (KIP-73): its configs are set before replicas move, and removed after the last one."""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from klamm.admin import AlterConfigOp, ConfigEntry, ConfigResource, ConfigSource, OpType
from klamm.display import counted
from klamm.kafka_client.errors import FATAL_ERRORS, explain
from klamm.protocol.errors import UnknownTopicOrPartitionError
from klamm.protocol.types import ResourceType
from klamm.resources.model import THROTTLED_RATES, THROTTLED_REPLICAS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from klamm.admin import AdminClient, TopicPartition

POLL_INTERVAL_S: Final = 1.0
_LEADERS, _FOLLOWERS = THROTTLED_REPLICAS
_RATE_OF: Final = dict(zip(THROTTLED_REPLICAS, THROTTLED_RATES, strict=True))
"""Rate of brokers that applies to the replicas in a list of a topic."""


class MoveThrottle:
    """Limit of the replication traffic of moved replicas. What others have throttled stays as it is.

    Kafka does not record who has set a throttle. One with the same rate is regarded as that of an interrupted run, one
    with another rate as somebody else's.

    Args:
        admin: Connection to the cluster.
        bytes_per_s: Limit of each broker, for both directions.
    """

    def __init__(self, admin: AdminClient, bytes_per_s: int) -> None:
        self._admin = admin
        self._rate = str(bytes_per_s)
        self._replicas: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        """Elements ``partition:broker`` of the lists of each topic that this throttle removes at its end."""
        self._brokers: set[int] = set()
        """Brokers of moved replicas, and those with a rate of an earlier run: an interruption may leave only that."""

    def take_over(self, topics: Collection[str]) -> None:
        """Adopt the throttle of an earlier run that was interrupted, even if its replicas have moved since then."""
        rates = self._rates()
        self._brokers = {broker for broker, own in rates.items() if self._rate in own.values()}
        for topic, lists in self._lists(topics).items():
            for name, replicas in lists.items():
                ours = {replica for replica in replicas if self._rate_of(rates, name, replica) == self._rate}
                self._replicas[topic][name] |= ours

    def begin(self, moves: Mapping[TopicPartition, tuple[Sequence[int], Sequence[int]]]) -> None:
        """Set the throttle for some partitions more.

        Args:
            moves: Present and new replicas of each partition.
        """
        if not moves:
            return
        wanted: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for partition, (old, new) in moves.items():
            wanted[partition.topic][_LEADERS] |= {f"{partition.partition}:{broker}" for broker in old}
            wanted[partition.topic][_FOLLOWERS] |= {f"{partition.partition}:{b}" for b in new if b not in old}
        rates, present = self._rates(), self._lists(wanted)
        involved = {broker for both in moves.values() for brokers in both for broker in brokers} & rates.keys()
        self._brokers |= involved
        operations = {
            _broker(broker): [_operation(OpType.SET, name, self._rate) for name in THROTTLED_RATES if name not in own]
            for broker, own in rates.items()
            if broker in involved
        }
        for topic, lists in wanted.items():
            ours = self._replicas[topic]
            # "*" throttles all replicas of the topic already, and Kafka allows no other element beside it.
            open_lists = {name: replicas for name, replicas in lists.items() if "*" not in present[topic][name]}
            for name, replicas in open_lists.items():
                theirs = {r for r in present[topic][name] if self._rate_of(rates, name, r) not in (None, self._rate)}
                ours[name] |= replicas - theirs
            operations[_topic(topic)] = _list_operations(OpType.APPEND, {name: ours[name] for name in open_lists})
        self._alter(operations)

    def end(self) -> None:
        """Remove the throttle. The rate of a broker stays while another topic has throttled replicas on it."""
        self._alter({_topic(t): _list_operations(OpType.SUBTRACT, lists) for t, lists in self._replicas.items()})
        ours = self._brokers.union(
            int(r.partition(":")[2]) for lists in self._replicas.values() for rs in lists.values() for r in rs
        )
        others = (
            self._lists(set(self._admin.list_topics(include_internal=True).result()) - self._replicas.keys())
            if ours
            else {}
        )
        operations = {}
        for broker, own in self._rates().items():
            due = [
                name
                for lists_name, name in _RATE_OF.items()
                if own.get(name) == self._rate
                and broker in ours
                and not any(_concerns(broker, lists[lists_name]) for lists in others.values())
            ]
            operations[_broker(broker)] = [_operation(OpType.DELETE, name, None) for name in due]
        self._alter(operations)
        self._replicas.clear()
        self._brokers.clear()

    def _rate_of(self, rates: Mapping[int, Mapping[str, str]], name: str, replica: str) -> str | None:
        """Return the rate of the broker of a replica in a list."""
        broker = replica.partition(":")[2]
        return rates.get(int(broker), {}).get(_RATE_OF[name]) if broker.isdecimal() else None

    def _rates(self) -> dict[int, dict[str, str]]:
        """Return the rates that are set on the live brokers themselves."""
        brokers = {_broker(node.id): THROTTLED_RATES for node in self._admin.describe_cluster().result().nodes}
        return {
            int(resource.name): {
                name: entry.value
                for name, entry in entries.items()
                if entry.source is ConfigSource.DYNAMIC_BROKER_CONFIG and entry.value is not None
            }
            for resource, entries in self._admin.describe_configs(brokers, is_current=True).result().items()
        }

    def _lists(self, topics: Collection[str]) -> dict[str, dict[str, set[str]]]:
        """Return the throttled replicas of topics by list. Topics that are deleted meanwhile have none."""
        names = dict.fromkeys(map(_topic, topics), THROTTLED_REPLICAS)
        described = self._admin.describe_configs(names, is_current=True).values()
        present: dict[str, dict[str, set[str]]] = {
            topic: {name: set() for name in THROTTLED_REPLICAS} for topic in topics
        }
        for resource, outcome in described.items():
            if outcome.exception() is None:
                for name, entry in outcome.result().items():
                    present[resource.name][name] = set(filter(None, (entry.value or "").split(",")))
        return present

    def _alter(self, operations: Mapping[ConfigResource, list[AlterConfigOp]]) -> None:
        due = {resource: changes for resource, changes in operations.items() if changes}
        for outcome in self._admin.incremental_alter_configs(due).values().values() if due else ():
            with suppress(UnknownTopicOrPartitionError):  # the topic was deleted while its replicas moved
                outcome.result()


def wait_for_moves(admin: AdminClient, partitions: Collection[TopicPartition], report: Callable[[str], None]) -> None:
    """Return when no partition is being reassigned any more. The wait continues after an outage of the cluster.

    Args:
        admin: Connection to the cluster.
        partitions: Partitions whose replicas move.
        report: Called with the progress as a sentence, whenever it changes.
    """
    last = ""
    while partitions:
        try:
            left = len(admin.list_partition_reassignments(partitions).result())
        except (ConnectionError, TimeoutError) as error:
            if isinstance(error, FATAL_ERRORS):
                raise
            state = f"The moves of replicas cannot be read, retrying: {explain(error)}"
        else:
            if not left:
                return
            state = f"Replicas of {counted(left, 'partition')} are moving."
        if state != last:
            report(state)
        last = state
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


def _broker(broker: int) -> ConfigResource:
    return ConfigResource(ResourceType.BROKER, str(broker))


def _concerns(broker: int, replicas: Collection[str]) -> bool:
    return any(replica == "*" or replica.partition(":")[2] == str(broker) for replica in replicas)


def _operation(op_type: OpType, name: str, value: str | None) -> AlterConfigOp:
    return AlterConfigOp(ConfigEntry(name, value), op_type)


def _list_operations(op_type: OpType, lists: Mapping[str, Collection[str]]) -> list[AlterConfigOp]:
    return [_operation(op_type, name, ",".join(sorted(replicas))) for name, replicas in lists.items() if replicas]

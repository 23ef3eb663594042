"""Output of ``klamm topics --describe``: the lines of Kafka's tool, or a document."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from klamm.admin import TopicPartition
from klamm.cli.topics.names import format_topic_id
from klamm.display import escaped
from klamm.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from klamm.admin import ConfigEntry, PartitionDescription, PartitionReassignment, TopicDescription

MIN_INSYNC_REPLICAS = "min.insync.replicas"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicReport:
    """The topics and partitions to show according to the flags."""

    live_brokers: Collection[int]
    reassignments: Mapping[TopicPartition, PartitionReassignment] = field(default_factory=dict)
    """Ongoing reassignments."""
    with_overrides: bool = False
    under_replicated: bool = False
    unavailable: bool = False
    under_min_isr: bool = False
    at_min_isr: bool = False

    @property
    def is_of_partitions(self) -> bool:
        """Return whether the flags select partitions, so that topic lines are omitted."""
        return self.under_replicated or self.unavailable or self.under_min_isr or self.at_min_isr

    def moves_of(self, topic: str, partition: PartitionDescription) -> PartitionReassignment | None:
        """Return the ongoing reassignment of a partition."""
        return self.reassignments.get(TopicPartition(topic, partition.partition))

    def factor_of(self, topic: str, partition: PartitionDescription) -> int:
        """Return the number of replicas of a partition, without those that a reassignment adds."""
        moves = self.moves_of(topic, partition)
        replicas = set(partition.replicas)
        if moves is None or not (replicas & {*moves.adding_replicas, *moves.removing_replicas}):
            return len(partition.replicas)
        return len(moves.replicas) - len(moves.adding_replicas)

    def shows_topic(self, overrides: Mapping[str, str | None]) -> bool:
        """Return whether the line of a topic is shown."""
        return not self.is_of_partitions and bool(overrides or not self.with_overrides)

    def shows_partition(self, topic: str, partition: PartitionDescription, configs: Mapping[str, ConfigEntry]) -> bool:
        """Return whether the line of a partition is shown."""
        if self.with_overrides or not self.is_of_partitions:
            return not self.with_overrides
        in_sync = len(partition.isr)
        if self.under_replicated:
            return self.factor_of(topic, partition) > in_sync
        if self.unavailable:
            return partition.leader < 0 or partition.leader not in self.live_brokers
        minimum = int(configs[MIN_INSYNC_REPLICAS].value or 1)
        if self.under_min_isr:
            return partition.leader < 0 or in_sync < minimum
        return in_sync == minimum


def overrides_of(configs: Mapping[str, ConfigEntry]) -> dict[str, str | None]:
    """Return the configs that are set at any level, including the broker's properties, in the order of Kafka's tool."""
    return {name: configs[name].value for name in _in_java_order(configs) if not configs[name].is_default}


def _in_java_order(names: Collection[str]) -> list[str]:
    """Return names in the iteration order of a Java HashMap that grew to hold them."""
    buckets = 16
    while len(names) > buckets * 3 // 4:
        buckets *= 2

    def bucket(name: str) -> int:
        code = 0
        for character in name:
            code = (31 * code + ord(character)) & 0xFFFFFFFF
        return (code ^ (code >> 16)) & (buckets - 1)

    return sorted(names, key=bucket)


def lines(topic: TopicDescription, configs: Mapping[str, ConfigEntry], report: TopicReport) -> Iterator[str]:
    """Return the lines for one topic in the format of Kafka's tool."""
    overrides = overrides_of(configs)
    if report.shows_topic(overrides):
        parts = [f"Topic: {topic.name}"]
        if topic.topic_id.int:
            parts.append(f"TopicId: {format_topic_id(topic.topic_id)}")
        parts += [
            f"PartitionCount: {len(topic.partitions)}",
            f"ReplicationFactor: {_factor(topic, report)}",
            f"Configs: {','.join(f'{name}={_text(value)}' for name, value in overrides.items())}",
        ]
        yield "\t".join(parts)
    for partition in topic.partitions:
        if report.shows_partition(topic.name, partition, configs):
            yield _partition_line(topic.name, partition, report.moves_of(topic.name, partition))


def _factor(topic: TopicDescription, report: TopicReport) -> int:
    return report.factor_of(topic.name, topic.partitions[0]) if topic.partitions else 0


def _partition_line(topic: str, partition: PartitionDescription, moves: PartitionReassignment | None) -> str:
    moving = moves and (
        f"Adding Replicas: {_listed(moves.adding_replicas)}",
        f"Removing Replicas: {_listed(moves.removing_replicas)}",
    )
    parts = (
        "",
        f"Topic: {topic}",
        f"Partition: {partition.partition}",
        f"Leader: {partition.leader if partition.leader >= 0 else 'none'}",
        f"Replicas: {_listed(partition.replicas)}",
        f"Isr: {_listed(partition.isr)}",
        *(moving or ()),
        f"Elr: {_listed(partition.eligible_leader_replicas)}",
        f"LastKnownElr: {_listed(partition.last_known_elr)}",
    )
    return "\t".join(parts)


def _listed(brokers: tuple[int, ...] | None) -> str:
    return "N/A" if brokers is None else ",".join(map(str, brokers))


def _text(value: str | None) -> str:
    return "null" if value is None else escaped(value)


def document(topic: TopicDescription, configs: Mapping[str, ConfigEntry], report: TopicReport) -> dict[str, Any] | None:
    """Return one topic for JSON or YAML output, or None if no part of it is shown."""
    overrides = overrides_of(configs)
    partitions = [
        {
            "partition": partition.partition,
            "leader": partition.leader if partition.leader >= 0 else None,
            "replicas": list(partition.replicas),
            "isr": list(partition.isr),
            "eligible_leader_replicas": list(partition.eligible_leader_replicas or ()),
            "last_known_elr": list(partition.last_known_elr or ()),
            "adding_replicas": list(moves.adding_replicas if (moves := report.moves_of(topic.name, partition)) else ()),
            "removing_replicas": list(moves.removing_replicas if moves else ()),
        }
        for partition in topic.partitions
        if report.shows_partition(topic.name, partition, configs)
    ]
    if not report.shows_topic(overrides) and not partitions:
        return None
    return {
        "topic": topic.name,
        "topic_id": format_topic_id(topic.topic_id) if topic.topic_id.int else None,
        "partition_count": len(topic.partitions),
        "replication_factor": _factor(topic, report),
        "configs": overrides,
        "partitions": partitions,
    }

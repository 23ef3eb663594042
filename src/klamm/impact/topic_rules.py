"""Predictions for added partitions, deleted topics and deleted records."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from klamm.impact.findings import Finding, ImpactLevel, Names, counted, percent
from klamm.impact.records import active_producers, readers, removal, unread, whole_log

if TYPE_CHECKING:
    from collections.abc import Iterator

    from klamm.impact.changes import PartitionsAdded, RecordsDeleted, ReplicationFactorAltered, TopicDeleted
    from klamm.impact.facts import ClusterFacts, ObservedTopic

_STREAMS_TOPIC: Final = re.compile(r"(.+?)-[^-].*-(repartition|changelog)")
_DEFAULT_PARTITIONER_PERCENT: Final = 90
"""Share of sampled keys in the partition of Kafka's default partitioner from which it counts as in use."""


def partitions_added(change: PartitionsAdded, facts: ClusterFacts) -> Iterator[Finding]:
    """Predict keys that move, groups that rebalance, and Kafka Streams applications that stop."""
    topic = facts.topics.get(change.topic)
    if topic is None or change.total_count <= len(topic.partitions):
        return
    resource = f"topic {topic.name}"
    apps = _streams_applications(topic, facts)
    if apps.count:
        yield Finding(
            kind="streams_partitions",
            level=ImpactLevel.DISRUPTION,
            resource=resource,
            message=f"Kafka Streams applications ({apps}) fail when the number of partitions differs from that of their"
            " repartition and changelog topics. Reset them or create a new topic instead.",
            names={"applications": apps},
        )
    yield from _moved_keys(topic, change.total_count, resource)
    if (groups := readers(topic, facts.groups, only_active=True)).count:
        yield Finding(
            kind="groups_rebalance",
            level=ImpactLevel.NOTICE,
            resource=resource,
            message=f"{counted(groups.count, 'active group')} ({groups}) will rebalance. With auto.offset.reset=latest"
            " they skip records produced to the new partitions before they discover them.",
            names={"groups": groups},
        )


def replication_factor_altered(change: ReplicationFactorAltered, _: ClusterFacts) -> Iterator[Finding]:
    """Predict records with fewer replicas. Added ones only take time and disk."""
    if change.factor < change.factor_before:
        yield Finding(
            kind="replicas_removed",
            level=ImpactLevel.DISRUPTION,
            resource=f"topic {change.topic}",
            message=f"each partition keeps {change.factor} of {change.factor_before} replicas: when {change.factor} of"
            " its brokers fail, it cannot be used and its newest records may be lost.",
            figures={"factor": change.factor, "factor_before": change.factor_before},
        )


def _streams_applications(topic: ObservedTopic, facts: ClusterFacts) -> Names:
    own = _STREAMS_TOPIC.fullmatch(topic.name)
    if own is not None:
        return Names.of([own[1]])
    internal = [name for name in facts.topic_names if name.endswith(("-repartition", "-changelog"))]
    groups = readers(topic, facts.groups)
    return Names.of(g for g in groups.first if any(name.startswith(f"{g}-") for name in internal))


def _moved_keys(topic: ObservedTopic, total_count: int, resource: str) -> Iterator[Finding]:
    count = len(topic.partitions)
    places = [
        (key, partition.partition)
        for partition in topic.partitions
        for batch in partition.newest_batches or ()
        for key in batch.keys
        if key is not None
    ]
    if not places:
        return
    keys = {key for key, _ in places}
    by_default = percent(sum(key % count == partition for key, partition in places), len(places))
    moved = {key for key in keys if key % count != key % total_count}
    if by_default < _DEFAULT_PARTITIONER_PERCENT:
        text = "its records have keys, placed by another partitioner than Kafka's default: keys may move"
        moved = keys
    else:
        text = f"{percent(len(moved), len(keys))} % of {counted(len(keys), 'sampled key')} move to another partition"
    yield Finding(
        kind="keys_move",
        level=ImpactLevel.DISRUPTION,
        resource=resource,
        message=f"{text}, so that the order of their records is lost across the change.",
        figures={"sampled_keys": len(keys), "moved_keys_percent": percent(len(moved), len(keys))},
    )


def topic_deleted(change: TopicDeleted, facts: ClusterFacts) -> Iterator[Finding]:
    """Predict the records that go with a topic, and the clients that use it."""
    topic = facts.topics.get(change.topic)
    if topic is None:
        return
    resource = f"topic {topic.name}"
    going = removal(topic, {p.partition: whole_log(p) for p in topic.partitions}, _all_bytes(topic))
    if going is not None:
        text, parts = unread(topic, going.new_starts, facts)
        yield Finding(
            kind="records_deleted",
            level=ImpactLevel.LOSS,
            resource=resource,
            message=f"{going.text} are deleted with the topic.{text}",
            figures={**going.figures, **parts["figures"]},
            names={"topics": Names.of([topic.name]), **parts["names"]},
        )
    users = {
        "groups": readers(topic, facts.groups),
        "producers": active_producers(topic, facts.now_ms),
        "mirrors": readers(topic, facts.mirrors),
    }
    if any(names.count for names in users.values()):
        listed = "; ".join(f"{counted(n.count, kind[:-1])}: {n}" for kind, n in users.items() if n.count)
        active = users["producers"].count or readers(topic, facts.groups, only_active=True).count
        yield Finding(
            kind="topic_in_use",
            level=ImpactLevel.DISRUPTION if active else ImpactLevel.NOTICE,
            resource=resource,
            message=f"the topic is in use ({listed}). Producers without idempotence are not visible.",
            names={kind: names for kind, names in users.items() if names.count},
        )


def _all_bytes(topic: ObservedTopic) -> int:
    return sum(p.size or 0 for p in topic.partitions if p.record_count)


def records_deleted(change: RecordsDeleted, facts: ClusterFacts) -> Iterator[Finding]:
    """Predict the records that DeleteRecords hides at once; whole segments before the offset are deleted later."""
    topic = facts.topics.get(change.topic)
    partition = None if topic is None else next((p for p in topic.partitions if p.partition == change.partition), None)
    if topic is None or partition is None:
        return
    start = partition.end_offset if change.before_offset < 0 else change.before_offset
    going = removal(topic, {change.partition: (start, partition.bytes_before(start))}, 0)
    if going is None:
        return
    text, parts = unread(topic, going.new_starts, facts)
    yield Finding(
        kind="records_deleted",
        level=ImpactLevel.LOSS,
        resource=f"topic {topic.name}",
        message=f"{going.text} before offset {start} of partition {change.partition} are no longer readable.{text}",
        figures={**going.figures, **parts["figures"]},
        names={"topics": Names.of([topic.name]), **parts["names"]},
    )

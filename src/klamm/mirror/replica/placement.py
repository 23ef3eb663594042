"""Creation and placement of the remote partitions that klamm leads as a broker without storage.

A partition passes through these states. In all of them but the last one klamm is the only in-sync replica, so the
target never elects a broker whose log is shorter than the source.

========  ==================  =======  ================================================================================
State     Replicas            ISR      Entered by
========  ==================  =======  ================================================================================
created   klamm               klamm    CreateTopics with klamm as the only replica. The configs are set by the same
                                       request, because the brokers apply retention and compaction.
added     klamm, fenced       klamm    CreatePartitions with as many replicas as the first partition has, see
          brokers                      ``fenced_brokers``. It is created once it is reassigned to klamm alone.
spread    brokers, klamm      klamm    AlterPartitionReassignments to the brokers. The brokers fetch, and the
                                       reassignment stays in progress: only the leader, klamm, can complete it.
handed    brokers             brokers  AlterPartition of klamm with all brokers as in-sync replicas (promotion).
over                                   ``demotion`` leads back to "spread", with klamm as the first replica in between.
========  ==================  =======  ================================================================================

A process that dies between these steps leaves partitions that are not spread. ``unspread`` finds them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from klamm.admin import TopicPartition
from klamm.kraft.image import NO_LEADER
from klamm.kraft.registration import MIN_MOMENTARY_ID
from klamm.mirror.cluster_admin import create_partitions, create_topics, outcomes, rejections
from klamm.protocol.errors import InvalidReplicationFactorError, UnknownTopicOrPartitionError
from klamm.protocol.partitioner import murmur2

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from klamm.admin import AdminClient, KafkaApiError, NewTopic, Node, PartitionDescription, TopicDescription

_SAFE_CONFIGS: Final = {"unclean.leader.election.enable": "false"}
"""Configs of every remote topic: without klamm, no broker with a shorter log becomes leader."""


def create(admin: AdminClient, topics: Iterable[NewTopic], node_id: int) -> dict[str, KafkaApiError | None]:
    """Create remote topics with klamm as the only replica.

    Args:
        admin: Admin client of the target.
        topics: Topics with their numbers of partitions and configs.
        node_id: Node id of klamm.

    Returns:
        The error of each topic. None: it was created.
    """
    return create_topics(admin, [_led_by(topic, node_id) for topic in topics])


def _led_by(topic: NewTopic, node_id: int) -> NewTopic:
    return replace(
        topic,
        num_partitions=-1,
        replication_factor=-1,
        configs={**topic.configs, **_SAFE_CONFIGS},
        replicas_assignments=dict.fromkeys(range(topic.num_partitions), (node_id,)),
    )


def add(
    admin: AdminClient, added: Mapping[str, range], replicas: Mapping[str, tuple[int, ...]]
) -> dict[str, KafkaApiError | None]:
    """Add partitions to remote topics.

    Args:
        admin: Admin client of the target.
        added: Numbers of the new partitions by topic.
        replicas: Replicas of each new partition by topic: klamm, then brokers that are not live.

    Returns:
        The error of each topic. None: it has grown.
    """
    counts = {name: indexes.stop for name, indexes in added.items()}
    assignments = {name: (replicas[name],) * len(indexes) for name, indexes in added.items()}
    return create_partitions(admin, counts, assignments=assignments)


def let_be_alone(admin: AdminClient, partitions: Iterable[TopicPartition], node_id: int) -> None:
    """Let klamm be the only replica of partitions that it leads. That is complete at once: klamm is in sync."""
    if wanted := dict.fromkeys(partitions, (node_id,)):
        admin.alter_partition_reassignments(wanted).all().result()


def unspread(topics: Iterable[TopicDescription], node_id: int, width: int = 1) -> list[TopicPartition]:
    """Return the partitions that no broker with storage replicates yet. In the others klamm is the last replica.

    Those that klamm takes back from brokers (``demotion``) are left out.

    Args:
        topics: Remote topics.
        node_id: Node id of klamm.
        width: Fewest replicas of these partitions. 2: only those beside fenced brokers.
    """
    return [
        TopicPartition(topic.name, partition.partition)
        for topic in topics
        for partition in topic.partitions
        if partition.replicas[0] == node_id
        and len(partition.replicas) >= width
        and all(each >= MIN_MOMENTARY_ID for each in partition.replicas[1:])
    ]


def cancelled(admin: AdminClient, topics: Iterable[TopicDescription], node_id: int) -> dict[TopicPartition, list[int]]:
    """Return the partitions beside whose brokers klamm is the only in-sync replica, without a reassignment to them.

    An operator has cancelled it. Partitions that klamm takes back (``demotion``) pass through this state, too.

    Returns:
        The brokers of each partition.

    Raises:
        ConnectionError, TimeoutError, KafkaApiError: The target does not respond, or rejects the request.
    """
    alone = {
        TopicPartition(topic.name, partition.partition): [each for each in partition.replicas if each != node_id]
        for topic in topics
        for partition in topic.partitions
        if partition.leader == node_id
        and partition.isr == (node_id,)
        and any(each < MIN_MOMENTARY_ID for each in partition.replicas if each != node_id)
    }
    leaving = removing(admin, node_id) if alone else frozenset()
    return {partition: brokers for partition, brokers in alone.items() if partition not in leaving}


def removing(admin: AdminClient, node_id: int) -> frozenset[TopicPartition]:
    """Return the partitions from which reassignments in progress remove klamm."""
    moving = admin.list_partition_reassignments().result()
    return frozenset(partition for partition, each in moving.items() if node_id in each.removing_replicas)


def led_by_brokers(admin: AdminClient, topics: Collection[str], node_id: int) -> frozenset[str]:
    """Return the topics that have a partition that a broker leads, or without klamm. Missing topics are left out.

    Args:
        admin: Admin client of the target.
        topics: Remote topics.
        node_id: Node id of klamm.

    Raises:
        ConnectionError, TimeoutError, KafkaApiError: The target does not respond, or does not describe a topic.
    """
    return frozenset(
        topic.name
        for topic in _described(admin, topics)
        if any(is_led_by_broker(partition, node_id) for partition in topic.partitions)
    )


def is_led_by_broker(partition: PartitionDescription, node_id: int) -> bool:
    """Return whether a partition was handed over: a broker leads it, or klamm is none of its replicas."""
    return node_id not in partition.replicas or partition.leader not in {node_id, NO_LEADER}


def not_mirrored(admin: AdminClient, topics: Collection[str], node_id: int) -> frozenset[str]:
    """Return the topics with a partition in which a broker is in sync or no reassignment to the brokers is in progress.

    klamm handed it over, or takes it back. Arguments and errors are those of ``led_by_brokers``.
    """
    described = _described(admin, topics)
    leaving = removing(admin, node_id) if described else frozenset()
    return frozenset(
        topic.name
        for topic in described
        for partition in topic.partitions
        if partition.replicas != (node_id,)
        and (partition.isr != (node_id,) or TopicPartition(topic.name, partition.partition) not in leaving)
    )


def _described(admin: AdminClient, topics: Collection[str]) -> list[TopicDescription]:
    described = outcomes(admin.describe_topics(sorted(topics))).values() if topics else ()
    out = []
    for topic in described:
        if isinstance(topic, UnknownTopicOrPartitionError):
            continue
        if isinstance(topic, Exception):
            raise topic
        out.append(topic)
    return out


def spread(
    admin: AdminClient, partitions: Collection[TopicPartition], brokers: Sequence[Node], replication_factor: int
) -> dict[TopicPartition, KafkaApiError | None]:
    """Let brokers replicate partitions that klamm leads.

    Args:
        admin: Admin client of the target.
        partitions: Partitions.
        brokers: Live brokers that store data: klamm is not one of them, nor is another klamm.
        replication_factor: Number of brokers for each partition, at least 1.

    Raises:
        InvalidReplicationFactorError: There are fewer brokers.
    """
    placed = {each: replicas(each, brokers, replication_factor) for each in partitions}
    return rejections(admin.alter_partition_reassignments(placed)) if placed else {}


def replicas(partition: TopicPartition, brokers: Sequence[Node], replication_factor: int) -> tuple[int, ...]:
    """Return the brokers of a partition, the preferred leader first: in different racks if there are enough racks.

    The first broker depends on the name of the topic and moves on with each partition, so leaders are spread evenly.

    Raises:
        InvalidReplicationFactorError: There are fewer brokers.
    """
    if not 0 < replication_factor <= len(brokers):
        raise InvalidReplicationFactorError(
            f"{partition.topic}: {replication_factor} replicas: the target has {len(brokers)} live brokers with storage"
        )
    order = _by_rack_in_turn(brokers)
    first = murmur2(partition.topic.encode()) + partition.partition
    return tuple(order[(first + at) % len(order)] for at in range(replication_factor))


def _by_rack_in_turn(brokers: Sequence[Node]) -> list[int]:
    """Return the node ids of the brokers, one of each rack in turn."""
    racks: dict[str | None, list[int]] = defaultdict(list)
    for broker in sorted(brokers, key=lambda each: each.id):
        racks[broker.rack].append(broker.id)
    rounds = zip_longest(*racks.values())
    return [node_id for each in rounds for node_id in each if node_id is not None]

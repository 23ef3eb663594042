"""Creation and growth of remote topics that klamm leads as a broker of the target."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from klamm.admin import ConfigResource, KafkaApiError, ResourceType, TopicPartition
from klamm.kafka_client.errors import ConnectionLostError, error_text
from klamm.kraft.image import NO_LEADER
from klamm.mirror.cluster_admin import outcome, outcomes, rejections
from klamm.mirror.copy.settings import replica_settings
from klamm.mirror.progress.flow_progress import FlowFailedError
from klamm.mirror.records.worker_offsets import mirrored_topics
from klamm.mirror.replica import placement
from klamm.mirror.replica.fenced_brokers import fenced_brokers
from klamm.mirror.replica.obstacles import connected, target_obstacle
from klamm.mirror.replica.target_nodes import target_nodes
from klamm.mirror.topics.remote_topics import NoPartitionsYetError, RemoteTopics
from klamm.protocol.errors import (
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from klamm.admin import AdminClient, ConfigEntry, NewTopic, Node, TopicDescription
    from klamm.mirror.replica.target_nodes import TargetNodes
    from klamm.mirror.settings.flow import FlowSettings
    from klamm.mirror.topics.remote_topics import Outcomes


_MISPLACED: Final = "the cluster has placed partitions of it on broker {}, which stores nothing"
_MOVED: Final = "they are moved away, and have one replica less until they are reassigned"
_EMPTY: Final = "no other broker has them, so they are empty: delete the topic and create it again"


class ReplicaTopics(RemoteTopics):
    """Remote topics that klamm leads as a broker of the target.

    They are created with klamm as the only replica, then reassigned to brokers with storage (``replica.placement``).

    Args:
        settings: Settings of the flow.
        target: Admin client of the target.
        node_id: Broker id of klamm.
    """

    def __init__(self, settings: FlowSettings, target: AdminClient, node_id: int) -> None:
        super().__init__(target)
        self._settings = settings
        self._alias = settings.target.alias
        self._factor = settings.replication_factor
        self._node_id = node_id
        self._replica = replica_settings(settings)

    def check_supported(self) -> None:
        """Check that klamm may be a broker with its id, and that other topics can be kept away from it."""
        if reason := target_obstacle(self._settings):
            raise FlowFailedError(reason)

    def check_joined(self) -> None:
        """Check that klamm is a live broker of the target."""
        if all(node.id != self._node_id for node in self._nodes()):
            raise ConnectionLostError(
                f"broker {self._node_id} is not in cluster {self._alias} yet: it joins when a task of Spark has started"
            )

    def place(self, topic: NewTopic) -> NewTopic:
        """Return an internal topic with brokers with storage, because a klamm may accept partitions at this moment.

        Counts of -1 are the target's defaults, but the replicas are at most as many as these brokers. The topic stays
        as it is if the principal lacks DESCRIBE_CONFIGS on the cluster, which the defaults need.
        """
        brokers, count, factor = self._brokers(), topic.num_partitions, topic.replication_factor
        if min(count, factor) < 0:
            configs = self._broker_configs(brokers)
            if configs is None:
                return topic
            if count < 0:
                count = int(configs["num.partitions"].value or 1)
            if factor < 0:
                factor = min(int(configs["default.replication.factor"].value or 1), len(brokers))
        replicas = {
            number: placement.replicas(TopicPartition(topic.name, number), brokers, factor) for number in range(count)
        }
        return replace(topic, num_partitions=-1, replication_factor=-1, replicas_assignments=replicas)

    def _broker_configs(self, brokers: Sequence[Node]) -> Mapping[str, ConfigEntry] | None:
        """Return the configs of a broker. None: the principal may not read them."""
        resources = [ConfigResource(ResourceType.BROKER, str(node.id)) for node in brokers[:1]]
        for configs in outcomes(self._target.describe_configs(resources)).values():
            return None if isinstance(configs, KafkaApiError) else configs
        return None

    def create(self, topics: Sequence[NewTopic]) -> Outcomes:
        """Create topics with klamm as the only replica.

        Raises:
            NoPartitionsYetError: klamm accepts no partitions yet, because an earlier task is still registered.
        """
        if (few := self._too_few(self._brokers())) is not None:
            return {topic.name: few for topic in topics}
        return self._check_accepted(placement.create(self._target, topics, self._node_id))

    def _check_accepted(self, created: Outcomes) -> Outcomes:
        not_yet = next((each for each in created.values() if isinstance(each, InvalidReplicaAssignmentError)), None)
        if not_yet is not None:
            raise NoPartitionsYetError(f"broker {self._node_id} accepts no partitions yet: {not_yet}")
        return created

    def grow(self, counts: Mapping[str, int]) -> Outcomes:
        """Add partitions with klamm as the only replica.

        Raises:
            NoPartitionsYetError: klamm accepts no partitions yet.
            ConnectionLostError: The controllers are unavailable.
        """
        topics = self._described(counts)
        led = {each.name: each for each in topics if self._node_id in each.partitions[0].replicas}
        added = {name: range(len(topic.partitions), counts[name]) for name, topic in led.items()}
        widths = {name: len(topic.partitions[0].replicas) for name, topic in led.items()}
        others = [each.name for each in topics if each.name not in led]
        out: Outcomes = {name: InvalidPartitionsError(f"klamm does not lead {name}") for name in others}
        if not led or self._replica is None:
            return out
        with (
            connected(self._settings) as target,
            fenced_brokers(self._replica, target, max(widths.values()) - 1) as fenced,
        ):
            replicas = {name: (self._node_id, *fenced[: width - 1]) for name, width in widths.items()}
            grown = self._check_accepted(placement.add(self._target, added, replicas))
            new = [TopicPartition(name, index) for name in grown if grown[name] is None for index in added[name]]
            self._let_be_alone(new)
        self._spread(new)
        return out | grown

    def spread(self, topics: Collection[str], changing: Collection[str] = ()) -> dict[TopicPartition, KafkaApiError]:
        """Let brokers replicate the partitions without any, and begin cancelled reassignments again."""
        topics_there = self._described(topics)
        self._let_be_alone(placement.unspread(topics_there, self._node_id, 2))
        unchanging = [topic for topic in topics_there if topic.name not in changing]
        cancelled = placement.cancelled(self._target, unchanging, self._node_id)
        rejected = rejections(self._target.alter_partition_reassignments(cancelled)) if cancelled else {}
        return {
            **self._spread(placement.unspread(topics_there, self._node_id)),
            **{partition: error for partition, error in rejected.items() if error is not None},
        }

    def _let_be_alone(self, partitions: Collection[TopicPartition]) -> None:
        try:
            placement.let_be_alone(self._target, partitions, self._node_id)
        except InvalidReplicaAssignmentError as error:
            raise NoPartitionsYetError(f"broker {self._node_id} accepts no partitions yet: {error}") from error

    def _spread(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, KafkaApiError]:
        if not partitions:
            return {}
        brokers = self._brokers()
        if (few := self._too_few(brokers)) is not None:
            return dict.fromkeys(partitions, few)
        placed = placement.spread(self._target, partitions, brokers, self._factor)
        return {partition: rejected for partition, rejected in placed.items() if rejected is not None}

    def led(self) -> Sequence[tuple[str, str, int]]:
        """Return source topic, name and number of partitions of the remote topics that klamm leads."""
        policy, alias = self._settings.policy, self._settings.source_alias
        sources = {name: policy.upstream_topic(name) for name in self._mirrored() if policy.topic_source(name) == alias}
        led = [(source, topic) for topic in self._described(sources) if (source := sources[topic.name]) is not None]
        selected = {source for source, _ in led if self._settings.selection.includes(source)}
        # Others may also be topics that are moved away (``misplaced``), or of another flow that had this node id.
        kept = {source for source, topic in led if source not in selected and self._is_alone(topic)}
        selected |= kept & mirrored_topics(self._settings) if kept else set()
        return sorted((source, topic.name, len(topic.partitions)) for source, topic in led if source in selected)

    def _is_alone(self, topic: TopicDescription) -> bool:
        """Return whether klamm is the only in-sync replica of a topic."""
        return all(each.isr == (self._node_id,) for each in topic.partitions)

    def led_by_brokers(self, topics: Collection[str]) -> frozenset[str]:
        """Return the remote topics that have a partition that a broker leads, or without klamm."""
        return placement.led_by_brokers(self._target, topics, self._node_id)

    def led_by_other_flows(self, topics: Collection[str]) -> dict[str, int]:
        """Return the topics that another klamm leads, each with its node id. It is -1 for a topic without a leader.

        A klamm that is down leads nothing, but its reassignment to the brokers stays in progress.
        """
        if not topics:
            return {}
        klamms = self._known_nodes().klamms.keys() - {self._node_id}
        moving = self._target.list_partition_reassignments().result()
        leaders: dict[str, int] = {}
        for topic in self._described(topics):
            for partition in topic.partitions:
                leader, (first, *others) = partition.leader, partition.isr or (NO_LEADER,)
                if leader == NO_LEADER and not others:
                    move = moving.get(TopicPartition(topic.name, partition.partition))
                    is_klamm = first in klamms or (move is not None and first in move.removing_replicas)
                    leader = first if is_klamm and first != self._node_id else NO_LEADER
                elif leader not in klamms | {NO_LEADER}:
                    continue
                leaders[topic.name] = max(leader, leaders.get(topic.name, NO_LEADER))
        return leaders

    def misplaced(self, remote_topics: Collection[str]) -> dict[str, str]:
        """Return the other topics that have partitions on klamm, and move those away that brokers have too.

        Partitions without a leader wait: before klamm leads them, they could be those of another flow with its id.
        """
        names = set(self._target.list_topics(include_internal=True).result()) - set(remote_topics) - self._mirrored()
        here = {
            TopicPartition(topic.name, partition.partition): partition.replicas
            for topic in self._described(names)
            for partition in topic.partitions
            if self._node_id in partition.replicas and partition.leader != NO_LEADER
        }
        klamms = self._known_nodes().klamms.keys() | {self._node_id} if here else frozenset()
        others = {partition: [each for each in nodes if each not in klamms] for partition, nodes in here.items()}
        moved = {partition: nodes for partition, nodes in others.items() if nodes}
        rejected = rejections(self._target.alter_partition_reassignments(moved)) if moved else {}
        reasons: dict[str, str] = {}
        for partition, nodes in others.items():
            error = rejected.get(partition)
            what = _MOVED if error is None else f"they stay: {error_text(error)}"
            reasons.setdefault(partition.topic, f"{_MISPLACED.format(self._node_id)}; {what if nodes else _EMPTY}")
        return reasons

    def _described(self, topics: Collection[str]) -> list[TopicDescription]:
        """Return the descriptions of topics. Those that the target does not describe are left out."""
        described = outcomes(self._target.describe_topics(sorted(topics))) if topics else {}
        return [each for each in described.values() if not isinstance(each, Exception)]

    def _mirrored(self) -> frozenset[str]:
        """Return the topics from which reassignments in progress remove klamm: as long as they are mirrored."""
        return frozenset(partition.topic for partition in placement.removing(self._target, self._node_id))

    def _nodes(self) -> tuple[Node, ...]:
        described = outcome(self._target.describe_cluster())
        if isinstance(described, Exception):
            raise described
        return described.nodes

    def _brokers(self) -> list[Node]:
        """Return the live brokers with storage."""
        brokers = self._known_nodes().brokers
        return [node for node in self._nodes() if node.id in brokers]

    def _known_nodes(self) -> TargetNodes:
        with connected(self._settings) as cluster:
            return target_nodes(cluster)

    def _too_few(self, brokers: Sequence[Node]) -> InvalidReplicationFactorError | None:
        if len(brokers) >= self._factor:
            return None
        return InvalidReplicationFactorError(f"cluster {self._alias} has {len(brokers)} live brokers with storage")

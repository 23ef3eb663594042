"""Creation and growth of remote topics that klamm leads as a broker of the target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.kafka_client.errors import ConnectionLostError
from klamm.mirror.cluster_admin import outcome, outcomes
from klamm.mirror.progress.flow_progress import FlowFailedError
from klamm.mirror.replica import placement
from klamm.mirror.replica.obstacles import target_obstacle
from klamm.mirror.topics.remote_topics import RemoteTopics
from klamm.protocol.errors import (
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from klamm.admin import AdminClient, KafkaApiError, NewTopic, Node, TopicPartition
    from klamm.mirror.settings.flow import FlowSettings
    from klamm.mirror.topics.remote_topics import Outcomes


_CANNOT_GROW: Final = "a broker without storage cannot add partitions to a topic"


class ReplicaTopics(RemoteTopics):
    """Remote topics that klamm leads as a broker of the target.

    They are created with klamm as the only replica, then reassigned to the other brokers (``replica.placement``).

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

    def create(self, topics: Sequence[NewTopic]) -> Outcomes:
        """Create topics with klamm as the only replica.

        Raises:
            ConnectionLostError: klamm accepts no partitions yet, because an earlier task is still registered.
        """
        if (few := self._too_few_brokers()) is not None:
            return {topic.name: few for topic in topics}
        created = placement.create(self._target, topics, self._node_id)
        not_yet = next((each for each in created.values() if isinstance(each, InvalidReplicaAssignmentError)), None)
        if not_yet is not None:
            raise ConnectionLostError(f"broker {self._node_id} accepts no partitions yet: {not_yet}")
        return created

    def grow(self, counts: Mapping[str, int]) -> Outcomes:
        """Reject the growth: Kafka adds only partitions with as many replicas as the others, so klamm is not alone."""
        return {
            name: InvalidPartitionsError(
                f"{_CANNOT_GROW}; the partitions that exist are mirrored. Delete {name} to mirror {count} partitions"
            )
            for name, count in counts.items()
        }

    def spread(self, topics: Collection[str]) -> dict[TopicPartition, KafkaApiError]:
        """Let brokers with storage replicate the partitions that only klamm replicates."""
        described = outcomes(self._target.describe_topics(sorted(topics))) if topics else {}
        alone = placement.unspread(
            (each for each in described.values() if not isinstance(each, Exception)), self._node_id
        )
        if not alone:
            return {}
        if (few := self._too_few_brokers()) is not None:
            return dict.fromkeys(alone, few)
        placed = placement.spread(self._target, alone, self._brokers(), self._factor)
        return {partition: rejected for partition, rejected in placed.items() if rejected is not None}

    def _nodes(self) -> tuple[Node, ...]:
        described = outcome(self._target.describe_cluster())
        if isinstance(described, Exception):
            raise described
        return described.nodes

    def _brokers(self) -> list[Node]:
        return [node for node in self._nodes() if node.id != self._node_id]

    def _too_few_brokers(self) -> InvalidReplicationFactorError | None:
        count = len(self._brokers())
        if count >= self._factor:
            return None
        return InvalidReplicationFactorError(f"cluster {self._alias} has {count} live brokers with storage")

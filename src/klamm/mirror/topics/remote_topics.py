"""Creation and growth of remote topics whose brokers the target chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.kafka_client.errors import ConnectionLostError
from klamm.mirror.cluster_admin import create_partitions, create_topics
from klamm.protocol.errors import InvalidReplicationFactorError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from klamm.admin import AdminClient, KafkaApiError, NewTopic, TopicPartition
    from klamm.mirror.settings.flow import FlowSettings

    Outcomes = dict[str, KafkaApiError | None]


class NoPartitionsYetError(ConnectionLostError):
    """klamm does not accept partitions of new topics yet."""


def with_remedy(flow: FlowSettings, rejected: KafkaApiError) -> KafkaApiError:
    """Return the error of a remote topic, with the key to change if the cluster cannot provide the replicas."""
    if not isinstance(rejected, InvalidReplicationFactorError):
        return rejected
    setting = f"replication.factor={flow.replication_factor}"
    return InvalidReplicationFactorError(f"{setting}: {rejected.error_message or ''}")


class RemoteTopics:
    """Remote topics whose brokers the target chooses.

    Args:
        target: Admin client of the target.
    """

    def __init__(self, target: AdminClient) -> None:
        self._target = target

    def check_supported(self) -> None:
        """Check that the target allows this way.

        Raises:
            FlowFailedError: It does not. The error names the reason.
            ConnectionError, TimeoutError: The target is unavailable.
        """

    def check_joined(self) -> None:
        """Check that topics can be created now.

        Raises:
            ConnectionLostError: klamm is not a broker of the target yet.
        """

    def place(self, topic: NewTopic) -> NewTopic:
        """Return an internal topic that the target must not place on a klamm, with the brokers of its partitions.

        Raises:
            ConnectionLostError: They are not known at present.
            InvalidReplicationFactorError: There are fewer brokers than the topic is to have replicas.
        """
        return topic

    def create(self, topics: Sequence[NewTopic]) -> Outcomes:
        """Create topics. Return the error of each, None: it was created.

        Raises:
            NoPartitionsYetError: klamm does not accept their partitions yet.
        """
        return create_topics(self._target, topics)

    def grow(self, counts: Mapping[str, int]) -> Outcomes:
        """Add partitions to topics, by their new partition counts. Return the error of each, None: it has grown."""
        return create_partitions(self._target, counts)

    def led(self) -> Sequence[tuple[str, str, int]]:
        """Return source topic, name and number of partitions of the remote topics that klamm leads as a broker."""
        return ()

    def led_by_brokers(self, topics: Collection[str]) -> frozenset[str]:
        """Return the remote topics that were handed over to brokers of the target, which klamm changes no more."""
        _ = topics
        return frozenset()

    def led_by_other_flows(self, topics: Collection[str]) -> dict[str, int]:
        """Return the topics that the klamm of another flow leads as a broker, each with its node id.

        Topics without a leader are included, too: with the id of the klamm that is to lead them, or -1.
        """
        _ = topics
        return {}

    def misplaced(self, remote_topics: Collection[str]) -> dict[str, str]:
        """Return the other topics that have partitions on klamm, each with what that means.

        Args:
            remote_topics: Remote topics of the flow.
        """
        _ = remote_topics
        return {}

    def spread(self, topics: Collection[str], changing: Collection[str] = ()) -> dict[TopicPartition, KafkaApiError]:
        """Let brokers with storage replicate topics. Return the partitions that the target rejects.

        Args:
            topics: Remote topics.
            changing: Those that are promoted or demoted. Their reassignments belong to the task.
        """
        _ = topics, changing
        return {}

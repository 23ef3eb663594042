"""Topic policy of the demo. It replaces a Java class on the brokers' class path (KIP-108)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.policy import CreateTopicPolicy, PolicyViolationError

if TYPE_CHECKING:
    from klamm.policy import TopicDetails

MAX_PARTITIONS: Final = 12


class FewPartitions(CreateTopicPolicy):
    """Policy that denies topics with more than 12 partitions. Its message says what to do."""

    def validate(self, topic_details: TopicDetails) -> None:
        """Raise an error if the topic may not be created.

        Raises:
            PolicyViolationError: The topic has too many partitions.
        """
        count = topic_details.num_partitions or len(topic_details.replicas_assignments or ())
        if count > MAX_PARTITIONS:
            raise PolicyViolationError(
                f"topic {topic_details.topic} asks for {count} partitions; at most {MAX_PARTITIONS} are allowed here"
            )

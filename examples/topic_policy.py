"""A policy that denies topics (KIP-108): a Python class, named by a broker setting."""

from __future__ import annotations

import klamm
from klamm.admin import AdminClient, NewTopic
from klamm.policy import CreateTopicPolicy, PolicyViolationError, TopicDetails


class NamesOfTeams(CreateTopicPolicy):
    """Topic names begin with the team that owns them."""

    def validate(self, topic_details: TopicDetails) -> None:
        """Deny a name without a team."""
        if "." not in topic_details.topic:
            raise PolicyViolationError(f"topic {topic_details.topic} has no team: call it team.{topic_details.topic}")


if __name__ == "__main__":
    # The broker's process sees the modules of this one, so the policy may stand beside the program.
    settings = {"create.topic.policy.class.name": "topic_policy:NamesOfTeams"}
    with klamm.Broker(config=settings) as broker, AdminClient(broker.bootstrap_servers) as admin:
        names = ["orders", "sales.orders"]
        results = admin.create_topics([NewTopic(name=name, num_partitions=1) for name in names])
        for name, result in results.values().items():
            print(f"{name}: {result.exception() or 'created'}")

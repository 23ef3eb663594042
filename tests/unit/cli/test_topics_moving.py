"""klamm topics --describe while replicas move: in the words of Kafka's tool."""

from __future__ import annotations

from uuid import UUID

from klamm.admin import PartitionDescription, PartitionReassignment, TopicDescription, TopicPartition
from klamm.cli.topics.description import TopicReport, document, lines

MOVING = PartitionDescription(partition=0, leader=1, leader_epoch=0, replicas=(3, 4, 1, 2), isr=(1, 2))
TOPIC = TopicDescription(name="t", topic_id=UUID(int=0), is_internal=False, partitions=(MOVING,))
MOVES = PartitionReassignment(replicas=(3, 4, 1, 2), adding_replicas=(3, 4), removing_replicas=(1, 2))


def report(**flags: bool) -> TopicReport:
    return TopicReport(live_brokers={1, 2, 3, 4}, reassignments={TopicPartition("t", 0): MOVES}, **flags)


def test_adding_and_removing_replicas_follow_isr() -> None:
    assert list(lines(TOPIC, {}, report())) == [
        "Topic: t\tPartitionCount: 1\tReplicationFactor: 2\tConfigs: ",
        "\tTopic: t\tPartition: 0\tLeader: 1\tReplicas: 3,4,1,2\tIsr: 1,2\tAdding Replicas: 3,4\tRemoving Replicas: 1,2"
        "\tElr: N/A\tLastKnownElr: N/A",
    ]


def test_adding_replicas_do_not_count_as_under_replicated() -> None:
    assert list(lines(TOPIC, {}, report(under_replicated=True))) == []
    assert len(list(lines(TOPIC, {}, TopicReport(live_brokers={1}, under_replicated=True)))) == 1


def test_json_has_adding_and_removing_replicas() -> None:
    # when
    described = document(TOPIC, {}, report())
    # then
    assert described is not None
    assert described["replication_factor"] == 2
    assert (described["partitions"][0]["adding_replicas"], described["partitions"][0]["removing_replicas"]) == (
        [3, 4],
        [1, 2],
    )

"""Creation of the remote topics that klamm leads."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import Mock
from uuid import UUID

import pytest

from klamm.admin import NewTopic, Node, PartitionDescription, TopicDescription, TopicPartition
from klamm.kafka_client.errors import ConnectionLostError
from klamm.mirror.replica import placement, remote_topics
from klamm.mirror.replica.remote_topics import ReplicaTopics
from klamm.mirror.settings.mirror import parse_settings
from klamm.properties import parse_properties
from klamm.protocol.errors import (
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    PolicyViolationError,
)

if TYPE_CHECKING:
    from klamm.admin import KafkaApiError

KLAMM = 9
FILE = f"""
clusters = A, B
A.bootstrap.servers = a:9092
B.bootstrap.servers = b:9092
B.bootstrap.controllers = c:9093
A->B.enabled = true
replication.factor = 2
klamm.offsets = preserve
klamm.offsets.by = replica
klamm.replica.experimental = true
klamm.replica.node.id = {KLAMM}
klamm.replica.listeners = klamm:9192
"""
NEW = NewTopic(name="A.orders", num_partitions=1, replication_factor=2)


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Admin client whose calls return outcomes, of a target with the brokers 1 and 2, and klamm."""
    monkeypatch.setattr(remote_topics, "outcome", lambda value: value)
    monkeypatch.setattr(remote_topics, "outcomes", lambda value: value)
    monkeypatch.setattr(placement, "rejections", lambda value: value)
    admin = Mock()
    admin.describe_cluster.return_value.nodes = nodes(1, 2, KLAMM)
    admin.alter_partition_reassignments.return_value = {}
    return admin


def nodes(*ids: int) -> tuple[Node, ...]:
    return tuple(Node(id=each, host="h", port=1) for each in ids)


def topics(target: Mock) -> ReplicaTopics:
    (flow,) = parse_settings(parse_properties(FILE)).flows
    return ReplicaTopics(flow, target, KLAMM)


def let_create(monkeypatch: pytest.MonkeyPatch, error: KafkaApiError | None) -> None:
    monkeypatch.setattr(placement, "create_topics", lambda _, new: dict.fromkeys([each.name for each in new], error))


def test_creation_waits_until_klamm_is_a_broker(target: Mock) -> None:
    topics(target).check_joined()
    target.describe_cluster.return_value.nodes = nodes(1, 2)
    with pytest.raises(ConnectionLostError, match="broker 9 is not in cluster B yet"):
        topics(target).check_joined()


def test_creation_waits_while_klamm_is_cordoned(target: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    let_create(monkeypatch, InvalidReplicaAssignmentError("cordoned"))
    with pytest.raises(ConnectionLostError, match="accepts no partitions yet"):
        topics(target).create([NEW])


@pytest.mark.parametrize("error", [None, PolicyViolationError("no")])
def test_creation_reports_other_errors(
    target: Mock, monkeypatch: pytest.MonkeyPatch, error: KafkaApiError | None
) -> None:
    let_create(monkeypatch, error)
    assert topics(target).create([NEW]) == {"A.orders": error}


def test_creation_with_too_few_brokers_is_rejected(target: Mock) -> None:
    target.describe_cluster.return_value.nodes = nodes(1, KLAMM)
    (error,) = topics(target).create([NEW]).values()
    assert isinstance(error, InvalidReplicationFactorError)
    target.create_topics.assert_not_called()


def test_added_partitions_are_rejected_with_advice(target: Mock) -> None:
    (error,) = topics(target).grow({"A.orders": 3}).values()
    assert isinstance(error, InvalidPartitionsError)
    assert "Delete A.orders to mirror 3 partitions" in str(error)


def test_partitions_of_klamm_alone_get_brokers_with_storage(target: Mock) -> None:
    partitions = tuple(
        PartitionDescription(partition=number, leader=KLAMM, leader_epoch=0, replicas=replicas, isr=(KLAMM,))
        for number, replicas in enumerate([(KLAMM,), (1, 2, KLAMM)])
    )
    described = TopicDescription(name="A.orders", topic_id=UUID(int=1), is_internal=False, partitions=partitions)
    target.describe_topics.return_value = {"A.orders": described}
    assert topics(target).spread(["A.orders"]) == {}
    (reassigned,) = target.alter_partition_reassignments.call_args.args
    assert {each: set(brokers) for each, brokers in reassigned.items()} == {TopicPartition("A.orders", 0): {1, 2}}

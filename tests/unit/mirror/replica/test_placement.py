"""Placement of remote partitions. The target is an admin client that notes the calls."""

from __future__ import annotations

from collections import Counter
from unittest.mock import Mock, create_autospec
from uuid import UUID

import pytest

from klamm.admin import (
    AdminClient,
    NewTopic,
    Node,
    PartitionDescription,
    PartitionReassignment,
    TopicDescription,
    TopicPartition,
)
from klamm.mirror.replica import placement
from klamm.protocol.errors import InvalidReplicationFactorError, UnknownTopicOrPartitionError

KLAMM = 1000


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Mock:
    monkeypatch.setattr(placement, "rejections", lambda result: result)
    monkeypatch.setattr("klamm.mirror.cluster_admin.rejections", lambda result: result)
    made: Mock = create_autospec(AdminClient, instance=True)
    for call in (made.create_topics, made.alter_partition_reassignments):
        call.return_value = {}
    return made


def brokers(*racks: str | None) -> list[Node]:
    return [Node(id=number, host="h", port=1, rack=rack) for number, rack in enumerate(racks, 1)]


def test_topic_is_created_with_klamm_alone_and_without_unclean_election(admin: Mock) -> None:
    topic = NewTopic("A.orders", 2, 3, configs={"retention.ms": "7", "unclean.leader.election.enable": "true"})
    placement.create(admin, [topic], KLAMM)
    (created,) = admin.create_topics.call_args.args[0]
    assert (created.num_partitions, created.replication_factor) == (-1, -1)
    assert created.replicas_assignments == {0: (KLAMM,), 1: (KLAMM,)}
    assert created.configs == {"retention.ms": "7", "unclean.leader.election.enable": "false"}


def test_reassignment_to_brokers_removes_klamm(admin: Mock) -> None:
    placement.spread(admin, [TopicPartition("t", 0), TopicPartition("t", 1)], brokers(None, None, None), 2)
    reassigned = admin.alter_partition_reassignments.call_args.args[0]
    assert set(reassigned) == {TopicPartition("t", 0), TopicPartition("t", 1)}
    assert all(len(set(nodes)) == 2 and KLAMM not in nodes for nodes in reassigned.values())


def test_nothing_to_place_needs_no_request(admin: Mock) -> None:
    assert placement.spread(admin, [], brokers(None), 1) == {}
    admin.alter_partition_reassignments.assert_not_called()
    admin.create_partitions.assert_not_called()


def test_replicas_are_in_different_racks_and_leaders_are_spread() -> None:
    nodes = brokers("a", "a", "b", "b", "c", "c")
    racks = {node.id: node.rack for node in nodes}
    placed = [placement.replicas(TopicPartition("t", number), nodes, 3) for number in range(12)]
    assert all(len({racks[node_id] for node_id in each}) == 3 for each in placed)
    assert set(Counter(each[0] for each in placed).values()) == {2}


@pytest.mark.parametrize("replication_factor", [0, 3])
def test_replication_factor_above_number_of_brokers_is_rejected(replication_factor: int) -> None:
    with pytest.raises(InvalidReplicationFactorError, match="the target has 2 live brokers with storage"):
        placement.replicas(TopicPartition("t", 0), brokers(None, None), replication_factor)


def test_partitions_that_klamm_alone_replicates_are_found() -> None:
    def partition(number: int, *nodes: int) -> PartitionDescription:
        return PartitionDescription(partition=number, leader=KLAMM, leader_epoch=0, replicas=nodes, isr=(KLAMM,))

    partitions = partition(0, KLAMM), partition(1, 1, 2, KLAMM), partition(2, 1), partition(3, KLAMM, 1, 2)
    topic = TopicDescription(name="t", topic_id=UUID(int=1), is_internal=False, partitions=partitions)
    assert placement.unspread([topic], KLAMM) == [TopicPartition("t", 0)]


def state(leader: int, *replicas: int, isr: tuple[int, ...]) -> PartitionDescription:
    return PartitionDescription(partition=0, leader=leader, leader_epoch=0, replicas=replicas, isr=isr)


@pytest.mark.parametrize(
    ("partition", "removing", "is_led_by_brokers", "is_mirrored"),
    [
        (state(KLAMM, KLAMM, isr=(KLAMM,)), (), False, True),
        (state(KLAMM, 1, 2, KLAMM, isr=(KLAMM,)), (KLAMM,), False, True),
        (state(-1, 1, 2, KLAMM, isr=(KLAMM,)), (KLAMM,), False, True),
        (state(1, 1, 2, isr=(1, 2)), (), True, False),
        (state(-1, 1, 2, isr=(1,)), (), True, False),
        (state(1, KLAMM, 1, 2, isr=(1, 2)), (), True, False),
        (state(1, KLAMM, 1, 2, isr=(KLAMM, 1, 2)), (), True, False),
        (state(KLAMM, KLAMM, 1, 2, isr=(KLAMM, 1, 2)), (), False, False),
        (state(KLAMM, KLAMM, 1, 2, isr=(KLAMM,)), (), False, False),
    ],
)
def test_topic_in_each_step_of_a_demotion_is_led_by_brokers_or_not_mirrored(
    admin: Mock,
    monkeypatch: pytest.MonkeyPatch,
    partition: PartitionDescription,
    removing: tuple[int, ...],
    *,
    is_led_by_brokers: bool,
    is_mirrored: bool,
) -> None:
    topic = TopicDescription(name="t", topic_id=UUID(int=1), is_internal=False, partitions=(partition,))
    gone = UnknownTopicOrPartitionError("gone")
    monkeypatch.setattr(placement, "outcomes", lambda _: {"t": topic, "gone": gone})
    moving = PartitionReassignment(replicas=partition.replicas, adding_replicas=(), removing_replicas=removing)
    admin.list_partition_reassignments.return_value.result.return_value = {TopicPartition("t", 0): moving}
    assert placement.led_by_brokers(admin, ["t", "gone"], KLAMM) == ({"t"} if is_led_by_brokers else set())
    assert placement.not_mirrored(admin, ["t", "gone"], KLAMM) == (set() if is_mirrored else {"t"})

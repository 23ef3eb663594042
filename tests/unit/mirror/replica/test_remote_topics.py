"""Creation of the remote topics that klamm leads."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest.mock import MagicMock, Mock
from uuid import UUID

import pytest

from klamm.admin import NewTopic, Node, PartitionDescription, PartitionReassignment, TopicDescription, TopicPartition
from klamm.kafka_client.errors import ConnectionLostError
from klamm.mirror.replica import placement, remote_topics
from klamm.mirror.replica.remote_topics import ReplicaTopics
from klamm.mirror.replica.target_nodes import TargetNodes
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.topics.remote_topics import NoPartitionsYetError
from klamm.properties import parse_properties
from klamm.protocol.errors import (
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    PolicyViolationError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from klamm.admin import KafkaApiError

KLAMM = 9
OTHER_KLAMM = 8
NODES = TargetNodes(frozenset({3000}), frozenset({1, 2}), dict.fromkeys((OTHER_KLAMM, KLAMM), UUID(int=0)))
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
    """Admin client whose calls return outcomes, of a target with the brokers 1 and 2, and two klamms."""
    monkeypatch.setattr(remote_topics, "outcome", lambda value: value)
    monkeypatch.setattr(remote_topics, "outcomes", lambda value: value)
    for module in (placement, remote_topics):
        monkeypatch.setattr(module, "rejections", lambda value: value)
    monkeypatch.setattr(ReplicaTopics, "_known_nodes", lambda _: NODES)
    admin = Mock()
    admin.describe_cluster.return_value.nodes = nodes(1, 2, OTHER_KLAMM, KLAMM)
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


def test_internal_topics_are_placed_on_brokers_with_storage(target: Mock) -> None:
    """Another klamm may accept partitions at this moment."""
    topic = NewTopic(name="mm2-offsets.A.internal", num_partitions=3, replication_factor=1, configs={"a": "b"})
    placed = topics(target).place(topic)
    assert (placed.num_partitions, placed.replication_factor, placed.configs) == (-1, -1, {"a": "b"})
    assert placed.replicas_assignments.keys() == {0, 1, 2}
    assert {node for nodes in placed.replicas_assignments.values() for node in nodes} == {1, 2}
    with pytest.raises(InvalidReplicationFactorError, match="3 replicas: the target has 2 live brokers with storage"):
        topics(target).place(replace(topic, replication_factor=3))


@pytest.mark.parametrize(("default", "expected"), [("1", 1), ("2", 2), ("3", 2)])
def test_internal_topic_with_the_default_replication_factor_is_placed_too(
    target: Mock, default: str, expected: int
) -> None:
    configs = {"default.replication.factor": Mock(value=default), "num.partitions": Mock(value="3")}
    target.describe_configs.side_effect = lambda resources: dict.fromkeys(resources, configs)
    topic = NewTopic(name="A.checkpoints.internal", num_partitions=-1, replication_factor=-1)
    placed = topics(target).place(topic)
    assert list(map(len, placed.replicas_assignments.values())) == [expected] * 3
    # when
    error = PolicyViolationError("no DESCRIBE_CONFIGS")
    target.describe_configs.side_effect = lambda resources: dict.fromkeys(resources, error)
    # then
    assert topics(target).place(topic) == topic


def test_creation_with_too_few_brokers_is_rejected(target: Mock) -> None:
    target.describe_cluster.return_value.nodes = nodes(1, OTHER_KLAMM, KLAMM)
    (error,) = topics(target).create([NEW]).values()
    assert isinstance(error, InvalidReplicationFactorError)
    target.create_topics.assert_not_called()


def describe(target: Mock, *replicas: tuple[int, ...]) -> None:
    """Let the target describe A.orders with these replicas of its partitions. klamm leaves those with it at the end."""
    partitions = tuple(
        PartitionDescription(partition=number, leader=KLAMM, leader_epoch=0, replicas=each, isr=(KLAMM,))
        for number, each in enumerate(replicas)
    )
    described = TopicDescription(name="A.orders", topic_id=UUID(int=1), is_internal=False, partitions=partitions)
    target.describe_topics.return_value = {"A.orders": described}
    target.list_partition_reassignments.return_value.result.return_value = {
        TopicPartition("A.orders", number): PartitionReassignment(
            replicas=each, adding_replicas=(), removing_replicas=(KLAMM,)
        )
        for number, each in enumerate(replicas)
        if len(each) > 1 and each[-1] == KLAMM
    }


def reassignments(target: Mock) -> list[dict[TopicPartition, set[int]]]:
    calls = target.alter_partition_reassignments.call_args_list
    return [{each: set(brokers) for each, brokers in call.args[0].items()} for call in calls]


FENCED = (2**31 - 1, 2**31 - 2)


@pytest.fixture
def grown(target: Mock, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was done until partitions were added, in order."""
    done: list[object] = []

    @contextlib.contextmanager
    def fenced_brokers(_replica: object, _target: object, count: int) -> Iterator[tuple[int, ...]]:
        yield FENCED[:count]
        done.append(f"{count} unregistered")

    def create(_: object, counts: dict[str, int], *, assignments: dict[str, object]) -> dict[str, None]:
        done.append((counts, assignments))
        return dict.fromkeys(counts)

    def reassign(wanted: dict[TopicPartition, tuple[int, ...]]) -> Mock:
        done.append({each.partition: set(brokers) for each, brokers in wanted.items()})
        return MagicMock()

    monkeypatch.setattr(remote_topics, "connected", contextlib.nullcontext)
    monkeypatch.setattr(remote_topics, "fenced_brokers", fenced_brokers)
    monkeypatch.setattr(placement, "create_partitions", create)
    monkeypatch.setattr(placement, "rejections", lambda _: {})
    target.alter_partition_reassignments.side_effect = reassign
    return done


def test_i2_added_partitions_have_no_live_replica_but_klamm(target: Mock, grown: list[object]) -> None:
    describe(target, (1, 2, KLAMM))
    assert topics(target).grow({"A.orders": 3}) == {"A.orders": None}
    assert grown == [
        ({"A.orders": 3}, {"A.orders": ((KLAMM, *FENCED),) * 2}),
        {1: {KLAMM}, 2: {KLAMM}},
        "2 unregistered",
        {1: {1, 2}, 2: {1, 2}},
    ]


def test_partitions_that_a_process_left_beside_fenced_brokers_are_spread(target: Mock, grown: list[object]) -> None:
    describe(target, (1, 2, KLAMM), (KLAMM, *FENCED))
    assert topics(target).spread(["A.orders"]) == {}
    assert grown == [{1: {KLAMM}}, {1: {1, 2}}]


def test_cordon_before_klamm_is_alone_lets_the_flow_wait(target: Mock, grown: list[object]) -> None:
    describe(target, (1, 2, KLAMM), (KLAMM, *FENCED))
    rejected = InvalidReplicaAssignmentError("cordoned")
    target.alter_partition_reassignments.side_effect = None
    target.alter_partition_reassignments.return_value = Mock()
    target.alter_partition_reassignments.return_value.all.return_value.result.side_effect = rejected
    with pytest.raises(NoPartitionsYetError, match="accepts no partitions yet"):
        topics(target).spread(["A.orders"])
    assert grown == []


def test_growth_of_a_promoted_topic_is_rejected(target: Mock, grown: list[object]) -> None:
    describe(target, (1, 2))
    (error,) = topics(target).grow({"A.orders": 3}).values()
    assert isinstance(error, InvalidPartitionsError)
    assert grown == []


def test_partitions_of_klamm_alone_get_brokers_with_storage(target: Mock) -> None:
    describe(target, (KLAMM,), (1, 2, KLAMM))
    assert topics(target).spread(["A.orders"]) == {}
    assert reassignments(target) == [{TopicPartition("A.orders", 0): {1, 2}}]


@pytest.mark.parametrize("replicas", [(1, 2, KLAMM), (KLAMM, 1, 2)])
def test_cancelled_reassignment_begins_again_unless_the_topic_is_demoted(
    target: Mock, replicas: tuple[int, ...]
) -> None:
    describe(target, replicas, (1, 2, KLAMM))
    target.list_partition_reassignments.return_value.result.return_value.pop(TopicPartition("A.orders", 0), None)
    assert topics(target).spread(["A.orders"], changing={"A.orders"}) == {}
    assert reassignments(target) == []
    error = PolicyViolationError("no")
    target.alter_partition_reassignments.return_value = {TopicPartition("A.orders", 0): error}
    assert topics(target).spread(["A.orders"]) == {TopicPartition("A.orders", 0): error}
    assert reassignments(target) == [{TopicPartition("A.orders", 0): {1, 2}}]


def test_brokers_in_sync_beside_klamm_keep_their_partition(target: Mock) -> None:
    topic = described("A.orders", (KLAMM, 1, 2))
    target.describe_topics.return_value = {"A.orders": topic}
    assert topics(target).spread(["A.orders"]) == {}
    assert reassignments(target) == []


def described(name: str, *replicas: tuple[int, ...]) -> TopicDescription:
    partitions = tuple(
        PartitionDescription(partition=number, leader=nodes[0], leader_epoch=0, replicas=nodes, isr=nodes)
        for number, nodes in enumerate(replicas)
    )
    return TopicDescription(name=name, topic_id=UUID(int=1), is_internal=False, partitions=partitions)


def place(target: Mock, *all_of: TopicDescription, mirrored: tuple[str, ...] = ()) -> None:
    """Let the target have topics, of which reassignments in progress remove klamm from some."""
    by_name = {topic.name: topic for topic in all_of}
    target.list_topics.return_value.result.return_value = by_name
    target.describe_topics.side_effect = lambda names: {name: by_name[name] for name in names}
    removal = PartitionReassignment(replicas=(1, KLAMM), adding_replicas=(1,), removing_replicas=(KLAMM,))
    target.list_partition_reassignments.return_value.result.return_value = {
        TopicPartition(name, 0): removal for name in mirrored
    }


def test_topics_that_klamm_leads_have_the_names_of_their_sources(target: Mock) -> None:
    names = ("A.orders", "A.internal-topic", "C.orders", "orders")
    place(target, *(described(name, (1, KLAMM), (2, KLAMM)) for name in names), mirrored=names)
    (flow,) = parse_settings(parse_properties(f"{FILE}topics = orders")).flows
    assert ReplicaTopics(flow, target, KLAMM).led() == [("orders", "A.orders", 2)]


def test_topic_that_is_not_selected_any_more_is_led_if_this_flow_mirrored_it(
    target: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would have no leader. Others are moved away, or another flow mirrored them with this node id."""
    names = ("A.payments", "A.of-another-flow")
    alone = [
        replace(each, partitions=(replace(each.partitions[0], isr=(KLAMM,)),))
        for each in (described(name, (1, KLAMM)) for name in names)
    ]
    place(target, *alone, described("A.moved", (KLAMM, 1)), mirrored=(*names, "A.moved"))
    monkeypatch.setattr(remote_topics, "mirrored_topics", lambda _: frozenset({"payments", "moved"}))
    (flow,) = parse_settings(parse_properties(f"{FILE}topics = orders")).flows
    assert ReplicaTopics(flow, target, KLAMM).led() == [("payments", "A.payments", 1)]


def test_topics_that_the_target_places_on_klamm_are_moved_to_their_other_brokers(target: Mock) -> None:
    place(
        target,
        described("other", (1, 2), (KLAMM, 1)),
        described("alone", (KLAMM,), (KLAMM, OTHER_KLAMM)),
        described("A.orders", (KLAMM,)),
        described("A.stopped", (1, KLAMM)),
        mirrored=("A.stopped",),
    )
    reasons = topics(target).misplaced(["A.orders"])
    assert reasons.keys() == {"other", "alone"}
    assert reasons["other"].endswith("they are moved away, and have one replica less until they are reassigned")
    assert reasons["alone"].endswith("so they are empty: delete the topic and create it again")
    target.alter_partition_reassignments.assert_called_once_with({TopicPartition("other", 1): [1]})


def test_topics_of_another_flow_have_the_node_id_of_its_klamm(target: Mock) -> None:
    place(target, described("A.orders", (OTHER_KLAMM, 1)), described("A.users", (KLAMM,), (1, 2)))
    assert topics(target).led_by_other_flows(["A.orders", "A.users"]) == {"A.orders": OTHER_KLAMM}
    assert topics(target).led_by_other_flows([]) == {}


def offline(topic: TopicDescription, *isr: int) -> TopicDescription:
    return replace(topic, partitions=tuple(replace(each, leader=-1, isr=isr) for each in topic.partitions))


def test_topics_of_a_klamm_that_is_down_are_known_by_its_reassignment(target: Mock) -> None:
    """The controllers forget a klamm some minutes after its end. Without a reassignment it could be any broker."""
    gone = 7
    place(
        target,
        offline(described("A.orders", (1, 2, gone)), gone),
        offline(described("A.new", (gone,)), gone),
        offline(described("A.known", (OTHER_KLAMM,)), OTHER_KLAMM),
        offline(described("A.brokers", (1, 2)), 1, 2),
    )
    moved = PartitionReassignment(replicas=(1, 2, gone), adding_replicas=(1, 2), removing_replicas=(gone,))
    moving = {TopicPartition("A.orders", 0): moved}
    target.list_partition_reassignments.return_value.result.return_value = moving
    names = ["A.orders", "A.new", "A.known", "A.brokers"]
    assert topics(target).led_by_other_flows(names) == {
        "A.orders": gone, "A.new": -1, "A.known": OTHER_KLAMM, "A.brokers": -1
    }  # fmt: skip


def test_topic_on_klamm_without_a_leader_is_not_called_empty(target: Mock) -> None:
    place(target, offline(described("alone", (KLAMM,)), KLAMM))
    assert topics(target).misplaced([]) == {}


def test_reassignment_that_the_target_rejects_is_named(target: Mock) -> None:
    place(target, described("other", (KLAMM, 1)))
    target.alter_partition_reassignments.return_value = {TopicPartition("other", 0): PolicyViolationError("no")}
    assert topics(target).misplaced([])["other"].endswith("they stay: POLICY_VIOLATION: no")

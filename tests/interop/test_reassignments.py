"""Replica reassignment and leader election: klamm with three broker ids and three nodes of Apache Kafka."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaPythonPartition

import klamm
from klamm import cli
from klamm.admin import AdminClient, ElectionType, NewPartitions, NewTopic, TopicPartition
from klamm.protocol.errors import (
    ErrorCode,
    KafkaApiError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from klamm.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from klamm.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from tests.support.kafka_tools import run_tool
from tests.support.long_tests import long_only
from tests.support.processes import wait_until
from tests.support.shared_cluster import unique
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from tests.support.kafka import KafkaCluster

TOPIC = unique("reassigned-")
PARTITION = TopicPartition(TOPIC, 0)
TOOL = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"


@pytest.fixture(scope="module", params=["klamm", *long_only("kafka")])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "kafka":
        cluster: KafkaCluster = request.getfixturevalue("real_kafka_3")
        yield cluster.bootstrap_servers
        return
    with klamm.Broker(brokers=3) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def admin(address: str) -> Iterator[AdminClient]:
    with AdminClient(address) as client:
        topic = NewTopic(name=TOPIC, replicas_assignments={0: (1, 2), 1: (2, 3)})
        made = client.create_topics([topic]).values()[TOPIC].exception(60)
        assert made is None or isinstance(made, TopicAlreadyExistsError)
        yield client


def answer(outcome: Future[None]) -> tuple[ErrorCode, str | None]:
    error = outcome.exception(60)
    if error is None:
        return ErrorCode.NONE, None
    assert isinstance(error, KafkaApiError)
    return error.error_code, error.error_message


def replicas(admin: AdminClient) -> tuple[int, ...]:
    """Return the replicas of partition 0, empty while the node does not know the topic yet."""
    try:
        return admin.describe_topics([TOPIC]).all().result()[TOPIC].partitions[0].replicas
    except UnknownTopicOrPartitionError:
        return ()


def move(admin: AdminClient, *brokers: int) -> None:
    """Reassign, and wait until it is done: a node of Apache Kafka copies first."""
    admin.alter_partition_reassignments({PARTITION: brokers}).all().result()
    wait_until(lambda: replicas(admin) == brokers, timeout_s=60, what="the reassignment")
    wait_until(lambda: admin.list_partition_reassignments().result() == {}, timeout_s=60, what="its end")


def test_producer_and_consumer_follow_moved_replicas(admin: AdminClient, address: str) -> None:
    # given
    move(admin, 1, 2)
    producer = KafkaProducer(bootstrap_servers=address)
    before, after = (f"{moment} {uuid4()}".encode() for moment in ("before", "after"))
    producer.send(TOPIC, before, partition=0).get(timeout=60)
    # when
    move(admin, 3, 1)
    # then: also for a producer that knew another leader
    producer.send(TOPIC, after, partition=0).get(timeout=60)
    producer.close()
    consumer = KafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest", group_id=None)
    consumer.assign([KafkaPythonPartition(TOPIC, 0)])
    seen: list[bytes] = []

    def read() -> bool:
        seen.extend(record.value for some in consumer.poll(200).values() for record in some)
        return after in seen

    wait_until(read, timeout_s=60, what="both records")
    consumer.close()
    assert seen[-2:] == [before, after]
    # when, then: another number of replicas, and back
    move(admin, 2)
    move(admin, 1, 2)


def test_largest_number_of_added_partitions_is_that_of_kafka(admin: AdminClient) -> None:
    def grow_by(count: int) -> tuple[ErrorCode, str | None]:
        growth = {TOPIC: NewPartitions(2 + count)}
        return answer(admin.create_partitions(growth, validate_only=True).values()[TOPIC])

    assert grow_by(10_000) == (ErrorCode.NONE, None)
    message = "Excessively large number of additional partitions per request."
    assert grow_by(10_001) == (ErrorCode.POLICY_VIOLATION, message)


@pytest.mark.parametrize(
    ("partition", "brokers", "expected"),
    [
        (PARTITION, None, (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None)),
        (
            PARTITION,
            [1, 9],
            (
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "The manual partition assignment includes broker 9, but no such broker is registered.",
            ),
        ),
        (
            PARTITION,
            [1, 1],
            (
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "The manual partition assignment includes the broker 1 more than once.",
            ),
        ),
        (
            TopicPartition("nothing", 0),
            [1],
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Unable to find a topic named nothing."),
        ),
        (
            TopicPartition(TOPIC, 9),
            [1],
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {TOPIC}:9."),
        ),
    ],
)
def test_invalid_reassignment_is_rejected_alone_with_kafkas_message(
    partition: TopicPartition, brokers: list[int] | None, expected: tuple[ErrorCode, str | None], admin: AdminClient
) -> None:
    # given
    neighbour = TopicPartition(TOPIC, 1)
    # when
    outcomes = admin.alter_partition_reassignments({partition: brokers, neighbour: (2, 3)}).values()
    # then
    assert answer(outcomes[partition]) == expected
    assert answer(outcomes[neighbour]) == (ErrorCode.NONE, None)


@pytest.mark.parametrize(
    ("brokers", "code", "message"),
    [
        ([3], ErrorCode.INVALID_REPLICATION_FACTOR, "The replication factor is changed from 2 to 1"),
        (
            [],
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The manual partition assignment includes an empty replica list.",
        ),
    ],
)
def test_disallowed_replication_factor_change_is_rejected(
    admin: AdminClient, address: str, brokers: list[int], code: ErrorCode, message: str
) -> None:
    # given
    move(admin, 1, 2)
    Partition = AlterPartitionReassignmentsRequest.ReassignablePartition  # noqa: N806  # a class
    topic = AlterPartitionReassignmentsRequest.ReassignableTopic(
        name=TOPIC, partitions=[Partition(partition_index=0, replicas=brokers)]
    )
    request = AlterPartitionReassignmentsRequest(allow_replication_factor_change=False, topics=[topic])
    # when
    with WireClient(address.partition(",")[0]) as client:
        response = client.ask(request, AlterPartitionReassignmentsResponse, 1)
    # then
    (partition,) = response.responses[0].partitions
    assert (partition.error_code, partition.error_message) == (code, message)
    assert admin.list_partition_reassignments().result() == {}
    wait_until(lambda: replicas(admin) == (1, 2), timeout_s=60, what="the old replicas on whichever node is asked")


def test_elections_are_answered_for_each_partition(admin: AdminClient, address: str) -> None:
    # given
    move(admin, 1, 2)
    missing = [TopicPartition("nothing", 0), TopicPartition(TOPIC, 9)]
    # when
    preferred = admin.elect_leaders(ElectionType.PREFERRED, [PARTITION, *missing]).values()
    unclean = admin.elect_leaders(ElectionType.UNCLEAN, [PARTITION]).values()
    # then: Apache Kafka may have to elect the first replica first
    assert answer(preferred[PARTITION])[0] in {ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED}
    again = admin.elect_leaders(ElectionType.PREFERRED, [PARTITION]).values()
    expected = (ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
    assert answer(again[PARTITION]) == answer(unclean[PARTITION]) == expected
    assert [answer(preferred[partition]) for partition in missing] == [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "No such topic as nothing"),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {TOPIC}-9"),
    ]
    # when: all of them
    with WireClient(address.partition(",")[0]) as client:
        everything = client.ask(ElectLeadersRequest(topic_partitions=None), ElectLeadersResponse, 2)
        nonsense = client.ask(ElectLeadersRequest(election_type=7, topic_partitions=None), ElectLeadersResponse, 2)
    # then
    assert {topic.topic: topic.partition_result for topic in everything.replica_election_results}[TOPIC] == []
    assert nonsense.error_code == ErrorCode.INVALID_REQUEST


def test_kafkas_own_tool_moves_replicas_and_finds_them_moved(java: None, tmp_path: Path) -> None:
    # given
    plan = tmp_path / "plan.json"
    plan.write_text(
        json.dumps({"version": 1, "partitions": [{"topic": TOPIC, "partition": 0, "replicas": [2, 3]}]}), "utf-8"
    )
    with klamm.Broker(brokers=3) as broker, AdminClient(broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name=TOPIC, replicas_assignments={0: (1, 2)})]).all().result()
        tool = ("--bootstrap-server", broker.bootstrap_servers, "--reassignment-json-file", str(plan))
        # when
        executed = run_tool(TOOL, *tool, "--execute")
        verified = run_tool(TOOL, *tool, "--verify")
        # then
        assert f"Successfully started partition reassignment for {TOPIC}-0" in executed
        assert f"Reassignment of partition {TOPIC}-0 is completed." in verified
        assert replicas(admin) == (2, 3)


@pytest.mark.long
def test_plan_ignores_a_reassignment_in_progress(
    real_kafka_3: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given
    topic = unique("throttled-")
    at = ("--bootstrap-server", real_kafka_3.bootstrap_servers)
    rates = {f"{role}.replication.throttled.rate": 1 for role in ("leader", "follower")}
    (file := tmp_path / "topics.yaml").write_text(f"topics: {{{topic}: {{replication_factor: 2}}}}")
    with AdminClient(real_kafka_3.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name=topic, replicas_assignments={0: (1, 2)})]).all().result()
        real_kafka_3.wait_for_replicas(topic, 2)
        producer = KafkaProducer(bootstrap_servers=real_kafka_3.bootstrap_servers)
        for _ in range(20):  # a batch for each second in which a follower exceeds its rate
            producer.send(topic, b"x" * 500_000).get(timeout=60)
        producer.close()
        throttles = {f"{role}.replication.throttled.replicas": "*" for role in ("leader", "follower")}
        admin.alter_topic_configs(topic, set=throttles).result()
        plan = ("configs", "plan", str(file), "--prune-configs", "--check", *at)
        targets = itertools.cycle([(2, 3), (1, 2)])

        def is_moving() -> bool:
            return bool(admin.list_partition_reassignments([TopicPartition(topic, 0)]).result())

        def is_planned_during_a_move() -> bool:  # a move ends early while a node does not know the throttle yet
            admin.alter_partition_reassignments({TopicPartition(topic, 0): next(targets)}).all().result()
            wait_until(
                lambda: cli.main([*plan]) == 0, timeout_s=300, what="all nodes to know the throttle and the move"
            )
            return is_moving()

        for broker in (1, 2, 3):
            admin.alter_broker_configs(broker, set=rates).result()
        try:
            # when, then
            wait_until(is_planned_during_a_move, timeout_s=300, what="a plan before the end of the reassignment")
        finally:
            for broker in (1, 2, 3):
                admin.alter_broker_configs(broker, delete=rates).result()
        # then
        wait_until(lambda: not is_moving(), timeout_s=300, what="the end of the reassignment")
        real_kafka_3.wait_for_replicas(topic, 2)
        capsys.readouterr()
        assert cli.main([*plan]) == 0, "others own the throttle, also after the move"
        admin.delete_topics([topic]).all().result()

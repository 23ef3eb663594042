"""Consumer groups: static members, broker restarts, and Kafka's own group tool."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition

from tests.support.kafka_tools import run_tool
from tests.support.processes import wait_until
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.support.probe import Cluster

GROUPS_TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


def create_topic(cluster: Cluster, name: str, *, partitions: int) -> None:
    with WireClient(cluster.bootstrap_servers.partition(",")[0]) as client:
        client.create_topic(name, partitions=partitions)


def produce(cluster: Cluster, topic: str, count: int, *, partitions: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(count):
        producer.produce(topic, str(number).encode(), partition=number % partitions)
    assert producer.flush(30) == 0


class Member:
    """A librdkafka consumer that records its assignments."""

    def __init__(self, cluster: Cluster, group: str, topic: str, instance_id: str | None = None) -> None:
        settings: dict[str, str | int | bool] = {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 30_000,
        }
        if instance_id is not None:
            settings["group.instance.id"] = instance_id
        self.assignments: list[set[int]] = []
        self.values: list[str] = []
        self._consumer = Consumer(settings)
        self._consumer.subscribe([topic], on_assign=self._on_assign)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def _on_assign(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self.assignments.append({partition.partition for partition in partitions})

    def poll(self) -> None:
        message = self._consumer.poll(0.1)
        if message is not None and message.error() is None:
            self.values.append((message.value() or b"").decode())

    def commit(self) -> None:
        self._consumer.commit(asynchronous=False)


def poll_until(condition: Callable[[], bool], *members: Member, timeout_s: float = 40.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, [member.assignments for member in members]
        for member in members:
            member.poll()


def test_restarted_static_member_causes_no_rebalance(cluster: Cluster) -> None:
    """KIP-345."""
    create_topic(cluster, "static", partitions=4)
    with Member(cluster, "static", "static", "one") as first:
        with Member(cluster, "static", "static", "two") as two:
            poll_until(
                lambda: [len(each.assignments[-1]) for each in (first, two) if each.assignments] == [2, 2], first, two
            )
            before = (len(first.assignments), two.assignments[-1])
        with Member(cluster, "static", "static", "two") as again:
            poll_until(lambda: bool(again.assignments), first, again)
            for _ in range(20):
                first.poll()
                again.poll()

            assert (len(first.assignments), again.assignments) == (before[0], [before[1]])


def test_members_and_their_commits_outlive_the_broker(cluster: Cluster) -> None:
    create_topic(cluster, "outlive", partitions=2)
    produce(cluster, "outlive", 100, partitions=2)
    with Member(cluster, "outlive", "outlive") as member:
        poll_until(lambda: len(member.values) == 100, member)
        member.commit()

        cluster.restart(kill=True)

        produce(cluster, "outlive", 100, partitions=2)
        poll_until(lambda: len(member.values) == 200, member)
        member.commit()
        assert member.assignments == [{0, 1}]


def test_kafka_python_resumes_at_committed_offset(cluster: Cluster) -> None:
    create_topic(cluster, "committed", partitions=1)
    produce(cluster, "committed", 10, partitions=1)
    partition = KafkaPythonPartition("committed", 0)
    settings = {"bootstrap_servers": cluster.bootstrap_servers, "group_id": "committed", "enable_auto_commit": False}
    consumer = KafkaConsumer(**settings)
    consumer.assign([partition])
    consumer.seek(partition, 7)
    wait_until(lambda: bool(consumer.poll(timeout_ms=500, max_records=1)), timeout_s=60, what="the eighth record")
    consumer.commit()
    consumer.close()

    again = KafkaConsumer(**settings)
    again.assign([partition])
    assert again.committed(partition) == 8
    records = again.poll(timeout_ms=60_000)[partition]
    again.close()

    assert [record.value for record in records] == [b"8", b"9"]


def test_kafkas_group_tool_lists_describes_resets_and_deletes(cluster: Cluster, java: None) -> None:
    create_topic(cluster, "tool", partitions=2)
    produce(cluster, "tool", 20, partitions=2)
    server = ("--bootstrap-server", cluster.bootstrap_servers)
    with Member(cluster, "tool", "tool") as member:
        poll_until(lambda: len(member.values) == 20, member)
        member.commit()
        listed = run_tool(GROUPS_TOOL, *server, "--list", "--state")
        described = run_tool(GROUPS_TOOL, *server, "--describe", "--group", "tool", "--members")
    assert any(line.split() == ["tool", "Stable"] for line in listed.splitlines())
    assert "rdkafka" in described

    offsets = run_tool(GROUPS_TOOL, *server, "--describe", "--group", "tool")
    run_tool(
        GROUPS_TOOL, *server, "--group", "tool", "--topic", "tool:0", "--reset-offsets", "--to-earliest", "--execute"
    )
    after = run_tool(GROUPS_TOOL, *server, "--describe", "--group", "tool")
    run_tool(GROUPS_TOOL, *server, "--delete-offsets", "--group", "tool", "--topic", "tool:1")
    less = run_tool(GROUPS_TOOL, *server, "--describe", "--group", "tool")
    run_tool(GROUPS_TOOL, *server, "--delete", "--group", "tool")

    assert lags(offsets) == {"0": "0", "1": "0"}
    assert lags(after) == {"0": "10", "1": "0"}
    assert lags(less) == {"0": "10"}
    assert "tool" not in run_tool(GROUPS_TOOL, *server, "--list").split()


def lags(described: str) -> dict[str, str]:
    """Return the lag by partition: GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG ..."""
    rows = [line.split() for line in described.splitlines() if line.startswith("tool")]
    return {row[2]: row[5] for row in rows}

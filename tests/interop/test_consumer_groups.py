"""Consumer groups of KIP-848 with unmodified clients: ``group.protocol=consumer`` in Java and librdkafka."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, Self

import pytest
from confluent_kafka import Consumer, ConsumerGroupType, Producer
from confluent_kafka.admin import AdminClient

from klamm.cli.groups import main
from klamm.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.protocol.types import ResourceType
from tests.support.java import start_java
from tests.support.kafka_tools import run_tool
from tests.support.klamm import KlammBroker
from tests.support.processes import wait_until
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from confluent_kafka import TopicPartition

RECORDS: Final = 100_000 if os.environ.get("KLAMM_SOAK") else 1_200
PARTITIONS: Final = 12
PATIENCE_S: Final = 60
QUICK: Final = {
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
}
"""Settings that let groups move on quickly."""
CONSOLE: Final = "org.apache.kafka.tools.consumer.ConsoleConsumer"
GROUPS_TOOL: Final = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


@pytest.fixture(scope="module")
def broker() -> Iterator[KlammBroker]:
    with KlammBroker(QUICK) as running:
        yield running


def create_topic(broker: KlammBroker, name: str, partitions: int) -> None:
    with WireClient(broker.bootstrap_servers) as client:
        client.create_topic(name, partitions=partitions)


def produce(broker: KlammBroker, topic: str, values: Sequence[str]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 5})
    for value in values:
        producer.produce(topic, value.encode(), key=value.encode())
        producer.poll(0)
    assert producer.flush(30) == 0


class Member:
    """A librdkafka consumer in a thread of its own. A context manager."""

    def __init__(
        self, broker: KlammBroker, group: str, topic: str, *, protocol: str = "consumer", instance_id: str = ""
    ) -> None:
        settings: dict[str, str | int] = {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 500,
            "auto.commit.interval.ms": 200,
        }
        if protocol == "classic":
            settings |= {"heartbeat.interval.ms": 200, "partition.assignment.strategy": "cooperative-sticky"}
        if instance_id:
            settings["group.instance.id"] = instance_id
        self.values: set[str] = set()
        self.owned: frozenset[tuple[str, int]] = frozenset()
        self._consumer = Consumer(settings)
        self._consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke)
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the group."""
        self._is_done.set()
        self._thread.join(PATIENCE_S)

    def _on_assign(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self.owned |= {(partition.topic, partition.partition) for partition in partitions}

    def _on_revoke(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self.owned -= {(partition.topic, partition.partition) for partition in partitions}

    def _run(self) -> None:
        while not self._is_done.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.values.add((message.value() or b"").decode())
        self._consumer.close()


def shares(members: Sequence[Member], count: int) -> bool:
    """Return whether the members own ``count`` partitions, each of them some, and none twice."""
    owned = [item for member in members for item in member.owned]
    return len(owned) == len(set(owned)) == count and all(member.owned for member in members)


def settle(members: Sequence[Member], count: int) -> None:
    wait_until(lambda: shares(members, count), timeout_s=PATIENCE_S, what=f"{count} partitions of {len(members)}")


def group_type(broker: KlammBroker, group: str) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    listed = admin.list_consumer_groups().result(PATIENCE_S).valid
    kinds = {ConsumerGroupType.CONSUMER: "consumer", ConsumerGroupType.CLASSIC: "classic"}
    return next(kinds[each.type] for each in listed if each.group_id == group)


@pytest.mark.long
def test_group_survives_joining_leaving_and_killed_members_during_broker_restarts(tmp_path: Path) -> None:
    """K848-14."""
    values = [str(number) for number in range(RECORDS)]
    stages = [values[number::4] for number in range(4)]
    out = tmp_path / "java.out"
    with KlammBroker(QUICK) as broker, out.open("wb") as stdout:
        create_topic(broker, "crowd", PARTITIONS)
        members = [Member(broker, "crowd", "crowd")]
        java = start_java(
            CONSOLE, "--bootstrap-server", broker.bootstrap_servers, "--topic", "crowd", "--group", "crowd",
            "--consumer-property", "group.protocol=consumer", "--consumer-property", "auto.offset.reset=earliest",
            log=tmp_path / "java.log", stdout=stdout.fileno(),
        )  # fmt: skip

        def stage(number: int) -> None:
            produce(broker, "crowd", stages[number])
            wanted = {value for part in stages[: number + 1] for value in part}
            wait_until(lambda: wanted <= seen(), timeout_s=PATIENCE_S * 2, what=f"the records of stage {number}")

        def seen() -> set[str]:
            return set(out.read_text().split()).union(*(member.values for member in members))

        try:
            members[0].__enter__()
            wait_until(lambda: 0 < len(members[0].owned) < PARTITIONS, timeout_s=PATIENCE_S, what="the Java member")
            stage(0)
            java.kill()
            members.append(Member(broker, "crowd", "crowd").__enter__())
            stage(1)
            settle(members, PARTITIONS)
            broker.restart(kill=True)
            stage(2)
            members[0].close()
            members.append(Member(broker, "crowd", "crowd").__enter__())
            stage(3)
            settle(members[1:], PARTITIONS)
        finally:
            java.kill()
            java.wait()
            for member in members:
                member.close()


def test_regex_subscription_includes_topics_created_later(broker: KlammBroker) -> None:
    create_topic(broker, "regex-1", 2)
    create_topic(broker, "other-1", 1)
    with Member(broker, "by-regex", "^regex-[0-9]+$") as first, Member(broker, "by-regex", "^regex-[0-9]+$") as second:
        settle([first, second], 2)
        create_topic(broker, "regex-2", 2)
        settle([first, second], 4)
        produce(broker, "regex-2", ["late"])
        wait_until(lambda: "late" in first.values | second.values, timeout_s=PATIENCE_S, what="the late record")


def test_classic_group_migrates_online_and_back(broker: KlammBroker) -> None:
    """K848-10."""
    create_topic(broker, "migrates", 6)
    with Member(broker, "migrates", "migrates", protocol="classic") as classic:
        settle([classic], 6)
        assert group_type(broker, "migrates") == "classic"

        with Member(broker, "migrates", "migrates") as modern:
            settle([classic, modern], 6)
            assert group_type(broker, "migrates") == "consumer"
            produce(broker, "migrates", [str(number) for number in range(60)])
            both = {str(number) for number in range(60)}
            wait_until(lambda: both <= classic.values | modern.values, timeout_s=PATIENCE_S, what="the records of both")

        settle([classic], 6)
        assert group_type(broker, "migrates") == "classic"
        produce(broker, "migrates", ["last"])
        wait_until(lambda: "last" in classic.values, timeout_s=PATIENCE_S, what="the last record")


@pytest.mark.long
def test_kafkas_tool_describes_a_consumer_group(broker: KlammBroker) -> None:
    """K848-11."""
    create_topic(broker, "described", 3)
    produce(broker, "described", [str(number) for number in range(30)])

    def run(*options: str) -> dict[str, list[str]]:
        lines = (
            run_tool(
                GROUPS_TOOL,
                "--bootstrap-server",
                broker.bootstrap_servers,
                "--group",
                "described",
                "--describe",
                *options,
            )
            .strip()
            .splitlines()
        )
        heads = lines[0].split()
        columns = defaultdict(list)
        for line in lines[1:]:
            for head, cell in zip(heads, line.split(), strict=False):
                columns[head].append(cell)
        return columns

    with Member(broker, "described", "described", instance_id="i-1") as member:
        settle([member], 3)
        wait_until(lambda: len(member.values) == 30, timeout_s=PATIENCE_S, what="all records")
        state = run("--state")
        members = run("--members", "--verbose")
    assert (state["ASSIGNMENT-STRATEGY"], state["STATE"], state["#MEMBERS"]) == (["uniform"], ["Stable"], ["1"])
    assert members["GROUP-INSTANCE-ID"] == ["i-1"]
    assert members["CURRENT-ASSIGNMENT"] == members["TARGET-ASSIGNMENT"] == ["described:0,1,2"]
    assert sum(map(int, run()["LAG"])) == 0


def test_klamm_groups_describes_a_consumer_group(broker: KlammBroker, capsys: pytest.CaptureFixture[str]) -> None:
    create_topic(broker, "shown", 2)

    def run(*options: str) -> list[str]:
        assert main(["--bootstrap-server", broker.bootstrap_servers, "--describe", "--group", "shown", *options]) == 0
        return capsys.readouterr().out.split("\n")[2].split()

    with Member(broker, "shown", "shown") as member:
        settle([member], 2)
        produce(broker, "shown", ["a"])
        wait_until(lambda: member.values == {"a"}, timeout_s=PATIENCE_S, what="the record")
        members, state = run("--members", "--verbose"), run("--state", "--verbose")

    assert members[4:] == ["2", "2", "shown:0,1", "2", "shown:0,1"]
    assert state[-5:] == ["uniform", "Stable", "2", "2", "1"]


def test_configs_of_a_group_take_effect_with_the_next_heartbeat(broker: KlammBroker) -> None:
    """K848-12."""
    create_topic(broker, "configured", 1)
    with WireClient(broker.bootstrap_servers) as client:

        def beat(member_id: str, epoch: int, **fields: Any) -> ConsumerGroupHeartbeatResponse:
            request = ConsumerGroupHeartbeatRequest(
                group_id="configured", member_id=member_id, member_epoch=epoch, **fields
            )
            return client.ask(request, ConsumerGroupHeartbeatResponse, 1)

        def join(member_id: str) -> ConsumerGroupHeartbeatResponse:
            first = {"rebalance_timeout_ms": 1000, "subscribed_topic_names": ["configured"], "topic_partitions": []}
            return beat(member_id, 0, **first)

        def set_config(name: str, value: str) -> None:
            config = IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=ResourceType.GROUP,
                resource_name="configured",
                configs=[IncrementalAlterConfigsRequest.AlterableConfig(name=name, value=value)],
            )
            request = IncrementalAlterConfigsRequest(resources=[config])
            assert client.ask(request, IncrementalAlterConfigsResponse, 1).responses[0].error_code == 0

        assert join("m").heartbeat_interval_ms == 200
        set_config("consumer.heartbeat.interval.ms", "350")
        assert beat("m", 2).heartbeat_interval_ms == 350
        set_config("consumer.assignment.interval.ms", "15000")
        assert join("n").member_epoch == 2
        set_config("consumer.assignment.interval.ms", "0")
        assert beat("n", 2).member_epoch == 3

"""A changed replication factor moves replicas under a throttle, which is removed afterwards."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaProducer

from klamm import cli
from klamm.admin import (
    AdminClient,
    AlterConfigOp,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OpType,
    ResourceType,
    TopicPartition,
)
from klamm.protocol.errors import UnknownTopicOrPartitionError
from tests.support.processes import start_process, wait_until
from tests.support.shared_cluster import unique

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.support.kafka import KafkaCluster


pytestmark = pytest.mark.long

LEADERS, FOLLOWERS = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"
LEADER_RATE, FOLLOWER_RATE = "leader.replication.throttled.rate", "follower.replication.throttled.rate"


@pytest.fixture(autouse=True)
def _no_throttled_replicas(real_kafka_3: KafkaCluster) -> None:
    """Remove the throttled replicas of topics that other tests have left: a rate stays on a broker that has any."""
    with AdminClient(real_kafka_3.bootstrap_servers) as admin:
        topics = [ConfigResource(ResourceType.TOPIC, name) for name in admin.list_topics().result()]
        outcomes = admin.describe_configs(dict.fromkeys(topics, (LEADERS, FOLLOWERS)), is_current=True).values()
        described = {
            topic: outcome.result()
            for topic, outcome in outcomes.items()
            if not isinstance(outcome.exception(), UnknownTopicOrPartitionError)  # its deletion has just ended
        }
        left = {
            topic: {name: None for name, entry in entries.items() if entry.value}
            for topic, entries in described.items()
            if any(entry.value for entry in entries.values())
        }
        if left:
            set_configs(admin, left)


def test_replication_factor_changes_by_a_throttled_reassignment(
    real_kafka_3: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given
    at = ("--bootstrap-server", real_kafka_3.bootstrap_servers)
    file = tmp_path / "topics.yaml"
    with AdminClient(real_kafka_3.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name="replicated", replicas_assignments={0: (1,), 1: (2,)})]).all().result()
        real_kafka_3.wait_for_replicas("replicated", 1)
        file.write_text("topics: {replicated: {replication_factor: 4}}")
        # when
        assert cli.main(["plan", str(file), *at]) == 1
        # then
        assert "replication_factor: 4: expected at most 3, the number of brokers" in capsys.readouterr().err
        # when
        file.write_text("topics: {replicated: {replication_factor: 3}}")
        assert cli.main(["apply", str(file), *at, "--throttle", "1000000"]) == 0
        # then
        assert "~ replication_factor: 1 (cluster) -> 3 (file)" in capsys.readouterr().out
        topic = admin.describe_topics(["replicated"], is_current=True).result()["replicated"]
        assert [(len(p.replicas), p.replicas[0]) for p in topic.partitions] == [(3, 1), (3, 2)]
        brokers = [ConfigResource(ResourceType.BROKER, str(node)) for node in (1, 2, 3)]
        resources = [ConfigResource(ResourceType.TOPIC, "replicated"), *brokers]
        configs = admin.describe_configs(resources, is_current=True).result()
        assert [
            e.value for entries in configs.values() for e in entries.values() if ".throttled." in e.name and e.value
        ] == []
        real_kafka_3.wait_for_replicas("replicated", 3)
        assert cli.main(["plan", str(file), *at, "--check"]) == 0
        admin.delete_topics(["replicated"]).all().result()


def test_added_partitions_get_the_new_replication_factor(real_kafka_3: KafkaCluster, tmp_path: Path) -> None:
    # given
    name, file = unique("grown"), tmp_path / "topics.yaml"
    at = (str(file), "--bootstrap-server", real_kafka_3.bootstrap_servers)
    file.write_text(f"topics: {{{name}: {{partitions: 4, replication_factor: 3}}}}")
    with AdminClient(real_kafka_3.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name=name, replicas_assignments={0: (1,)})]).all().result()
        real_kafka_3.wait_for_replicas(name, 1)
        # when
        assert cli.main(["apply", *at]) == 0
        # then
        topic = admin.describe_topics([name], is_current=True).result()[name]
        assert [len(partition.replicas) for partition in topic.partitions] == [3] * 4
        real_kafka_3.wait_for_replicas(name, 3)
        assert cli.main(["plan", *at, "--check"]) == 0
        admin.delete_topics([name]).all().result()


RATE = 400_000
"""Bytes per second. A new replica gets 1 MiB at once, and waits some seconds for the other two."""
THEIR_RATE = "77777777"


def throttles(admin: AdminClient, *topics: str) -> dict[tuple[str, str], str]:
    """Return the throttles that are set on the brokers and on some topics, by resource and config."""
    brokers = [ConfigResource(ResourceType.BROKER, str(node)) for node in (1, 2, 3)]
    resources = [*brokers, *(ConfigResource(ResourceType.TOPIC, topic) for topic in topics)]
    configs = admin.describe_configs(resources, is_current=True).result()
    return {
        (resource.name, name): entry.value
        for resource, entries in configs.items()
        for name, entry in entries.items()
        if ".throttled." in name and entry.value
    }


def fill(servers: str, topic: str) -> None:
    """Produce 3 MiB."""
    producer = KafkaProducer(bootstrap_servers=servers, acks="all")
    for _ in range(30):
        producer.send(topic, bytes(102_400), partition=0)
    producer.flush()
    producer.close()


def test_apply_takes_over_throttled_move_of_a_killed_run(real_kafka_3: KafkaCluster, tmp_path: Path) -> None:
    # given
    servers = real_kafka_3.bootstrap_servers
    moved, theirs = unique("moved"), unique("theirs")
    file, log = tmp_path / "topics.yaml", tmp_path / "apply.log"
    file.write_text(f"topics: {{{moved}: {{replication_factor: 2}}}}")
    command = ("apply", str(file), "--bootstrap-server", servers, "--throttle", str(RATE))
    with AdminClient(servers) as admin:
        placed = [NewTopic(name=name, replicas_assignments={0: (1,)}) for name in (moved, theirs)]
        admin.create_topics(placed).all().result()
        fill(servers, moved)
        others = {
            ConfigResource(ResourceType.TOPIC, theirs): {LEADERS: "0:1"},
            ConfigResource(ResourceType.BROKER, "2"): {LEADER_RATE: THEIR_RATE},
            ConfigResource(ResourceType.BROKER, "3"): {LEADER_RATE: THEIR_RATE},
        }
        set_configs(admin, others)
        process = start_process([sys.executable, "-m", "klamm.cli", *command], log=log)
        partition = TopicPartition(moved, 0)

        def is_moving() -> bool:
            assert process.poll() is None, log.read_text()
            return bool(admin.list_partition_reassignments([partition]).result())

        wait_until(is_moving, timeout_s=60, what="the replica to move")
        process.kill()
        process.wait()
        assert admin.list_partition_reassignments([partition]).result()
        left = throttles(admin, moved, theirs)
        assert left["1", LEADER_RATE] == str(RATE)
        assert left[moved, LEADERS] == "0:1"
        # when
        assert cli.main([*command]) == 0
        # then
        assert not admin.list_partition_reassignments([partition]).result()
        (replicas,) = [p.replicas for p in admin.describe_topics([moved]).result()[moved].partitions]
        assert len(replicas) == 2
        of_others = {("2", LEADER_RATE): THEIR_RATE, ("3", LEADER_RATE): THEIR_RATE, (theirs, LEADERS): "0:1"}
        shared = {("1", LEADER_RATE): str(RATE)}  # it also applies to the other topic
        assert throttles(admin, moved, theirs) == of_others | shared
        # when a run is killed between the end of the move and that of the throttle
        set_configs(
            admin,
            {
                ConfigResource(ResourceType.TOPIC, theirs): {LEADERS: ""},
                ConfigResource(ResourceType.TOPIC, moved): {LEADERS: "0:1", FOLLOWERS: f"0:{replicas[1]}"},
                ConfigResource(ResourceType.BROKER, "1"): {LEADER_RATE: str(RATE), FOLLOWER_RATE: str(RATE)},
                ConfigResource(ResourceType.BROKER, str(replicas[1])): {FOLLOWER_RATE: str(RATE)},
            },
        )
        assert cli.main([*command]) == 0
        # then
        del of_others[theirs, LEADERS]
        assert throttles(admin, moved, theirs) == of_others
        set_configs(admin, {ConfigResource(ResourceType.BROKER, broker): {LEADER_RATE: None} for broker in ("2", "3")})
        admin.delete_topics([moved, theirs]).all().result()


def set_configs(admin: AdminClient, configs: Mapping[ConfigResource, Mapping[str, str | None]]) -> None:
    """Set configs, or remove those with None, and wait until the brokers describe them."""
    admin.incremental_alter_configs(
        {
            resource: [
                AlterConfigOp(ConfigEntry(name, value), OpType.DELETE if value is None else OpType.SET)
                for name, value in values.items()
            ]
            for resource, values in configs.items()
        }
    ).result()

    def are_described() -> bool:
        described = admin.describe_configs(list(configs), is_current=True).result()
        return all(
            ((entry.value if (entry := described[resource].get(name)) else None) or None) == (value or None)
            for resource, values in configs.items()
            for name, value in values.items()
        )

    wait_until(are_described, timeout_s=20, what="the configs to be described")

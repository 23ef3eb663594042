"""``klamm mirror promote`` and ``demote`` for a real Kafka cluster as the target, also without the source."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer

from klamm.admin import AdminClient, TopicPartition
from klamm.cli import main
from tests.spark.test_mirror_commands import flow_of, listener
from tests.spark.test_mirror_replica import KLAMM, replica_keys
from tests.support.kafka import KafkaCluster
from tests.support.klamm import KlammBroker
from tests.support.mirror import MirrorProcess, Seen, create_topic, produce, properties
from tests.support.processes import wait_until
from tests.support.transactional_clients import Confluent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FLOW = "A->B"
TIME = 1_700_000_000_000
_RARELY = """sync.group.offsets.enabled = true
sync.group.offsets.interval.seconds = 3600
emit.checkpoints.interval.seconds = 3600
"""
"""Group offsets are synced at the start, and when a topic is promoted."""


@pytest.fixture
def cluster(java: None) -> Iterator[KafkaCluster]:
    with KafkaCluster() as running:
        yield running


def properties_of(source: str, cluster: KafkaCluster, topics: str, node_id: int = KLAMM, alias: str = "A") -> str:
    keys = replica_keys(node_id, cluster.bootstrap_controllers) + "klamm.metrics.listen = 127.0.0.1:0\n"
    return properties(source, cluster.bootstrap_servers, keys, topics=topics, alias=alias)


def fill(source: str, topic: str, count: int) -> None:
    create_topic(source, topic, 1, {"retention.ms": "-1"})
    produce(source, topic, [(0, Seen(b"k", b"%d" % number, (), TIME)) for number in range(count)])


def wait_for_ends(address: str, ends: dict[str, int]) -> None:
    """Wait until the remote topics have log ends."""

    def have_ends() -> bool:
        return {row["topic"]: row["target_end"] for row in flow_of(address)["partitions"]} == ends

    wait_until(have_ends, timeout_s=120, what=f"{ends}")


def consume(servers: str, topic: str, count: int) -> list[bytes | None]:
    """Return the values of committed records that a group reads."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": f"readers-{topic}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[bytes | None] = []
    try:
        while len(values) < count:
            message = consumer.poll(60)
            assert message is not None, values
            assert message.error() is None, message.error()
            values.append(message.value())
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return values


def group_offset(servers: str, group: str, topic: str) -> int:
    """Return the committed offset of a group on partition 0."""
    with AdminClient(servers) as admin:
        offsets = admin.list_group_offsets({group: None}).all().result(300)[group]
        return offsets[TopicPartition(topic, 0)].offset


def write(servers: str, topic: str) -> None:
    """Write a record by an idempotent producer, and one in a transaction."""
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    errors: list[object] = []
    producer.produce(topic, b"idempotent", partition=0, on_delivery=lambda error, _: errors.append(error))
    producer.flush(60)
    assert errors == [None]
    with Confluent(servers, f"new-{topic}") as transactional:
        transactional.begin()
        transactional.send(topic, "transactional")
        transactional.commit()


@pytest.mark.long
def test_promoted_topics_are_written_on_the_target_and_another_process_leaves_them(
    cluster: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    b = cluster.bootstrap_servers

    def run(*words: str, code: int = 0) -> str:
        capsys.readouterr()
        result = main(["mirror", *words, "--metrics", address])
        output = capsys.readouterr()
        assert result == code, output.err
        return output.err if code else output.out

    with KlammBroker() as source, Confluent(source.bootstrap_servers, "left-open") as left_open:
        a = source.bootstrap_servers
        fill(a, "orders", 10)
        fill(a, "users", 5)
        left_open.begin()
        left_open.send("orders", "open")
        file = str(tmp_path / "mm2.properties")
        with MirrorProcess(properties_of(a, cluster, "orders,users") + _RARELY, tmp_path) as mirror:
            address = listener(mirror)
            wait_for_ends(address, {"orders": 11, "users": 5})
            assert len(consume(a, "orders", 10)) == 10
            # when
            plan = json.loads(run("promote", file, "-o", "json"))
            results = json.loads(run("promote", file, "orders", "--yes", "-o", "json"))
            # then
            lags = [
                (each["topic"], each["lag"], each["open_transactions"], each["obstacles"]) for each in plan["topics"]
            ]
            assert lags == [("orders", 0, 1, []), ("users", 0, 0, [])]
            (orders,) = results["topics"]
            assert orders["is_done"]
            assert orders["partitions"][0]["target_end"] == 11
            assert "1 open transaction aborted" in orders["partitions"][0]["reason"]
            assert group_offset(b, "readers-orders", "A.orders") == 10
            assert "A.orders-0 ends at offset 12, not at 11" in run("demote", file, "orders", code=1)
            assert "topic orders is PROMOTED" in run("resume", FLOW, "orders", code=1)
            write(b, "A.orders")
            assert consume(b, "A.orders", 12)[9:] == [b"9", b"idempotent", b"transactional"]
            produce(a, "users", [(0, Seen(b"k", b"v", (), TIME))])
            wait_for_ends(address, {"orders": 11, "users": 6})
            mirror.kill()
        (tmp_path / "again").mkdir()
        with MirrorProcess(properties_of(a, cluster, "orders,users"), tmp_path / "again") as again:
            address = listener(again)
            produce(a, "orders", [(0, Seen(b"k", b"late", (), TIME))])
            produce(a, "users", [(0, Seen(b"k", b"v", (), TIME))])
            wait_for_ends(address, {"orders": 11, "users": 7})
            assert "handed over by an earlier process" in flow_of(address)["partitions"][0]["reason"]
            assert run("promote", file, "users", "--yes").splitlines()[1].split()[:4] == ["users", "0", "PROMOTED", "7"]
            assert run("demote", file, "users").splitlines()[1].split()[:4] == ["users", "0", "COPYING", "7"]
            produce(a, "users", [(0, Seen(b"k", b"v", (), TIME))])
            wait_for_ends(address, {"orders": 11, "users": 8})
            assert run("promote", file, "users", "--yes").splitlines()[1].split()[:4] == ["users", "0", "PROMOTED", "8"]
    write(b, "A.users")
    with AdminClient(b) as admin:
        described = admin.describe_topics(["A.orders", "A.users"]).all().result(300)
    assert {each.leader for topic in described.values() for each in topic.partitions} == {1}


@pytest.mark.long
def test_topic_is_promoted_without_the_source_by_a_process_that_never_saw_it(
    cluster: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    b, file = cluster.bootstrap_servers, str(tmp_path / "again" / "mm2.properties")
    with KlammBroker() as source:
        keys = properties_of(source.bootstrap_servers, cluster, "lost", KLAMM + 1, "L")
        fill(source.bootstrap_servers, "lost", 10)
        with MirrorProcess(keys, tmp_path) as mirror:
            wait_for_ends(listener(mirror), {"lost": 10})
            mirror.stop()
    (tmp_path / "again").mkdir()
    with MirrorProcess(keys, tmp_path / "again") as again:
        address = listener(again)
        wait_until(lambda: flow_of(address)["partitions"] != [], timeout_s=120, what="the task")
        # when
        assert main(["mirror", "promote", file, "--metrics", address]) == 1
        plan = capsys.readouterr().out
        assert main(["mirror", "promote", file, "--accept-loss", "--yes", "--metrics", address]) == 0
    # then
    assert "cluster L does not answer" in plan
    assert "--accept-loss promotes without cluster L" in plan
    write(b, "L.lost")
    assert consume(b, "L.lost", 12)[9:] == [b"9", b"idempotent", b"transactional"]

"""``klamm mirror`` as a broker of a real cluster, as users start it: remote topics are equal in every byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.admin import AdminClient, NewPartitions, NewTopic
from klamm.protocol.records import iter_batches
from tests.support.kafka import KafkaCluster
from tests.support.klamm import KlammBroker
from tests.support.mirror import (
    MirrorProcess,
    Seen,
    create_topic,
    delete_topic,
    produce,
    properties,
    read,
    wait_for_partitions,
)
from tests.support.processes import free_port, wait_until
from tests.support.transactional_clients import Confluent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.long

KLAMM = 9
TIME = 1_700_000_000_000
TOPICS = ("plain", "transactional")


@pytest.fixture
def cluster(java: None) -> Iterator[KafkaCluster]:
    with KafkaCluster() as running:
        yield running


def write(cluster: KafkaCluster, first: int) -> None:
    """Write records to one topic, and an aborted and a committed transaction to the other."""
    address = cluster.bootstrap_servers
    produce(address, "plain", [(0, Seen(b"k%d" % at, b"v" * 50, (), TIME)) for at in range(first, first + 40)])
    with Confluent(address, "writer") as producer:
        for is_committed in (False, True):
            producer.begin()
            for number in range(3):
                producer.send("transactional", f"{first} {number}")
            producer.commit() if is_committed else producer.abort()


def stored(cluster: KafkaCluster, topic: str, partition: int = 0) -> list[bytes]:
    """Return the batches in the segments of a replica: none while its directory is being deleted."""
    directory = cluster.nodes[1].directory / "data" / f"{topic}-{partition}"
    try:
        data = b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))
    except FileNotFoundError:
        return []
    return [bytes(batch.buffer) for batch in iter_batches(data, allow_partial_tail=True)]


def wait_for_equal_replicas(cluster: KafkaCluster, *topics: str) -> None:
    for topic in topics or TOPICS:
        wait_until(
            lambda topic=topic: stored(cluster, f"A.{topic}") == stored(cluster, topic),  # type: ignore[misc]
            timeout_s=120,
            what=f"the batches of {topic}",
        )


def create_late_topic(address: str, value: bytes) -> None:
    on_broker = dict.fromkeys(range(2), (1,))  # not on klamm, which accepts partitions while a remote topic is created
    with AdminClient(address) as admin:
        new = NewTopic(name="late", replicas_assignments=on_broker, configs={"retention.ms": "-1"})
        created = admin.create_topics([new]).values()["late"].result(300)
    wait_for_partitions(address, "late", 2, created.topic_id)
    produce(address, "late", [(number, Seen(b"k", value, (), TIME)) for number in (0, 1)])


def add_partition_to_late_topic(address: str) -> None:
    with AdminClient(address) as admin:
        admin.create_partitions({"late": NewPartitions(3, ((1,),))}).all().result(300)
    wait_for_partitions(address, "late", 3)
    produce(address, "late", [(2, Seen(b"k", b"v", (), TIME))])


def wait_for_late_topic(cluster: KafkaCluster, partitions: int = 2) -> None:
    for number in range(partitions):
        wait_until(
            lambda number=number: stored(cluster, "A.late", number) == stored(cluster, "late", number),  # type: ignore[misc]
            timeout_s=120,
            what="the batches of a new topic",
        )


def leader_epoch(address: str, topic: str) -> int | None:
    with AdminClient(address) as admin:
        return admin.describe_topics([topic]).all().result(300)[topic].partitions[0].leader_epoch


def leader(address: str, topic: str) -> int | None:
    with AdminClient(address) as admin:
        return admin.describe_topics([topic]).all().result(300)[topic].partitions[0].leader


def replica_keys(node_id: int, controllers: str) -> str:
    return f"""
B.bootstrap.controllers = {controllers}
klamm.offsets = preserve
klamm.offsets.by = replica
klamm.replica.experimental = true
klamm.replica.node.id = {node_id}
klamm.replica.listeners = 127.0.0.1:{free_port()}
heartbeats.replication.enabled = false
emit.heartbeats.enabled = false
"""


def test_mirror_leads_remote_topics_and_goes_on_after_a_kill(cluster: KafkaCluster, tmp_path: Path) -> None:
    # given
    address = cluster.bootstrap_servers
    for topic in TOPICS:
        create_topic(address, topic, 1, {"retention.ms": "-1"})
    write(cluster, 0)
    file = properties(
        address, address, replica_keys(KLAMM, cluster.bootstrap_controllers), topics="plain, transactional, late"
    )
    # when
    with MirrorProcess(file, tmp_path, as_users_run_it=True) as mirror:
        wait_for_equal_replicas(cluster)
        write(cluster, 1_000)
        wait_for_equal_replicas(cluster)
        mirror.kill()
    write(cluster, 2_000)
    with MirrorProcess(file, tmp_path, as_users_run_it=True) as again:
        wait_for_equal_replicas(cluster)
        create_topic(address, "other", 16)
        led_with = leader_epoch(address, "A.plain")
        create_late_topic(address, b"old")
        wait_for_late_topic(cluster)
        assert leader_epoch(address, "A.plain") == led_with  # klamm has not left the cluster meanwhile
        add_partition_to_late_topic(address)
        wait_for_late_topic(cluster, 3)
        delete_topic(address, "late")
        create_late_topic(address, b"new")
        again.wait_for("late was deleted and created again on the source")
        delete_topic(address, "A.late")
        wait_for_late_topic(cluster)
        write(cluster, 3_000)
        wait_for_equal_replicas(cluster)
        stopped = again.stop()
    ends = len(stored(cluster, "A.plain"))
    write(cluster, 4_000)
    fewer = file.replace("topics = plain, transactional, late", "topics = transactional").replace(
        "refresh.topics.interval.seconds = 1", "refresh.topics.interval.seconds = 3600"
    )
    with MirrorProcess(fewer, tmp_path, as_users_run_it=True):
        wait_for_equal_replicas(cluster, "transactional")
        wait_until(lambda: leader(address, "A.plain") == KLAMM, timeout_s=60, what="a topic that is not selected")
        delete_topic(address, "A.transactional")
        wait_for_equal_replicas(cluster, "transactional")
    # then
    assert stopped == 0
    assert len(stored(cluster, "A.plain")) == ends
    assert len(stored(cluster, "A.plain")) >= 3
    with AdminClient(address) as admin:
        described = admin.describe_topics([*(f"A.{topic}" for topic in (*TOPICS, "late")), "other"]).all().result(300)
    for partition in (each for topic in (*TOPICS, "late") for each in described[f"A.{topic}"].partitions):
        assert set(partition.replicas) == {1, KLAMM}
        assert 1 not in partition.isr
    assert {partition.replicas for partition in described["other"].partitions} == {(1,)}


def test_mirror_that_starts_without_its_source_lets_clients_read(cluster: KafkaCluster, tmp_path: Path) -> None:
    # given
    target, records = cluster.bootstrap_servers, [(0, Seen(b"k%d" % at, b"v", (), TIME)) for at in range(40)]
    with KlammBroker() as source:
        create_topic(source.bootstrap_servers, "gone", 1, {"retention.ms": "-1"})
        produce(source.bootstrap_servers, "gone", records)
        keys = replica_keys(KLAMM + 1, cluster.bootstrap_controllers)
        file = properties(source.bootstrap_servers, target, keys, topics="gone", alias="S")
        with MirrorProcess(file, tmp_path, as_users_run_it=True) as mirror:
            wait_until(lambda: len(stored(cluster, "S.gone")) > 0, timeout_s=120, what="the batches of the source")
            read(target, "S.gone", {0: len(records)}, timeout_s=60)
            mirror.kill()
    # when
    with MirrorProcess(file, tmp_path, as_users_run_it=True) as again:
        # then
        assert read(target, "S.gone", {0: len(records)}, timeout_s=120)[0] == [record for _, record in records]
        assert again.stop() == 0


def leases(checkpoint: Path) -> int:
    """Return the number of leases that Spark has started."""
    return max((int(path.name) for path in checkpoint.glob("offsets/*") if path.name.isdecimal()), default=0)


def second_flow(source: str) -> str:
    """Return keys of a flow from C to B. Both flows keep the names of topics, and have one that the other has too."""
    return f"""
clusters = A, B, C
C.bootstrap.servers = {source}
C->B.enabled = true
replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy
A->B.topics = both, only-A
C->B.topics = both, only-C
C->B.klamm.replica.node.id = {KLAMM + 1}
C->B.klamm.replica.listeners = 127.0.0.1:{free_port()}
"""


def test_two_flows_of_a_file_lead_their_topics_and_name_one_that_both_select(
    cluster: KafkaCluster, tmp_path: Path
) -> None:
    # given
    records = {topic: [(0, Seen(topic.encode(), b"%d" % at, (), TIME)) for at in range(40)] for topic in "AC"}
    with KlammBroker() as first, KlammBroker() as second:
        sources = {"A": first.bootstrap_servers, "C": second.bootstrap_servers}
        for alias, address in sources.items():
            for topic in ("both", f"only-{alias}"):
                create_topic(address, topic, 1, {"retention.ms": "-1"})
                produce(address, topic, records[alias])
        checkpoint = tmp_path / "checkpoint"
        keys = replica_keys(KLAMM, cluster.bootstrap_controllers) + second_flow(sources["C"])
        keys += f"klamm.lease.seconds = 1\nklamm.checkpoint.dir = {checkpoint}\nspark.master = local[2,4]\n"
        file = properties(sources["A"], cluster.bootstrap_servers, keys, topics="none")
        # when
        with MirrorProcess(file, tmp_path, as_users_run_it=True) as mirror:
            # then
            for alias in sources:
                read(cluster.bootstrap_servers, f"only-{alias}", {0: 40}, timeout_s=120)
            mirror.wait_for("of cluster B, mirrors a topic to it")
            both = read(cluster.bootstrap_servers, "both", {0: 40}, timeout_s=60)[0]
            own = ("only-A", "only-C")
            led_with = [leader_epoch(cluster.bootstrap_servers, topic) for topic in own]
            more = leases(checkpoint) + 10
            wait_until(lambda: leases(checkpoint) >= more, timeout_s=60, what="ten more leases")
            assert [leader_epoch(cluster.bootstrap_servers, topic) for topic in own] == led_with  # none left the target
            with AdminClient(cluster.bootstrap_servers) as admin:
                described = admin.describe_topics(["both", "only-A", "only-C"]).all().result(300)
            assert mirror.stop() == 1  # a topic is not mirrored
    leaders = {name: topic.partitions[0].leader for name, topic in described.items()}
    owner = "A" if leaders["both"] == KLAMM else "C"
    assert both == [record for _, record in records[owner]]
    assert leaders == {"both": leaders[f"only-{owner}"], "only-A": KLAMM, "only-C": KLAMM + 1}
    assert {partition.replicas for topic in described.values() for partition in topic.partitions} == {
        (1, KLAMM),
        (1, KLAMM + 1),
    }


def test_plan_reports_obstacles_of_replica(real_kafka: KafkaCluster, tmp_path: Path) -> None:
    # given
    address, port = real_kafka.bootstrap_servers, free_port()
    file = properties(address, address, replica_keys(1, f"127.0.0.1:{port}"), topics="plain")
    # when
    with MirrorProcess(file, tmp_path, "--plan", as_users_run_it=True) as plan:
        code = plan.wait()
    # then
    (line,) = [line for line in plan.text().splitlines() if "keeping offsets" in line]
    assert code == 1
    assert "offsets are kept by a replica: klamm leads the remote partitions as broker 1 of cluster B" in plan.text()
    assert "keeping offsets would be rejected: klamm.replica.node.id=1: a controller of cluster B has this id" in line
    assert f"; B.bootstrap.controllers=127.0.0.1:{port}: No active" in line
    assert line.endswith("; klamm.replica.node.id=1: another broker of cluster B has this id")

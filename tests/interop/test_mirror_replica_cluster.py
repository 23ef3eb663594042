"""Replica mode on three nodes of Apache Kafka: a dead klamm, a source that lost records, and releases of the target."""

from __future__ import annotations

import contextlib
import shutil
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError, Producer

from klamm.admin import AdminClient, ElectionType, NewTopic
from klamm.kraft.image import NO_LEADER
from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.replica.copier import ReplicaCopier
from klamm.mirror.replica.obstacles import target_obstacle
from klamm.protocol.errors import ErrorCode, InvalidReplicaAssignmentError, KafkaApiError
from klamm.protocol.records import Record, encode_batch
from klamm.protocol.types import TopicPartition
from tests.interop.test_mirror_replica_kafka import (
    KLAMM,
    OTHER_KLAMM,
    Flow,
    Running,
    demote,
    image_of,
    killed_process,
    promote,
    replicas_of,
    running,
    traces,
)
from tests.support.java import KAFKA_RELEASE, TOOLS_RELEASE, java_tool
from tests.support.kafka import KafkaCluster
from tests.support.mirror import create_topic, delete_topic, set_config, wait_for_partitions
from tests.support.processes import wait_until
from tests.support.wire import RejectedError, WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator

LEADER, STALE = 1, 2
DEAD_S = 60.0


@pytest.fixture(scope="module")
def cluster(java: None) -> Iterator[KafkaCluster]:
    """Three nodes that klamm joins."""
    with KafkaCluster(3) as running_cluster:
        yield running_cluster


def topic_state(cluster: KafkaCluster, topic: str) -> tuple[int | None, tuple[int, ...]]:
    """Return leader and ISR of a topic's partition."""
    with AdminClient(cluster.bootstrap_servers) as admin:
        (partition,) = admin.describe_topics([topic]).all().result(300)[topic].partitions
    return partition.leader, partition.isr


@pytest.mark.long
def test_remote_topics_reject_records_and_new_topics_avoid_klamm_while_it_is_dead(cluster: KafkaCluster) -> None:
    """Evidence for I2: without klamm, the remote topic is offline."""
    flow = Flow(cluster)
    flow.produce(5, 5)
    with running(flow) as copier:
        copier.wait_for_replicas()
    with killed_process(flow):
        flow.produce(3)
        wait_until(lambda: _is_copied(flow), timeout_s=60, what="the replicas")
    (remote,) = flow.remote
    # when
    outcomes: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "message.timeout.ms": DEAD_S * 1000})
    producer.produce(remote, b"v", partition=0, on_delivery=lambda error, _: outcomes.append(error))
    ends_at = time.monotonic() + DEAD_S
    with AdminClient(cluster.bootstrap_servers) as admin:
        names = [f"{flow.alias}-other-{number}" for number in range(200)]
        new = [NewTopic(name=name, num_partitions=1, replication_factor=3) for name in names]
        admin.create_topics(new).all().result(300)
        described = admin.describe_topics(names).all().result(300)
        while time.monotonic() < ends_at:
            assert {_produced(cluster, node_id, remote) for node_id in cluster.nodes} == {
                ErrorCode.NOT_LEADER_OR_FOLLOWER
            }
            producer.poll(0.5)
        assert producer.flush(30) == 0
        admin.delete_topics(names).all().result(300)
    # then
    assert [error is not None and error.code() for error in outcomes] == [KafkaError._MSG_TIMED_OUT]
    replicas = {node for topic in described.values() for each in topic.partitions for node in each.replicas}
    assert replicas == set(cluster.nodes)
    with running(flow, is_new=False) as copier:
        flow.produce(2)
        copier.wait_for_replicas()
    flow.assert_equal()


@pytest.mark.long
def test_i2_dead_klamm_holds_up_no_other_flow_and_no_replica_is_placed_on_another_klamm(cluster: KafkaCluster) -> None:
    flow, other = Flow(cluster), Flow(cluster, node_id=OTHER_KLAMM)
    for each in (flow, other):
        each.produce(5, 5)
    with running(other) as copier_of_other:
        copier_of_other.wait_for_replicas()
    with running(flow) as copier, AdminClient(cluster.bootstrap_servers) as admin:
        with killed_process(other):
            other.produce(3)
            wait_until(lambda: _is_copied(other), timeout_s=60, what="the replicas")
        other.produce(4)
        # when
        wait_until(lambda: image_of(copier).brokers[OTHER_KLAMM].is_fenced, timeout_s=30, what="the end of its session")

        def is_offline() -> bool:
            leader, isr = topic_state(cluster, other.remote[0])
            return leader == NO_LEADER and set(isr) <= {OTHER_KLAMM}  # eligible leader replicas are not listed

        wait_until(is_offline, timeout_s=300, what="the loss of the leader")
        before = replicas_of(copier, flow)
        flow.produce(2)
        copier.wait_for_replicas()
        # then
        assert replicas_of(copier, flow) == before
        assert {node_id: _produced(cluster, node_id, other.remote[0]) for node_id in cluster.nodes} == dict.fromkeys(
            cluster.nodes, ErrorCode.NOT_LEADER_OR_FOLLOWER
        )
        promote(flow, copier)
        demote(flow, copier)
        flow.produce(2)
        copier.wait_for_replicas()
        # when it returns
        with running(other, is_new=False) as copier_of_other:
            copier_of_other.wait_for_replicas()
            other.assert_equal()
            for each, own in ((flow, copier), (other, copier_of_other)):
                promote(each, own)

            def replicas() -> set[int]:
                described = admin.describe_topics([*flow.remote, *other.remote]).all().result(300)
                return {node for topic in described.values() for each in topic.partitions for node in each.replicas}

            # then
            wait_until(lambda: replicas() == set(cluster.nodes), timeout_s=300, what="no replica on klamm")
    with AdminClient(cluster.bootstrap_servers) as admin:
        assert traces(other, admin) == []


@pytest.mark.long
def test_remote_topic_that_an_operator_reassigns_is_copied_to_its_new_replicas(cluster: KafkaCluster) -> None:
    # given
    flow = Flow(cluster)
    flow.produce(5, 5)
    remote = TopicPartition(flow.remote[0], 0)
    with running(flow, is_new=False) as copier, AdminClient(cluster.bootstrap_servers) as admin:
        new = NewTopic(name=remote.topic, replicas_assignments={0: (KLAMM,)}, configs={"retention.ms": "-1"})
        admin.create_topics([new]).all().result(300)
        admin.alter_partition_reassignments({remote: [1, 2]}).all().result(300)
        copier.wait_for_replicas()
        # when
        with pytest.raises(InvalidReplicaAssignmentError):  # klamm takes no partitions
            admin.alter_partition_reassignments({remote: [KLAMM, 1]}).all().result(300)
        admin.alter_partition_reassignments({remote: [3, 1]}).all().result(300)
        flow.produce(3)
        copier.wait_for_replicas()
        # then
        wait_until(lambda: flow.stored(remote.topic, 3) == flow.stored(flow.topic, 1), timeout_s=30, what="replica 3")
        promote(flow, copier)
        wait_until(lambda: set(topic_state(cluster, remote.topic)[1]) == {1, 3}, timeout_s=30, what="the new replicas")
        assert topic_state(cluster, remote.topic)[0] == 3


@pytest.mark.long
def test_remote_topic_that_an_operator_reassigns_to_fewer_brokers_is_mirrored_on(cluster: KafkaCluster) -> None:
    """Kafka never completes such a change of a reassignment in progress, so the promotion has to wait."""
    # given
    flow = Flow(cluster)
    flow.produce(5, 5)
    remote = TopicPartition(flow.remote[0], 0)
    with running(flow) as copier, AdminClient(cluster.bootstrap_servers) as admin:
        copier.wait_for_replicas()
        # when
        admin.alter_partition_reassignments({remote: [3, 1]}).all().result(300)
        copier.copier.promoted = {flow.topic: "PROMOTED"}
        copier.wait(lambda rows: "which adds and removes replicas 2" in rows[0].reason, "the reason")
        flow.produce(3)
        # then
        copier.wait_for_replicas()
        wait_until(
            lambda: topic_state(cluster, remote.topic) == (KLAMM, (KLAMM,)), timeout_s=300, what="klamm as leader"
        )
        admin.alter_partition_reassignments({remote: [3, 1, 2]}).all().result(300)
        promote(flow, copier)
    flow.assert_equal()


@pytest.mark.long
def test_remote_topic_that_brokers_lead_by_an_unclean_election_is_not_changed_by_klamm(cluster: KafkaCluster) -> None:
    """An operator made it writable while the mirror was down, instead of promoting it."""
    # given
    flow = Flow(cluster)
    flow.produce(5, 5)
    remote = TopicPartition(flow.remote[0], 0)
    with running(flow) as copier:
        copier.wait_for_replicas()
    set_config(cluster.bootstrap_servers, remote.topic, "unclean.leader.election.enable", "true")
    with AdminClient(cluster.bootstrap_servers) as admin, contextlib.suppress(KafkaApiError):  # it may be led already
        admin.elect_leaders(ElectionType.UNCLEAN, [remote]).all().result(300)
    wait_until(lambda: topic_state(cluster, remote.topic)[0] in cluster.nodes, timeout_s=60, what="the election")
    wait_until(
        lambda: _produced(cluster, topic_state(cluster, remote.topic)[0] or 0, remote.topic) == ErrorCode.NONE,
        timeout_s=300,
        what="the new leader",
    )
    ends = flow.end_of(remote.topic)
    # when
    flow.produce(2)
    with running(flow, is_new=False) as copier:
        # then
        copier.wait(lambda rows: f"klamm does not lead {remote.topic}-0" in rows[0].reason, "the reason")
        demote(flow, copier)
        copier.wait(lambda rows: f"klamm did not hand {remote.topic}-0 over" in rows[0].reason, "the rejection")
    assert topic_state(cluster, remote.topic)[0] in cluster.nodes
    assert flow.end_of(remote.topic) == ends == 11


@pytest.mark.long
def test_klamm_whose_stored_state_was_deleted_returns_after_its_session(
    cluster: KafkaCluster, caplog: pytest.LogCaptureFixture
) -> None:
    # given
    flow = Flow(cluster)
    flow.produce(5, 5)
    with running(flow) as copier:
        copier.wait_for_replicas()
    with killed_process(flow):
        flow.produce(3)
        wait_until(lambda: _is_copied(flow), timeout_s=60, what="the replicas")
    # when
    offsets_topic = flow.settings.source_offsets_topic
    delete_topic(cluster.bootstrap_servers, offsets_topic)
    create_topic(cluster.bootstrap_servers, offsets_topic, 1, {"cleanup.policy": "compact"}, 3)
    flow.produce(2)
    copier = Running(flow)
    copier.start()
    # then
    try:
        copier.wait_for_replicas()
    finally:
        copier.close()
    flow.assert_equal()
    assert f"Another incarnation of broker {KLAMM} has a session that has not ended" in caplog.text


def _is_copied(flow: Flow) -> bool:
    expected = flow.stored(flow.topic, 1)
    return all(flow.stored(flow.remote[0], node_id) == expected for node_id in flow.cluster.nodes)


def _produced(cluster: KafkaCluster, node_id: int, topic: str) -> int:
    """Return the error code with which a node answers a Produce request."""
    node = cluster.nodes[node_id]
    with WireClient(f"{node.host}:{node.port}") as client:
        try:
            client.produce(topic, 0, encode_batch([Record(b"k", b"v", (), 1, 0)]))
        except RejectedError as error:
            return error.error_code
    return ErrorCode.NONE


@pytest.mark.long
def test_i1_source_with_another_history_halts_unless_records_may_be_lost(cluster: KafkaCluster) -> None:
    """The replicas have 150 records. The new leader of the source has 100 of them, and then gets 60 others."""
    # given
    flow = Flow(cluster)
    (remote,) = flow.remote
    delete_topic(cluster.bootstrap_servers, flow.topic)
    configs = {"retention.ms": "-1", "unclean.leader.election.enable": "true"}
    with AdminClient(cluster.bootstrap_servers) as admin:
        new = NewTopic(name=flow.topic, replicas_assignments={0: (LEADER, STALE)}, configs=configs)
        created = admin.create_topics([new]).values()[flow.topic].result(300)
    wait_for_partitions(cluster.bootstrap_servers, flow.topic, 1, created.topic_id)
    flow.produce(100)
    with running(flow) as copier:
        copier.wait_for_replicas()
        cluster.nodes[STALE].kill()
        wait_until(lambda: topic_state(cluster, flow.topic)[1] == (LEADER,), timeout_s=30, what="the loss of node 2")
        flow.produce(50)
        copier.wait_for_replicas()
        # when
        cluster.nodes[LEADER].kill()
        cluster.nodes[STALE].start(expected_nodes=2)
        wait_until(lambda: topic_state(cluster, flow.topic)[0] == STALE, timeout_s=60, what="the unclean election")
        flow.produce(60)
        # then
        copier.wait(lambda rows: rows[0].state is CopyState.STOPPED, "a stop")
        assert "its log diverges at offset 100" in copier.rows[0].reason
        assert "delete it to mirror the topic again" in copier.rows[0].reason
        cluster.nodes[LEADER].start(expected_nodes=3)
    before = {node_id: flow.stored(remote, node_id) for node_id in cluster.nodes}
    with running(flow, is_new=False) as again:  # all replicas are back, and the source is longer than they are
        again.wait(lambda rows: rows[0].state is CopyState.STOPPED, "a stop")
        assert "its log diverges at offset 100" in again.rows[0].reason
        again.copier.restarts = {flow.topic: 1}
        again.wait(lambda rows: rows[0].state is CopyState.STOPPED, "a stop")
        assert {node_id: flow.stored(remote, node_id) for node_id in cluster.nodes} == before
    # when
    flow.may_lose = True
    with running(flow, is_new=False) as truncating:
        truncating.wait_for_replicas()
        flow.produce(5)
        truncating.wait_for_replicas()
    # then
    flow.assert_equal()


@pytest.mark.long
def test_i1_source_that_lost_its_disks_halts_though_records_may_be_lost(cluster: KafkaCluster) -> None:
    """The replicas have 150 records. The source has 5 others, of a leader epoch that no replica has."""
    # given
    flow = Flow(cluster)
    flow.may_lose = True
    (remote,) = flow.remote
    with AdminClient(cluster.bootstrap_servers) as admin:
        admin.alter_partition_reassignments({TopicPartition(flow.topic, 0): [LEADER]}).all().result(300)
    wait_until(lambda: topic_state(cluster, flow.topic) == (LEADER, (LEADER,)), timeout_s=30, what="one replica")
    flow.produce(100, 50)
    with running(flow) as copier:
        copier.wait_for_replicas()
    before = {node_id: flow.stored(remote, node_id) for node_id in cluster.nodes}
    # when
    node = cluster.nodes[LEADER]
    node.kill()
    shutil.rmtree(node.directory / "data" / f"{flow.topic}-0")
    node.start(expected_nodes=3)
    wait_until(lambda: topic_state(cluster, flow.topic)[0] == LEADER, timeout_s=60, what="the empty leader")
    flow.produce(5)
    # then
    with running(flow, is_new=False) as again:
        again.wait(lambda rows: rows[0].state is CopyState.STOPPED, "a stop")
        assert "it has no leader epoch in common" in again.rows[0].reason
        assert {node_id: flow.stored(remote, node_id) for node_id in cluster.nodes} == before


OLDER = ("3.9.2", "4.0.1", "4.1.1")


@pytest.mark.soak
@pytest.mark.parametrize("release", OLDER)
def test_target_below_4_3_is_rejected_and_replay_is_named(java: None, release: str) -> None:
    with KafkaCluster(release=release) as older:
        reason = target_obstacle(Flow(older).properties)
    assert "expected 30 (4.3) or more" in reason
    assert "klamm.offsets.by=replay" in reason


@pytest.mark.soak
def test_target_of_4_3_is_mirrored_while_it_is_upgraded(java: None) -> None:
    """klamm registers again with the feature ranges of the new release, so it does not prevent the upgrade."""
    with KafkaCluster(release=TOOLS_RELEASE) as target:
        flow, other = Flow(target), Flow(target, node_id=OTHER_KLAMM)
        flow.produce(5, 5)
        with running(flow) as copier, running(other):
            copier.wait_for_replicas()
            assert isinstance(copier.copier, ReplicaCopier)
            member = copier.copier.node.member
            assert member is not None
            before = member.observer.image
            # when
            target.upgrade(1, KAFKA_RELEASE)
            image = member.observer.wait_for(
                lambda image: image.brokers[KLAMM].features == image.brokers[1].features != before.brokers[1].features,
                60,
            )
            level = image.brokers[1].features["metadata.version"][1]
            assert level > image.features["metadata.version"]
            java_tool(
                "org.apache.kafka.tools.FeatureCommand",
                *("--bootstrap-server", target.bootstrap_servers),
                *("upgrade", "--feature", f"metadata.version={level}"),
            )
            member.observer.wait_for(lambda image: image.features["metadata.version"] == level, 60)
            flow.produce(2)
            copier.wait_for_replicas()
        # then
        flow.assert_equal()

"""Membership in a real KRaft cluster: images of its metadata, and a broker without storage."""

from __future__ import annotations

import math
import os
import time
from contextlib import contextmanager
from queue import Queue
from typing import TYPE_CHECKING, Final
from uuid import UUID

import pytest

from klamm.admin import (
    Acl,
    AclOperation,
    AclPermission,
    AclResourceType,
    AdminClient,
    NewPartitions,
    NewTopic,
    PatternType,
    TopicPartition,
)
from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.login import open_connection
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.errors import ConnectionLostError
from klamm.kraft.controllers import ControllerChannel
from klamm.kraft.errors import (
    ClusterActionDeniedError,
    DuplicateBrokerError,
    StaleBrokerError,
    WrongClusterError,
)
from klamm.kraft.image import NO_LEADER, BrokerEndpoint, ClusterImage, PartitionImage
from klamm.kraft.member import (
    BrokerMember,
    IsrChange,
    IsrState,
    MemberSettings,
    MembershipState,
    MembershipStore,
)
from klamm.kraft.observer import MetadataObserver
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from tests.support.java import KAFKA_RELEASE, TOOLS_RELEASE
from tests.support.kafka import KafkaCluster, java_tool
from tests.support.processes import wait_until
from tests.support.replicas import MemoryMembershipStore
from tests.support.security import PASSWORDS, PLAIN_MODULE, Certificates, create_acls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PATIENCE_S: Final = 60.0
"""Time limit of a wait that takes milliseconds on an idle machine."""
SESSION_S: Final = 15
"""Session timeout. The controller must not fence the member when a busy machine suspends a process for some seconds. A
new incarnation of a member starts after the old session has ended, within 30 s.
"""
SESSION: Final = {"broker.session.timeout.ms": str(SESSION_S * 1000)}
_ALL = ("3.8.1", "3.9.2", "4.0.1", "4.1.1", TOOLS_RELEASE)
OLDER_RELEASES: Final = _ALL if os.environ.get("KLAMM_SOAK") else (TOOLS_RELEASE,)


def connection(cluster: KafkaCluster) -> ConnectionSettings:
    return ConnectionSettings(bootstrap_servers=tuple(cluster.bootstrap_controllers.split(",")), client_id="klamm-test")


@contextmanager
def observing(cluster: KafkaCluster) -> Iterator[MetadataObserver]:
    observer = MetadataObserver(connection(cluster), cluster_id=cluster.cluster_id)
    observer.start()
    try:
        yield observer
    finally:
        observer.close()


def assert_equals_admin(image: ClusterImage, cluster: KafkaCluster) -> None:
    """Compare an image with the answers of a broker."""
    with AdminClient(cluster.bootstrap_servers) as admin:
        wait_until(  # a broker may be later than the observer
            lambda: set(admin.list_topics(include_internal=True).result()) == set(image.topic_ids),
            timeout_s=PATIENCE_S,
            what="the broker to replay the metadata",
        )
        for name, topic in admin.describe_topics(sorted(image.topic_ids)).all().result().items():
            mine = image.topic(name)
            assert mine is not None
            assert mine.topic_id == topic.topic_id
            assert [
                (index, partition.leader, partition.leader_epoch, partition.replicas, partition.isr)
                for index, partition in sorted(mine.partitions.items())
            ] == [(p.partition, p.leader, p.leader_epoch, p.replicas, p.isr) for p in topic.partitions]
        described = admin.describe_cluster().result()
        endpoints = {
            (node_id, endpoint.host, endpoint.port)
            for node_id, broker in image.brokers.items()
            for endpoint in broker.endpoints
            if endpoint.name == "PLAINTEXT" and not broker.is_fenced
        }
        assert endpoints == {(node.id, node.host, node.port) for node in described.nodes}
    node = cluster.nodes[1]
    broker = open_connection(node.host, node.port, connection(cluster), BufferPool(max_free_bytes=0))
    request = ApiVersionsRequest(client_software_name="klamm", client_software_version="1")
    response = broker.call(request, ApiVersionsResponse, version=4, timeout_s=10)
    broker.close()
    finalized = {feature.name: feature.max_version_level for feature in response.finalized_features}
    finalized = {name: level for name, level in finalized.items() if level and name != "kraft.version"}
    assert {name: level for name, level in image.features.items() if level} == finalized


@pytest.fixture(scope="module")
def cluster(java: None) -> Iterator[KafkaCluster]:
    """One node with a cluster of its own: tests here register a broker, and write snapshots of the metadata."""
    with KafkaCluster(properties={"metadata.log.max.record.bytes.between.snapshots": "100", **SESSION}) as running:
        yield running


def test_image_equals_the_answers_of_a_broker_while_topics_change(cluster: KafkaCluster) -> None:
    with observing(cluster) as observer, AdminClient(cluster.bootstrap_servers) as admin:
        observer.wait_until_caught_up(PATIENCE_S)
        # when
        topics = [NewTopic(name=f"observed-{number}", num_partitions=number) for number in (1, 3)]
        admin.create_topics(topics).all().result()
        observer.wait_for(lambda image: image.topic("observed-3") is not None, PATIENCE_S)
        admin.create_partitions({"observed-3": NewPartitions(total_count=5)}).all().result()
        admin.delete_topics(["observed-1"]).all().result()
        # then
        image = observer.wait_for(lambda image: image.topic("observed-1") is None, PATIENCE_S)
        assert_equals_admin(image, cluster)


@pytest.mark.long
def test_image_of_a_snapshot_equals_the_answers_of_a_broker(cluster: KafkaCluster) -> None:
    """A node whose log starts at a snapshot: its older records are gone."""
    # given
    node = cluster.nodes[1]
    log = node.directory / "data" / "__cluster_metadata-0"
    with AdminClient(cluster.bootstrap_servers) as admin, observing(cluster) as observer:
        admin.create_topics([NewTopic(name="in-snapshot", num_partitions=4)]).all().result()
        offset = observer.wait_for(lambda image: image.topic("in-snapshot") is not None, PATIENCE_S).offset
        admin.create_topics([NewTopic(name="another", num_partitions=4)]).all().result()
    wait_until(
        lambda: any(int(path.name.split("-")[0]) > offset for path in log.glob("*.checkpoint")),
        timeout_s=30,
        what="a snapshot of the metadata",
    )
    node.stop()
    for path in log.glob("0*.*"):
        if path.suffix != ".checkpoint":
            path.unlink()
    node.start()
    # when
    with observing(cluster) as observer:
        image = observer.wait_for(lambda image: 1 in image.brokers and not image.brokers[1].is_fenced, PATIENCE_S)
        # then
        assert image.topic("in-snapshot") is not None
        assert_equals_admin(image, cluster)


def member_of(
    cluster: KafkaCluster,
    *,
    controllers: ConnectionSettings | None = None,
    state: MembershipStore | None = None,
) -> BrokerMember:
    """Return a member whose listener is unreachable: it is the only replica of its partitions."""
    listener = BrokerEndpoint(name="PLAINTEXT", host="127.0.0.1", port=1, security_protocol="PLAINTEXT")
    settings = MemberSettings(
        node_id=9,
        cluster_id=cluster.cluster_id,
        listeners=(listener,),
        controllers=controllers or connection(cluster),
        inter_broker_listener="PLAINTEXT",
    )
    return BrokerMember(settings, state or MemoryMembershipStore())


@contextmanager
def started(member: BrokerMember) -> Iterator[BrokerMember]:
    member.start()
    try:
        yield member
    finally:
        member.close()


@contextmanager
def leading(cluster: KafkaCluster, member: BrokerMember, topic: str) -> Iterator[UUID]:
    """Create a topic with one replica on the member, and delete it afterwards."""
    member.cordon(False)
    with AdminClient(cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name=topic, replicas_assignments={0: (member.node_id,)})]).all().result()
        try:
            created = member.observer.wait_for(lambda image: image.topic(topic) is not None, PATIENCE_S).topic(topic)
            assert created is not None
            yield created.topic_id
        finally:
            admin.delete_topics([topic]).all().result()
            member.observer.wait_for(lambda image: image.topic(topic) is None, PATIENCE_S)


def led(member: BrokerMember, topic_id: UUID, predicate: Callable[[PartitionImage], bool]) -> PartitionImage:
    """Wait for a state of a partition and return it."""

    def is_it(image: ClusterImage) -> bool:
        partition = image.partition(topic_id, 0)
        return partition is not None and predicate(partition)

    partition = member.observer.wait_for(is_it, PATIENCE_S).partition(topic_id, 0)
    assert partition is not None
    return partition


def test_member_registers_leads_and_leaves_no_trace(cluster: KafkaCluster) -> None:
    state = MemoryMembershipStore()
    member = member_of(cluster, state=state)
    with started(member):
        # then
        broker = member.observer.wait_for(lambda image: not image.brokers[9].is_fenced, PATIENCE_S).brokers[9]
        assert (broker.broker_epoch, broker.incarnation_id) == (member.broker_epoch, member.incarnation_id)
        assert broker.features == member.observer.image.brokers[1].features
        assert broker.log_dirs == (member.log_dir,)
        assert [each.node_id for each in member.observer.image.live_brokers] == [1]
        assert member.is_leased()
        assert not member.is_leased(time.monotonic() + SESSION_S + 0.1)
        assert state.load() == MembershipState(cluster_id=cluster.cluster_id, incarnation_id=member.incarnation_id)
        with leading(cluster, member, "led") as topic_id:
            assert led(member, topic_id, lambda partition: partition.leader == 9).isr == (9,)
            with pytest.raises(ValueError, match=r"still has 1 partitions \(led-0"):
                member.unregister()
        # when
        member.unregister()
        # then
        assert not member.is_leased()
        assert state.load() is None
    with observing(cluster) as observer:
        assert set(observer.wait_until_caught_up(PATIENCE_S).brokers) == {1}


def test_fence_and_unfence_raise_the_leader_epoch_by_two(cluster: KafkaCluster) -> None:
    with started(member_of(cluster)) as member:
        with leading(cluster, member, "epochs") as topic_id:
            epoch = led(member, topic_id, lambda partition: partition.leader == 9).leader_epoch
            # when
            member.fence(True)
            fenced = led(member, topic_id, lambda partition: partition.leader == NO_LEADER)
            member.fence(False)
            # then
            unfenced = led(member, topic_id, lambda partition: partition.leader == 9)
            assert (fenced.leader_epoch, unfenced.leader_epoch) == (epoch + 1, epoch + 2)
        member.unregister()


def test_alter_partitions_completes_a_reassignment_and_hands_over_the_leadership(cluster: KafkaCluster) -> None:
    """A promotion: a reassignment adds the real broker, and the member's request puts it into the ISR."""
    with started(member_of(cluster)) as member, AdminClient(cluster.bootstrap_servers) as admin:
        with leading(cluster, member, "handed-over") as topic_id:
            partition = led(member, topic_id, lambda partition: partition.leader == 9)
            moved = admin.alter_partition_reassignments({TopicPartition("handed-over", 0): (1,)})
            moved.all().result()
            partition = led(member, topic_id, lambda partition: bool(partition.adding))
            assert (partition.adding, partition.removing, partition.isr) == ((1,), (9,), (9,))
            # when
            stale = IsrChange(
                leader_epoch=partition.leader_epoch,
                partition_epoch=partition.partition_epoch - 1,
                isr={9: member.broker_epoch},
            )
            rejected = member.alter_partitions({(topic_id, 0): stale})[topic_id, 0]
            epochs = {node: broker.broker_epoch for node, broker in member.observer.image.brokers.items()}
            change = IsrChange(
                leader_epoch=partition.leader_epoch, partition_epoch=partition.partition_epoch, isr=epochs
            )
            outcome = member.alter_partitions({(topic_id, 0): change})[topic_id, 0]
            # then
            assert isinstance(rejected, KafkaApiError)
            assert rejected.error_code is ErrorCode.INVALID_UPDATE_VERSION
            assert isinstance(outcome, KafkaApiError)
            assert outcome.error_code is ErrorCode.NEW_LEADER_ELECTED
            after = led(member, topic_id, lambda partition: partition.leader == 1)
            assert (after.replicas, after.isr, after.adding, after.removing) == ((1,), (1,), (), ())
        member.unregister()


def test_allocated_producer_ids_are_in_ascending_blocks(cluster: KafkaCluster) -> None:
    with started(member_of(cluster)) as member:
        first, second = member.allocate_producer_ids(), member.allocate_producer_ids()
        assert len(first) == 1000
        assert second.start >= first.stop
        member.unregister()


@pytest.mark.long
def test_member_is_cordoned_unless_it_is_told_otherwise(cluster: KafkaCluster) -> None:
    # given
    with started(member_of(cluster)) as former:
        former.cordon(False)  # so a snapshot is written in which broker 9 is live and open
        former.unregister()
    member = member_of(cluster)
    unfenced = Queue[tuple[UUID, ...]]()

    def note(image: ClusterImage) -> None:
        broker = image.brokers.get(9)
        if broker is not None and not broker.is_fenced:
            unfenced.put(broker.cordoned_log_dirs)

    member.observer.subscribe(note)
    with started(member):
        assert unfenced.get(timeout=PATIENCE_S) == (member.log_dir,)
        member.cordon(False)
        assert not member.observer.image.brokers[9].cordoned_log_dirs
        member.shut_down()
    with observing(cluster) as observer:
        assert observer.wait_until_caught_up(PATIENCE_S).brokers[9].cordoned_log_dirs == (member.log_dir,)
    cluster.unregister(9)


@pytest.mark.long
def test_restart_after_a_crash_is_the_same_incarnation_and_after_a_shutdown_a_new_one(cluster: KafkaCluster) -> None:
    state = MemoryMembershipStore()
    with started(member_of(cluster, state=state)) as first:
        pass
    with started(member_of(cluster, state=state)) as second:
        assert (second.incarnation_id, second.broker_epoch) == (first.incarnation_id, first.broker_epoch)
        second.shut_down()
    assert state.load() == MembershipState(
        cluster_id=cluster.cluster_id,
        incarnation_id=first.incarnation_id,
        previous_broker_epoch=first.broker_epoch,
    )
    with started(member_of(cluster, state=state)) as third:
        assert third.incarnation_id != first.incarnation_id
        assert third.broker_epoch > first.broker_epoch
        third.unregister()


class DyingStore(MemoryMembershipStore):
    """State of a process that dies when it is about to store its shutdown."""

    def save(self, state: MembershipState | None) -> None:
        if state is not None and state.previous_broker_epoch >= 0:
            raise ConnectionLostError("the process has died")
        super().save(state)


@pytest.mark.long
def test_member_that_dies_while_it_shuts_down_accepts_partitions_after_its_restart(cluster: KafkaCluster) -> None:
    """The controller keeps a controlled shutdown that an incarnation has requested, also when it registers again."""
    state, topic = DyingStore(), "led-while-it-dies"
    with AdminClient(cluster.bootstrap_servers) as admin:
        with started(member_of(cluster, state=state)) as member:
            member.cordon(False)
            admin.create_topics([NewTopic(name=topic, replicas_assignments={0: (9,)})]).all().result()
            with pytest.raises(ConnectionLostError, match="has died"):
                member.shut_down()
        with started(member_of(cluster, state=state)) as again:
            assert again.incarnation_id == member.incarnation_id
            assert not again.observer.image.brokers[9].in_controlled_shutdown
            admin.delete_topics([topic]).all().result()
            again.observer.wait_for(lambda image: image.topic(topic) is None, PATIENCE_S)
            again.unregister()


@pytest.mark.long
def test_second_process_under_the_same_node_id_is_rejected_by_name(cluster: KafkaCluster) -> None:
    with started(member_of(cluster)) as member:
        second = member_of(cluster)
        second._first_try_at = -math.inf  # it has waited for two sessions
        with pytest.raises(DuplicateBrokerError, match="another process is registered under this node id"):
            second.start()
        assert member.is_leased()
        member.unregister()


@pytest.mark.long
def test_second_process_of_the_same_incarnation_ends_the_first(cluster: KafkaCluster) -> None:
    state = MemoryMembershipStore()
    with started(member_of(cluster, state=state)) as first:
        first.observer.wait_for(lambda image: 9 in image.brokers, PATIENCE_S)
        with started(member_of(cluster, state=state)) as second:
            # then
            wait_until(lambda: first.error is not None, timeout_s=PATIENCE_S, what="the end of the first process")
            assert isinstance(first.error, DuplicateBrokerError)
            assert not first.is_leased()
            assert second.is_leased()
            second.unregister()


@pytest.mark.long
def test_unregistered_member_ends_and_does_not_register_again(cluster: KafkaCluster) -> None:
    with started(member_of(cluster)) as member:
        # when
        channel = ControllerChannel(connection(cluster))
        assert channel.call(UnregisterBrokerRequest(broker_id=9), UnregisterBrokerResponse).error_code == 0
        channel.close()
        # then
        wait_until(lambda: member.error is not None, timeout_s=PATIENCE_S, what="the end of the membership")
        assert isinstance(member.error, StaleBrokerError)
        assert "an operator has unregistered this broker" in str(member.error)
        assert not member.is_leased()
        with pytest.raises(StaleBrokerError):
            member.fence(True)
        member.observer.wait_for(lambda image: 9 not in image.brokers, PATIENCE_S)


@pytest.mark.long
@pytest.mark.parametrize("release", OLDER_RELEASES)
def test_member_of_an_older_cluster_does_not_block_its_upgrade(java: None, release: str) -> None:
    """It registers again with the feature ranges of the other brokers when all have a newer release."""
    with KafkaCluster(properties=SESSION, release=release) as cluster, started(member_of(cluster)) as member:
        with leading(cluster, member, "led") as topic_id:
            epoch = led(member, topic_id, lambda partition: partition.leader == 9).leader_epoch
            member.fence(True)
            member.fence(False)
            assert led(member, topic_id, lambda partition: partition.leader == 9).leader_epoch == epoch + 2
            outcome = member.alter_partitions({(topic_id, 0): _same_isr(member, topic_id)})[topic_id, 0]
            assert isinstance(outcome, IsrState)
            assert outcome.isr == (9,)
        assert len(member.allocate_producer_ids()) == 1000
        before = member.observer.image
        assert before.brokers[9].features == before.brokers[1].features
        assert [broker.node_id for broker in before.live_brokers] == [1]
        # when
        cluster.upgrade(1, KAFKA_RELEASE)
        # then
        after = member.observer.wait_for(
            lambda image: image.brokers[9].features == image.brokers[1].features != before.brokers[1].features,
            PATIENCE_S,
        )
        assert after.brokers[9].broker_epoch == before.brokers[9].broker_epoch
        level = after.brokers[9].features["metadata.version"][1]
        java_tool(
            "org.apache.kafka.tools.FeatureCommand",
            *("--bootstrap-server", cluster.bootstrap_servers),
            *("upgrade", "--feature", f"metadata.version={level}"),
        )
        member.observer.wait_for(lambda image: image.features["metadata.version"] == level, PATIENCE_S)
        assert member.is_leased()


def _same_isr(member: BrokerMember, topic_id: UUID) -> IsrChange:
    partition = member.observer.image.partition(topic_id, 0)
    assert partition is not None
    return IsrChange(
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        isr={9: member.broker_epoch},
    )


@pytest.mark.long
def test_controllers_with_tls_and_logins_require_cluster_action(java: None, tmp_path: Path) -> None:
    # given
    certificates = Certificates.create(tmp_path)
    users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
    properties = {
        **SESSION,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": (
            f'{PLAIN_MODULE} required username="admin" password="{PASSWORDS["admin"]}" {users};'
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.issue("node", "/CN=node")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.authority),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin;User:ANONYMOUS",
    }
    alice = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{PLAIN_MODULE} required username="alice" password="{PASSWORDS["alice"]}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.authority),
    }
    with KafkaCluster(properties=properties) as cluster, AdminClient(cluster.bootstrap_servers) as admin:
        controllers = ConnectionSettings.of((cluster.bootstrap_controllers,), alice, "klamm-test")
        # then
        with pytest.raises(ClusterActionDeniedError, match="requires CLUSTER_ACTION on the cluster"):
            member_of(cluster, controllers=controllers).start()
        # when
        right = Acl(
            resource_type=AclResourceType.CLUSTER,
            resource_name="kafka-cluster",
            pattern_type=PatternType.LITERAL,
            principal="User:alice",
            host="*",
            operation=AclOperation.CLUSTER_ACTION,
            permission=AclPermission.ALLOW,
        )
        create_acls(admin, [right])
        # then
        with started(member_of(cluster, controllers=controllers)) as member:
            assert member.is_leased()
            with pytest.raises(ClusterActionDeniedError, match="User:alice needs ALTER on the cluster"):
                member.unregister()


@pytest.mark.long
def test_controllers_of_another_cluster_are_rejected(cluster: KafkaCluster) -> None:
    observer = MetadataObserver(connection(cluster), cluster_id="AAAAAAAAAAAAAAAAAAAAAQ")
    observer.start()
    with pytest.raises(WrongClusterError, match="another cluster id"):
        observer.wait_until_caught_up(PATIENCE_S)
    observer.close()

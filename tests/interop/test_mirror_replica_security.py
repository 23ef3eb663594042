"""Replica mode with TLS and SASL: brokers log in at klamm, and klamm at the brokers and controllers.

Source and target are the same cluster. Its brokers and controllers have SASL_SSL, and another listener is open.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ConfluentPartition

from klamm.admin import (
    AclFilter,
    AclOperation,
    AclResourceType,
    AdminClient,
)
from klamm.kafka_client.data.cluster import Cluster
from klamm.kafka_client.errors import ConnectionLostError, SaslAuthenticationFailedError
from klamm.kraft.observer import MetadataObserver
from klamm.mirror.copy.settings import copy_settings
from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.records.requested_states import RequestedState
from klamm.mirror.replica.obstacles import obstacles
from klamm.mirror.replica.target_nodes import target_nodes
from klamm.protocol.errors import ErrorCode
from tests.interop.test_mirror_replica_kafka import without_epochs
from tests.support.copiers import run_until
from tests.support.processes import wait_until
from tests.support.secure_flow import (
    BROKER_RIGHT,
    LISTENER,
    SCRAM,
    SOON_S,
    ends_at,
    grant,
    login,
    scram_cluster,
    scram_flow,
)
from tests.support.security import PLAIN_MODULE, SCRAM_MODULE, Certificates

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.support.kafka import KafkaCluster
    from tests.support.secure_flow import SecureFlow


pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.create(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def cluster(java: None, certificates: Certificates) -> Iterator[KafkaCluster]:
    with scram_cluster(certificates) as running:
        yield running


@pytest.fixture(autouse=True)
def no_acls(cluster: KafkaCluster) -> Iterator[None]:
    """Delete the ACLs of a test at its end."""
    yield
    revoke(cluster)


def revoke(cluster: KafkaCluster) -> None:
    with AdminClient(cluster.bootstrap_servers) as admin:
        admin.delete_acls([AclFilter(principal=f"User:{user}") for user in ("broker", "mallory")]).all().result(300)


@pytest.fixture
def broker_right(cluster: KafkaCluster, no_acls: None) -> None:
    """The ACL by which brokers may act as brokers."""
    grant(cluster)


def test_replicas_log_in_by_scram_and_need_cluster_action(cluster: KafkaCluster, certificates: Certificates) -> None:
    flow = scram_flow(cluster, certificates)
    end = flow.produce(5)
    with flow.copier() as copier:
        # given
        denied = "User:broker lacks CLUSTER_ACTION on the cluster, which brokers need"
        run_until(copier, lambda: denied in copier.progress()[0].reason, timeout_s=SOON_S)
        assert flow.stored(flow.remote) == []
        # when
        grant(cluster)
        # then
        ends_at(copier, end)
        ends_at(copier, flow.produce(7))
        flow.assert_equal()
        # when
        copier.promoted = {flow.topic: RequestedState.PROMOTED}
        # then
        run_until(copier, lambda: copier.progress()[0].state is CopyState.PROMOTED, timeout_s=SOON_S)


def test_plan_names_what_the_brokers_cannot_use(cluster: KafkaCluster, certificates: Certificates) -> None:
    flow = scram_flow(cluster, certificates)
    assert obstacles(flow.settings)[""].startswith("no ACL allows the brokers of cluster B CLUSTER_ACTION")
    grant(cluster)
    assert obstacles(flow.settings, [flow.topic, "new"]) == {}
    flow.file["klamm.replica.sasl.enabled.mechanisms"] = "PLAIN"
    assert "klamm.replica.sasl.enabled.mechanisms=PLAIN: expected SCRAM-SHA-512" in obstacles(flow.settings)[""]
    flow.file["klamm.replica.listener.security.protocol.map"] = f"{LISTENER}:SASL_PLAINTEXT"
    assert f"{LISTENER} is SASL_PLAINTEXT: expected {LISTENER}:SASL_SSL" in obstacles(flow.settings)[""]
    flow.file["B.controller.sasl.jaas.config"] = login(PLAIN_MODULE, "nobody")
    assert "Login as nobody by PLAIN failed" in obstacles(flow.settings)[""]
    describe = replace(BROKER_RIGHT, principal="User:mallory", operation=AclOperation.DESCRIBE)
    grant(cluster, replace(describe, resource_type=AclResourceType.TOPIC, resource_name=flow.topic))
    flow.file["B.sasl.jaas.config"] = login(SCRAM_MODULE, "mallory")
    assert "lacks READ on it, which klamm mirror promote needs" in obstacles(flow.settings, [flow.topic])[flow.topic]


@pytest.mark.usefixtures("broker_right")
def test_consumer_reads_replicas_over_tls_and_needs_its_acls(cluster: KafkaCluster, certificates: Certificates) -> None:
    flow = scram_flow(cluster, certificates)
    with flow.copier() as copier:
        end = flow.produce(5)
        ends_at(copier, end)
        running = threading.Thread(target=lambda: run_until(copier, consumed.is_set, timeout_s=SOON_S))
        consumed = threading.Event()
        running.start()
        try:
            config: dict[str, Any] = {
                "bootstrap.servers": f"127.0.0.1:{cluster.login_ports[1]}",
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": SCRAM,
                "sasl.username": "mallory",
                "sasl.password": "mallory-secret",
                "ssl.ca.location": str(certificates.authority),
                "group.id": "none",
                "auto.offset.reset": "earliest",
            }
            mallory = replace(BROKER_RIGHT, principal="User:mallory", operation=AclOperation.READ)
            grant(cluster, replace(mallory, resource_type=AclResourceType.GROUP, resource_name="none"))
            with pytest.raises(KafkaException, match="Topic authorization failed"):
                _read(config, flow.remote, end)
            grant(cluster, replace(mallory, resource_type=AclResourceType.TOPIC, resource_name=flow.remote))
            assert _read(config, flow.remote, end) == list(range(end))
        finally:
            consumed.set()
            running.join()


def _read(config: Mapping[str, Any], topic: str, count: int) -> list[int | None]:
    """Return the offsets of the first records."""
    consumer = Consumer(dict(config))
    consumer.assign([ConfluentPartition(topic, 0)])
    offsets: list[int | None] = []
    try:
        while len(offsets) < count:
            message = consumer.poll(20)
            assert message is not None, "no record"
            error = message.error()
            if error is not None and error.code() == KafkaError.NOT_COORDINATOR:
                # The topic of the groups was just created. librdkafka does not ask again.
                consumer.assign([ConfluentPartition(topic, 0)])
                continue
            if error is not None:
                raise KafkaException(error)
            offsets.append(message.offset())
    finally:
        consumer.close()
    return offsets


def test_broker_that_does_not_trust_the_certificate_of_klamm_is_named(
    cluster: KafkaCluster, tmp_path: Path, certificates: Certificates
) -> None:
    foreign = Certificates.create(tmp_path).issue("klamm", "/CN=klamm")
    flow = scram_flow(cluster, certificates, ssl_keystore_location=str(foreign))
    flow.produce(5)
    with flow.copier() as copier:
        reason = "klamm rejected listener REPLICATION: its TLS handshake failed: "
        run_until(copier, lambda: reason in copier.progress()[0].reason, timeout_s=SOON_S)
        assert "certificate unknown" in copier.progress()[0].reason.lower().replace("_", " ")
    assert flow.stored(flow.remote) == []


def test_status_names_controller_with_untrusted_certificate(
    cluster: KafkaCluster, tmp_path: Path, certificates: Certificates
) -> None:
    flow = scram_flow(cluster, certificates)
    flow.file["B.controller.ssl.truststore.location"] = str(Certificates.create(tmp_path).authority)
    with contextlib.closing(flow.new_copier()) as copier:
        reason = "SSL_AUTHENTICATION_FAILED: 127.0.0.1:"
        run_until(copier, lambda: reason in copier.progress()[0].reason, timeout_s=SOON_S)
        assert "our side rejects the broker's certificate" in copier.progress()[0].reason


@pytest.mark.usefixtures("broker_right")
def test_klamms_with_logins_alone_know_each_other_and_are_promoted_and_taken_back(
    cluster: KafkaCluster, certificates: Certificates
) -> None:
    """No klamm has a listener at which another client may ask for something without a login."""
    # given
    flow, other = scram_flow(cluster, certificates), scram_flow(cluster, certificates)
    with flow.copier() as copier:
        with other.copier() as copier_of_other:
            end = flow.produce(5)
            for each in (copier, copier_of_other):
                ends_at(each, end)
            # then
            for each_flow in (flow, other):
                with Cluster.connected(copy_settings(each_flow.settings).target) as target:
                    assert target.node_ids >= {flow.node_id, other.node_id}
                    nodes = target_nodes(target)
                assert nodes.brokers == {1}
                assert nodes.klamms.keys() >= {flow.node_id, other.node_id}
            assert obstacles(scram_flow(cluster, certificates).settings, [flow.topic]) == {}
            # when
            for is_taken_back in (True, False):
                copier_of_other.demoted = frozenset()
                copier_of_other.promoted = {other.topic: RequestedState.PROMOTED}
                run_until(
                    copier_of_other,
                    lambda: copier_of_other.progress()[0].state is CopyState.PROMOTED,
                    timeout_s=SOON_S,
                )
                end = flow.produce(3)
                ends_at(copier, end)
                if is_taken_back:
                    copier_of_other.promoted, copier_of_other.demoted = {}, frozenset({other.topic})
                    ends_at(copier_of_other, end)
        # then
        assert without_epochs(other.stored(other.remote)) == without_epochs(flow.stored(flow.topic))[:-1]
        flow.assert_equal()
        assert registered(other) & {flow.node_id, other.node_id} == {flow.node_id}


def registered(flow: SecureFlow) -> set[int]:
    """Return the node ids of the target's registered brokers."""
    replica = copy_settings(flow.settings).replica
    assert replica is not None
    with contextlib.closing(MetadataObserver(replica.controllers)) as observer:
        observer.start()
        return set(observer.wait_until_caught_up(30).brokers)


@pytest.mark.usefixtures("broker_right")
def test_strangers_get_no_records(cluster: KafkaCluster, certificates: Certificates) -> None:
    flow = scram_flow(cluster, certificates)
    end = flow.produce(5)
    with flow.copier() as copier:
        ends_at(copier, end)
        trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(certificates.authority)}
        scram = {"security.protocol": "SASL_SSL", "sasl.mechanism": SCRAM, **trust}
        # no credentials
        with pytest.raises(ConnectionLostError):
            flow.fetch_as_broker({"security.protocol": "SSL", **trust})
        with pytest.raises(ConnectionLostError):
            flow.fetch_as_broker({"security.protocol": "PLAINTEXT"})
        # a wrong password
        wrong = f'{SCRAM_MODULE} required username="broker" password="wrong";'
        with pytest.raises(SaslAuthenticationFailedError, match="invalid credentials"):
            flow.fetch_as_broker({**scram, "sasl.jaas.config": wrong})
        # a user without CLUSTER_ACTION
        answer = flow.fetch_as_broker({**scram, "sasl.jaas.config": login(SCRAM_MODULE, "mallory")})
        assert (answer.error_code, answer.high_watermark) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1)
        assert not answer.records
        # the same request of a broker
        broker = {**scram, "sasl.jaas.config": login(SCRAM_MODULE, "broker")}
        answer = flow.fetch_as_broker(broker)
        assert (answer.error_code, answer.high_watermark) == (ErrorCode.NONE, end)
        # until the right is revoked
        revoke(cluster)
        wait_until(
            lambda: flow.fetch_as_broker(broker).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            timeout_s=SOON_S,
            what="the end of the right",
        )
    flow.assert_equal()

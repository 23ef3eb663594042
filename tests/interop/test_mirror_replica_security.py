"""Replica mode with TLS and SASL: brokers log in at klamm, and klamm at the brokers and controllers.

Source and target are the same cluster. Its brokers and controllers have SASL_SSL, and another listener is open.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as ConfluentPartition

from klamm.admin import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    AdminClient,
    PatternType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from klamm.kafka_client.errors import ConnectionLostError, SaslAuthenticationFailedError
from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.records.requested_states import RequestedState
from klamm.mirror.replica.obstacles import obstacles
from klamm.protocol.errors import ErrorCode
from tests.support.copiers import run_until
from tests.support.kafka import KafkaCluster
from tests.support.processes import wait_until
from tests.support.secure_flow import LISTENER, SOON_S, SecureFlow, ends_at, login, tls
from tests.support.security import PLAIN_MODULE, SCRAM_MODULE, Certificates

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


SCRAM: Final = "SCRAM-SHA-512"
USERS: Final = ("broker", "klamm", "mallory")
"""Users with a SCRAM credential. Only the first one may act as a broker, by an ACL."""


RIGHT: Final = Acl(
    resource_type=AclResourceType.CLUSTER,
    resource_name="kafka-cluster",
    pattern_type=PatternType.LITERAL,
    principal="User:broker",
    host="*",
    operation=AclOperation.CLUSTER_ACTION,
    permission=AclPermission.ALLOW,
)
_OF_KLAMM: Final = replace(RIGHT, principal="User:klamm")
_TOPICS: Final = replace(_OF_KLAMM, resource_type=AclResourceType.TOPIC, pattern_type=PatternType.PREFIXED)
OF_KLAMM: Final = (
    *(
        replace(_OF_KLAMM, operation=operation)
        for operation in (AclOperation.CLUSTER_ACTION, AclOperation.ALTER, AclOperation.DESCRIBE_CONFIGS)
    ),
    *(
        replace(_TOPICS, resource_name=name, operation=operation)
        for name, operation in (
            ("mm2-offsets.", AclOperation.READ),
            ("mm2-offsets.", AclOperation.WRITE),
            ("A", AclOperation.CREATE),
            ("A", AclOperation.READ),
        )
    ),
)
"""Rights of the mirror, as the documentation has them. Names of remote topics begin with A."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates.create(tmp_path_factory.mktemp("certificates"))
    for name in ("node", "klamm"):
        made.issue(name, f"/CN={name}")
    return made


@pytest.fixture(scope="module")
def cluster(java: None, certificates: Certificates) -> Iterator[KafkaCluster]:
    """One node whose brokers log in by SCRAM and whose controllers log in by PLAIN."""
    listener = f"listener.name.{LISTENER.lower()}"
    properties = {
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{LISTENER}:SASL_SSL,CONTROLLER:SASL_SSL",
        "inter.broker.listener.name": LISTENER,
        "sasl.mechanism.inter.broker.protocol": SCRAM,
        "sasl.mechanism.controller.protocol": "PLAIN",
        f"{listener}.sasl.enabled.mechanisms": SCRAM,
        f"{listener}.scram-sha-512.sasl.jaas.config": login(SCRAM_MODULE, "broker"),
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": (
            f'{login(PLAIN_MODULE, "node").rstrip(";")} user_node="node-secret" user_klamm="klamm-secret";'
        ),
        **tls(certificates, "node"),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:node;User:ANONYMOUS",
    }
    with (
        KafkaCluster(properties=properties, with_logins=True, login_listener=LISTENER) as running,
        AdminClient(running.bootstrap_servers) as admin,
    ):
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        upsertions = [UserScramCredentialUpsertion(user, info, f"{user}-secret") for user in USERS]
        admin.alter_user_scram_credentials(upsertions).all().result(30)
        admin.create_acls(OF_KLAMM).all().result(30)
        yield running


def flow_of(cluster: KafkaCluster, certificates: Certificates, **more: str) -> SecureFlow:
    """Return a flow that logs in as the cluster needs it, with other configs of klamm's listener."""
    configs = {"sasl.enabled.mechanisms": SCRAM, **tls(certificates, "klamm")}
    keys = {
        "B.security.protocol": "SASL_SSL",
        "B.sasl.mechanism": SCRAM,
        "B.sasl.jaas.config": login(SCRAM_MODULE, "klamm"),
        "B.ssl.truststore.type": "PEM",
        "B.ssl.truststore.location": str(certificates.authority),
        "B.controller.sasl.mechanism": "PLAIN",
        "B.controller.sasl.jaas.config": login(PLAIN_MODULE, "klamm"),
    }
    return SecureFlow(cluster, "SASL_SSL", keys, configs | {name.replace("_", "."): more[name] for name in more})


@pytest.fixture(autouse=True)
def no_acls(cluster: KafkaCluster) -> Iterator[None]:
    """Delete the ACLs of a test at its end."""
    yield
    with AdminClient(cluster.bootstrap_servers) as admin:
        admin.delete_acls([AclFilter(principal=f"User:{user}") for user in ("broker", "mallory")]).all().result(30)


@pytest.fixture
def broker_right(cluster: KafkaCluster, no_acls: None) -> None:
    """The ACL by which brokers may act as brokers."""
    grant(cluster)


def grant(cluster: KafkaCluster, right: Acl = RIGHT) -> None:
    with AdminClient(cluster.bootstrap_servers) as admin:
        admin.create_acls([right]).all().result(30)
        wait_until(lambda: right in admin.describe_acls(AclFilter()).result(30), timeout_s=SOON_S, what="the ACL")


def test_replicas_log_in_by_scram_and_need_cluster_action(cluster: KafkaCluster, certificates: Certificates) -> None:
    flow = flow_of(cluster, certificates)
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
    flow = flow_of(cluster, certificates)
    assert obstacles(flow.settings)[""].startswith("no ACL allows the brokers of cluster B CLUSTER_ACTION")
    grant(cluster)
    assert obstacles(flow.settings, [flow.topic, "new"]) == {}
    flow.file["klamm.replica.sasl.enabled.mechanisms"] = "PLAIN"
    assert "klamm.replica.sasl.enabled.mechanisms=PLAIN: expected SCRAM-SHA-512" in obstacles(flow.settings)[""]
    flow.file["klamm.replica.listener.security.protocol.map"] = f"{LISTENER}:SASL_PLAINTEXT"
    assert f"{LISTENER} is SASL_PLAINTEXT: expected {LISTENER}:SASL_SSL" in obstacles(flow.settings)[""]
    flow.file["B.controller.sasl.jaas.config"] = login(PLAIN_MODULE, "nobody")
    assert "Login as nobody by PLAIN failed" in obstacles(flow.settings)[""]
    describe = replace(RIGHT, principal="User:mallory", operation=AclOperation.DESCRIBE)
    grant(cluster, replace(describe, resource_type=AclResourceType.TOPIC, resource_name=flow.topic))
    flow.file["B.sasl.jaas.config"] = login(SCRAM_MODULE, "mallory")
    assert "lacks READ on it, which klamm mirror promote needs" in obstacles(flow.settings, [flow.topic])[flow.topic]


@pytest.mark.long
@pytest.mark.usefixtures("broker_right")
def test_consumer_reads_replicas_over_tls_and_needs_its_acls(cluster: KafkaCluster, certificates: Certificates) -> None:
    flow = flow_of(cluster, certificates)
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
            mallory = replace(RIGHT, principal="User:mallory", operation=AclOperation.READ)
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
            if (error := message.error()) is not None:
                raise KafkaException(error)
            offsets.append(message.offset())
    finally:
        consumer.close()
    return offsets


@pytest.mark.long
def test_broker_that_does_not_trust_the_certificate_of_klamm_is_named(
    cluster: KafkaCluster, tmp_path: Path, certificates: Certificates
) -> None:
    foreign = Certificates.create(tmp_path).issue("klamm", "/CN=klamm")
    flow = flow_of(cluster, certificates, ssl_keystore_location=str(foreign))
    flow.produce(5)
    with flow.copier() as copier:
        reason = "klamm rejected listener REPLICATION: its TLS handshake failed: "
        run_until(copier, lambda: reason in copier.progress()[0].reason, timeout_s=SOON_S)
        assert "certificate unknown" in copier.progress()[0].reason.lower().replace("_", " ")
    assert flow.stored(flow.remote) == []


@pytest.mark.long
def test_controller_whose_certificate_klamm_does_not_trust_is_named(
    cluster: KafkaCluster, tmp_path: Path, certificates: Certificates
) -> None:
    flow = flow_of(cluster, certificates)
    flow.file["B.controller.ssl.truststore.location"] = str(Certificates.create(tmp_path).authority)
    with contextlib.closing(flow.new_copier()) as copier:
        reason = "SSL_AUTHENTICATION_FAILED: 127.0.0.1:"
        run_until(copier, lambda: reason in copier.progress()[0].reason, timeout_s=SOON_S)
        assert "our side rejects the broker's certificate" in copier.progress()[0].reason


@pytest.mark.usefixtures("broker_right")
def test_strangers_get_no_records(cluster: KafkaCluster, certificates: Certificates) -> None:
    flow = flow_of(cluster, certificates)
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
        answer = flow.fetch_as_broker({**scram, "sasl.jaas.config": login(SCRAM_MODULE, "broker")})
        assert (answer.error_code, answer.high_watermark) == (ErrorCode.NONE, end)
    flow.assert_equal()

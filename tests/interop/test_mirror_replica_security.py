"""Replica mode with TLS and SASL: brokers log in at klamm, and klamm at the brokers and controllers.

Source and target are the same cluster. Its brokers and controllers have SASL_SSL, and another listener is open.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid4

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
    NewTopic,
    PatternType,
    ScramCredentialInfo,
    ScramMechanism,
    TopicPartition,
    UserScramCredentialUpsertion,
)
from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.login import open_connection
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.errors import ConnectionLostError, SaslAuthenticationFailedError
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.copy.settings import copy_settings
from klamm.mirror.replica.copier import ReplicaCopier
from klamm.mirror.replica.obstacles import obstacles
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.spark.worker import new_copier
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.records import Record, encode_batch, iter_batches
from tests.support.copiers import run_until
from tests.support.kafka import KafkaCluster
from tests.support.mirror import create_topic
from tests.support.processes import free_port, wait_until
from tests.support.security import PLAIN_MODULE, SCRAM_MODULE, Certificates
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from klamm.mirror.settings.flow import FlowSettings

NODE_IDS: Final = itertools.count(9)
"""Broker ids of klamm. With the same one, a test would wait for the end of the session of the test before."""
LISTENER: Final = "REPLICATION"
SCRAM: Final = "SCRAM-SHA-512"
USERS: Final = ("broker", "klamm", "mallory")
"""Users with a SCRAM credential. Only the first one may act as a broker, by an ACL."""
SOON_S: Final = 40.0


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
        "super.users": "User:node;User:klamm;User:ANONYMOUS",
    }
    with (
        KafkaCluster(properties=properties, with_logins=True, login_listener=LISTENER) as running,
        AdminClient(running.bootstrap_servers) as admin,
    ):
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        upsertions = [UserScramCredentialUpsertion(user, info, f"{user}-secret") for user in USERS]
        admin.alter_user_scram_credentials(upsertions).all().result(30)
        yield running


def login(module: str, user: str) -> str:
    return f'{module} required username="{user}" password="{user}-secret";'


def tls(certificates: Certificates, name: str) -> dict[str, str]:
    """Return the stores of a node, and its trust in the authority."""
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.directory / f"{name}.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.authority),
    }


class Flow:
    """A source topic of one partition, its remote topic and the keys of ``mm2.properties``."""

    def __init__(self, cluster: KafkaCluster, certificates: Certificates, **more: str) -> None:
        self.cluster = cluster
        self.alias = f"A{uuid4().hex[:8]}"
        self.topic, self.remote = "orders", f"{self.alias}.orders"
        self.node_id, self.port = next(NODE_IDS), free_port()
        self.file = {
            "clusters": f"{self.alias}, B",
            f"{self.alias}.bootstrap.servers": cluster.bootstrap_servers,
            "B.bootstrap.servers": f"127.0.0.1:{cluster.login_ports[1]}",
            "B.bootstrap.controllers": cluster.bootstrap_controllers,
            "B.security.protocol": "SASL_SSL",
            "B.sasl.mechanism": SCRAM,
            "B.sasl.jaas.config": login(SCRAM_MODULE, "klamm"),
            "B.ssl.truststore.type": "PEM",
            "B.ssl.truststore.location": str(certificates.authority),
            "B.controller.sasl.mechanism": "PLAIN",
            "B.controller.sasl.jaas.config": login(PLAIN_MODULE, "klamm"),
            f"{self.alias}->B.enabled": "true",
            "replication.factor": "1",
            "klamm.offsets": "preserve",
            "klamm.offsets.by": "replica",
            "klamm.replica.experimental": "true",
            "klamm.replica.node.id": str(self.node_id),
            "klamm.replica.listeners": f"{LISTENER}://127.0.0.1:{self.port}",
            "klamm.replica.listener.security.protocol.map": f"{LISTENER}:SASL_SSL",
            "klamm.replica.sasl.enabled.mechanisms": SCRAM,
            **{f"klamm.replica.{key}": value for key, value in tls(certificates, "klamm").items()},
            **{f"klamm.replica.{key.replace('_', '.')}": value for key, value in more.items()},
        }
        servers = cluster.bootstrap_servers
        create_topic(servers, f"mm2-offsets.{self.alias}.internal", 1, {"cleanup.policy": "compact"})
        with AdminClient(servers) as admin:
            if self.topic not in admin.list_topics().result(30):
                create_topic(servers, self.topic, 1, {"retention.ms": "-1"})

    def produce(self, count: int) -> int:
        """Append a batch to the source and return its end offset."""
        with WireClient(self.cluster.bootstrap_servers) as client:
            records = [Record(b"k", b"v" * 50, (), 1_700_000_000_000, at) for at in range(count)]
            client.produce(self.topic, 0, encode_batch(records))
            return client.end_offset(self.topic, 0)

    @contextlib.contextmanager
    def copier(self) -> Iterator[ReplicaCopier]:
        with contextlib.closing(self.new_copier()) as copier:
            copier.node.start()
            with AdminClient(self.cluster.bootstrap_servers) as admin:
                configs = {"retention.ms": "-1", "unclean.leader.election.enable": "false"}
                new = NewTopic(name=self.remote, replicas_assignments={0: (self.node_id,)}, configs=configs)
                admin.create_topics([new]).all().result(30)
                admin.alter_partition_reassignments({TopicPartition(self.remote, 0): [1]}).all().result(30)
            yield copier

    @property
    def settings(self) -> FlowSettings:
        return parse_settings(self.file).flows[0]

    def new_copier(self) -> ReplicaCopier:
        copier = new_copier(copy_settings(self.settings), [PartitionId(self.topic, 0, self.remote)])
        assert isinstance(copier, ReplicaCopier)
        return copier

    def stored(self, topic: str) -> list[bytes]:
        """Return the batches in the segments of the node."""
        directory = self.cluster.nodes[1].directory / "data" / f"{topic}-0"
        data = b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))
        return [bytes(batch.buffer) for batch in iter_batches(data, allow_partial_tail=True)]

    def assert_equal(self) -> None:
        assert self.stored(self.remote) == self.stored(self.topic)

    def topic_id(self) -> UUID:
        with AdminClient(self.cluster.bootstrap_servers) as admin:
            return admin.describe_topics([self.remote]).all().result(30)[self.remote].topic_id

    def replica_of(self, more: Mapping[str, str], certificates: Certificates) -> ConnectionSettings:
        """Return the settings of a client that connects to klamm."""
        trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(certificates.authority)}
        return ConnectionSettings.of((f"127.0.0.1:{self.port}",), {**trust, **more}, "stranger")


RIGHT: Final = Acl(
    resource_type=AclResourceType.CLUSTER,
    resource_name="kafka-cluster",
    pattern_type=PatternType.LITERAL,
    principal="User:broker",
    host="*",
    operation=AclOperation.CLUSTER_ACTION,
    permission=AclPermission.ALLOW,
)


@pytest.fixture(autouse=True)
def no_acls(cluster: KafkaCluster) -> Iterator[None]:
    """Delete the ACLs of a test at its end."""
    yield
    with AdminClient(cluster.bootstrap_servers) as admin:
        admin.delete_acls([AclFilter()]).all().result(30)


@pytest.fixture
def broker_right(cluster: KafkaCluster, no_acls: None) -> None:
    """The ACL by which brokers may act as brokers."""
    grant(cluster)


def grant(cluster: KafkaCluster, right: Acl = RIGHT) -> None:
    with AdminClient(cluster.bootstrap_servers) as admin:
        admin.create_acls([right]).all().result(30)
        wait_until(lambda: right in admin.describe_acls(AclFilter()).result(30), timeout_s=SOON_S, what="the ACL")


def ends_at(copier: ReplicaCopier, offset: int) -> None:
    """Copy until the replica has everything before an offset."""
    run_until(copier, lambda: copier.progress()[0].next_offset >= offset, timeout_s=SOON_S)


def test_replicas_log_in_by_scram_and_need_cluster_action(cluster: KafkaCluster, certificates: Certificates) -> None:
    flow = Flow(cluster, certificates)
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


def test_plan_names_what_the_brokers_cannot_use(cluster: KafkaCluster, certificates: Certificates) -> None:
    flow = Flow(cluster, certificates)
    assert obstacles(flow.settings)[""].startswith("no ACL allows CLUSTER_ACTION on cluster B")
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
    flow = Flow(cluster, certificates)
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


def test_broker_that_does_not_trust_the_certificate_of_klamm_is_named(
    cluster: KafkaCluster, tmp_path: Path, certificates: Certificates
) -> None:
    foreign = Certificates.create(tmp_path).issue("klamm", "/CN=klamm")
    flow = Flow(cluster, certificates, ssl_keystore_location=str(foreign))
    flow.produce(5)
    with flow.copier() as copier:
        reason = "klamm rejected listener REPLICATION: its TLS handshake failed: "
        run_until(copier, lambda: reason in copier.progress()[0].reason, timeout_s=SOON_S)
        assert "certificate unknown" in copier.progress()[0].reason.lower().replace("_", " ")
    assert flow.stored(flow.remote) == []


def test_controller_whose_certificate_klamm_does_not_trust_is_named(
    cluster: KafkaCluster, tmp_path: Path, certificates: Certificates
) -> None:
    flow = Flow(cluster, certificates)
    flow.file["B.controller.ssl.truststore.location"] = str(Certificates.create(tmp_path).authority)
    with contextlib.closing(flow.new_copier()) as copier:
        reason = "SSL_AUTHENTICATION_FAILED: 127.0.0.1:"
        run_until(copier, lambda: reason in copier.progress()[0].reason, timeout_s=SOON_S)
        assert "our side rejects the broker's certificate" in copier.progress()[0].reason


SCRAM_LOGIN: Final = {"security.protocol": "SASL_SSL", "sasl.mechanism": SCRAM}


@pytest.mark.usefixtures("broker_right")
def test_strangers_get_no_records(cluster: KafkaCluster, certificates: Certificates) -> None:
    flow = Flow(cluster, certificates)
    end = flow.produce(5)
    with flow.copier() as copier:
        ends_at(copier, end)
        topic = FetchRequest.FetchTopic(
            topic_id=flow.topic_id(), partitions=[FetchRequest.FetchPartition(partition=0, partition_max_bytes=1 << 20)]
        )
        as_replica = FetchRequest(
            replica_state=FetchRequest.ReplicaState(replica_id=1, replica_epoch=1),
            session_epoch=-1,
            max_bytes=1 << 20,
            topics=[topic],
        )

        def ask(more: Mapping[str, str]) -> FetchResponse:
            settings = flow.replica_of(more, certificates)
            with contextlib.closing(
                open_connection("127.0.0.1", flow.port, settings, BufferPool(max_free_bytes=0))
            ) as connection:
                return connection.call(as_replica, FetchResponse, timeout_s=10)

        # no credentials
        with pytest.raises(ConnectionLostError):
            ask({"security.protocol": "SSL"})
        with pytest.raises(ConnectionLostError):
            ask({"security.protocol": "PLAINTEXT"})
        # a wrong password
        wrong = f'{SCRAM_MODULE} required username="broker" password="wrong";'
        with pytest.raises(SaslAuthenticationFailedError, match="invalid credentials"):
            ask({**SCRAM_LOGIN, "sasl.jaas.config": wrong})
        # a user without CLUSTER_ACTION
        response = ask({**SCRAM_LOGIN, "sasl.jaas.config": login(SCRAM_MODULE, "mallory")})
        (answer,) = response.responses[0].partitions
        assert (answer.error_code, answer.high_watermark) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1)
        assert not answer.records
        # the same request of a broker
        response = ask({**SCRAM_LOGIN, "sasl.jaas.config": login(SCRAM_MODULE, "broker")})
        (answer,) = response.responses[0].partitions
        assert (answer.error_code, answer.high_watermark) == (ErrorCode.NONE, end)
    flow.assert_equal()

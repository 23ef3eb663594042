"""Flow in replica mode to an Apache Kafka with TLS or SASL between its brokers. Source and target are one cluster."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from klamm.admin import (
    Acl,
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
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.copy.settings import copy_settings
from klamm.mirror.replica.copier import ReplicaCopier
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.spark.worker import new_copier
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.records import Record, encode_batch, iter_batches
from tests.support.copiers import run_until
from tests.support.kafka import KafkaCluster
from tests.support.mirror import create_topic
from tests.support.processes import free_port
from tests.support.security import PLAIN_MODULE, SCRAM_MODULE, create_acls
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from klamm.mirror.settings.flow import FlowSettings
    from tests.support.security import Certificates

_NODE_IDS: Final = itertools.count(9)
"""Broker ids of klamm. With the same one, a test would wait for the end of the session of the test before."""
LISTENER: Final = "REPLICATION"
"""Name of the listener of the brokers."""
SOON_S: Final = 40.0
SCRAM: Final = "SCRAM-SHA-512"
USERS: Final = ("broker", "klamm", "mallory")
"""Users with a SCRAM credential. Only the first one may act as a broker, by an ACL."""


BROKER_RIGHT: Final = Acl(
    resource_type=AclResourceType.CLUSTER,
    resource_name="kafka-cluster",
    pattern_type=PatternType.LITERAL,
    principal="User:broker",
    host="*",
    operation=AclOperation.CLUSTER_ACTION,
    permission=AclPermission.ALLOW,
)
_OF_KLAMM: Final = replace(BROKER_RIGHT, principal="User:klamm")
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


class SecureFlow:
    """A source topic of one partition, its remote topic and the keys of ``mm2.properties``."""

    def __init__(
        self, cluster: KafkaCluster, protocol: str, keys: Mapping[str, str], configs: Mapping[str, str]
    ) -> None:
        """Create its topics.

        Args:
            cluster: Cluster with ``with_logins``.
            protocol: Security protocol of the listener of the brokers.
            keys: Keys of ``mm2.properties`` for klamm's own connections.
            configs: Configs of klamm's listener.
        """
        self.cluster = cluster
        self.alias = f"A{uuid4().hex[:8]}"
        self.topic, self.remote = "orders", f"{self.alias}.orders"
        self.node_id, self.port = next(_NODE_IDS), free_port()
        self.file = {
            "clusters": f"{self.alias}, B",
            f"{self.alias}.bootstrap.servers": cluster.bootstrap_servers,
            "B.bootstrap.servers": f"127.0.0.1:{cluster.login_ports[1]}",
            "B.bootstrap.controllers": cluster.bootstrap_controllers,
            f"{self.alias}->B.enabled": "true",
            "replication.factor": "1",
            "klamm.offsets": "preserve",
            "klamm.offsets.by": "replica",
            "klamm.replica.experimental": "true",
            "klamm.replica.node.id": str(self.node_id),
            "klamm.replica.listeners": f"{LISTENER}://127.0.0.1:{self.port}",
            "klamm.replica.listener.security.protocol.map": f"{LISTENER}:{protocol}",
            **{f"klamm.replica.{key}": value for key, value in configs.items()},
            **keys,
        }
        servers = cluster.bootstrap_servers
        create_topic(servers, f"mm2-offsets.{self.alias}.internal", 1, {"cleanup.policy": "compact"})
        with AdminClient(servers) as admin:
            if self.topic not in admin.list_topics().result(300):
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
                admin.create_topics([new]).all().result(300)
                admin.alter_partition_reassignments({TopicPartition(self.remote, 0): [1]}).all().result(300)
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

    def fetch_as_broker(self, properties: Mapping[str, str]) -> FetchResponse.PartitionData:
        """Return klamm's answer to a client that fetches from the log start as replica 1, with its security properties.

        Raises:
            ConnectionLostError: klamm rejects the client.
        """
        with AdminClient(self.cluster.bootstrap_servers) as admin:
            topic_id = admin.describe_topics([self.remote]).all().result(300)[self.remote].topic_id
        wanted = FetchRequest.FetchPartition(partition=0, partition_max_bytes=1 << 20)
        request = FetchRequest(
            replica_state=FetchRequest.ReplicaState(replica_id=1, replica_epoch=1),
            session_epoch=-1,
            max_bytes=1 << 20,
            topics=[FetchRequest.FetchTopic(topic_id=topic_id, partitions=[wanted])],
        )
        settings = ConnectionSettings.of((), properties, "stranger")
        connection = open_connection("127.0.0.1", self.port, settings, BufferPool(max_free_bytes=0))
        with contextlib.closing(connection):
            response = connection.call(request, FetchResponse, timeout_s=10)
        return response.responses[0].partitions[0]


def ends_at(copier: ReplicaCopier, offset: int) -> None:
    """Copy until the replica has everything before an offset."""
    run_until(copier, lambda: copier.progress()[0].next_offset >= offset, timeout_s=SOON_S)


@contextlib.contextmanager
def scram_cluster(certificates: Certificates) -> Iterator[KafkaCluster]:
    """Run one node whose brokers log in by SCRAM and whose controllers log in by PLAIN."""
    for name in ("node", "klamm"):
        certificates.issue(name, f"/CN={name}")
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
        admin.alter_user_scram_credentials(upsertions).all().result(300)
        admin.create_acls(OF_KLAMM).all().result(300)
        yield running


def scram_flow(cluster: KafkaCluster, certificates: Certificates, **more: str) -> SecureFlow:
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


def grant(cluster: KafkaCluster, right: Acl = BROKER_RIGHT) -> None:
    """Create an ACL, and wait until the node applies it."""
    with AdminClient(cluster.bootstrap_servers) as admin:
        create_acls(admin, [right])

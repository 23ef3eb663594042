"""Answers of real Apache Kafka through a gateway: those that it gives without it.

The recorded conformance cases, and logins with ACLs, are played against one node of Kafka directly and through a
gateway. Only addresses, and what differs from run to run, are left out of the comparison. Client configs, which Kafka
lacks, are compared with klamm's broker under the same ACLs; and clients of a gateway with users of its own act with
the rights of the gateway.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import socket
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer

import klamm
from klamm import cli
from klamm.admin import (
    Acl,
    AclOperation,
    AclPermission,
    AclResourceType,
    AdminClient,
    ClientConfigEntity,
    ClientConfigOp,
    EntityFilter,
    EntityType,
    FilterComponent,
    NewTopic,
    PatternType,
)
from klamm.client_configs.registrations import TOPIC as REGISTRATION_TOPIC
from klamm.gateway.client_configs.config_log import HISTORY_TOPIC, TOPIC
from klamm.protocol.errors import ClusterAuthorizationError, ErrorCode, TopicAuthorizationError
from klamm.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsRequest, DescribeClientConfigsResponse
from klamm.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from klamm.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from klamm.security.acls import CLUSTER_NAME
from tests.support.conformance_kit import KIT, load_runner
from tests.support.lent_kafka import LOGINS, USERS
from tests.support.long_tests import long_only
from tests.support.security import PASSWORDS, PLAIN_MODULE, client_properties, create_acls, log_in
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from klamm.protocol.schema import Message
    from tests.support.kafka import KafkaCluster
    from tests.support.lent_kafka import LentKafka

RUNNER = load_runner()
CASES = [case for case in RUNNER.CASES if "disruptive" not in case.tags]
GOLDEN = json.loads((KIT / "golden-4.4.public.json").read_text(encoding="utf-8"))["cases"]
_MASKED = re.compile(r"UUID\([^)]*\)|connectionId=[^ ,]+|Session@\w+|processor=\d+|(pos|lim|cap)=\d+")
"""Ids, and parts of a message of Kafka that describes the connection between broker and controller."""


class Sides(NamedTuple):
    """Something of Kafka itself, and the same through the gateway."""

    direct: Any
    through: Any


@pytest.fixture(scope="module")
def kafka(lent_kafka: LentKafka) -> Iterator[KafkaCluster]:
    """A node. Clients without a login may do everything, as without an authorizer."""
    with lent_kafka.lend() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def environments(kafka: KafkaCluster) -> Iterator[Sides]:
    """The kit's connection to each side."""
    with klamm.Gateway(kafka.bootstrap_servers) as gateway:
        made = []
        for address in (kafka.bootstrap_servers, gateway.bootstrap_servers):
            host, _, port = address.rpartition(":")
            connection = RUNNER.Connection(host, int(port), 20.0)
            environment = RUNNER.Env(connection, 1, settle=0, patience=20.0, messages=True)
            for resource in ((RUNNER.kit.BROKER, "1"), (RUNNER.kit.BROKER, ""), (RUNNER.kit.LOGGER, "1")):
                environment.baseline[resource] = RUNNER.kit.dynamic_configs(connection, *resource)
            made.append(environment)
        with closing(made[0].conn), closing(made[1].conn):
            yield Sides(*made)


# What a case proves for the gateway, most others prove, too.
@pytest.mark.parametrize(
    "case",
    [*CASES[::8], *long_only(*(case for number, case in enumerate(CASES) if number % 8))],
    ids=lambda case: case.id,
)
def test_recorded_case_has_the_same_responses_through_the_gateway(case: Any, environments: Sides) -> None:
    recorded, trouble = RUNNER.run_case(case, environments.direct, GOLDEN[case.id]["steps"])
    assert trouble is None
    steps, trouble = RUNNER.run_case(case, environments.through, recorded)
    assert trouble is None
    differences = RUNNER.differences(environments.through, recorded, steps)
    assert not differences, "\n".join([" ".join(case.rule.split()), *differences])


@pytest.fixture(scope="module")
def logins(own_users: Sides) -> Iterator[Sides]:
    """Addresses where clients log in. The internal topics have been created by a gateway with few rights."""
    config = towards_kafka("admin") | {"client.configs.enable": True}
    with klamm.Gateway(own_users.direct, config=config) as gateway:
        yield Sides(own_users.direct, gateway.bootstrap_servers)


def towards_kafka(user: str) -> dict[str, object]:
    """Return settings of a gateway that logs in at Kafka."""
    return {f"upstream.{name}": value for name, value in login(user, USERS[user]).items()}


def login(user: str, password: str) -> dict[str, str]:
    """Return properties of a client that logs in by PLAIN."""
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{PLAIN_MODULE} required username="{user}" password="{password}";',
    }


class Asked(NamedTuple):
    """A request with the class of its response, and its version."""

    request: Message
    response: type[Message]
    version: int


def handshake(mechanism: str = "PLAIN") -> Asked:
    return Asked(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse, 1)


def token(data: bytes) -> Asked:
    return Asked(SaslAuthenticateRequest(auth_bytes=data), SaslAuthenticateResponse, 2)


def plain(user: str, password: str | None = None) -> Asked:
    return token(f"\0{user}\0{PASSWORDS[user] if password is None else password}".encode())


METADATA = Asked(MetadataRequest(topics=None), MetadataResponse, 12)


def create(name: str) -> Asked:
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    return Asked(CreateTopicsRequest(topics=[topic], timeout_ms=20_000, validate_only=True), CreateTopicsResponse, 7)


def describe_configs(resource_type: int, name: str) -> Asked:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=["log.retention.hours"]
    )
    return Asked(DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse, 4)


def create_acl(principal: str) -> Asked:
    acl = CreateAclsRequest.AclCreation(
        resource_type=2,
        resource_name="of-alice",
        resource_pattern_type=3,
        principal=principal,
        host="*",
        operation=3,
        permission_type=3,
    )
    return Asked(CreateAclsRequest(creations=[acl]), CreateAclsResponse, 3)


DESCRIBE_ACLS = Asked(
    DescribeAclsRequest(resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1),
    DescribeAclsResponse,
    3,
)
SCRAM = Asked(
    AlterUserScramCredentialsRequest(
        deletions=[AlterUserScramCredentialsRequest.ScramCredentialDeletion(name="nobody", mechanism=1)], upsertions=[]
    ),
    AlterUserScramCredentialsResponse,
    0,
)
GROUP = Asked(FindCoordinatorRequest(coordinator_keys=["g"], key_type=0), FindCoordinatorResponse, 4)
CLUSTER = Asked(DescribeClusterRequest(include_cluster_authorized_operations=True), DescribeClusterResponse, 1)


@pytest.mark.parametrize(
    "questions",
    [
        pytest.param([handshake(), plain("alice", "wrong"), METADATA], id="wrong password"),
        pytest.param([handshake(), plain("nobody", "x")], id="unknown user"),
        pytest.param([handshake(), token(b"\0\0secret")], id="no user name"),
        pytest.param([handshake(), token(b"\0alice\0")], id="empty password"),
        pytest.param([handshake(), token(b"alice")], id="malformed token"),
        pytest.param([handshake(), token(b"admin\0alice\0alice-secret")], id="other authorization id"),
        pytest.param([handshake("SCRAM-SHA-256"), token(b"n,,n=nobody,r=abc")], id="SCRAM without credentials"),
        pytest.param([handshake("SCRAM-SHA-512"), token(b"garbage")], id="malformed SCRAM"),
        pytest.param([handshake("GSSAPI"), METADATA], id="mechanism that is not enabled"),
        pytest.param([handshake("NO-SUCH"), handshake()], id="unknown mechanism"),
        pytest.param([METADATA], id="no login"),
        pytest.param([handshake(), METADATA, METADATA], id="request within a login"),
        pytest.param([handshake(), create("early")], id="other request within a login"),
        pytest.param([plain("alice")], id="token without a handshake"),
        pytest.param([handshake(), handshake()], id="two handshakes"),
        pytest.param([handshake(), plain("alice"), handshake(), plain("mallory")], id="second login"),
        pytest.param([handshake(), plain("mallory"), METADATA, create("of-mallory"), GROUP, CLUSTER], id="no right"),
        pytest.param([handshake(), plain("mallory"), create_acl("User:a"), DESCRIBE_ACLS, SCRAM], id="no ACLs"),
        pytest.param([handshake(), plain("mallory"), describe_configs(2, "t"), describe_configs(4, "1")], id="hidden"),
        pytest.param(
            [handshake(), plain("admin"), create_acl("User:alice"), DESCRIBE_ACLS, create("of-alice"), SCRAM, CLUSTER],
            id="administrator",
        ),
        pytest.param([handshake(), plain("alice"), create("of-alice"), create("other"), METADATA, GROUP], id="rights"),
    ],
)
def test_logins_and_acls_match_direct_kafka(logins: Sides, questions: list[Asked]) -> None:
    direct, through = played(logins.direct, questions), played(logins.through, questions)
    assert through == direct
    assert direct


def played(address: str, questions: list[Asked]) -> list[str]:
    """Return the answers up to the end of the connection, without addresses."""
    answers: list[str] = []
    with WireClient(address, timeout_s=20) as client:
        versions = client.ask(ApiVersionsRequest(), ApiVersionsResponse, 2)
        answers.append(f"{versions.error_code} {versions.throttle_time_ms}")
        for each in questions:
            try:
                answer: Any = client.ask(each.request, each.response, each.version)
            except ConnectionError:
                return [*answers, "closed"]
            for node in (*getattr(answer, "brokers", ()), *getattr(answer, "coordinators", ())):
                if node.host:
                    node.host, node.port = "host", 1
            answers.append(_MASKED.sub("", repr(answer)))
    return answers


# -- client configs, and clients of a gateway with users of its own

GATEWAY_HOST = "127.0.0.1"
CAROL = "carol-secret"
"""Password of a user of the gateway, whom Kafka does not know."""
CLUSTER_RIGHTS = {
    "lister": AclOperation.DESCRIBE_CONFIGS,
    "setter": AclOperation.ALTER_CONFIGS,
    "viewer": AclOperation.DESCRIBE,
}
"""The only operation on the cluster that each user may do."""
ALL_USERS = EntityFilter(components=(FilterComponent.of_entity_type(EntityType.USER),), strict=False)


def rights() -> list[Acl]:
    """Return the ACLs of ``CLUSTER_RIGHTS``, and those that docs/gateway.md names for a gateway and for its clients."""
    cluster, topic = AclResourceType.CLUSTER, AclResourceType.TOPIC
    acls = [acl(name, cluster, CLUSTER_NAME, operation) for name, operation in CLUSTER_RIGHTS.items()]
    acls += [
        acl("gateway", cluster, CLUSTER_NAME, each) for each in (AclOperation.DESCRIBE, AclOperation.ALTER_CONFIGS)
    ]
    for name in (TOPIC, HISTORY_TOPIC, REGISTRATION_TOPIC, "own"):
        needed = (AclOperation.CREATE, AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE)
        acls += [acl("gateway", topic, name, operation) for operation in needed]
    writes = (AclOperation.WRITE, AclOperation.DESCRIBE)
    acls += [acl("gateway", AclResourceType.TRANSACTIONAL_ID, TOPIC, operation) for operation in writes]
    acls.append(acl("guest", topic, "guarded", AclOperation.CREATE, host=GATEWAY_HOST))
    return [*acls, acl("gateway", AclResourceType.GROUP, "own", AclOperation.READ)]


def acl(user: str, resource_type: AclResourceType, name: str, operation: AclOperation, *, host: str = "*") -> Acl:
    return Acl(
        resource_type=resource_type,
        resource_name=name,
        pattern_type=PatternType.LITERAL,
        principal=f"User:{user}",
        host=host,
        operation=operation,
        permission=AclPermission.ALLOW,
    )


@pytest.fixture(scope="module")
def own_users(kafka: KafkaCluster) -> Iterator[Sides]:
    """Addresses of Kafka's listener with logins, and of a gateway with users of its own and few rights at Kafka."""
    direct = f"127.0.0.1:{kafka.login_ports[1]}"
    with AdminClient.from_properties(direct, login("admin", USERS["admin"])) as admin:
        # The one of Alice is that of ``create_acl``.
        wanted = {*rights(), acl("alice", AclResourceType.TOPIC, "of-alice", AclOperation.READ)}
        create_acls(admin, wanted)
    config = towards_kafka("gateway") | {
        "client.configs.enable": True,
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_carol="{CAROL}";',
    }
    with klamm.Gateway(direct, listen="SASL_PLAINTEXT://127.0.0.1:0", config=config) as gateway:
        yield Sides(direct, gateway.bootstrap_servers)


@pytest.fixture(scope="module")
def broker() -> Iterator[klamm.Broker]:
    """A klamm broker with the same users and ACLs."""
    with klamm.Broker(listen="SASL_PLAINTEXT://127.0.0.1:0", config=LOGINS) as broker:
        with AdminClient.from_properties(broker.bootstrap_servers, login("admin", USERS["admin"])) as admin:
            admin.create_acls(rights()).all().result()
        yield broker


def allowed(address: str, user: str) -> list[str]:
    """Return what a user may do with client configs."""
    entity = ClientConfigEntity.of_user("somebody")
    done = []
    with AdminClient.from_properties(address, login(user, USERS[user])) as admin:
        with contextlib.suppress(ClusterAuthorizationError):
            admin.describe_client_configs(ALL_USERS).result()
            done.append("list")
        with contextlib.suppress(ClusterAuthorizationError):
            admin.alter_client_configs({entity: [ClientConfigOp("acks", "all")]}).all().result()
            done.append("set")
    return done


def test_client_configs_require_kafkas_cluster_acls(logins: Sides, broker: klamm.Broker) -> None:
    """Kafka's own answers decide, also about users who may not DESCRIBE the cluster."""
    users = [*CLUSTER_RIGHTS, "mallory", "admin"]
    through = {user: allowed(logins.through, user) for user in users}
    assert through == {user: allowed(broker.bootstrap_servers, user) for user in users}
    assert through == {
        "lister": ["list"],
        "setter": ["list", "set"],  # Kafka: who may alter configs may describe them
        "viewer": [],
        "mallory": [],
        "admin": ["list", "set"],
    }


def own_configs(client: WireClient) -> tuple[str | None, dict[str, str]]:
    """Return the user to whom a gateway assigns a client, and the configs for that client."""
    request = DescribeClientConfigsRequest(components=[], supported_configs=["acks"], resolve_entity=True)
    response = client.ask(request, DescribeClientConfigsResponse, 0)
    assert response.error_code == 0, response.error_message
    (entry,) = response.entries or []
    return entry.entity[0].entity_name, {value.key: value.value for value in entry.values}


def test_gateway_users_have_their_own_name_and_the_gateways_rights(
    logins: Sides, own_users: Sides, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given: a config that one gateway sets, and its history
    start = login("carol", CAROL)
    with AdminClient.from_properties(own_users.through, start) as admin:
        entity = ClientConfigEntity.of_user("carol")
        admin.alter_client_configs({entity: [ClientConfigOp("acks", "all")]}).all().result()
        rejected = admin.create_topics([NewTopic("not-its-own", 1)]).values()["not-its-own"].exception()
        assert isinstance(rejected, TopicAuthorizationError)
    # then: both gateways give everyone their own configs
    with log_in(own_users.through, "carol", CAROL) as client:
        assert own_configs(client) == ("carol", {"acks": "all"})
    with log_in(logins.through, "mallory") as client:
        assert own_configs(client) == ("mallory", {})
    # and the history has the user of the gateway, for those who may read the topic at Kafka
    history = ("configs", "history", "--bootstrap-server", logins.through, "--resource", "user 'carol'", "-o", "json")

    def as_user(user: str) -> int:
        properties = client_properties(tmp_path / user, login(user, USERS[user]))
        return cli.main([*history, "--command-config", str(properties)])

    assert as_user("admin") == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert (entry["principal"], entry["name"], entry["old"], entry["new"]) == ("User:carol", "acks", None, "all")
    assert as_user("mallory") == 1
    assert "no history of a klamm gateway that this principal may read" in capsys.readouterr().err


def test_gateway_user_unknown_to_kafka_produces_and_consumes(own_users: Sides) -> None:
    settings: dict[str, Any] = {
        "bootstrap.servers": own_users.through,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "carol",
        "sasl.password": CAROL,
        "log_level": 0,
    }
    producer = Producer(settings)
    producer.produce("own", b"hello")
    assert producer.flush(60) == 0
    consumer = Consumer({**settings, "group.id": "own", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe(["own"])
        message = consumer.poll(60)
        assert message is not None
        assert message.value() == b"hello"
    finally:
        consumer.close()
    with pytest.raises(AssertionError, match="Authentication failed"):
        log_in(own_users.direct, "carol", CAROL)


def test_acl_for_gateway_address_denies_direct_clients(logins: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client itself has another address of this machine."""
    elsewhere = functools.partial(socket.create_connection, source_address=("127.0.0.2", 0))
    monkeypatch.setattr(socket, "create_connection", elsewhere)
    creation = create("guarded")
    codes = []
    for address in (logins.direct, logins.through):
        with log_in(address, "guest", USERS["guest"]) as client:
            codes += [topic.error_code for topic in client.ask(creation.request, CreateTopicsResponse, 7).topics]
    assert codes == [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.NONE]

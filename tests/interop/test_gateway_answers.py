"""Answers of real Apache Kafka through a gateway: those that it gives without it.

The recorded conformance cases, and logins with ACLs, are played against one node of Kafka directly and through a
gateway. Only addresses, and what differs from run to run, are left out of the comparison.
"""

from __future__ import annotations

import json
import re
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import klamm
from klamm.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from klamm.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from klamm.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tests.support.conformance_kit import KIT, load_runner
from tests.support.kafka import KafkaCluster
from tests.support.security import PASSWORDS, PLAIN_MODULE, SCRAM_MODULE, sasl_settings
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from klamm.protocol.schema import Message

RUNNER = load_runner()
GOLDEN = json.loads((KIT / "golden-4.4.public.json").read_text(encoding="utf-8"))["cases"]
SETTINGS = {
    **sasl_settings(authorizer=True),
    **{
        f"listener.name.sasl_plaintext.{mechanism}.sasl.jaas.config": f"{SCRAM_MODULE} required;"
        for mechanism in ("scram-sha-256", "scram-sha-512")
    },
    "super.users": "User:admin;User:ANONYMOUS",
}
"""Settings of Kafka. Clients without a login may do everything, as without an authorizer."""


_MASKED = re.compile(r"UUID\([^)]*\)|connectionId=[^ ,]+|Session@\w+|processor=\d+|(pos|lim|cap)=\d+")
"""Ids, and parts of a message of Kafka that describes the connection between broker and controller."""


class Sides(NamedTuple):
    """Something of Kafka itself, and the same through the gateway."""

    direct: Any
    through: Any


@pytest.fixture(scope="module")
def kafka(java: None) -> Iterator[KafkaCluster]:
    with KafkaCluster(1, SETTINGS, with_logins=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def environments(kafka: KafkaCluster) -> Iterator[Sides]:
    """The kit's connection to each side."""
    with klamm.Gateway(kafka.bootstrap_servers) as gateway:
        made = []
        for address in (kafka.bootstrap_servers, gateway.bootstrap_servers):
            host, _, port = address.rpartition(":")
            connection = RUNNER.Connection(host, int(port), 20.0)
            environment = RUNNER.Env(connection, 1, settle=0, patience=5.0, messages=True)
            for resource in ((RUNNER.kit.BROKER, "1"), (RUNNER.kit.BROKER, ""), (RUNNER.kit.LOGGER, "1")):
                environment.baseline[resource] = RUNNER.kit.dynamic_configs(connection, *resource)
            made.append(environment)
        with closing(made[0].conn), closing(made[1].conn):
            yield Sides(*made)


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.id) for case in RUNNER.CASES if "disruptive" not in case.tags]
)
def test_a_recorded_case_is_answered_as_without_the_gateway(case: Any, environments: Sides) -> None:
    recorded, trouble = RUNNER.run_case(case, environments.direct, GOLDEN[case.id]["steps"])
    assert trouble is None
    steps, trouble = RUNNER.run_case(case, environments.through, recorded)
    assert trouble is None
    differences = RUNNER.differences(environments.through, recorded, steps)
    assert not differences, "\n".join([" ".join(case.rule.split()), *differences])


@pytest.fixture(scope="module")
def logins(kafka: KafkaCluster) -> Iterator[Sides]:
    """Addresses where clients log in."""
    direct = f"127.0.0.1:{kafka.login_ports[1]}"
    config = {
        "upstream.security.protocol": "SASL_PLAINTEXT",
        "upstream.sasl.mechanism": "PLAIN",
        "upstream.sasl.jaas.config": f'{PLAIN_MODULE} required username="admin" password="{PASSWORDS["admin"]}";',
    }
    with klamm.Gateway(direct, config=config) as gateway:
        yield Sides(direct, gateway.bootstrap_servers)


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
    "asked",
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
def test_logins_and_rights_are_those_of_kafka(logins: Sides, asked: list[Asked]) -> None:
    direct, through = played(logins.direct, asked), played(logins.through, asked)
    assert through == direct
    assert direct


def played(address: str, asked: list[Asked]) -> list[str]:
    """Return the answers up to the end of the connection, without addresses."""
    answers: list[str] = []
    with WireClient(address, timeout_s=20) as client:
        versions = client.ask(ApiVersionsRequest(), ApiVersionsResponse, 2)
        answers.append(f"{versions.error_code} {versions.throttle_time_ms}")
        for each in asked:
            try:
                answer: Any = client.ask(each.request, each.response, each.version)
            except ConnectionError:
                return [*answers, "closed"]
            for node in (*getattr(answer, "brokers", ()), *getattr(answer, "coordinators", ())):
                if node.host:
                    node.host, node.port = "host", 1
            answers.append(_MASKED.sub("", repr(answer)))
    return answers

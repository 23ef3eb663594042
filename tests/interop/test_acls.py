"""ACLs as written by Kafka's own tool, and the requests that they permit."""

from __future__ import annotations

import asyncio
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.cimpl import NewTopic

import klamm
from klamm import cli
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.support.kafka_tools import run_tool
from tests.support.processes import wait_until
from tests.support.security import PASSWORDS, PLAIN_MODULE, client_properties, log_in, sasl_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ACL_COMMAND = "org.apache.kafka.tools.AclCommand"
TOPIC_COMMAND = "org.apache.kafka.tools.TopicCommand"
ANYTHING: Any = None  # wrongly typed as a text
EVERY_ACL = AclBindingFilter(
    ResourceType.ANY, ANYTHING, ResourcePatternType.ANY, ANYTHING, ANYTHING, AclOperation.ANY, AclPermissionType.ANY
)


@pytest.fixture(scope="module")
def running() -> Iterator[klamm.Broker]:
    with klamm.Broker(listen="SASL_PLAINTEXT://127.0.0.1:0", config=sasl_settings(authorizer=True)) as broker:
        yield broker


@pytest.fixture
def broker(running: klamm.Broker) -> Iterator[klamm.Broker]:
    """A broker with two topics and no ACL."""
    admin = admin_of(running)
    for created in admin.create_topics([NewTopic("orders", 1, 1), NewTopic("other", 1, 1)]).values():
        created.result(300)
    yield running
    running.start()  # if a test failed after it had killed the broker
    for deleted in admin.delete_acls([EVERY_ACL]).values():
        deleted.result(300)
    for removed in admin.delete_topics(list(topics_seen(running, "admin"))).values():
        removed.result(300)


def settings_of(broker: klamm.Broker, user: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": PASSWORDS[user],
        "log_level": 0,
    }


def admin_of(broker: klamm.Broker, user: str = "admin") -> AdminClient:
    return AdminClient(settings_of(broker, user))


def acl(
    operation: AclOperation,
    *,
    name: str = "orders",
    resource_type: ResourceType = ResourceType.TOPIC,
    pattern: ResourcePatternType = ResourcePatternType.LITERAL,
    permission: AclPermissionType = AclPermissionType.ALLOW,
    user: str = "alice",
) -> AclBinding:
    return AclBinding(resource_type, name, pattern, f"User:{user}", "*", operation, permission)


def add(broker: klamm.Broker, *acls: AclBinding) -> None:
    admin = admin_of(broker)  # which takes its futures with it when it goes
    for future in admin.create_acls(list(acls)).values():
        future.result(300)


def sent(broker: klamm.Broker, topic: str, user: str = "alice") -> str | None:
    """Return the error of a record that was sent, None when it was taken."""
    errors: list[str | None] = []
    producer = Producer(settings_of(broker, user))
    producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(None if error is None else error.name()))
    producer.flush(10)
    return errors[0]


def topics_seen(broker: klamm.Broker, user: str = "alice") -> set[str]:
    topics = admin_of(broker, user).list_topics(timeout=10).topics
    return {topic for topic in topics if not topic.startswith("__")}


def test_write_acl_allows_describe_and_write_of_that_topic_only(broker: klamm.Broker) -> None:
    add(broker, acl(AclOperation.WRITE))
    assert topics_seen(broker) == {"orders"}
    assert sent(broker, "orders") is None
    assert sent(broker, "other") == "TOPIC_AUTHORIZATION_FAILED"
    assert sent(broker, "new") == "TOPIC_AUTHORIZATION_FAILED"
    assert topics_seen(broker, "admin") == {"orders", "other"}


def test_deny_acl_overrides_allow_acl(broker: klamm.Broker) -> None:
    every = acl(AclOperation.ALL, name="*")
    deny = acl(AclOperation.WRITE, name="or", pattern=ResourcePatternType.PREFIXED, permission=AclPermissionType.DENY)
    add(broker, every, deny)
    assert sent(broker, "other") is None
    assert sent(broker, "orders") == "TOPIC_AUTHORIZATION_FAILED"


def test_acls_are_described_deleted_and_survive_a_kill(broker: klamm.Broker) -> None:
    add(broker, acl(AclOperation.READ), acl(AclOperation.WRITE))
    add(broker, acl(AclOperation.READ))
    broker.kill()
    broker.start()
    admin = admin_of(broker)
    assert sorted(a.operation for a in admin.describe_acls(EVERY_ACL).result(300)) == sorted(
        [AclOperation.READ, AclOperation.WRITE]
    )
    writes = AclBindingFilter(
        ResourceType.TOPIC,
        "orders",
        ResourcePatternType.MATCH,
        ANYTHING,
        ANYTHING,
        AclOperation.WRITE,
        AclPermissionType.ANY,
    )
    (deleted,) = [future.result(300) for future in admin.delete_acls([writes]).values()]
    assert [acl.operation for acl in deleted] == [AclOperation.WRITE]
    assert [acl.operation for acl in admin.describe_acls(EVERY_ACL).result(300)] == [AclOperation.READ]


def test_principal_without_acls_cannot_read_or_write_acls(broker: klamm.Broker) -> None:
    alice = admin_of(broker, "alice")
    futures = [*alice.create_acls([acl(AclOperation.ALL)]).values(), *alice.delete_acls([EVERY_ACL]).values()]
    for future in futures:
        with pytest.raises(KafkaException, match="CLUSTER_AUTHORIZATION_FAILED"):
            future.result(300)
    admin = admin_of(broker)
    assert admin.describe_acls(EVERY_ACL).result(300) == []


def test_tools_report_principal_and_missing_acl(
    broker: klamm.Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given
    add(broker, acl(AclOperation.DESCRIBE))
    jaas = f'{PLAIN_MODULE} required username="alice" password="{PASSWORDS["alice"]}";'
    security = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas}
    file = client_properties(tmp_path / "alice.properties", security)
    (tmp_path / "topics.yaml").write_text("topics: {orders: {configs: {flush.ms: 1}}}")
    at = ("--bootstrap-server", broker.bootstrap_servers, "--command-config", str(file))
    # when
    codes = [
        cli.main([*words, *at])
        for words in (
            ("configs", "--describe", "--topic", "orders"),
            ("configs", "plan", str(tmp_path / "topics.yaml")),
            ("acls", "--list"),
        )
    ]
    # then
    assert codes == [1, 1, 1]
    output = capsys.readouterr()
    assert output.err.count("(User:alice needs DESCRIBE_CONFIGS on topic orders)") == 2
    assert "topics.orders: cannot be described: " in output.out
    assert "(User:alice needs DESCRIBE on the cluster)" in output.out


def test_create_without_describe_configs_right_returns_no_configs(broker: klamm.Broker) -> None:
    add(broker, acl(AclOperation.CREATE, name="made"))
    topics = [
        CreateTopicsRequest.CreatableTopic(name=n, num_partitions=2, replication_factor=1) for n in ("made", "no")
    ]
    with log_in(broker.bootstrap_servers, "alice") as alice:
        answer = alice.ask(CreateTopicsRequest(topics=topics, timeout_ms=9000), CreateTopicsResponse, 7)
    made, rejected = answer.topics
    assert (made.error_code, made.topic_config_error_code, made.num_partitions, made.configs) == (0, 29, -1, [])
    assert (rejected.error_code, rejected.error_message) == (29, "Authorization failed.")


POLICY = """
from klamm.policy import CreateTopicPolicy, PolicyViolationError

class Rejection(CreateTopicPolicy):
    def validate(self, details):
        raise PolicyViolationError(f"{details.topic}: the policy was asked")
"""


def test_authorization_failure_precedes_create_topic_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """K108-22: Authorization failure (29) comes before the policy."""
    (tmp_path / "policy_after_rights.py").write_text(POLICY)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = {**sasl_settings(authorizer=True), "create.topic.policy.class.name": "policy_after_rights.Rejection"}
    request = CreateTopicsRequest(
        topics=[CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)], timeout_ms=9000
    )
    with klamm.Broker(listen="SASL_PLAINTEXT://127.0.0.1:0", config=config) as broker:
        with log_in(broker.bootstrap_servers, "alice") as alice:
            (rejected,) = alice.ask(request, CreateTopicsResponse, 7).topics
        with log_in(broker.bootstrap_servers, "admin") as admin:
            (judged,) = admin.ask(request, CreateTopicsResponse, 7).topics
    assert (rejected.error_code, rejected.error_message) == (29, "Authorization failed.")
    assert (judged.error_code, judged.error_message) == (44, "t: the policy was asked")


def test_authorized_operations_are_reported_on_request(broker: klamm.Broker) -> None:
    add(
        broker,
        acl(AclOperation.READ),
        acl(AclOperation.DESCRIBE, name="kafka-cluster", resource_type=ResourceType.BROKER),
    )
    with log_in(broker.bootstrap_servers, "alice") as alice:
        request = MetadataRequest(topics=None, include_topic_authorized_operations=True)
        (topic,) = alice.ask(request, MetadataResponse, 9).topics
        cluster = alice.ask(
            DescribeClusterRequest(include_cluster_authorized_operations=True), DescribeClusterResponse, 1
        )
    assert topic.topic_authorized_operations == 1 << AclOperation.READ.value | 1 << AclOperation.DESCRIBE.value
    assert cluster.cluster_authorized_operations == 1 << AclOperation.DESCRIBE.value


def test_principal_without_read_on_group_or_topic_consumes_nothing(broker: klamm.Broker) -> None:
    from confluent_kafka import Consumer  # noqa: PLC0415 - only here

    add(broker, acl(AclOperation.READ), acl(AclOperation.READ, name="g", resource_type=ResourceType.GROUP))
    assert sent(broker, "orders", "admin") is None
    consumer = Consumer({**settings_of(broker, "alice"), "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    message = consumer.poll(15)
    assert message is not None
    assert message.error() is None
    consumer.commit(message=message, asynchronous=False)
    consumer.close()
    stranger = Consumer({**settings_of(broker, "mallory"), "group.id": "g"})
    stranger.subscribe(["orders"])
    errors: set[str] = set()

    def is_rejected() -> bool:
        message = stranger.poll(1)
        if message is not None and (error := message.error()) is not None:
            errors.add(error.name())
        return "GROUP_AUTHORIZATION_FAILED" in errors

    wait_until(is_rejected, timeout_s=60, what="a rejected group")
    stranger.close()


def test_create_acls_without_authorizer_is_security_disabled() -> None:
    with klamm.Broker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        (created,) = admin.create_acls([acl(AclOperation.READ)]).values()
        with pytest.raises(KafkaException, match="SECURITY_DISABLED"):
            created.result(300)


@pytest.mark.usefixtures("java")
async def test_kafkas_own_tools_write_and_obey_acls(broker: klamm.Broker, tmp_path: Path) -> None:
    def config_of(user: str) -> str:
        login = f'{PLAIN_MODULE} required username="{user}" password="{PASSWORDS[user]}";'
        properties = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": login}
        return str(client_properties(tmp_path / f"{user}.properties", properties))

    async def run(user: str, tool: str, *arguments: str) -> str:
        servers = ("--bootstrap-server", broker.bootstrap_servers, "--command-config", config_of(user))
        return await asyncio.to_thread(run_tool, tool, *servers, *arguments)

    consumer = ("--consumer", "--topic", "ord", "--resource-pattern-type", "prefixed", "--group", "g")
    await run("admin", ACL_COMMAND, "--add", "--allow-principal", "User:alice", *consumer)
    listed = await run("admin", ACL_COMMAND, "--list", "--topic", "orders", "--resource-pattern-type", "match")
    assert "(principal=User:alice, host=*, operation=READ, permissionType=ALLOW)" in listed
    assert (await run("alice", TOPIC_COMMAND, "--list")).split() == ["orders"]
    with pytest.raises(subprocess.CalledProcessError):
        await run("alice", ACL_COMMAND, "--list")
    await run("admin", ACL_COMMAND, "--remove", "--force", "--allow-principal", "User:alice", *consumer)
    assert (await run("alice", TOPIC_COMMAND, "--list")).split() == []

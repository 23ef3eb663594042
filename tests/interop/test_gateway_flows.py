"""The gateway's policy on flows, with real clients in front of a klamm broker."""

from __future__ import annotations

import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import InvalidGroupIdError, PolicyViolationError, TopicAuthorizationFailedError

import klamm
from klamm.admin import AdminClient, NewTopic
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from klamm.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse
from tests.support.kafka_tools import shared_tools
from tests.support.logs import batch
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RULES = """
rules:
  - name: durable
    topics: "billing[.].*"
    acks: all
    effect: override
  - name: slow
    topics: "slow[.].*"
    acks: all
    effect: throttle
    delay_ms: 40
  - name: archive
    topics: "archive[.].*"
    writes: forbidden
  - name: groups
    group_naming: "team-.*"
  - name: clients
    client_id_naming: "[^X].*"
    actions: [client]
  - name: tools
    forbidden_apis: [DeleteRecords, ListGroups]
"""
TOPICS = ("billing.eu", "slow.eu", "archive.eu", "orders")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[klamm.Gateway]:
    rules = tmp_path_factory.mktemp("rules") / "rules.yaml"
    rules.write_text(RULES)
    keys = ("flow.policy.class.name", "client.policy.class.name", "api.policy.class.name")
    config = {**dict.fromkeys(keys, "klamm.policy.rules:RulesPolicy"), "policy.rules.file": str(rules)}
    with (
        klamm.Broker() as upstream,
        klamm.Gateway(upstream.bootstrap_servers, config=config | {"metrics.listen": "127.0.0.1:0"}) as gateway,
    ):
        with AdminClient(gateway.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(topic, 1) for topic in TOPICS]).result()
        yield gateway


@pytest.fixture
def client(gateway: klamm.Gateway) -> Iterator[WireClient]:
    with WireClient(gateway.bootstrap_servers) as client:
        yield client


def produce(*topics: str, acks: int) -> ProduceRequest:
    return ProduceRequest(
        transactional_id=None,
        acks=acks,
        timeout_ms=10_000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=topic, partition_data=[ProduceRequest.PartitionProduceData(index=0, records=batch("value"))]
            )
            for topic in topics
        ],
    )


def outcomes(response: ProduceResponse) -> dict[str, tuple[int, str | None]]:
    return {
        topic.name: (each.error_code, each.error_message)
        for topic in response.responses
        for each in topic.partition_responses
    }


@pytest.fixture(scope="module", autouse=True)
def metrics(gateway: klamm.Gateway) -> str:
    """Address of the gateway's metrics, read at the start: only the end of a long log is kept."""
    return gateway.log_text().partition("Metrics on http://")[2].partition("/")[0]


def decisions(
    metrics: str, action: str, name: str = "klamm_policy_decisions_total", more: str = "", policy: str = "flow"
) -> int:
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    start = f'{name}{{policy="{policy}",mode="enforce",action="{action}"{more}}} '
    return next((int(line.removeprefix(start)) for line in lines if line.startswith(start)), 0)


def test_denied_topics_are_removed_from_the_request(client: WireClient, metrics: str) -> None:
    before = {topic: client.end_offset(topic, 0) for topic in TOPICS}
    response = client.ask(produce("orders", "archive.eu", "billing.eu", acks=-1), ProduceResponse, 9)
    assert outcomes(response) == {
        "orders": (0, None),
        "billing.eu": (0, None),
        "archive.eu": (
            ErrorCode.POLICY_VIOLATION,
            "Rule 'archive': topic archive.eu is read-only; write to another topic.",
        ),
    }
    assert decisions(metrics, "deny", "klamm_policy_rule_decisions_total", ',rule="archive"') >= 1
    written = {topic for topic in TOPICS if client.end_offset(topic, 0) > before[topic]}
    assert written == {"orders", "billing.eu"}


def test_raised_acks_keep_the_order_of_responses(client: WireClient, metrics: str) -> None:
    # given
    before, offset = decisions(metrics, "override"), client.end_offset("billing.eu", 0)
    # when: the client expects no response to the first and third request, to which the upstream now responds
    metadata = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="orders")])
    client.send(produce("billing.eu", acks=0), 9)
    assert [topic.name for topic in client.ask(metadata, MetadataResponse, 12).topics] == ["orders"]
    client.send(produce("billing.eu", acks=0), 9)
    assert outcomes(client.ask(produce("billing.eu", acks=1), ProduceResponse, 9)) == {"billing.eu": (0, None)}
    # then
    assert client.end_offset("billing.eu", 0) == offset + 3
    assert decisions(metrics, "override") == before + 3


def test_throttled_client_gets_throttle_time(client: WireClient) -> None:
    response = client.ask(produce("slow.eu", acks=1), ProduceResponse, 9)
    assert (outcomes(response), response.throttle_time_ms) == ({"slow.eu": (0, None)}, 40)
    assert client.ask(produce("slow.eu", acks=-1), ProduceResponse, 9).throttle_time_ms == 0


def test_denied_request_without_response_closes_the_connection(gateway: klamm.Gateway) -> None:
    with WireClient(gateway.bootstrap_servers) as client:
        client.send(produce("archive.eu", acks=0), 9)
        client.send(MetadataRequest(topics=[]), 12)
        with pytest.raises((EOFError, ConnectionError)):
            client.receive(MetadataResponse, 12)


def test_forbidden_apis_are_denied(client: WireClient, metrics: str) -> None:
    before = decisions(metrics, "deny", policy="api")
    partition = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=0)
    topic = DeleteRecordsRequest.DeleteRecordsTopic(name="orders", partitions=[partition])
    answer = client.ask(DeleteRecordsRequest(topics=[topic]), DeleteRecordsResponse, 2)
    assert [each.error_code for topic in answer.topics for each in topic.partitions] == [ErrorCode.POLICY_VIOLATION]
    assert client.ask(ListGroupsRequest(), ListGroupsResponse, 4).error_code == ErrorCode.POLICY_VIOLATION
    assert client.ask(MetadataRequest(topics=[]), MetadataResponse, 9).brokers
    assert decisions(metrics, "deny", policy="api") == before + 2


def test_versions_unsupported_by_flow_policy_are_not_advertised(client: WireClient) -> None:
    response = client.ask(ApiVersionsRequest(), ApiVersionsResponse, 2)
    offered = {api.api_key: api.max_version for api in response.api_keys}
    assert (offered[0], offered[8]) == (12, 9)
    assert not {76, 88} & set(offered)


def test_producer_reports_denied_read_only_topic(gateway: klamm.Gateway) -> None:
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": gateway.bootstrap_servers, "acks": "all", "linger.ms": 5})
    for topic in ("archive.eu", "orders"):
        producer.produce(topic, b"value", on_delivery=lambda error, message: errors.append((message.topic(), error)))
    assert producer.flush(20) == 0
    errors_by_topic = dict(errors)
    assert errors_by_topic["orders"] is None
    assert errors_by_topic["archive.eu"].code() == ErrorCode.POLICY_VIOLATION
    assert KafkaException(errors_by_topic["archive.eu"]).args[0].retriable() is False


def test_consumer_reports_denied_group_id(gateway: klamm.Gateway) -> None:
    def consumer(group_id: str) -> KafkaConsumer:
        return KafkaConsumer(
            "orders", bootstrap_servers=gateway.bootstrap_servers, group_id=group_id, auto_offset_reset="earliest"
        )

    with WireClient(gateway.bootstrap_servers) as client:
        client.ask(produce("orders", acks=1), ProduceResponse, 9)
    wrong = consumer("other")
    try:
        with pytest.raises(InvalidGroupIdError):
            wrong.poll(timeout_ms=20_000)
    finally:
        wrong.close(autocommit=False)
    right = consumer("team-a")
    try:
        deadline = time.monotonic() + 20
        while not right.poll(timeout_ms=1000):
            assert time.monotonic() < deadline
        right.commit()
    finally:
        right.close()


def test_consumer_protocol_consumer_reports_denied_group_id(gateway: klamm.Gateway) -> None:
    consumer = Consumer(
        {"bootstrap.servers": gateway.bootstrap_servers, "group.id": "other", "group.protocol": "consumer"}
    )
    try:
        consumer.subscribe(["orders"])
        deadline = time.monotonic() + 20
        reported = ""
        while "Invalid group.id" not in reported:
            assert time.monotonic() < deadline, reported
            message = consumer.poll(1.0)
            reported = str(message.error()) if message is not None else ""
    finally:
        consumer.close()


def test_clients_report_a_wrong_client_id(gateway: klamm.Gateway, metrics: str) -> None:
    servers = gateway.bootstrap_servers
    # an administrator
    admin = KafkaAdminClient(bootstrap_servers=servers, client_id="X-admin")
    with pytest.raises(PolicyViolationError):
        admin.list_groups()
    admin.close()
    # a member of a group
    member = KafkaConsumer("orders", bootstrap_servers=servers, group_id="team-a", client_id="X-member")
    with pytest.raises(PolicyViolationError):
        member.poll(timeout_ms=20_000)
    member.close(autocommit=False)
    # a consumer without a group
    reader = KafkaConsumer(bootstrap_servers=servers, client_id="X-reader")
    reader.assign([TopicPartition("orders", 0)])
    reader.seek(TopicPartition("orders", 0), 0)
    with pytest.raises(TopicAuthorizationFailedError):
        reader.poll(timeout_ms=20_000)
    reader.close(autocommit=False)
    # producers
    reported: list[Any] = []
    plain = Producer({"bootstrap.servers": servers, "client.id": "X-app"})
    plain.produce("orders", b"value", on_delivery=lambda error, _message: reported.append(error))
    plain.flush(20)
    assert [error.code() for error in reported] == [ErrorCode.POLICY_VIOLATION]
    idempotent = Producer({"bootstrap.servers": servers, "client.id": "X-app", "enable.idempotence": True})
    idempotent.produce("orders", b"value")
    with pytest.raises(KafkaException, match="Cluster authorization failed"):
        idempotent.flush(20)
    idempotent.purge()
    counted = "klamm_policy_rule_decisions_total"
    assert decisions(metrics, "deny", counted, ',rule="clients"', policy="client") > 3


def test_java_clients_report_a_wrong_client_id(
    gateway: klamm.Gateway, metrics: str, java: None, tmp_path: Path
) -> None:
    def reported(tool: str, *args: str) -> str:
        at = ("--bootstrap-server", gateway.bootstrap_servers, "--topic", "orders")
        outcome = shared_tools().run(f"org.apache.kafka.tools.{tool}", *at, *args)
        return outcome.stdout + outcome.stderr

    # administrators
    named = tmp_path / "client.properties"
    named.write_text("client.id=X-java\n")
    for action in ("--describe", "--delete"):
        assert "client.id=X-java does not match" in reported("TopicCommand", "--command-config", str(named), action)
    # members of groups, and a consumer without a group, which would wait for a record
    client_id = ("--command-property", "client.id=X-java")
    member = (*client_id, "--group", "team-a", "--num-records", "1", "--timeout", "20000", "--command-property")
    for protocol in ("classic", "consumer"):
        assert "PolicyViolationException" in reported("ConsumerPerformance", *member, f"group.protocol={protocol}")
    reader = (*client_id, "--partition", "0", "--offset", "latest")
    assert "Processed a total of 0 messages" in reported("consumer.ConsoleConsumer", *reader)
    # producers
    records = (*client_id, "--num-records", "3", "--record-size", "1", "--throughput", "2")
    assert "TransactionalIdAuthorizationException" in reported(
        "ProducerPerformance", *records, "--transactional-id", "team-t"
    )
    assert "ClusterAuthorizationException" in reported("ProducerPerformance", *records)
    # the producer pauses between its requests
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=60) as answer:
        counted = answer.read().decode().partition('{api="INIT_PRODUCER_ID",client_id="X-java"} ')[2].split()[0]
    assert 1 <= int(counted) < 20

"""Policies of a gateway in front of real Apache Kafka."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from kafka import KafkaProducer
from kafka.errors import KafkaError

import klamm
from klamm import cli
from klamm.admin import (
    AdminClient,
    AlterConfigOp,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OpType,
    ResourceType,
)
from klamm.protocol.errors import InvalidConfigError, KafkaApiError, PolicyViolationError
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tests.support.kept_up import KeptUp
from tests.support.processes import wait_until
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.kafka import KafkaCluster
    from tests.support.lent_kafka import LentKafka


RULES = """
rules:
  - name: sizes
    topics: "PREFIX[.].*"
    partitions: {max: 4}
    configs:
      retention.ms: {max: 604800000}
      cleanup.policy: {one_of: [delete]}
    omission: forbidden
  - name: set right
    effect: override
    topics: "PREFIX[.]right.*"
    configs:
      flush.ms: {max: 100}
  - name: keep
    topics: "PREFIX[.]kept"
    deletion: forbidden
  - name: short
    topics: "PREFIX[.]short"
    configs:
      segment.ms: {max: 5d}
  - name: brokers
    broker_configs:
      message.max.bytes: {max: 10MiB}
  - name: no such names
    topics: "PREFIX[.]bad.*"
    naming: "none"
"""
BROKERS = ConfigResource(ResourceType.BROKER, "")
PREFIX = f"gw{uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def kafka(lent_kafka: LentKafka) -> Iterator[KafkaCluster]:
    """A node that no other file uses now: the gateway keeps its history there."""
    with lent_kafka.lend() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def gateway(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[klamm.Gateway]:
    rules = tmp_path_factory.mktemp("rules") / "rules.yaml"
    rules.write_text(RULES.replace("PREFIX", PREFIX))
    kinds = ("create.topic", "alter.config", "create.partitions", "delete.topic")
    config = {f"{kind}.policy.class.name": "klamm.policy.rules:RulesPolicy" for kind in kinds}
    with klamm.Gateway(
        kafka.bootstrap_servers,
        config={**config, "policy.rules.file": str(rules), "change.history.enable": "true"},
    ) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def admin(gateway: klamm.Gateway) -> Iterator[AdminClient]:
    with AdminClient(gateway.bootstrap_servers) as admin:
        yield admin


@pytest.fixture(scope="module")
def kept_up(kafka: KafkaCluster) -> Iterator[KeptUp]:
    with KeptUp(kafka.bootstrap_servers) as broker:
        yield broker


def named(name: str) -> str:
    return f"{PREFIX}.{name}"


def history(gateway: klamm.Gateway, topic: str, capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str | None]]:
    """Return names and new values of the recorded changes of a topic, newest first.

    Configs of a deleted topic are left out, because they have to be read in time.
    """
    capsys.readouterr()
    server = ("--bootstrap-server", gateway.bootstrap_servers)
    assert cli.main(["configs", "history", *server, "--topic", topic, "-o", "json"]) == 0
    changes = [(line["name"], line["new"]) for line in json.loads(capsys.readouterr().out)]
    return [change for change in changes if change != ("flush.ms", None)]


def test_topics_are_created_grown_and_deleted_as_the_policy_allows(
    admin: AdminClient, gateway: klamm.Gateway, kept_up: KeptUp, capsys: pytest.CaptureFixture[str]
) -> None:
    """The history has what was forwarded."""
    # when
    created = admin.create_topics(
        [
            NewTopic(named("large"), 9),
            NewTopic(named("fine"), 2, configs={"flush.ms": "7"}),
            NewTopic(named("kept"), 1),
            NewTopic(named("right"), 1, configs={"flush.ms": "5000"}),
            NewTopic(named("long"), 1, configs={"retention.ms": "604800001"}),
            NewTopic(named("invalid"), 1, configs={"retention.ms": "soon"}),
        ]
    ).values()
    # then
    errors = {name.partition(".")[2]: type(outcome.exception(60)).__name__ for name, outcome in created.items()}
    assert errors == {
        "large": "PolicyViolationError",
        "fine": "NoneType",
        "kept": "NoneType",
        "right": "NoneType",
        "long": "PolicyViolationError",
        "invalid": "InvalidConfigError",
    }
    kept_up.wait()
    assert admin.topic_configs(named("right")).result(300)["flush.ms"].value == "100"
    # when
    grown = admin.create_partitions({named("fine"): NewPartitions(3), named("kept"): NewPartitions(9)}).values()
    # then
    grown[named("fine")].result(300)
    with pytest.raises(PolicyViolationError, match="partitions=9"):
        grown[named("kept")].result(300)
    # when
    host, _, port = gateway.bootstrap_servers.rpartition(":")
    with WireClient(f"{host}:{port}", timeout_s=60) as client:
        ids = client.topic_ids()
        states = [
            DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=ids[named(name)]) for name in ("kept", "fine")
        ]
        deleted = client.ask(DeleteTopicsRequest(topics=states, timeout_ms=30_000), DeleteTopicsResponse, 6)
    # then
    assert [(entry.name, entry.error_code) for entry in deleted.responses] == [(named("kept"), 44), (named("fine"), 0)]
    wait_until(lambda: len(history(gateway, named("fine"), capsys)) == 4, timeout_s=60, what="the recorded deletion")
    recorded = {name: history(gateway, named(name), capsys) for name in ("fine", "kept", "right", "large", "invalid")}
    assert recorded == {
        "fine": [("partitions", None), ("partitions", "3"), ("flush.ms", "7"), ("partitions", "2")],
        "kept": [("partitions", "1")],
        "right": [("flush.ms", "100"), ("partitions", "1")],
        "large": [],
        "invalid": [],
    }


def test_configs_are_altered_as_the_policy_allows(admin: AdminClient, kept_up: KeptUp) -> None:
    # given
    admin.create_topics([NewTopic(named("configs"), 1, configs={"segment.ms": "60000"})]).result(300)
    resource = ConfigResource(ResourceType.TOPIC, named("configs"))

    def alter(operation: OpType, name: str, value: str | None) -> BaseException | None:
        op = AlterConfigOp(ConfigEntry(name, value), operation)
        return admin.incremental_alter_configs({resource: [op]}).values()[resource].exception(60)

    # then
    assert alter(OpType.SET, "retention.ms", "5000") is None
    assert "above the maximum" in str(alter(OpType.SET, "retention.ms", "604800001"))
    assert "delete,compact" in str(alter(OpType.APPEND, "cleanup.policy", "compact"))
    dropping = admin.replace_all_configs({resource: [ConfigEntry("retention.ms", "6000")]}).values()[resource]
    with pytest.raises(PolicyViolationError, match=r"would remove segment\.ms"):
        dropping.result(300)
    with pytest.raises(InvalidConfigError, match="a setting of the gateway"):
        admin.alter_broker_configs(None, set={"create.topic.policy.mode": "audit"}).result(300)
    kept_up.wait()
    assert "create.topic.policy.mode" not in admin.describe_configs([BROKERS]).result(300)[BROKERS]
    configs = admin.topic_configs(named("configs")).result(300)
    assert [configs[name].value for name in ("retention.ms", "cleanup.policy", "segment.ms")] == [
        "5000",
        "delete",
        "60000",
    ]


def test_rules_apply_to_effective_values_after_removal_and_to_broker_configs(admin: AdminClient) -> None:
    admin.create_topics([NewTopic(named("short"), 1, configs={"segment.ms": "60000"})]).result(300)
    topic, brokers = ConfigResource(ResourceType.TOPIC, named("short")), ConfigResource(ResourceType.BROKER, "")
    remove = AlterConfigOp(ConfigEntry("segment.ms", None), OpType.DELETE)
    too_large = AlterConfigOp(ConfigEntry("message.max.bytes", "10485761"), OpType.SET)
    denied = admin.incremental_alter_configs({topic: [remove], brokers: [too_large]}).values()
    # Kafka does not describe log.roll.hours of a topic that sets segment.ms
    assert "segment.ms=604800000 (the broker's default)" in str(denied[topic].exception(60))
    assert "message.max.bytes=10485761 of all brokers is above" in str(denied[brokers].exception(60))
    entries = [ConfigEntry("message.max.bytes", "10485762"), ConfigEntry("min.insync.replicas", "1")]
    replaced = admin.replace_all_configs({brokers: entries}).values()[brokers]
    assert "message.max.bytes=10485762 of all brokers is above" in str(replaced.exception(60))


def test_producer_creates_only_topics_the_policy_allows(gateway: klamm.Gateway, admin: AdminClient) -> None:
    producer = KafkaProducer(bootstrap_servers=gateway.bootstrap_servers, max_block_ms=60_000)
    try:
        producer.send(named("wanted"), b"value").get(60)
        with pytest.raises(KafkaError, match=r"TopicAuthorizationFailed|TOPIC_AUTHORIZATION"):
            producer.send(named("bad"), b"value").get(60)
    finally:
        producer.close(timeout=10)
    names = admin.list_topics().result(300)
    assert named("wanted") in names
    assert named("bad") not in names
    with pytest.raises(KafkaApiError):
        admin.describe_topics([named("bad")]).result(300)


def test_tools_show_stored_values_and_plans_converge(
    gateway: klamm.Gateway,
    kafka: KafkaCluster,
    kept_up: KeptUp,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    at = ("--bootstrap-server", gateway.bootstrap_servers)
    topic, file = named("right.shown"), tmp_path / "topics.yaml"
    stored = {"stored": {"flush.ms": "100"}}

    def run(*words: str, code: int = 0) -> str:
        capsys.readouterr()
        assert cli.main([*words, *at]) == code
        return capsys.readouterr().out

    def override(*words: str) -> dict[str, object]:
        report: dict[str, object] = json.loads(run(*words, "-o", "json"))["override"]
        assert "flush.ms" in str(report.pop("reason"))
        return report

    # when
    created = override("topics", "--create", "--topic", named("right.made"), "--config", "flush.ms=5000")
    file.write_text(f"topics: {{{topic}: {{partitions: 1, configs: {{flush.ms: 5000}}}}}}")
    planned, applied = (run("configs", action, str(file)) for action in ("plan", "apply"))
    kept_up.wait()
    again = run("configs", "plan", str(file), "--check")
    # then
    assert created == stored
    for shown in (planned, applied):
        assert f"+ topic {topic}" in shown
        assert "+ flush.ms: 100 (policy)" in shown
        assert "policy: flush.ms=100 in place of 5000" in shown
    assert f"= topic {topic}" in again
    assert "policy: flush.ms=100 in place of 5000" in again
    assert "1 in line" in again
    # when
    alter = ("configs", "--alter", "--topic", topic, "--add-config", "flush.ms=900")
    assert override(*alter) == stored
    shown = run(*alter)
    with AdminClient(kafka.bootstrap_servers) as past:
        past.alter_topic_configs(topic, set={"flush.ms": 7000}).result()
    kept_up.wait()
    moment = datetime.now(UTC).isoformat()
    run("configs", "--alter", "--topic", topic, "--add-config", "flush.ms=50")
    kept_up.wait()
    reverted = run("configs", "revert", "--topic", topic, "--to", moment)
    # then
    assert shown.splitlines()[1] == "  policy: flush.ms=100 in place of 900"
    assert "policy: flush.ms=100 in place of 7000" in reverted
    kept_up.wait()
    assert "1 in line" in run("configs", "plan", str(file), "--check")


def test_history_reports_values_changed_without_the_gateway(
    gateway: klamm.Gateway, kafka: KafkaCluster, kept_up: KeptUp, capsys: pytest.CaptureFixture[str]
) -> None:
    # given
    at, topic = ("--bootstrap-server", gateway.bootstrap_servers), named("past")
    assert cli.main(["topics", "--create", "--topic", topic, "--config", "retention.ms=1000", *at]) == 0
    kept_up.wait()
    with AdminClient(kafka.bootstrap_servers) as past:
        past.alter_topic_configs(topic, set={"retention.ms": 2000}).result()
    kept_up.wait()
    capsys.readouterr()
    # when
    assert cli.main(["configs", "history", "--topic", topic, *at]) == 0
    history = capsys.readouterr().err.splitlines()
    assert cli.main(["configs", "revert", "--topic", topic, "--to", "2020-01-01", "--validate-only", *at]) == 0
    reverted = capsys.readouterr().out
    # then
    assert history[0].startswith("Read from __klamm_change_history of 127.0.0.1:")
    assert "Not recorded: changes past the gateways" in history[0]
    assert history[1] == (
        f"TOPIC:{topic}: retention.ms is 2000, but the last recorded change left it 1000: a later change is not in this"
        " history"
    )
    assert reverted.startswith("  - retention.ms: 2000 (2 s) -> unset\n")

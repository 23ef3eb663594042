"""Auto-created topics that a policy denies: every client reports the denial at once."""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
from typing import TYPE_CHECKING, Final

import confluent_kafka
import pytest
from aiokafka import AIOKafkaProducer  # type: ignore[import-untyped]
from aiokafka.errors import TopicAuthorizationFailedError as AioRejectedError  # type: ignore[import-untyped]
from kafka import KafkaProducer
from kafka.errors import TopicAuthorizationFailedError as PythonRejectedError

import klamm
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.support.java import java_command
from tests.support.long_tests import long_only
from tests.support.processes import wait_until
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

RULES: Final = "rules: [{name: team names, naming: '(orders|billing)[.].*'}]"
AT_ONCE_S: Final = 30.0
"""Below the 60 s and more that clients wait for a topic, and above what a busy machine takes to start them."""


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    return path


@pytest.fixture
def broker(rules: Path) -> Iterator[klamm.Broker]:
    config = {
        "create.topic.policy.class.name": "klamm.policy.rules:RulesPolicy",
        "policy.rules.file": str(rules),
        "policy.reload.interval.ms": "50",
    }
    with klamm.Broker(config=config) as broker:
        yield broker


def confluent(servers: str, topic: str) -> None:
    errors: list[confluent_kafka.KafkaError | None] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": servers})
    producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(AT_ONCE_S)
    (error,) = errors
    assert error is not None
    assert error.code() == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def kafka_python(servers: str, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=servers)
    try:
        with pytest.raises(PythonRejectedError):
            producer.send(topic, b"x").get(AT_ONCE_S)
    finally:
        producer.close(1)


def aiokafka(servers: str, topic: str) -> None:
    async def send() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=servers)
        await producer.start()
        try:
            with pytest.raises(AioRejectedError):
                await producer.send_and_wait(topic, b"x")
        finally:
            await producer.stop()

    asyncio.run(send())


def java_console(servers: str, topic: str) -> None:
    words = ["--bootstrap-server", servers, "--topic", topic]
    command = java_command("org.apache.kafka.tools.ConsoleProducer", *words)
    done = subprocess.run(command, input=b"x\n", capture_output=True, timeout=300, check=False)
    assert b"TopicAuthorizationException" in done.stdout + done.stderr


@pytest.mark.parametrize("send", [confluent, *long_only(kafka_python, aiokafka)])
def test_python_producer_reports_denied_topic_at_once(broker: klamm.Broker, send: Callable[[str, str], None]) -> None:
    began = time.monotonic()
    send(broker.bootstrap_servers, "nonsense")
    assert time.monotonic() - began < AT_ONCE_S
    (line,) = [line for line in broker.log_text().splitlines() if "denied" in line]
    assert re.search(
        r"Create topic policy: denied 'nonsense', asked by User:ANONYMOUS \(client .*\):"
        r" Rule 'team names': name=nonsense of topic nonsense does not match",
        line,
    )


@pytest.mark.long
@pytest.mark.usefixtures("java")
def test_java_producer_reports_denied_topic_at_once(broker: klamm.Broker) -> None:
    """Later, after ``max.block.ms``, it reports a TimeoutException instead."""
    java_console(broker.bootstrap_servers, "nonsense")


def metadata(client: WireClient, topic: str) -> ErrorCode:
    wanted = [MetadataRequest.MetadataRequestTopic(name=topic)]
    answer = client.ask(MetadataRequest(topics=wanted, allow_auto_topic_creation=True), MetadataResponse, 12)
    return ErrorCode(answer.topics[0].error_code)


def test_retries_use_the_remembered_denial_until_the_policy_changes(broker: klamm.Broker, rules: Path) -> None:
    with WireClient(broker.bootstrap_servers) as client:
        assert {metadata(client, "nonsense") for _ in range(100)} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        rules.write_text(RULES.replace("orders", "nonsense|orders").replace("[.].*", ".*"))
        wait_until(lambda: "Policies reloaded" in broker.log_text(), timeout_s=30, what="the changed rules")
        assert metadata(client, "nonsense") is ErrorCode.NONE, "remembered beyond the change of the rules"


def test_create_topics_denial_is_not_remembered_for_auto_creation(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("rules: [{name: small, partitions: {max: 2}}]")
    config = {"create.topic.policy.class.name": "klamm.policy.rules:RulesPolicy", "policy.rules.file": str(path)}
    with klamm.Broker(config=config) as broker, WireClient(broker.bootstrap_servers) as client:
        with pytest.raises(RuntimeError, match="above the maximum 2"):
            client.create_topic("orders", partitions=3)
        assert metadata(client, "orders") is ErrorCode.NONE

"""Client metrics (KIP-714) that unmodified clients push: librdkafka and Java."""

from __future__ import annotations

import time
import urllib.request
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer

import klamm
from klamm import cli
from klamm.admin import AdminClient
from klamm.cli.clients import fetch
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.types import ResourceType
from klamm.telemetry.otlp import decode_metrics
from tests.support.java import start_java
from tests.support.kafka_tools import run_tool
from tests.support.processes import free_port, stop_process
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SOON_S = 20.0
INTERVAL_MS = 100
"""Kafka's shortest interval."""


@pytest.fixture(scope="module")
def metrics() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("otlp") / "metrics"


@pytest.fixture(scope="module")
def broker(metrics: str, exported: Path) -> Iterator[klamm.Broker]:
    config = {
        "metrics.listen": metrics,
        "group.initial.rebalance.delay.ms": 0,
        "client.metrics.otlp.file": exported,
    }
    with klamm.Broker(config=config, control=True) as running:
        running.create_topic("t")
        alter = [
            "configs",
            "--bootstrap-server",
            running.bootstrap_servers,
            "--alter",
            "--entity-type",
            "client-metrics",
        ]
        added = f"interval.ms={INTERVAL_MS},metrics=[org.apache.kafka.],match=[client_id=pushes.*]"
        assert cli.main([*alter, "--entity-name", "some", "--add-config", added]) == 0
        yield running


def page(metrics: str) -> list[str]:
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=SOON_S) as response:
        text: str = response.read().decode()
    return text.splitlines()


def until(is_done: Callable[[], object], what: str, *, seconds: float = SOON_S) -> None:
    end = time.monotonic() + seconds
    while not is_done():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def has(metrics: str, family: str, client_id: str) -> bool:
    return any(line.startswith(f"{family}{{") and f'client_id="{client_id}"' in line for line in page(metrics))


def first_message(data: bytes) -> bytes:
    """Return the first message of an exported file; nothing while it is being written."""
    end = 4 + int.from_bytes(data[:4])
    return data[4:end] if len(data) >= end else b""


def test_clients_of_librdkafka_appear_and_leave(broker: klamm.Broker, metrics: str, exported: Path) -> None:
    """K714-07."""
    # given
    at = {"bootstrap.servers": broker.bootstrap_servers}
    producer = Producer({**at, "client.id": "pushes-1"})
    silent = Producer({**at, "client.id": "silent", "enable.metrics.push": False})
    other = Producer({**at, "client.id": "other"})
    consumer = Consumer({**at, "client.id": "pushes-2", "group.id": "g"})
    # when
    consumer.subscribe(["t"])
    for client in (producer, silent, other):
        client.produce("t", b"value")
        assert client.flush(SOON_S) == 0
    # then
    until(lambda: has(metrics, "kafka_client_producer_connection_creation_total", "pushes-1"), "no producer")
    until(lambda: has(metrics, "kafka_client_consumer_connection_creation_total", "pushes-2"), "no consumer")
    assert not any('client_id="other"' in line or 'client_id="silent"' in line for line in page(metrics))
    # the first push comes within one and a half intervals after the subscriptions
    subscriptions, pushed = (
        broker.requests(api, client_id="pushes-1")[0].received_ms
        for api in ("GetTelemetrySubscriptions", "PushTelemetry")
    )
    assert subscriptions <= pushed
    until(lambda: exported.exists() and first_message(exported.read_bytes()), "nothing was exported")
    data = exported.read_bytes()
    assert decode_metrics(first_message(data))
    assert b"client_software_name" in data
    # when
    consumer.close()
    del producer
    # then
    until(lambda: not has(metrics, "kafka_client_producer_connection_creation_total", "pushes-1"), "it has left")


@pytest.mark.long
def test_clients_of_java_appear(broker: klamm.Broker, metrics: str) -> None:
    """K714-07."""
    package = "org.apache.kafka.tools"
    at = ["--bootstrap-server", broker.bootstrap_servers, "--topic", "t"]
    properties = ["--consumer-property", "client.id=pushes-java", "--consumer-property", "heartbeat.interval.ms=500"]
    consumer = start_java(f"{package}.consumer.ConsoleConsumer", *at, *properties)
    try:
        until(
            lambda: has(metrics, "kafka_client_consumer_connection_creation_total", "pushes-java"),
            "no consumer",
            seconds=300,
        )
        (seen,) = [client for client in fetch(metrics) if client["client_id"] == "pushes-java"]
        assert any(f'client_instance_id="{seen["client_instance_id"]}"' in line for line in page(metrics))
    finally:
        stop_process(consumer)
    listed = run_tool(f"{package}.ClientMetricsCommand", "--bootstrap-server", broker.bootstrap_servers, "--list")
    assert listed.split() == ["some"]


def test_subscriptions_are_listed(broker: klamm.Broker) -> None:
    with AdminClient(broker.bootstrap_servers) as admin:
        resources = admin.list_config_resources(ResourceType.CLIENT_METRICS).result()
    assert [resource if isinstance(resource, str) else resource.name for resource in resources] == ["some"]


def test_telemetry_apis_are_advertised_only_with_a_receiver(broker: klamm.Broker) -> None:
    announced = []
    with klamm.Broker() as plain:
        for server in (broker, plain):
            with WireClient(server.bootstrap_servers) as wire:
                answer = wire.ask(ApiVersionsRequest(), ApiVersionsResponse, 0)
                announced.append({api.api_key for api in answer.api_keys} & {71, 72})
    assert announced == [{71, 72}, set()]

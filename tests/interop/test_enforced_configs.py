"""Client configs that the broker enforces for clients without KIP-649: librdkafka and Java."""

from __future__ import annotations

import subprocess
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

import klamm
from klamm import cli
from klamm.admin import AdminClient, ClientConfigEntity, ClientConfigOp, KafkaApiError
from klamm.cli import clients as command
from tests.support.java import start_java
from tests.support.processes import free_port, stop_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOON_S = 20.0
JAVA_S = 300.0
"""Time in which a Java process starts and joins a group, on a machine with other load."""


@pytest.fixture(scope="module")
def metrics() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def broker(metrics: str) -> Iterator[klamm.Broker]:
    config = {
        "client.config.enforcement": "on",
        "group.initial.rebalance.delay.ms": "0",
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.heartbeat.interval.ms": "400",
        "metrics.listen": metrics,
    }
    with klamm.Broker(config=config, control=True) as running:
        running.create_topic("t")
        yield running


@pytest.fixture
def admin(broker: klamm.Broker) -> Iterator[AdminClient]:
    with AdminClient(broker.bootstrap_servers) as client:
        yield client


def set_for(admin: AdminClient, client_id: str, key: str, value: str | None) -> None:
    entity = ClientConfigEntity.of_client("ANONYMOUS", client_id)
    admin.alter_client_configs({entity: [ClientConfigOp(key, value)]}).all().result()


def outcome(producer: Producer) -> str:
    """Produce one record, and return the name of its error, empty without one."""
    errors: list[KafkaError | None] = []
    producer.produce("t", b"value", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(SOON_S) == 0
    (error,) = errors
    return "" if error is None else error.name()


def test_acks_all_is_enforced_on_producer_with_acks_1(broker: klamm.Broker, admin: AdminClient) -> None:
    """K649-93."""
    # given: only what is served with acks=all meets too few replicas
    settings = {"bootstrap.servers": broker.bootstrap_servers, "acks": 1, "retries": 0}
    held, other = Producer({**settings, "client.id": "held"}), Producer({**settings, "client.id": "other"})
    with broker.inject("Produce", error="NOT_ENOUGH_REPLICAS", acks="all", times=None):
        assert outcome(held) == ""
        # when, then
        set_for(admin, "held", "acks", "all")
        assert outcome(held) == "NOT_ENOUGH_REPLICAS"
        assert outcome(other) == "", "nothing changes for other clients"
        set_for(admin, "held", "enforcement", "off")
        assert outcome(held) == ""
        set_for(admin, "held", "enforcement", None)
        assert outcome(held) == "NOT_ENOUGH_REPLICAS"
        set_for(admin, "held", "acks", None)
        assert outcome(held) == "", "removal goes back"


def joined(broker: klamm.Broker, client_id: str, **settings: object) -> Consumer:
    """Return a consumer, in a group named after it, that has its assignment."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "client.id": client_id,
            "group.id": client_id,
            **(settings or {"session.timeout.ms": 6000, "heartbeat.interval.ms": 100}),
        }
    )
    consumer.subscribe(["t"])
    until = time.monotonic() + SOON_S
    while not consumer.assignment():
        assert time.monotonic() < until, "the consumer got no assignment"
        consumer.poll(0.05)
    return consumer


def members(admin: AdminClient, group_id: str) -> tuple[str, ...]:
    try:
        described = admin.describe_groups([group_id]).all().result()[group_id]
    except KafkaApiError:  # its last member is gone, and it had no offsets
        return ()
    return tuple(member.member_id for member in described.members)


def beat(broker: klamm.Broker, client_id: str, poll: Callable[[float], object], soon_s: float = SOON_S) -> None:
    """Wait for two heartbeats of a client that begin from now on."""
    before = len(broker.requests("Heartbeat", client_id=client_id))
    until = time.monotonic() + soon_s
    while len(broker.requests("Heartbeat", client_id=client_id)) < before + 2:
        assert time.monotonic() < until, "the consumer sends no heartbeats"
        poll(0.05)


def client_entry(metrics: str, client_id: str) -> dict[str, Any]:
    (entry,) = [client for client in command.fetch(metrics) if client["client_id"] == client_id]
    return entry


def test_raised_session_timeout_keeps_classic_consumer_through_a_pause(
    broker: klamm.Broker, admin: AdminClient, metrics: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """K649-94, -96."""
    # given
    set_for(admin, "raised", "session.timeout.ms", "120000")
    raised, plain = joined(broker, "raised"), joined(broker, "plain")
    before = {name: members(admin, name) for name in ("raised", "plain")}
    # when
    broker.advance_clock(60)
    # then
    assert members(admin, "raised") == before["raised"]
    assert members(admin, "plain") != before["plain"]
    entry = client_entry(metrics, "raised")
    assert (entry["standing"], entry["compliance"]) == ("enforced", {"session.timeout.ms": "enforced"})
    assert cli.main(["clients", "list", "--metrics", metrics, "--client", "raised"]) == 0
    assert "1 client: 1 enforced" in capsys.readouterr().out
    assert entry["reported"]["session.timeout.ms"] == "6000"
    assert entry["drift"] == ["session.timeout.ms"]
    # when: the config is removed
    set_for(admin, "raised", "session.timeout.ms", None)
    beat(broker, "raised", raised.poll)
    broker.advance_clock(60)
    # then
    assert members(admin, "raised") != before["raised"]
    for consumer in (raised, plain):
        consumer.close()


def beats_every(
    broker: klamm.Broker,
    client_id: str,
    poll: Callable[[float], object],
    is_expected: Callable[[int], bool],
    soon_s: float = SOON_S,
) -> None:
    """Wait until the times between the last four heartbeats of a member are as expected, in milliseconds."""
    end = time.monotonic() + soon_s
    before = len(broker.requests("ConsumerGroupHeartbeat", client_id=client_id))
    while True:
        heartbeats = broker.requests("ConsumerGroupHeartbeat", client_id=client_id)[before:][-4:]
        times = [later.received_ms - earlier.received_ms for earlier, later in pairwise(heartbeats)]
        if len(times) == 3 and all(map(is_expected, times)):
            return
        assert time.monotonic() < end, times
        poll(0.05)


def test_changed_heartbeat_interval_reaches_running_consumer(
    broker: klamm.Broker, admin: AdminClient, metrics: str
) -> None:
    """K649-95, -96."""
    # given
    consumer = joined(broker, "modern", **{"group.protocol": "consumer"})
    beats_every(broker, "modern", consumer.poll, lambda gap_ms: gap_ms >= 350)
    # when
    set_for(admin, "modern", "heartbeat.interval.ms", "100")
    # then
    beats_every(broker, "modern", consumer.poll, lambda gap_ms: gap_ms < 350)
    entry = client_entry(metrics, "modern")
    assert (entry["standing"], entry["compliance"]) == ("enforced", {"heartbeat.interval.ms": "enforced"})
    # when: the config is removed
    set_for(admin, "modern", "heartbeat.interval.ms", None)
    # then
    beats_every(broker, "modern", consumer.poll, lambda gap_ms: gap_ms >= 350)
    consumer.close()


def java_consumer(broker: klamm.Broker, client_id: str, **settings: object) -> subprocess.Popen[bytes]:
    """Start Kafka's console consumer, in a group named after it."""
    words = [f"{name.replace('_', '.')}={value}" for name, value in settings.items()]
    properties = [word for each in (f"client.id={client_id}", *words) for word in ("--consumer-property", each)]
    at = ("--bootstrap-server", broker.bootstrap_servers, "--topic", "t", "--group", client_id)
    return start_java("org.apache.kafka.tools.consumer.ConsoleConsumer", *at, *properties)


@pytest.mark.long
@pytest.mark.usefixtures("java")
def test_java_consumer_applies_changed_heartbeat_interval(broker: klamm.Broker, admin: AdminClient) -> None:
    """K649-95."""
    # given
    consumer = java_consumer(broker, "java-modern", group_protocol="consumer")
    try:
        beats_every(broker, "java-modern", time.sleep, lambda gap_ms: gap_ms >= 350, JAVA_S)
        # when
        set_for(admin, "java-modern", "heartbeat.interval.ms", "100")
        # then
        beats_every(broker, "java-modern", time.sleep, lambda gap_ms: gap_ms < 350)
        # when: the config is removed
        set_for(admin, "java-modern", "heartbeat.interval.ms", None)
        # then
        beats_every(broker, "java-modern", time.sleep, lambda gap_ms: gap_ms >= 350)
    finally:
        stop_process(consumer)


@pytest.mark.long
@pytest.mark.usefixtures("java")
def test_raised_session_timeout_keeps_classic_java_consumer_through_a_pause(
    broker: klamm.Broker, admin: AdminClient
) -> None:
    """K649-94."""
    # given
    set_for(admin, "java-classic", "session.timeout.ms", "120000")
    settings = {"group_protocol": "classic", "session_timeout_ms": 6000, "heartbeat_interval_ms": 100}
    consumer = java_consumer(broker, "java-classic", **settings)
    try:
        beat(broker, "java-classic", time.sleep, JAVA_S)
        before = members(admin, "java-classic")
        # when
        broker.advance_clock(60)
        beat(broker, "java-classic", time.sleep)
        # then
        assert members(admin, "java-classic") == before != ()
        # when: the config is removed
        set_for(admin, "java-classic", "session.timeout.ms", None)
        beat(broker, "java-classic", time.sleep)
        broker.advance_clock(60)
        # then
        assert members(admin, "java-classic") != before
    finally:
        stop_process(consumer)


@pytest.mark.long
@pytest.mark.usefixtures("java")
def test_acks_all_is_enforced_on_java_producer_with_acks_1(broker: klamm.Broker, admin: AdminClient) -> None:
    """K649-93."""
    settings = ("acks=1", "enable.idempotence=false", "retries=0", "client.id=java-held")
    properties = [word for each in settings for word in ("--producer-property", each)]
    at = ("--bootstrap-server", broker.bootstrap_servers, "--topic", "t", "--timeout", "0")
    producer = start_java("org.apache.kafka.tools.ConsoleProducer", *at, *properties, stdin=subprocess.PIPE)
    lines = producer.stdin
    assert lines is not None

    def fault_of_one_record(soon_s: float = SOON_S) -> str | None:
        before, end = len(broker.requests("Produce", client_id="java-held")), time.monotonic() + soon_s
        lines.write(b"value\n")
        lines.flush()
        while len(requests := broker.requests("Produce", client_id="java-held")) == before:
            assert time.monotonic() < end, "the producer sends nothing"
            time.sleep(0.02)
        return requests[-1].fault

    try:
        with broker.inject("Produce", error="NOT_ENOUGH_REPLICAS", acks="all", times=None):
            assert fault_of_one_record(JAVA_S) is None
            # when, then
            set_for(admin, "java-held", "acks", "all")
            assert fault_of_one_record() == "NOT_ENOUGH_REPLICAS"
            # when, then: the config is removed
            set_for(admin, "java-held", "acks", None)
            assert fault_of_one_record() is None
    finally:
        stop_process(producer)

"""Last step of the demo: an unmodified client of kafka-python uses Apache Kafka through a gateway with policies."""

from __future__ import annotations

import importlib.util
import time
import urllib.request
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from examples.demo.display import Claim
from examples.demo.kafka import RELEASE, ApacheKafka, KafkaUnavailableError
from klamm.admin import AdminClient, ClientConfigEntity, ClientConfigOp
from klamm.embedded.gateway import Gateway

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from confluent_kafka import Consumer

    from examples.demo.display import Display

TOPIC: Final = "bookings"
CLIENT_ID: Final = "booking-desk"
RECORDS: Final = 1000

_TOO_MANY: Final = 500
_ALLOWED: Final = 12
_TIMEOUT_MS: Final = 30_000
INTERVAL_MS: Final = 1000
"""Heartbeat interval that the operator sets. Kafka's is 5 s, and the demo's Kafka allows 1 s."""
_CLIENT_CONFIGS: Final = {
    "client.configs.enable": "true",
    "client.config.enforcement": "on",
}
_HEARTBEATS: Final = f'klamm_gateway_requests_total{{api="CONSUMER_GROUP_HEARTBEAT",client_id="{CLIENT_ID}"}} '
_BEATS: Final = 4
"""Heartbeats in a row from which the interval is measured."""
_BEATS_S: Final = 30.0
_POLICIES: Final = ("create.topic.policy.class.name", "flow.policy.class.name")
_RULES: Final = f"""\
rules:
  - name: few partitions
    partitions: {{max: {_ALLOWED}}}
  - name: durable
    acks: all
    effect: override
"""


def show_gateway(other: str, directory: Path, display: Display) -> tuple[Claim, ...]:
    """Use Apache Kafka through a gateway with two rules and return the claims.

    Args:
        other: Bootstrap servers of the cluster B, which takes the place of Apache Kafka if Maven cannot be reached.
        directory: Directory for the files of Apache Kafka and of the rules.
        display: Output of steps and facts.
    """
    display.step(f"A gateway in front of Apache Kafka {RELEASE}, which Maven fetches if it is not there yet")
    try:
        with ApacheKafka(directory) as kafka:
            return _use(kafka.bootstrap_servers, directory, display, _CLIENT_CONFIGS)
    except KafkaUnavailableError as error:
        display.fact(f"skipped, Apache Kafka cannot be had: {error}")
    display.step("Instead, a gateway in front of B, which has no policy")
    return _use(other, directory, display, {})


def _use(upstream: str, directory: Path, display: Display, more: Mapping[str, str]) -> tuple[Claim, ...]:
    display.fact(f"{CLIENT_ID} is a plain client of kafka-python")
    rules = directory / "gateway-rules.yaml"
    rules.write_text(_RULES, encoding="utf-8")
    config = {**dict.fromkeys(_POLICIES, "klamm.policy.rules:RulesPolicy"), "policy.rules.file": rules}
    beats: tuple[Claim, ...] = ()
    with Gateway(upstream, config={**config, **more, "metrics.listen": "127.0.0.1:0"}) as gateway:
        denial = _create(gateway.bootstrap_servers, _TOO_MANY)
        display.fact(f"{_TOO_MANY} partitions: {denial}")
        accepted = _create(gateway.bootstrap_servers, _ALLOWED)
        read = _write_and_read(gateway.bootstrap_servers) if accepted is None else 0
        display.fact(f"{_ALLOWED} partitions: {accepted or 'created'}; {read:,} records written and read")
        if more and read:
            beats = _change_heartbeats(gateway, display)
    raised = [line.partition(": ")[2] for line in gateway.log_text().splitlines() if "durable" in line]
    return (
        Claim(
            text="a gateway denies a topic of a cluster that has no policy, and passes what the rules allow",
            holds=denial is not None and str(_ALLOWED) in denial and read == RECORDS,
            evidence=f"{denial}; {read:,} records through it",
        ),
        Claim(
            text="a gateway raises acks of a client that knows nothing of it",
            holds=bool(raised),
            evidence=raised[0] if raised else "no override was logged",
        ),
        *beats,
    )


def _create(bootstrap_servers: str, partitions: int) -> str | None:
    """Create the topic; return the message of the denial, None if it was created."""
    from kafka import KafkaAdminClient  # noqa: PLC0415 - in this step only

    admin = KafkaAdminClient(bootstrap_servers=bootstrap_servers, client_id=CLIENT_ID)
    try:
        response = admin.create_topics({TOPIC: {"num_partitions": partitions}}, raise_errors=False)
    finally:
        admin.close()
    (topic,) = response["topics"]
    return str(topic["error_message"]) if topic["error_code"] else None


def _write_and_read(bootstrap_servers: str) -> int:
    """Write records with acks=1, read them, and return the number of different values."""
    from kafka import KafkaConsumer, KafkaProducer  # noqa: PLC0415

    producer = KafkaProducer(bootstrap_servers=bootstrap_servers, client_id=CLIENT_ID, acks=1, enable_idempotence=False)
    try:
        for number in range(RECORDS):
            producer.send(TOPIC, str(number).encode())
        producer.flush()
    finally:
        producer.close()
    consumer = KafkaConsumer(
        TOPIC,
        bootstrap_servers=bootstrap_servers,
        client_id=CLIENT_ID,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=_TIMEOUT_MS,
    )
    values: set[bytes] = set()
    try:
        for record in consumer:
            values.add(record.value)
            if len(values) == RECORDS:
                break
    finally:
        consumer.close()
    return len(values)


def _change_heartbeats(gateway: Gateway, display: Display) -> tuple[Claim, ...]:
    """Change the heartbeat interval of a consumer that knows nothing of it."""
    if importlib.util.find_spec("confluent_kafka") is None:
        display.fact("its heartbeat interval stays: that takes a consumer of KIP-848, and confluent-kafka is missing")
        return ()
    from confluent_kafka import Consumer  # noqa: PLC0415 - an extra

    page = f"http://{gateway.log_text().partition('Metrics on http://')[2].split()[0]}"
    consumer = Consumer(
        {
            "bootstrap.servers": gateway.bootstrap_servers,
            "client.id": CLIENT_ID,
            "group.id": TOPIC,
            "group.protocol": "consumer",
        }
    )
    try:
        consumer.subscribe([TOPIC])
        before = _interval_s(consumer, page, _BEATS - 2)
        with AdminClient(gateway.bootstrap_servers) as admin:
            entity = ClientConfigEntity.of_client("ANONYMOUS", CLIENT_ID)
            change = [ClientConfigOp("heartbeat.interval.ms", str(INTERVAL_MS))]
            admin.alter_client_configs({entity: change}).all().result()
        after = _interval_s(consumer, page, _BEATS)
    finally:
        consumer.close()
    evidence = f"a heartbeat every {before:.1f} s became one every {after:.1f} s"
    display.fact(f"heartbeat.interval.ms={INTERVAL_MS} for {CLIENT_ID}, now a consumer of confluent-kafka: {evidence}")
    return (
        Claim(
            text="a gateway changes the heartbeat interval of a client that knows nothing of it",
            holds=after < 2 * INTERVAL_MS / 1000 < before,
            evidence=evidence,
        ),
    )


def _interval_s(consumer: Consumer, page: str, beats: int) -> float:
    """Return the median time between some heartbeats. The first ones, which belong to a change, are left out."""
    times: list[float] = []
    count, deadline = _heartbeats(page), time.monotonic() + _BEATS_S
    while len(times) < beats + 2 and time.monotonic() < deadline:
        consumer.poll(0.1)
        now = _heartbeats(page)
        if now > count:
            times.append(time.monotonic())
            count = now
    gaps = sorted(later - earlier for earlier, later in pairwise(times[1:]))
    return gaps[len(gaps) // 2] if gaps else _BEATS_S


def _heartbeats(page: str) -> int:
    """Return the number of heartbeats of the client that the gateway has counted."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the gateway's own page, on this machine
    with direct.open(page, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return next((int(line.removeprefix(_HEARTBEATS)) for line in lines if line.startswith(_HEARTBEATS)), 0)

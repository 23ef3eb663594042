"""Last step of the demo: an unmodified client of kafka-python uses a cluster without policies through a gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.demo.display import Claim
from klamm.embedded.gateway import Gateway

if TYPE_CHECKING:
    from pathlib import Path

    from klamm.demo.display import Display

TOPIC: Final = "bookings"
CLIENT_ID: Final = "booking-desk"
RECORDS: Final = 1000

_TOO_MANY: Final = 500
_ALLOWED: Final = 12
_TIMEOUT_MS: Final = 30_000
_POLICIES: Final = ("create.topic.policy.class.name", "flow.policy.class.name")
_RULES: Final = f"""\
rules:
  - name: few partitions
    partitions: {{max: {_ALLOWED}}}
  - name: durable
    acks: all
    effect: override
"""


def show_gateway(upstream: str, directory: Path, display: Display) -> tuple[Claim, ...]:
    """Use a cluster through a gateway with two rules and return the claims.

    Args:
        upstream: Bootstrap servers of the cluster.
        directory: Directory for the file of the rules.
        display: Output of steps and facts.
    """
    display.step(f"A gateway in front of B, which has no policy; {CLIENT_ID} is a plain client of kafka-python")
    rules = directory / "gateway-rules.yaml"
    rules.write_text(_RULES, encoding="utf-8")
    config = {**dict.fromkeys(_POLICIES, "klamm.policy.rules:RulesPolicy"), "policy.rules.file": rules}
    with Gateway(upstream, config=config) as gateway:
        refusal = _create(gateway.bootstrap_servers, _TOO_MANY)
        display.fact(f"{_TOO_MANY} partitions: {refusal}")
        accepted = _create(gateway.bootstrap_servers, _ALLOWED)
        read = _write_and_read(gateway.bootstrap_servers) if accepted is None else 0
    raised = [line.partition(": ")[2] for line in gateway.log_text().splitlines() if "durable" in line]
    display.fact(f"{_ALLOWED} partitions: {accepted or 'created'}; {read:,} records written and read")
    return (
        Claim(
            text="a gateway refuses a topic of a cluster that has no policy, and passes what the rules allow",
            holds=refusal is not None and str(_ALLOWED) in refusal and read == RECORDS,
            evidence=f"{refusal}; {read:,} records through it",
        ),
        Claim(
            text="a gateway raises acks of a client that knows nothing of it",
            holds=bool(raised),
            evidence=raised[0] if raised else "no override was logged",
        ),
    )


def _create(bootstrap_servers: str, partitions: int) -> str | None:
    """Create the topic; return the message of the refusal, None if it was created."""
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

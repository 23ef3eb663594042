"""No warnings on harmless changes, and a bounded number of requests for 2,000 topics, on klamm and real Kafka."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest
from kafka import KafkaProducer

from klamm.admin import AdminClient, NewTopic, OffsetAndMetadata, ResourceType, TopicPartition
from klamm.admin.impact import impact_of
from klamm.impact.changes import ConfigAltered, PartitionsAdded, QuotaAltered, TopicDeleted
from klamm.impact.findings import ImpactLevel
from klamm.kafka_client.pool.pool import ConnectionPool
from tests.support.klamm import KlammBroker
from tests.support.shared_cluster import unique

if TYPE_CHECKING:
    from collections.abc import Iterator

    from klamm.impact.changes import Change

TOPICS: Final = 2_000 if os.environ.get("KLAMM_SOAK") else 400
HARMLESS: Final = 200 if os.environ.get("KLAMM_SOAK") else 60
MAX_REQUESTS: Final = 30
DAY_MS: Final = 86_400_000


@pytest.fixture(scope="module")
def admin(address: str) -> Iterator[AdminClient]:
    """A client of one cluster of each kind."""
    with AdminClient(address) as client:
        yield client


@pytest.fixture
def topic(admin: AdminClient, address: str) -> Iterator[str]:
    """A used topic: 1,000 keyed records of the last moments in 2 partitions, and a group that has read them."""
    name, group = unique("impact-harmless"), unique("impact-readers")
    configs = {"retention.ms": str(7 * DAY_MS), "retention.bytes": "1073741824", "max.message.bytes": "1000000"}
    admin.create_topics([NewTopic(name, 2, 1, configs=configs)]).result()
    producer = KafkaProducer(bootstrap_servers=address)
    for number in range(1_000):
        producer.send(name, key=b"%d" % number, value=b"x" * 100)
    producer.close()
    admin.alter_group_offsets(group, {TopicPartition(name, n): OffsetAndMetadata(400) for n in range(2)}).result()
    yield name
    admin.delete_topics([name]).result()
    admin.delete_groups([group]).result()


def _harmless(rng: random.Random, topic: str) -> Change:
    """Return a change without impact: a raised limit, a default that no topic inherits, or no difference."""

    def altered(name: str, value: object, kind: ResourceType = ResourceType.TOPIC) -> Change:
        resource = topic if kind is ResourceType.TOPIC else ""
        return ConfigAltered(
            resource_type=kind, resource_name=resource, name=name, value=None if value is None else str(value)
        )

    number = rng.randint(1, 1_000)
    return rng.choice(
        (
            altered("retention.ms", (7 + number) * DAY_MS),
            altered("retention.ms", rng.choice((-1, 7 * DAY_MS, DAY_MS))),
            altered("retention.bytes", 1024**3 + number),
            altered("retention.bytes", rng.choice((-1, 100_000_000 + number))),
            altered("max.message.bytes", 1_000_000 + number),
            altered("max.message.bytes", 100_000 + number),
            altered("max.message.bytes", None),
            altered("segment.ms", 8 * DAY_MS + number),
            altered("segment.bytes", 64 * 1024**2 + number),
            altered("flush.ms", number),
            altered("compression.type", "producer"),
            altered("cleanup.policy", "delete"),
            altered("cleanup.policy", "compact"),
            altered("min.insync.replicas", 1),
            altered("message.timestamp.before.max.ms", DAY_MS + number),
            altered("message.timestamp.after.max.ms", 600_000 + number),
            altered("unclean.leader.election.enable", rng.choice(("true", "false"))),
            altered("index.interval.bytes", 4_096 + number),
            altered("file.delete.delay.ms", number),
            altered("log.cleaner.threads", 2, ResourceType.BROKER),
            altered("num.io.threads", 8, ResourceType.BROKER),
            altered("log.retention.ms", (7 + number) * DAY_MS, ResourceType.BROKER),
            PartitionsAdded(topic=topic, total_count=2),
            PartitionsAdded(topic=f"missing-{number}", total_count=5),
            TopicDeleted(topic=f"missing-{number}"),
            QuotaAltered(entity=(("user", f"user-{number}"),), name="producer_byte_rate", value=None),
        )
    )


def test_harmless_changes_have_no_warning(admin: AdminClient, topic: str) -> None:
    rng = random.Random(27)  # examples

    for _ in range(HARMLESS):
        change = _harmless(rng, topic)
        impact = impact_of([change], admin)
        assert impact.level <= ImpactLevel.NOTICE, (change, impact.lines())


def test_many_topics_take_a_bounded_number_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: Counter[str] = Counter()
    send = ConnectionPool.send

    async def counting(pool: ConnectionPool, request: Any, *rest: Any, **options: Any) -> Any:
        sent[type(request).__name__] += 1
        return await send(pool, request, *rest, **options)

    with KlammBroker() as broker, AdminClient(broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(f"t-{number:04}", 1, 1) for number in range(TOPICS)]).result()
        admin.alter_group_offsets("g", {TopicPartition("t-0001", 0): OffsetAndMetadata(0)}).result()
        monkeypatch.setattr(ConnectionPool, "send", counting)
        began = time.monotonic()
        lowered = [
            ConfigAltered(resource_type=ResourceType.BROKER, resource_name="", name=name, value=value)
            for name, value in (("log.retention.ms", "60000"), ("log.cleanup.policy", "compact"))
        ]
        impact = impact_of(lowered, admin)
        print(f"{TOPICS} topics: {time.monotonic() - began:.2f} s, {sent.total()} requests")  # noqa: T201

    blast = next(finding for finding in impact.findings if finding.kind == "inherited_by_topics")
    assert blast.figures["topics"] >= TOPICS
    assert sent.total() <= MAX_REQUESTS, sent

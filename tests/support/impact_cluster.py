"""A cluster in which reported outages are rebuilt, and the steps and checks that the scenarios share."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Final

from kafka import KafkaProducer

from klamm.admin import (
    AdminClient,
    NewTopic,
    OffsetAndMetadata,
    OffsetSpec,
    ResourceType,
    TopicPartition,
)
from klamm.admin.impact import impact_of
from klamm.impact.changes import ConfigAltered
from tests.support.kept_up import KeptUp
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from klamm.impact.changes import Change
    from klamm.impact.findings import Finding, Impact

DAY_MS: Final = 86_400_000
MIB: Final = 1024 * 1024
FAST: Final = {
    "log.retention.check.interval.ms": "100",
    "log.initial.task.delay.ms": "100",
    "log.cleaner.backoff.ms": "100",
    "auto.create.topics.enable": "false",
    "log.retention.hours": "720",  # which Kafka describes only beside log.retention.ms
}
_NUMBERS = itertools.count(1)


class ImpactCluster:
    """A cluster, and the steps that scenarios share."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.admin = AdminClient(servers)

    def topic(self, partitions: int = 1, *, prefix: str = "outage", **configs: str) -> str:
        name = f"{prefix}-{next(_NUMBERS)}"
        own = {key.replace("_", "."): value for key, value in configs.items()}
        self.admin.create_topics([NewTopic(name, partitions, 1, configs=own)]).result()
        self._wait_for_effect()
        return name

    def produce(
        self,
        topic: str,
        count: int,
        *,
        size: int = 1_000,
        age_ms: int = 0,
        key: Callable[[int], bytes | None] = lambda n: b"key-%d" % n,
        **settings: object,
    ) -> list[int]:
        """Produce records and return their partitions. Raises the first error."""
        producer = KafkaProducer(
            bootstrap_servers=self.servers, **{"retries": 0, "enable_idempotence": False, **settings}
        )
        now_ms = int(time.time() * 1000)
        try:
            futures = [
                producer.send(topic, key=key(n), value=bytes(size), timestamp_ms=now_ms - age_ms) for n in range(count)
            ]
            return [future.get(timeout=30).partition for future in futures]
        finally:
            producer.close()

    def start(self, topic: str) -> int:
        return self._offset(topic, OffsetSpec.EARLIEST)

    def end(self, topic: str) -> int:
        return self._offset(topic, OffsetSpec.LATEST)

    def _offset(self, topic: str, spec: OffsetSpec) -> int:
        place = TopicPartition(topic, 0)
        return self.admin.list_offsets({place: spec}).result()[place].offset

    def size(self, topic: str) -> int:
        nodes = [node.id for node in self.admin.describe_cluster().result().nodes]
        directories = self.admin.describe_log_dirs(nodes).result()
        return sum(
            replica.size
            for described in directories.values()
            for directory in described.values()
            for place, replica in directory.replicas.items()
            if place.topic == topic
        )

    def commit(self, topic: str, group: str, offset: int) -> None:
        self.admin.alter_group_offsets(group, {TopicPartition(topic, 0): OffsetAndMetadata(offset)}).result()

    def predict(self, *changes: Change) -> Impact:
        return impact_of(changes, self.admin)

    def alter(self, topic: str, **configs: str) -> None:
        self.admin.alter_topic_configs(topic, set={k.replace("_", "."): v for k, v in configs.items()}).result()
        self._wait_for_effect()

    def _wait_for_effect(self) -> None:
        with KeptUp(self.servers) as broker:
            broker.wait_for_effect()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, timeout_s=60, what=what, interval_s=0.05)


def altered(topic: str, name: str, value: str | None) -> ConfigAltered:
    return ConfigAltered(resource_type=ResourceType.TOPIC, resource_name=topic, name=name, value=value)


def default_altered(name: str, value: str | None) -> ConfigAltered:
    return ConfigAltered(resource_type=ResourceType.BROKER, resource_name="", name=name, value=value)


def finding_of(impact: Impact, kind: str, topic: str | None = None) -> Finding:
    (finding,) = [
        finding
        for finding in impact.findings
        if finding.kind == kind and (topic is None or finding.resource == f"topic {topic}")
    ]
    return finding


def check_deleted(finding: Finding, before: int, after: int) -> None:
    deleted = before - after
    assert finding.figures["deleted_bytes_min"] * 0.95 <= deleted <= finding.figures["deleted_bytes"] * 1.05, (
        finding.figures,
        deleted,
    )


def old_and_new(impact_cluster: ImpactCluster) -> str:
    """Return a topic with 3 MiB of two days ago and 2 MiB of now, in segments of 1 MiB."""
    topic = impact_cluster.topic(segment_bytes=str(MIB))
    impact_cluster.produce(topic, 300, size=10_000, age_ms=2 * DAY_MS, linger_ms=0, batch_size=0)
    impact_cluster.produce(topic, 200, size=10_000, linger_ms=0, batch_size=0)
    return topic

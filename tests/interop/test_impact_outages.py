"""Outages reported by Kafka users, reproduced: the predicted impact is compared with what happens.

Each scenario runs on real Apache Kafka, on the same through a gateway, and on klamm. Predicted bytes
hold within 5 %, or within the stated bounds.
Further scenarios are in ``test_impact_outages_soak.py``.
"""

from __future__ import annotations

import pytest
from kafka.errors import (
    KafkaError,
)

from klamm.admin import (
    NewPartitions,
)
from klamm.impact.changes import PartitionsAdded, TopicDeleted
from klamm.impact.findings import ImpactLevel
from tests.support.impact_scene import (
    DAY_MS,
    Scene,
    altered,
    check_deleted,
    default_altered,
    finding_of,
    old_and_new,
)


def test_retention_ms_lowered_deletes_old_records(scene: Scene) -> None:
    topic = old_and_new(scene)
    before = scene.size(topic)

    finding = finding_of(scene.predict(altered(topic, "retention.ms", str(DAY_MS))), "records_deleted")
    scene.alter(topic, retention_ms=str(DAY_MS))
    scene.until(lambda: scene.start(topic) > 150, "the old segments to go")

    assert finding.level is ImpactLevel.LOSS
    assert scene.start(topic) <= finding.figures["deleted_records"] == 300
    check_deleted(finding, before, scene.size(topic))


def test_lowered_retention_reports_unread_records_of_lagging_group(scene: Scene) -> None:
    topic = scene.topic()
    scene.produce(topic, 500, age_ms=60_000)
    scene.commit(topic, f"lagging-{topic}", 100)
    scene.commit(topic, f"done-{topic}", 500)

    finding = finding_of(scene.predict(altered(topic, "retention.ms", "1000")), "records_deleted")
    scene.alter(topic, retention_ms="1000")
    scene.until(lambda: scene.start(topic) == 500, "all records to go")

    assert finding.names["groups"].first == (f"lagging-{topic}",)
    assert finding.figures["unread_records"] == scene.start(topic) - 100


def test_cluster_default_deletes_records_of_inheriting_topics(scene: Scene) -> None:
    inheriting, independent = scene.topic(), scene.topic(retention_ms="-1")
    for topic in (inheriting, independent):
        scene.produce(topic, 100, age_ms=10 * 60_000)
    change = default_altered("log.retention.ms", "300000")

    impact = scene.predict(change)
    scene.admin.alter_broker_configs(None, set={"log.retention.ms": "300000"}).result()
    try:
        scene.until(lambda: scene.start(inheriting) == 100, "records of the inheriting topic to go")
    finally:
        scene.admin.alter_broker_configs(None, delete=["log.retention.ms"]).result()

    assert finding_of(impact, "records_deleted", inheriting).figures["deleted_records"] == 100
    blast = finding_of(impact, "inherited_by_topics")
    assert blast.figures["topics"] >= 1
    assert f"topic {independent}" not in {finding.resource for finding in impact.findings}
    assert scene.start(independent) == 0


def test_keyless_topic_made_compact_rejects_producers(scene: Scene) -> None:
    topic = scene.topic()
    scene.produce(topic, 50, key=lambda _: None)

    finding = finding_of(scene.predict(altered(topic, "cleanup.policy", "compact")), "keyless_records")
    scene.alter(topic, cleanup_policy="compact")

    assert (finding.level, finding.figures["keyless_percent"]) == (ImpactLevel.LOSS, 100.0)
    with pytest.raises(KafkaError) as raised:
        scene.produce(topic, 1, key=lambda _: None)
    assert type(raised.value).__name__ == "InvalidRecordError"


def test_added_partitions_move_keys(scene: Scene) -> None:
    topic = scene.topic(partitions=2)
    before = scene.produce(topic, 200)

    finding = finding_of(scene.predict(PartitionsAdded(topic=topic, total_count=6)), "keys_move")
    scene.admin.create_partitions({topic: NewPartitions(6)}).result()
    after = scene.produce(topic, 200, retries=20)  # the leaders of the new partitions may not be ready

    moved = 100 * sum(old != new for old, new in zip(before, after, strict=True)) / 200
    assert finding.figures["moved_keys_percent"] == pytest.approx(moved, rel=0.05)


def test_deleted_topic_takes_unread_records_from_groups(scene: Scene) -> None:
    topic = scene.topic()
    scene.produce(topic, 300)
    scene.commit(topic, f"reader-{topic}", 250)
    before = scene.size(topic)

    impact = scene.predict(TopicDeleted(topic=topic))
    scene.admin.delete_topics([topic]).result()
    scene.until(lambda: scene.size(topic) == 0, "the log to go")

    finding = finding_of(impact, "records_deleted")
    assert (finding.level, finding.figures["unread_records"]) == (ImpactLevel.LOSS, 50)
    check_deleted(finding, before, 0)

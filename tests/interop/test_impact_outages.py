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
from tests.support.impact_cluster import (
    DAY_MS,
    ImpactCluster,
    altered,
    check_deleted,
    default_altered,
    finding_of,
    old_and_new,
)


def test_retention_ms_lowered_deletes_old_records(impact_cluster: ImpactCluster) -> None:
    topic = old_and_new(impact_cluster)
    before = impact_cluster.size(topic)

    finding = finding_of(impact_cluster.predict(altered(topic, "retention.ms", str(DAY_MS))), "records_deleted")
    impact_cluster.alter(topic, retention_ms=str(DAY_MS))
    impact_cluster.until(lambda: impact_cluster.start(topic) > 150, "the old segments to go")

    assert finding.level is ImpactLevel.LOSS
    assert impact_cluster.start(topic) <= finding.figures["deleted_records"] == 300
    check_deleted(finding, before, impact_cluster.size(topic))


def test_lowered_retention_reports_unread_records_of_lagging_group(impact_cluster: ImpactCluster) -> None:
    topic = impact_cluster.topic()
    impact_cluster.produce(topic, 500, age_ms=60_000)
    impact_cluster.commit(topic, f"lagging-{topic}", 100)
    impact_cluster.commit(topic, f"done-{topic}", 500)

    finding = finding_of(impact_cluster.predict(altered(topic, "retention.ms", "1000")), "records_deleted")
    impact_cluster.alter(topic, retention_ms="1000")
    impact_cluster.until(lambda: impact_cluster.start(topic) == 500, "all records to go")

    assert finding.names["groups"].first == (f"lagging-{topic}",)
    assert finding.figures["unread_records"] == impact_cluster.start(topic) - 100


def test_impact_uses_log_retention_hours_of_brokers(impact_cluster: ImpactCluster) -> None:
    """The brokers keep records for 30 days, which Kafka does not describe with the topic."""
    inheriting, own = impact_cluster.topic(), impact_cluster.topic(retention_ms=str(60 * DAY_MS))
    impact_cluster.produce(inheriting, 100, age_ms=20 * DAY_MS)
    for count, days in ((30, 40), (70, 20)):
        impact_cluster.produce(own, count, age_ms=days * DAY_MS)
    impact = impact_cluster.predict(altered(inheriting, "retention.ms", str(8 * DAY_MS)))
    assert finding_of(impact, "records_deleted").figures["deleted_records"] == 100
    impact = impact_cluster.predict(altered(own, "retention.ms", None))
    assert finding_of(impact, "records_deleted").figures["deleted_records"] == 30


def test_cluster_default_deletes_records_of_inheriting_topics(impact_cluster: ImpactCluster) -> None:
    inheriting, independent = impact_cluster.topic(), impact_cluster.topic(retention_ms="-1")
    for topic in (inheriting, independent):
        impact_cluster.produce(topic, 100, age_ms=10 * 60_000)
    change = default_altered("log.retention.ms", "300000")

    impact = impact_cluster.predict(change)
    impact_cluster.admin.alter_broker_configs(None, set={"log.retention.ms": "300000"}).result()
    try:
        impact_cluster.until(lambda: impact_cluster.start(inheriting) == 100, "records of the inheriting topic to go")
    finally:
        impact_cluster.admin.alter_broker_configs(None, delete=["log.retention.ms"]).result()

    assert finding_of(impact, "records_deleted", inheriting).figures["deleted_records"] == 100
    blast = finding_of(impact, "inherited_by_topics")
    assert blast.figures["topics"] >= 1
    assert f"topic {independent}" not in {finding.resource for finding in impact.findings}
    assert impact_cluster.start(independent) == 0


def test_keyless_topic_made_compact_rejects_producers(impact_cluster: ImpactCluster) -> None:
    topic = impact_cluster.topic()
    impact_cluster.produce(topic, 50, key=lambda _: None)

    finding = finding_of(impact_cluster.predict(altered(topic, "cleanup.policy", "compact")), "keyless_records")
    impact_cluster.alter(topic, cleanup_policy="compact")

    assert (finding.level, finding.figures["keyless_percent"]) == (ImpactLevel.LOSS, 100.0)
    with pytest.raises(KafkaError) as raised:
        impact_cluster.produce(topic, 1, key=lambda _: None)
    assert type(raised.value).__name__ == "InvalidRecordError"


def test_added_partitions_move_keys(impact_cluster: ImpactCluster) -> None:
    topic = impact_cluster.topic(partitions=2)
    before = impact_cluster.produce(topic, 200)

    finding = finding_of(impact_cluster.predict(PartitionsAdded(topic=topic, total_count=6)), "keys_move")
    impact_cluster.admin.create_partitions({topic: NewPartitions(6)}).result()
    after = impact_cluster.produce(topic, 200, retries=20)  # the leaders of the new partitions may not be ready

    moved = 100 * sum(old != new for old, new in zip(before, after, strict=True)) / 200
    assert finding.figures["moved_keys_percent"] == pytest.approx(moved, rel=0.05)


def test_deleted_topic_takes_unread_records_from_groups(impact_cluster: ImpactCluster) -> None:
    topic = impact_cluster.topic()
    impact_cluster.produce(topic, 300)
    impact_cluster.commit(topic, f"reader-{topic}", 250)
    before = impact_cluster.size(topic)

    impact = impact_cluster.predict(TopicDeleted(topic=topic))
    impact_cluster.admin.delete_topics([topic]).result()
    impact_cluster.until(lambda: impact_cluster.size(topic) == 0, "the log to go")

    finding = finding_of(impact, "records_deleted")
    assert (finding.level, finding.figures["unread_records"]) == (ImpactLevel.LOSS, 50)
    check_deleted(finding, before, 0)

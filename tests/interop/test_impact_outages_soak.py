"""Further outages reported by Kafka users, as in ``test_impact_outages.py``. ``make soak`` runs them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaConsumer
from kafka.errors import (
    InvalidTimestampError,
    KafkaError,
    MessageSizeTooLargeError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
)

from klamm.admin import (
    ClientQuotaEntity,
    ClientQuotaOp,
    ElectionType,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    TopicPartition,
)
from klamm.impact.changes import PartitionsAdded, QuotaAltered, TopicDeleted
from klamm.impact.findings import ImpactLevel
from klamm.protocol.records import decode_records, iter_batches
from tests.support.impact_cluster import (
    DAY_MS,
    MIB,
    ImpactCluster,
    altered,
    check_deleted,
    default_altered,
    finding_of,
    old_and_new,
)
from tests.support.shared_cluster import unique

if TYPE_CHECKING:
    from tests.support.kafka import KafkaCluster


def test_retention_ms_of_one_deletes_all_records(impact_cluster: ImpactCluster) -> None:
    topic = impact_cluster.topic()
    impact_cluster.produce(topic, 500, age_ms=60_000)
    before, end = impact_cluster.size(topic), impact_cluster.end(topic)

    finding = finding_of(impact_cluster.predict(altered(topic, "retention.ms", "1")), "records_deleted")
    impact_cluster.alter(topic, retention_ms="1")
    impact_cluster.until(lambda: impact_cluster.start(topic) == end, "all records to go")

    assert finding.figures["deleted_records"] == 500
    assert finding.figures["deleted_bytes"] == finding.figures["deleted_bytes_min"]
    check_deleted(finding, before, impact_cluster.size(topic))


def test_retention_bytes_lowered_deletes_oldest_segments(impact_cluster: ImpactCluster) -> None:
    topic = old_and_new(impact_cluster)
    before = impact_cluster.size(topic)

    finding = finding_of(impact_cluster.predict(altered(topic, "retention.bytes", str(2 * MIB))), "records_deleted")
    impact_cluster.alter(topic, retention_bytes=str(2 * MIB))
    impact_cluster.until(lambda: impact_cluster.size(topic) < 3.1 * MIB, "the surplus to go")

    check_deleted(finding, before, impact_cluster.size(topic))


def test_deleted_override_falls_back_to_default_retention(impact_cluster: ImpactCluster) -> None:
    topic = impact_cluster.topic(retention_ms="-1")
    impact_cluster.produce(topic, 200, age_ms=30 * DAY_MS)
    before = impact_cluster.size(topic)

    finding = finding_of(impact_cluster.predict(altered(topic, "retention.ms", None)), "records_deleted")
    impact_cluster.admin.alter_topic_configs(topic, delete=["retention.ms"]).result()
    impact_cluster.until(lambda: impact_cluster.start(topic) == 200, "records older than the default to go")

    assert finding.figures["deleted_records"] == 200
    check_deleted(finding, before, impact_cluster.size(topic))


def test_compacted_topic_switched_to_delete_loses_old_records(impact_cluster: ImpactCluster) -> None:
    topic = impact_cluster.topic(cleanup_policy="compact")
    impact_cluster.produce(topic, 100, age_ms=30 * DAY_MS)

    finding = finding_of(impact_cluster.predict(altered(topic, "cleanup.policy", "delete")), "records_deleted")
    impact_cluster.alter(topic, cleanup_policy="delete")
    impact_cluster.until(lambda: impact_cluster.start(topic) == 100, "old rows to go")

    assert finding.figures["deleted_records"] == 100


def test_topic_switched_to_compact_loses_superseded_records(impact_cluster: ImpactCluster) -> None:
    topic = impact_cluster.topic(segment_ms="1000", min_cleanable_dirty_ratio="0.01")
    impact_cluster.produce(topic, 400, age_ms=60_000, key=lambda n: b"key-%d" % (n % 40))

    finding = finding_of(impact_cluster.predict(altered(topic, "cleanup.policy", "compact")), "records_compacted")
    impact_cluster.alter(topic, cleanup_policy="compact")
    impact_cluster.produce(topic, 1, key=lambda _: b"roll")
    impact_cluster.until(lambda: _record_count(impact_cluster, topic) < 100, "the first compaction")

    superseded = 401 - _record_count(impact_cluster, topic)
    assert finding.figures["superseded_records"] == pytest.approx(superseded, rel=0.05)


def _record_count(impact_cluster: ImpactCluster, topic: str) -> int:
    place = TopicPartition(topic, 0)
    records = impact_cluster.admin.fetch_batches({place: 0}, max_bytes=4 * MIB, partition_max_bytes=4 * MIB).result()[
        place
    ]
    return sum(len(decode_records(batch)) for batch in iter_batches(records, allow_partial_tail=True))


@pytest.mark.parametrize("is_inherited", [False, True], ids=["topic", "cluster default"])
def test_max_message_bytes_lowered_rejects_producers(impact_cluster: ImpactCluster, is_inherited: bool) -> None:
    topic = impact_cluster.topic()
    impact_cluster.produce(topic, 10, size=20_000, batch_size=0)
    impact_cluster.produce(topic, 10, size=100, batch_size=0)
    change = (
        default_altered("message.max.bytes", "10000") if is_inherited else altered(topic, "max.message.bytes", "10000")
    )

    finding = finding_of(impact_cluster.predict(change), "batches_rejected", topic)
    if is_inherited:
        impact_cluster.admin.alter_broker_configs(None, set={"message.max.bytes": "10000"}).result()
    else:
        impact_cluster.alter(topic, max_message_bytes="10000")
    try:
        impact_cluster.until(lambda: _fails(impact_cluster, topic, 20_000), "the broker to apply the limit")
        impact_cluster.produce(topic, 1, size=100)
    finally:
        if is_inherited:
            impact_cluster.admin.alter_broker_configs(None, delete=["message.max.bytes"]).result()

    assert (finding.level, finding.figures["rejected_percent"]) == (ImpactLevel.DISRUPTION, 50.0)


def _fails(impact_cluster: ImpactCluster, topic: str, size: int) -> bool:
    try:
        impact_cluster.produce(topic, 1, size=size)
    except MessageSizeTooLargeError:
        return True
    return False


@pytest.mark.parametrize(
    ("name", "age_ms"),
    [("message.timestamp.before.max.ms", DAY_MS), ("message.timestamp.after.max.ms", -1_800_000)],
    ids=["backfill", "clock ahead"],
)
def test_timestamp_limits_reject_producers(impact_cluster: ImpactCluster, name: str, age_ms: int) -> None:
    topic = impact_cluster.topic(retention_ms="-1")
    impact_cluster.produce(topic, 5, batch_size=0)
    impact_cluster.produce(topic, 5, age_ms=age_ms, batch_size=0)

    finding = finding_of(impact_cluster.predict(altered(topic, name, "600000")), "batches_rejected")
    impact_cluster.alter(topic, **{name: "600000"})

    assert finding.figures["rejected_percent"] == 50.0
    with pytest.raises(InvalidTimestampError):
        impact_cluster.produce(topic, 1, age_ms=age_ms)


def test_min_insync_replicas_above_replicas_needs_all_of_them(impact_cluster: ImpactCluster) -> None:
    topic = impact_cluster.topic()

    impact = impact_cluster.predict(altered(topic, "min.insync.replicas", "2"))
    impact_cluster.alter(topic, min_insync_replicas="2")
    impact_cluster.produce(topic, 1, acks="all")

    assert impact.level is ImpactLevel.NOTICE
    assert finding_of(impact, "min_isr_above_replicas").figures["replicas"] == 1


def test_min_insync_replicas_raised_while_a_broker_is_down(real_kafka_3: KafkaCluster) -> None:
    impact_cluster = ImpactCluster(real_kafka_3.bootstrap_servers)
    topic = unique("impact-isr")
    impact_cluster.admin.create_topics([NewTopic(topic, replicas_assignments={0: (1, 3)})]).result()
    impact_cluster.produce(topic, 1, acks="all", enable_idempotence=True, retries=3)
    real_kafka_3.nodes[3].kill()
    try:
        impact_cluster.until(lambda: _isr(impact_cluster, topic) == (1,), "the follower to leave the ISR")

        finding = finding_of(impact_cluster.predict(altered(topic, "min.insync.replicas", "2")), "below_min_isr")
        impact_cluster.alter(topic, min_insync_replicas="2")

        assert (finding.level, finding.names["producers"].count) == (ImpactLevel.DISRUPTION, 1)
        with pytest.raises((NotEnoughReplicasError, NotEnoughReplicasAfterAppendError)):
            impact_cluster.produce(topic, 1, acks="all")
    finally:
        real_kafka_3.nodes[3].start(expected_nodes=3)
        impact_cluster.until(lambda: len(_isr(impact_cluster, topic)) == 2, "the follower to return")
        impact_cluster.admin.delete_topics([topic]).result()
        impact_cluster.admin.close()


def test_unclean_election_loses_records_as_predicted(real_kafka_3: KafkaCluster) -> None:
    impact_cluster = ImpactCluster(real_kafka_3.bootstrap_servers)
    topic = unique("impact-unclean")
    impact_cluster.admin.create_topics(
        [NewTopic(topic, replicas_assignments={0: (2, 3)}, configs={"unclean.leader.election.enable": "false"})]
    ).result()
    impact_cluster.produce(topic, 10, acks="all")
    nodes = real_kafka_3.nodes
    nodes[3].kill()
    try:
        impact_cluster.until(lambda: _isr(impact_cluster, topic) == (2,), "the follower to leave the ISR")
        impact_cluster.produce(topic, 7, acks="all")
        nodes[2].kill()
        nodes[3].start(expected_nodes=2)
        impact_cluster.until(lambda: _leader(impact_cluster, topic) == -1, "the partition to lose its leader")

        finding = finding_of(
            impact_cluster.predict(altered(topic, "unclean.leader.election.enable", "true")), "unclean_election"
        )
        impact_cluster.alter(topic, unclean_leader_election_enable="true")
        # the controller would do it within unclean.leader.election.interval.ms
        impact_cluster.admin.elect_leaders(ElectionType.UNCLEAN, [TopicPartition(topic, 0)]).result()
        impact_cluster.until(lambda: _leader(impact_cluster, topic) == 3, "an unclean election")

        assert (finding.level, finding.figures["partitions"]) == (ImpactLevel.LOSS, 1)
        assert impact_cluster.end(topic) == 10, "the 7 records that only broker 2 had are lost"
    finally:
        for node in (nodes[2], nodes[3]):
            if not node.is_running:
                node.start(expected_nodes=3)
        impact_cluster.until(lambda: len(_isr(impact_cluster, topic)) == 2, "both replicas")
        impact_cluster.admin.delete_topics([topic]).result()
        impact_cluster.admin.close()


def _isr(impact_cluster: ImpactCluster, topic: str) -> tuple[int, ...]:
    return impact_cluster.admin.describe_topics([topic]).result()[topic].partitions[0].isr


def _leader(impact_cluster: ImpactCluster, topic: str) -> int:
    return impact_cluster.admin.describe_topics([topic]).result()[topic].partitions[0].leader


def test_added_partitions_rebalance_group(impact_cluster: ImpactCluster) -> None:
    topic = impact_cluster.topic()
    impact_cluster.produce(topic, 10, key=lambda _: None)
    group = f"readers-{topic}"
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=impact_cluster.servers,
        group_id=group,
        auto_offset_reset="earliest",
        metadata_max_age_ms=500,
    )
    try:
        impact_cluster.until(lambda: bool(consumer.poll(200)), "records")
        consumer.commit()
        finding = finding_of(impact_cluster.predict(PartitionsAdded(topic=topic, total_count=3)), "groups_rebalance")
        impact_cluster.admin.create_partitions({topic: NewPartitions(3)}).result()

        def has_all() -> bool:
            consumer.poll(100)
            return len(consumer.assignment()) == 3

        impact_cluster.until(has_all, "the group to rebalance")
    finally:
        consumer.close()

    assert finding.names["groups"].first == (group,)


def test_deleted_topic_in_use_fails_its_producer(impact_cluster: ImpactCluster) -> None:
    topic = impact_cluster.topic()
    impact_cluster.produce(topic, 5, enable_idempotence=True, retries=3)

    finding = finding_of(impact_cluster.predict(TopicDeleted(topic=topic)), "topic_in_use")
    impact_cluster.admin.delete_topics([topic]).result()

    assert (finding.level, finding.names["producers"].count) == (ImpactLevel.DISRUPTION, 1)
    with pytest.raises(KafkaError):
        impact_cluster.produce(topic, 1, max_block_ms=500)


def test_compression_type_recompresses_batches(impact_cluster: ImpactCluster) -> None:
    topic = impact_cluster.topic()
    impact_cluster.produce(topic, 10)

    finding = finding_of(impact_cluster.predict(altered(topic, "compression.type", "gzip")), "recompression")
    impact_cluster.alter(topic, compression_type="gzip")
    first_new = impact_cluster.end(topic)
    impact_cluster.produce(topic, 10)

    place = TopicPartition(topic, 0)
    records = impact_cluster.admin.fetch_batches({place: first_new}, max_bytes=MIB, partition_max_bytes=MIB).result()[
        place
    ]
    assert finding.figures["recompressed_percent"] == 100.0
    assert {batch.codec for batch in iter_batches(records)} == {1}


def test_log_append_time_replaces_timestamps(impact_cluster: ImpactCluster) -> None:
    topic = impact_cluster.topic(retention_ms="-1")

    finding = finding_of(
        impact_cluster.predict(altered(topic, "message.timestamp.type", "LogAppendTime")), "timestamps_replaced"
    )
    impact_cluster.alter(topic, message_timestamp_type="LogAppendTime")
    impact_cluster.produce(topic, 1, age_ms=30 * DAY_MS)

    place = TopicPartition(topic, 0)
    newest = impact_cluster.admin.list_offsets({place: OffsetSpec.MAX_TIMESTAMP}).result()[place].timestamp
    assert finding.level is ImpactLevel.NOTICE
    assert newest > int(time.time() * 1000) - DAY_MS


def test_lower_quota_delays_producer(impact_cluster: ImpactCluster) -> None:
    topic = impact_cluster.topic()
    entity = ClientQuotaEntity.of({"client-id": f"client-{topic}"})
    change = QuotaAltered(entity=entity.parts, name="producer_byte_rate", value=12_000.0)

    impact = impact_cluster.predict(change)
    impact_cluster.admin.alter_client_quotas({entity: [ClientQuotaOp("producer_byte_rate", 12_000.0)]}).result()
    try:
        began = time.monotonic()
        impact_cluster.produce(
            topic, 4, size=50_000, batch_size=0, client_id=f"client-{topic}", max_in_flight_requests_per_connection=1
        )
        elapsed = time.monotonic() - began
    finally:
        impact_cluster.admin.alter_client_quotas({entity: [ClientQuotaOp("producer_byte_rate", None)]}).result()

    assert finding_of(impact, "quota_lowered").level is ImpactLevel.NOTICE
    assert impact.unknown, "rates are not visible through Kafka's protocol"
    assert elapsed > 0.5

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
from tests.support.impact_scene import (
    DAY_MS,
    MIB,
    Scene,
    altered,
    check_deleted,
    default_altered,
    finding_of,
    old_and_new,
)
from tests.support.shared_cluster import unique

if TYPE_CHECKING:
    from tests.support.kafka import KafkaCluster


def test_retention_ms_of_one_deletes_all_records(scene: Scene) -> None:
    topic = scene.topic()
    scene.produce(topic, 500, age_ms=60_000)
    before, end = scene.size(topic), scene.end(topic)

    finding = finding_of(scene.predict(altered(topic, "retention.ms", "1")), "records_deleted")
    scene.alter(topic, retention_ms="1")
    scene.until(lambda: scene.start(topic) == end, "all records to go")

    assert finding.figures["deleted_records"] == 500
    assert finding.figures["deleted_bytes"] == finding.figures["deleted_bytes_min"]
    check_deleted(finding, before, scene.size(topic))


def test_retention_bytes_lowered_deletes_oldest_segments(scene: Scene) -> None:
    topic = old_and_new(scene)
    before = scene.size(topic)

    finding = finding_of(scene.predict(altered(topic, "retention.bytes", str(2 * MIB))), "records_deleted")
    scene.alter(topic, retention_bytes=str(2 * MIB))
    scene.until(lambda: scene.size(topic) < 3.1 * MIB, "the surplus to go")

    check_deleted(finding, before, scene.size(topic))


def test_deleted_override_falls_back_to_default_retention(scene: Scene) -> None:
    topic = scene.topic(retention_ms="-1")
    scene.produce(topic, 200, age_ms=30 * DAY_MS)
    before = scene.size(topic)

    finding = finding_of(scene.predict(altered(topic, "retention.ms", None)), "records_deleted")
    scene.admin.alter_topic_configs(topic, delete=["retention.ms"]).result()
    scene.until(lambda: scene.start(topic) == 200, "records older than the default to go")

    assert finding.figures["deleted_records"] == 200
    check_deleted(finding, before, scene.size(topic))


def test_compacted_topic_switched_to_delete_loses_old_records(scene: Scene) -> None:
    topic = scene.topic(cleanup_policy="compact")
    scene.produce(topic, 100, age_ms=30 * DAY_MS)

    finding = finding_of(scene.predict(altered(topic, "cleanup.policy", "delete")), "records_deleted")
    scene.alter(topic, cleanup_policy="delete")
    scene.until(lambda: scene.start(topic) == 100, "old rows to go")

    assert finding.figures["deleted_records"] == 100


def test_topic_switched_to_compact_loses_superseded_records(scene: Scene) -> None:
    topic = scene.topic(segment_ms="1000", min_cleanable_dirty_ratio="0.01")
    scene.produce(topic, 400, age_ms=60_000, key=lambda n: b"key-%d" % (n % 40))

    finding = finding_of(scene.predict(altered(topic, "cleanup.policy", "compact")), "records_compacted")
    scene.alter(topic, cleanup_policy="compact")
    scene.produce(topic, 1, key=lambda _: b"roll")
    scene.until(lambda: _record_count(scene, topic) < 100, "the first compaction")

    superseded = 401 - _record_count(scene, topic)
    assert finding.figures["superseded_records"] == pytest.approx(superseded, rel=0.05)


def _record_count(scene: Scene, topic: str) -> int:
    place = TopicPartition(topic, 0)
    records = scene.admin.fetch_batches({place: 0}, max_bytes=4 * MIB, partition_max_bytes=4 * MIB).result()[place]
    return sum(len(decode_records(batch)) for batch in iter_batches(records, allow_partial_tail=True))


@pytest.mark.parametrize("is_inherited", [False, True], ids=["topic", "cluster default"])
def test_max_message_bytes_lowered_rejects_producers(scene: Scene, is_inherited: bool) -> None:
    topic = scene.topic()
    scene.produce(topic, 10, size=20_000, batch_size=0)
    scene.produce(topic, 10, size=100, batch_size=0)
    change = (
        default_altered("message.max.bytes", "10000") if is_inherited else altered(topic, "max.message.bytes", "10000")
    )

    finding = finding_of(scene.predict(change), "batches_rejected", topic)
    if is_inherited:
        scene.admin.alter_broker_configs(None, set={"message.max.bytes": "10000"}).result()
    else:
        scene.alter(topic, max_message_bytes="10000")
    try:
        scene.until(lambda: _fails(scene, topic, 20_000), "the broker to apply the limit")
        scene.produce(topic, 1, size=100)
    finally:
        if is_inherited:
            scene.admin.alter_broker_configs(None, delete=["message.max.bytes"]).result()

    assert (finding.level, finding.figures["rejected_percent"]) == (ImpactLevel.DISRUPTION, 50.0)


def _fails(scene: Scene, topic: str, size: int) -> bool:
    try:
        scene.produce(topic, 1, size=size)
    except MessageSizeTooLargeError:
        return True
    return False


@pytest.mark.parametrize(
    ("name", "age_ms"),
    [("message.timestamp.before.max.ms", DAY_MS), ("message.timestamp.after.max.ms", -1_800_000)],
    ids=["backfill", "clock ahead"],
)
def test_timestamp_limits_reject_producers(scene: Scene, name: str, age_ms: int) -> None:
    topic = scene.topic(retention_ms="-1")
    scene.produce(topic, 5, batch_size=0)
    scene.produce(topic, 5, age_ms=age_ms, batch_size=0)

    finding = finding_of(scene.predict(altered(topic, name, "600000")), "batches_rejected")
    scene.admin.alter_topic_configs(topic, set={name: "600000"}).result()

    assert finding.figures["rejected_percent"] == 50.0
    with pytest.raises(InvalidTimestampError):
        scene.produce(topic, 1, age_ms=age_ms)


def test_min_insync_replicas_above_replicas_needs_all_of_them(scene: Scene) -> None:
    topic = scene.topic()

    impact = scene.predict(altered(topic, "min.insync.replicas", "2"))
    scene.alter(topic, min_insync_replicas="2")
    scene.produce(topic, 1, acks="all")

    assert impact.level is ImpactLevel.NOTICE
    assert finding_of(impact, "min_isr_above_replicas").figures["replicas"] == 1


def test_min_insync_replicas_raised_while_a_broker_is_down(real_kafka_3: KafkaCluster) -> None:
    scene = Scene(real_kafka_3.bootstrap_servers)
    topic = unique("impact-isr")
    scene.admin.create_topics([NewTopic(topic, replicas_assignments={0: (1, 3)})]).result()
    scene.produce(topic, 1, acks="all", enable_idempotence=True, retries=3)
    real_kafka_3.nodes[3].kill()
    try:
        scene.until(lambda: _isr(scene, topic) == (1,), "the follower to leave the ISR")

        finding = finding_of(scene.predict(altered(topic, "min.insync.replicas", "2")), "below_min_isr")
        scene.alter(topic, min_insync_replicas="2")

        assert (finding.level, finding.names["producers"].count) == (ImpactLevel.DISRUPTION, 1)
        with pytest.raises((NotEnoughReplicasError, NotEnoughReplicasAfterAppendError)):
            scene.produce(topic, 1, acks="all")
    finally:
        real_kafka_3.nodes[3].start(expected_nodes=3)
        scene.until(lambda: len(_isr(scene, topic)) == 2, "the follower to return")
        scene.admin.delete_topics([topic]).result()
        scene.admin.close()


def test_unclean_election_loses_records_as_predicted(real_kafka_3: KafkaCluster) -> None:
    scene = Scene(real_kafka_3.bootstrap_servers)
    topic = unique("impact-unclean")
    scene.admin.create_topics(
        [NewTopic(topic, replicas_assignments={0: (2, 3)}, configs={"unclean.leader.election.enable": "false"})]
    ).result()
    scene.produce(topic, 10, acks="all")
    nodes = real_kafka_3.nodes
    nodes[3].kill()
    try:
        scene.until(lambda: _isr(scene, topic) == (2,), "the follower to leave the ISR")
        scene.produce(topic, 7, acks="all")
        nodes[2].kill()
        nodes[3].start(expected_nodes=2)
        scene.until(lambda: _leader(scene, topic) == -1, "the partition to lose its leader")

        finding = finding_of(
            scene.predict(altered(topic, "unclean.leader.election.enable", "true")), "unclean_election"
        )
        scene.alter(topic, unclean_leader_election_enable="true")
        # the controller would do it within unclean.leader.election.interval.ms
        scene.admin.elect_leaders(ElectionType.UNCLEAN, [TopicPartition(topic, 0)]).result()
        scene.until(lambda: _leader(scene, topic) == 3, "an unclean election")

        assert (finding.level, finding.figures["partitions"]) == (ImpactLevel.LOSS, 1)
        assert scene.end(topic) == 10, "the 7 records that only broker 2 had are lost"
    finally:
        for node in (nodes[2], nodes[3]):
            if not node.is_running:
                node.start(expected_nodes=3)
        scene.until(lambda: len(_isr(scene, topic)) == 2, "both replicas")
        scene.admin.delete_topics([topic]).result()
        scene.admin.close()


def _isr(scene: Scene, topic: str) -> tuple[int, ...]:
    return scene.admin.describe_topics([topic]).result()[topic].partitions[0].isr


def _leader(scene: Scene, topic: str) -> int:
    return scene.admin.describe_topics([topic]).result()[topic].partitions[0].leader


def test_added_partitions_rebalance_group(scene: Scene) -> None:
    topic = scene.topic()
    scene.produce(topic, 10, key=lambda _: None)
    group = f"readers-{topic}"
    consumer = KafkaConsumer(
        topic, bootstrap_servers=scene.servers, group_id=group, auto_offset_reset="earliest", metadata_max_age_ms=500
    )
    try:
        scene.until(lambda: bool(consumer.poll(200)), "records")
        consumer.commit()
        finding = finding_of(scene.predict(PartitionsAdded(topic=topic, total_count=3)), "groups_rebalance")
        scene.admin.create_partitions({topic: NewPartitions(3)}).result()

        def has_all() -> bool:
            consumer.poll(100)
            return len(consumer.assignment()) == 3

        scene.until(has_all, "the group to rebalance")
    finally:
        consumer.close()

    assert finding.names["groups"].first == (group,)


def test_deleted_topic_in_use_fails_its_producer(scene: Scene) -> None:
    topic = scene.topic()
    scene.produce(topic, 5, enable_idempotence=True, retries=3)

    finding = finding_of(scene.predict(TopicDeleted(topic=topic)), "topic_in_use")
    scene.admin.delete_topics([topic]).result()

    assert (finding.level, finding.names["producers"].count) == (ImpactLevel.DISRUPTION, 1)
    with pytest.raises(KafkaError):
        scene.produce(topic, 1, max_block_ms=500)


def test_compression_type_recompresses_batches(scene: Scene) -> None:
    topic = scene.topic()
    scene.produce(topic, 10)

    finding = finding_of(scene.predict(altered(topic, "compression.type", "gzip")), "recompression")
    scene.alter(topic, compression_type="gzip")
    first_new = scene.end(topic)
    scene.produce(topic, 10)

    place = TopicPartition(topic, 0)
    records = scene.admin.fetch_batches({place: first_new}, max_bytes=MIB, partition_max_bytes=MIB).result()[place]
    assert finding.figures["recompressed_percent"] == 100.0
    assert {batch.codec for batch in iter_batches(records)} == {1}


def test_log_append_time_replaces_timestamps(scene: Scene) -> None:
    topic = scene.topic(retention_ms="-1")

    finding = finding_of(
        scene.predict(altered(topic, "message.timestamp.type", "LogAppendTime")), "timestamps_replaced"
    )
    scene.alter(topic, message_timestamp_type="LogAppendTime")
    scene.produce(topic, 1, age_ms=30 * DAY_MS)

    place = TopicPartition(topic, 0)
    newest = scene.admin.list_offsets({place: OffsetSpec.MAX_TIMESTAMP}).result()[place].timestamp
    assert finding.level is ImpactLevel.NOTICE
    assert newest > int(time.time() * 1000) - DAY_MS


def test_lower_quota_delays_producer(scene: Scene) -> None:
    topic = scene.topic()
    entity = ClientQuotaEntity.of({"client-id": f"client-{topic}"})
    change = QuotaAltered(entity=entity.parts, name="producer_byte_rate", value=12_000.0)

    impact = scene.predict(change)
    scene.admin.alter_client_quotas({entity: [ClientQuotaOp("producer_byte_rate", 12_000.0)]}).result()
    try:
        began = time.monotonic()
        scene.produce(
            topic, 4, size=50_000, batch_size=0, client_id=f"client-{topic}", max_in_flight_requests_per_connection=1
        )
        elapsed = time.monotonic() - began
    finally:
        scene.admin.alter_client_quotas({entity: [ClientQuotaOp("producer_byte_rate", None)]}).result()

    assert finding_of(impact, "quota_lowered").level is ImpactLevel.NOTICE
    assert impact.unknown, "rates are not visible through Kafka's protocol"
    assert elapsed > 0.5

"""The mirror between two real Apache Kafka 4.1 clusters: one node to three."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from tests.support.mirror import (
    MirrorProcess,
    Seen,
    create_topic,
    grow_topic,
    produce,
    properties,
    read,
    replica_counts,
    set_config,
    topic_configs,
)
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.kafka import KafkaCluster

YEAR_2013 = 1_356_998_400_000
FOREVER = {"retention.ms": "-1"}


def numbered(count: int, partitions: int, first: int = 0) -> Iterator[tuple[int, Seen]]:
    for number in range(first, first + count):
        yield number % partitions, Seen(b"k%d" % number, b"v%d" % number, (), YEAR_2013 + number)


def by_partition(records: list[tuple[int, Seen]], partitions: int) -> dict[int, list[Seen]]:
    return {at: [record for partition, record in records if partition == at] for at in range(partitions)}


def test_every_kind_of_record_arrives_byte_for_byte_with_its_time_in_its_place(
    real_kafka: KafkaCluster, real_kafka_3: KafkaCluster, tmp_path: Path
) -> None:
    """K894-35, K894-37: partitions, order, keys, tombstones, headers, timestamps; all codecs; times of appending."""
    # given
    source, target = real_kafka.bootstrap_servers, real_kafka_3.bootstrap_servers
    special = [
        (0, Seen(None, b"no key", (), YEAR_2013)),
        (0, Seen(b"k", None, (), YEAR_2013 - 5)),
        (0, Seen(b"", b"", (), 1)),
        (0, Seen(b"k", b"h", (("a", b"1"), ("a", b"2"), ("n", None), ("e", b"")), YEAR_2013)),
    ]
    wanted = {}
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        records = special + list(numbered(600, 3))
        create_topic(source, f"kinds.{codec}", 3, FOREVER)
        produce(source, f"kinds.{codec}", records, {"compression.type": codec})
        wanted[f"kinds.{codec}"] = by_partition(records, 3)
    create_topic(source, "kinds.appended", 1, {"message.timestamp.type": "LogAppendTime"})
    produce(source, "kinds.appended", list(numbered(50, 1)))
    wanted["kinds.appended"] = read(source, "kinds.appended", {0: 50})
    # when
    file = properties(source, target, topics=r"kinds\\..*", replication_factor=2)
    with MirrorProcess(file, tmp_path, "--until-caught-up") as mirror:
        code = mirror.wait()
    # then
    assert code == 0, mirror.text()[-4000:]
    for topic, partitions in wanted.items():
        counts = {partition: len(records) for partition, records in partitions.items()}
        assert read(target, f"A.{topic}", counts) == partitions, topic
    assert replica_counts(target, "A.kinds.zstd") == [2, 2, 2]
    assert topic_configs(target, "A.kinds.zstd") == FOREVER


def test_aborted_records_and_markers_stay_behind_under_read_committed(
    real_kafka: KafkaCluster, real_kafka_3: KafkaCluster, tmp_path: Path
) -> None:
    # given
    source, target = real_kafka.bootstrap_servers, real_kafka_3.bootstrap_servers
    create_topic(source, "tx", 1)
    producer = Producer({"bootstrap.servers": source, "transactional.id": "tx-of-test", "linger.ms": 0})
    producer.init_transactions(30)
    for number in range(6):
        producer.begin_transaction()
        producer.produce("tx", value=b"%d" % number, partition=0)
        producer.flush(30)
        if number % 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    # when
    file = properties(source, target, "A.consumer.isolation.level = read_committed\n", topics="tx")
    with MirrorProcess(file, tmp_path, "--until-caught-up") as mirror:
        code = mirror.wait()
    # then
    assert code == 0, mirror.text()[-4000:]
    arrived = read(target, "A.tx", {0: 3}, read_committed=False)
    assert [record.value for record in arrived[0]] == [b"0", b"2", b"4"]


def test_a_mirror_that_is_killed_goes_on_where_its_positions_say(
    real_kafka: KafkaCluster, real_kafka_3: KafkaCluster, tmp_path: Path
) -> None:
    """K894-38: nothing is lost; what was not yet noted as mirrored may come twice."""
    # given
    source, target = real_kafka.bootstrap_servers, real_kafka_3.bootstrap_servers
    create_topic(source, "resumed", 2, FOREVER)
    records = list(numbered(20_000, 2))
    produce(source, "resumed", records)
    file = properties(source, target, topics="resumed")
    with MirrorProcess(file, tmp_path) as mirror:
        mirror.wait_for("20,000/20,000 records")
        more = list(numbered(20_000, 2, first=20_000))
        produce(source, "resumed", more)
        # when
        mirror.kill()
    with MirrorProcess(file, tmp_path, "--until-caught-up") as mirror:
        code = mirror.wait()
    # then
    assert code == 0, mirror.text()[-4000:]
    arrived = read(target, "A.resumed", {0: 20_000, 1: 20_000})
    for partition, wanted in by_partition(records + more, 2).items():
        assert list(dict.fromkeys(arrived[partition])) == wanted
        assert arrived[partition][:10_000] == wanted[:10_000], "what was noted as mirrored came again"


@pytest.mark.parametrize("mode", ["requested", "required", "never"])
def test_configs_follow_the_source_and_excluded_ones_are_left_alone(
    real_kafka: KafkaCluster, real_kafka_3: KafkaCluster, tmp_path: Path, mode: str
) -> None:
    """K894-04, K894-08, K894-10, K894-13, K894-23: only ``never`` clears what it does not sync."""
    # given
    source, target = real_kafka.bootstrap_servers, real_kafka_3.bootstrap_servers
    topic = f"configs-{mode}"
    create_topic(source, topic, 1, {"retention.ms": "1000000", "max.message.bytes": "2000000"})
    file = properties(source, target, f"use.incremental.alter.configs = {mode}\n", topics=topic)
    with MirrorProcess(file, tmp_path) as mirror:
        mirror.wait_for(f"created topic A.{topic}")
        set_config(target, f"A.{topic}", "follower.replication.throttled.replicas", "0:1")
        # when
        set_config(source, topic, "retention.ms", "2000000")
        set_config(source, topic, "max.message.bytes", None)
        # then
        kept = {} if mode == "never" else {"follower.replication.throttled.replicas": "0:1"}
        wait_until(
            lambda: topic_configs(target, f"A.{topic}") == {"retention.ms": "2000000", **kept},
            timeout_s=40,
            what="the configs on the target",
            interval_s=0.2,
        )
        assert mirror.stop() == 0


def test_a_topic_that_grows_and_one_that_comes_later_are_mirrored_too(
    real_kafka: KafkaCluster, real_kafka_3: KafkaCluster, tmp_path: Path
) -> None:
    """K894-36."""
    # given
    source, target = real_kafka.bootstrap_servers, real_kafka_3.bootstrap_servers
    create_topic(source, "grows", 1, FOREVER)
    first = list(numbered(100, 1))
    produce(source, "grows", first)
    with MirrorProcess(properties(source, target, topics="grows,comes-later"), tmp_path) as mirror:
        mirror.wait_for("100/100 records")
        # when
        grow_topic(source, "grows", 3)
        create_topic(source, "comes-later", 1, FOREVER)
        later = list(numbered(99, 3, first=100))
        produce(source, "grows", later)
        produce(source, "comes-later", list(numbered(10, 1)))
        # then
        mirror.wait_for("209/209 records")
        wanted = by_partition(first + later, 3)
        assert read(target, "A.grows", {at: len(records) for at, records in wanted.items()}) == wanted
        assert mirror.stop() == 0


@pytest.mark.parametrize("side", ["source", "target"])
def test_leaders_move_and_a_broker_dies_and_comes_back_in_the_middle(
    real_kafka: KafkaCluster, real_kafka_3: KafkaCluster, tmp_path: Path, side: str
) -> None:
    # given
    one, three = real_kafka.bootstrap_servers, real_kafka_3.bootstrap_servers
    source, target = (three, one) if side == "source" else (one, three)
    replicas = {"source": 1, "target": 1, side: 3}
    topic = f"moves-{side}"
    create_topic(source, topic, 6, FOREVER, replication=replicas["source"])
    batches = [list(numbered(3_000, 6, first=first)) for first in (0, 3_000, 6_000)]
    produce(source, topic, batches[0])
    file = properties(source, target, topics=topic, replication_factor=replicas["target"])
    with MirrorProcess(file, tmp_path) as mirror:
        mirror.wait_for("3,000/3,000 records")
        # when
        real_kafka_3.nodes[2].kill()
        produce(source, topic, batches[1])
        mirror.wait_for("6,000/6,000 records")
        real_kafka_3.nodes[2].start(expected_nodes=3)
        produce(source, topic, batches[2])
        mirror.wait_for("9,000/9,000 records")
        # then
        assert mirror.stop() == 0
    wanted = by_partition([record for batch in batches for record in batch], 6)
    assert read(target, f"A.{topic}", dict.fromkeys(wanted, 1_500)) == wanted

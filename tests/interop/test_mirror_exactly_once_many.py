"""Exactly once with many partitions: few transactions, and large batches among small ones."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from unittest.mock import create_autospec
from uuid import uuid4

import pytest

from klamm.admin import AdminClient, NewTopic
from klamm.kafka_client.data.transactions import TransactionManager
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.records.source_offsets import shard_of
from tests.support.copiers import copy_all, copy_settings
from tests.support.exactly_once import assert_exactly_once
from tests.support.mirror import Seen, produce, wait_for_partitions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.kafka import KafkaCluster

pytestmark = pytest.mark.long

YEAR_2013 = 1_356_998_400_000
TOPICS = 5
PARTITIONS = 100 if os.environ.get("KLAMM_SOAK") else 20
"""Partitions of each topic."""
SHARDS = 4
BATCHES = 6
LARGE = 100 * 1024
"""Bytes of a batch that goes on a connection with few others."""


@pytest.fixture
def flow(real_kafka: KafkaCluster) -> Iterator[tuple[str, list[PartitionId]]]:
    """The alias of the source and its partitions, 500 in the soak; source and target are one cluster."""
    alias = f"M{uuid4().hex[:6]}"
    address = real_kafka.bootstrap_servers
    names = {f"many-{alias}-{number}": PARTITIONS for number in range(TOPICS)}
    names |= {f"{alias}.{name}": count for name, count in names.items()}
    names[f"mm2-offsets.{alias}.internal"] = 25
    with AdminClient(address) as admin:
        kept = {"retention.ms": "-1"}
        topics = [NewTopic(name=name, num_partitions=count, configs=kept) for name, count in names.items()]
        admin.create_topics(topics).all().result(300)
        for name, count in names.items():
            wait_for_partitions(address, name, count)
        yield (
            alias,
            [
                PartitionId(name, at, f"{alias}.{name}")
                for name in names
                if name.startswith("many-")
                for at in range(PARTITIONS)
            ],
        )
        admin.delete_topics(list(names)).all().result(300)


def test_exactly_once_copies_many_partitions_in_four_shards(
    real_kafka: KafkaCluster, flow: tuple[str, list[PartitionId]]
) -> None:
    """K894-39: every transaction holds many of them; large batches go on another connection than small ones."""
    # given
    address = real_kafka.bootstrap_servers
    alias, partitions = flow
    written = {p: [_record(p, number) for number in range(BATCHES)] for p in partitions}
    for topic in sorted({partition.topic for partition in partitions}):
        mine = [p for p in partitions if p.topic == topic]
        produce(address, topic, [(p.partition, written[p][number]) for number in range(BATCHES) for p in mine])

    def copy(shard: int) -> None:
        settings = copy_settings(address, address, alias=alias, shards=SHARDS, shard=shard)
        copy_all(settings, *(p for p in partitions if shard_of(p.topic, p.partition, SHARDS) == shard))

    # when
    with ThreadPoolExecutor(SHARDS) as threads:
        list(threads.map(copy, range(SHARDS)))
    # then
    for topic in sorted({partition.remote_topic for partition in partitions}):
        expected = {p.partition: written[p] for p in partitions if p.remote_topic == topic}
        assert_exactly_once(address, topic, expected, source=(address, topic.removeprefix(f"{alias}.")))


def test_many_partitions_share_one_transaction(
    real_kafka: KafkaCluster, flow: tuple[str, list[PartitionId]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """K894-39: Kafka takes any number of partitions in a transaction, and writes their markers when it is decided."""
    # given
    address = real_kafka.bootstrap_servers
    alias, partitions = flow
    written = {
        p: [Seen(None, b"%d of %s" % (p.partition, p.topic.encode()), (), int(time.time() * 1000))] for p in partitions
    }
    for topic in sorted({partition.topic for partition in partitions}):
        produce(address, topic, [(p.partition, written[p][0]) for p in partitions if p.topic == topic])
    commit = create_autospec(TransactionManager.commit, side_effect=TransactionManager.commit)
    monkeypatch.setattr(TransactionManager, "commit", commit)
    # when
    rows = copy_all(copy_settings(address, address, alias=alias, shards=1, interval_s=60.0), *partitions)
    # then
    assert commit.call_count == 3, "of the number of shards, of the first positions, of all records"
    assert {row.next_offset for row in rows} == {1}
    topic = partitions[-1].remote_topic
    expected = {p.partition: written[p] for p in partitions if p.remote_topic == topic}
    assert_exactly_once(address, topic, expected, source=(address, topic.removeprefix(f"{alias}.")))


def _record(partition: PartitionId, number: int) -> Seen:
    size = LARGE if partition.partition % 10 in (1, 2) else 10
    return Seen(None, b"%d of %s " % (number, partition.topic.encode()) + bytes(size), (), YEAR_2013)

"""Kinds of batches x topic configs that change headers: stored, answered and mirrored as by Apache Kafka."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pytest

from klamm.admin import AdminClient, NewTopic
from klamm.mirror.copy.partition import PartitionId
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse
from klamm.protocol.records import Codec, Record, encode_batch
from tests.support.copiers import copy_all, copy_settings
from tests.support.kept_up import KeptUp
from tests.support.klamm import KlammBroker
from tests.support.transaction_wire import TransactionClient, read_committed, wait_for_markers
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.kafka import KafkaCluster

PREFIX: Final = f"kinds-{uuid4().hex[:6]}"
CONFIGS: Final[Mapping[str, Mapping[str, str]]] = {
    f"{PREFIX}-{time_type}-{codec}-{cleanup}": {
        "message.timestamp.type": time_type,
        "compression.type": codec,
        "cleanup.policy": cleanup,
        "min.cleanable.dirty.ratio": "1.0",
    }
    for time_type, codec, cleanup in itertools.product(
        ("CreateTime", "LogAppendTime"), ("producer", "gzip"), ("delete", "compact")
    )
}
TRANSACTIONS: Final = (("a", True), ("b", False), ("c", True))
"""Value and outcome of each transaction of one producer: a commit after an abort needs the abort's marker."""


def run(address: str) -> dict[str, dict[str, Any]]:
    """Write all kinds of batches to a topic of each config. Return all that clients see, by topic."""
    with AdminClient(address) as admin:
        topics = [
            NewTopic(name=name, num_partitions=1, replication_factor=1, configs=configs)
            for name, configs in CONFIGS.items()
        ]
        admin.create_topics(topics).all().result(300)
    with KeptUp(address) as broker, WireClient(address) as client:
        broker.wait()
        return {name: write_and_read(client, name) for name in CONFIGS}


def write_and_read(client: WireClient, topic: str) -> dict[str, Any]:
    now = time.time_ns() // 1_000_000
    producer_id, epoch = client.new_producer_id()
    duplicates = []
    for sequence, codec in enumerate(Codec):
        record = Record(f"k{sequence}".encode(), codec.name.encode(), (), now, 0)
        client.produce(topic, 0, encode_batch([record], codec=codec))
        batch = encode_batch(
            [record], codec=codec, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
        )
        base_offset = client.produce(topic, 0, batch)
        answer = produce(client, topic, batch)
        ((stored, *_), _) = client.fetch(topic, 0, base_offset)
        duplicates.append((answer.base_offset == base_offset, answer.log_append_time_ms == stored.max_timestamp))
    ours = TransactionClient(client, topic)
    ours.find_coordinator()
    code, identity = ours.init(4)
    for sequence, (value, is_commit) in enumerate(TRANSACTIONS):
        record = Record(value.encode(), value.encode(), (), now, 0)
        batch = encode_batch(
            [record],
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        code += sum(ours.add(identity, 3, topic, 0)) + produce(client, topic, batch, topic).error_code
        code += ours.end(identity, 3, commit=is_commit)[0]
        wait_for_markers(client, topic)
    assert code == 0
    return {
        "duplicates": duplicates,
        "batches": [
            (item.base_offset, item.attributes, item.record_count, item.base_sequence, item.max_timestamp >= now)
            for item in client.read_to_end(topic, 0)
        ],
        "committed": read_committed(client, topic),
    }


def produce(
    client: WireClient, topic: str, batch: bytearray, transactional_id: str | None = None
) -> ProduceResponse.PartitionProduceResponse:
    data = ProduceRequest.PartitionProduceData(index=0, records=batch)
    topic_data = [ProduceRequest.TopicProduceData(name=topic, partition_data=[data])]
    request = ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=10_000, topic_data=topic_data)
    (result,) = client.ask(request, ProduceResponse, 9).responses[0].partition_responses
    return result


@pytest.fixture(scope="module")
def klamm() -> Iterator[KlammBroker]:
    with KlammBroker() as broker:
        yield broker


@pytest.fixture(scope="module")
def seen(klamm: KlammBroker) -> dict[str, dict[str, Any]]:
    return run(klamm.bootstrap_servers)


@pytest.mark.long
def test_batches_are_stored_and_read_as_in_kafka(real_kafka: KafkaCluster, seen: dict[str, dict[str, Any]]) -> None:
    try:
        assert seen == run(real_kafka.bootstrap_servers)
    finally:
        with AdminClient(real_kafka.bootstrap_servers) as admin:
            admin.delete_topics(list(CONFIGS)).all().result(300)


@pytest.mark.parametrize("topic", CONFIGS, ids=lambda topic: topic.removeprefix(f"{PREFIX}-"))
def test_committed_records_are_mirrored(klamm: KlammBroker, seen: dict[str, dict[str, Any]], topic: str) -> None:
    address, alias = klamm.bootstrap_servers, f"M{topic}"
    remote = f"{alias}.{topic}"
    with AdminClient(address) as admin:
        configs = {"message.timestamp.type": "LogAppendTime"}
        topics = [
            NewTopic(name=remote, num_partitions=1, replication_factor=1, configs=configs),
            NewTopic(name=f"mm2-offsets.{alias}.internal", num_partitions=1, replication_factor=1),
        ]
        admin.create_topics(topics).all().result(300)

    copy_all(copy_settings(address, address, alias=alias, shards=1), PartitionId(topic, 0, remote))

    committed = [value for codec in Codec for value in (codec.name, codec.name)] + ["a", "c"]
    with WireClient(address) as client:
        assert seen[topic]["committed"] == read_committed(client, remote) == committed

"""Flows that keep offsets by replay, on Apache Kafka and on klamm: every record is read at its source offset."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from klamm.mirror.progress.partition_progress import CopyState
from klamm.protocol.records import Codec, Record, encode_batch
from tests.support.equal_offsets import EqualFlow
from tests.support.mirror import delete_records
from tests.support.transactional_clients import Confluent
from tests.support.wire import WireClient

YEAR_2013 = 1_356_998_400_000


def produce(address: str, topic: str, first: int, count: int, codec: Codec = Codec.NONE) -> None:
    """Write a batch of records with keys, headers and tombstones."""
    records = [
        Record(
            key=b"k%d" % number if number % 3 else None,
            value=None if number % 5 == 4 else b"v%d" % number,
            headers=(("h", b"%d" % number), ("h", None)) if number % 2 else (),
            timestamp=YEAR_2013 + number,
            offset=at,
        )
        for at, number in enumerate(range(first, first + count))
    ]
    with WireClient(address) as client:
        client.produce(topic, 0, encode_batch(records, codec=codec))


@pytest.mark.parametrize("codec", Codec)
def test_records_of_each_codec_keep_their_offsets(address: str, codec: Codec) -> None:
    flow = EqualFlow(address, address)
    for first in range(0, 400, 20):
        produce(address, flow.topic, first, 20, codec)

    row = flow.copy()

    assert (row.state, row.next_offset) == (CopyState.COPYING, 400)
    assert len(flow.assert_equal()) == 400


def test_offsets_of_markers_and_aborted_records_are_filled(address: str) -> None:
    flow = EqualFlow(address, address)
    with Confluent(address, f"{flow.topic}-1") as first, Confluent(address, f"{flow.topic}-2") as second:
        for turn in range(5):
            first.begin()
            second.begin()
            for number in range(3):
                first.send(flow.topic, f"first {turn} {number}")
                second.send(flow.topic, f"second {turn} {number}")
            first.abort() if turn % 2 else first.commit()
            second.commit()
        produce(address, flow.topic, 0, 7)
    flow.copy()
    before = flow.assert_equal()
    produce(address, flow.topic, 7, 3)

    flow.copy()

    after = flow.assert_equal()
    assert len(before) == 31
    assert len(after) == len(before) + 3


def test_purged_beginning_within_a_batch_is_not_on_the_target_either(address: str) -> None:
    flow = EqualFlow(address, address)
    for first in range(0, 1000, 100):
        produce(address, flow.topic, first, 100, Codec.ZSTD)
    delete_records(address, flow.topic, 0, before=450)

    flow.copy()

    assert min(flow.assert_equal()) == 450


def test_records_of_log_append_time_keep_their_timestamps(address: str) -> None:
    flow = EqualFlow(address, address, source_configs={"message.timestamp.type": "LogAppendTime"})
    produce(address, flow.topic, 0, 50)

    flow.copy()

    assert len(flow.assert_equal()) == 50


def test_record_of_another_producer_stops_the_partition(address: str) -> None:
    flow = EqualFlow(address, address)
    produce(address, flow.topic, 0, 10)
    flow.copy()
    producer = Producer({"bootstrap.servers": address})
    producer.produce(flow.remote_topic, b"stray")
    assert producer.flush(30) == 0
    produce(address, flow.topic, 10, 10)

    row = flow.copy()

    assert row.state is CopyState.STOPPED
    assert f"offset 10 of {flow.remote_topic}-0 was written by another producer" in row.reason

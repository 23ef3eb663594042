"""Small batches with many records in them: they hold the event loop for milliseconds, and the largest are rejected."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Final

import pytest

from klamm.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse
from klamm.protocol.records import BATCH_OVERHEAD, Codec, compress, varint, write_crc
from klamm.protocol.records.layout import HEADER
from tests.support.held_loop import HeldLoop, a_held_broker
from tests.support.wire import SET, WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process  # takes seconds
MAX_S: Final = 0.05
"""Of processor time of the event loop's thread, as in test_long_requests.py."""
START_MS: Final = 1_700_000_000_000
TRIES: Final = 3
"""Of the same request: where others share the core, even the processor time of equal work varies."""
RECORDS: Final = 100_000
MESSAGE_TOO_LARGE, INVALID_RECORD, INVALID_TIMESTAMP = 10, 87, 32


def batch(payload: bytes, count: int) -> bytes:
    """Return a batch of zstd."""
    packed = compress(Codec.ZSTD, payload)
    last = START_MS + count - 1
    fields = (0, BATCH_OVERHEAD - 12 + len(packed), -1, 2, 0, Codec.ZSTD, count - 1, START_MS, last, -1, -1, -1, count)
    built = bytearray(HEADER.pack(*fields)) + packed
    write_crc(memoryview(built))
    return bytes(built)


def records(count: int, key: bytes = b"\x02k") -> bytes:
    """Return records a millisecond apart."""
    bodies = (b"\x00" + varint(index) + varint(index) + key + b"\x01\x00" for index in range(count))
    return b"".join(varint(len(body)) + body for body in bodies)


@functools.cache
def many_records(key: bytes = b"\x02k") -> bytes:
    """Return a batch of ``RECORDS`` records, which takes a second to build."""
    return batch(records(RECORDS, key), RECORDS)


@pytest.fixture(scope="module")
def held_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeldLoop]:
    with a_held_broker(tmp_path_factory.mktemp("held") / "data") as broker:
        with WireClient(broker.address) as client:
            for name, config in {
                "compacted": ("cleanup.policy", "compact"),
                "recompressed": ("compression.type", "lz4"),
                "recent": ("message.timestamp.before.max.ms", "1000"),
                "bounded": ("max.decompressed.message.bytes", "1000000"),
            }.items():
                client.create_topic(name)
                client.alter_topic(name, [(config[0], SET, config[1])])
        yield broker


def produce(held_broker: HeldLoop, topic: str, sent: bytes) -> ProduceResponse.PartitionProduceResponse:
    """Produce a batch, again where the event loop was held, and check that it is not held each time."""
    data = ProduceRequest.PartitionProduceData(index=0, records=sent)
    request = ProduceRequest(
        acks=-1, topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])], timeout_ms=60_000
    )
    holds = []
    with WireClient(held_broker.address, timeout_s=60) as client:
        for _ in range(TRIES):
            held_broker.begin()
            answer = client.ask(request, ProduceResponse, 9).responses[0].partition_responses[0]
            holds.append(held_broker.longest().seconds)
            if holds[-1] < MAX_S:
                break
    assert min(holds) < MAX_S
    return answer


@pytest.mark.parametrize("topic", ["compacted", "recompressed", "recent"])
def test_highly_compressed_batch_is_rejected_by_its_record_count(held_broker: HeldLoop, topic: str) -> None:
    sent = batch(b"\x0c\x00\x00\x00\x01\x01\x00" * 2_000_000, 2_000_000)
    assert len(sent) < 5000

    answer = produce(held_broker, topic, sent)

    assert answer.error_code == MESSAGE_TOO_LARGE
    assert "2000000 records" in (answer.error_message or "")


def test_more_bytes_than_the_topic_allows_are_not_decompressed(held_broker: HeldLoop) -> None:
    answer = produce(held_broker, "bounded", batch(records(100_000), 100_000))
    assert answer.error_code == MESSAGE_TOO_LARGE
    assert "max.decompressed.message.bytes" in (answer.error_message or "")


def test_huge_decompressed_batch_is_rejected(held_broker: HeldLoop) -> None:
    frame = compress(Codec.ZSTD, bytes(32 * 1024 * 1024))
    sent = bytearray(batch(b"", 1)[:BATCH_OVERHEAD]) + frame * 300
    sent[8:12] = (len(sent) - 12).to_bytes(4, "big")
    write_crc(memoryview(sent))

    assert produce(held_broker, "compacted", bytes(sent)).error_code in {MESSAGE_TOO_LARGE, INVALID_RECORD}


def test_batch_of_many_records_is_validated_without_blocking_the_loop(held_broker: HeldLoop) -> None:
    sent = many_records()
    for topic in ("compacted", "recompressed"):
        assert produce(held_broker, topic, sent).error_code == 0
    assert produce(held_broker, "recent", sent).error_code == INVALID_TIMESTAMP
    rejected = produce(held_broker, "compacted", many_records(key=b"\x01"))
    assert rejected.error_code == INVALID_RECORD
    assert len(rejected.record_errors) == 1000


def test_timestamp_lookup_in_large_batch_does_not_block_the_loop(held_broker: HeldLoop) -> None:
    with WireClient(held_broker.address, timeout_s=60) as client:
        client.create_topic("looked-up")
        base = client.produce("looked-up", 0, many_records())
        for timestamp, offset in ((START_MS + RECORDS - 5, RECORDS - 5), (-3, RECORDS - 1)):
            wanted = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
            topic = ListOffsetsRequest.ListOffsetsTopic(name="looked-up", partitions=[wanted])
            held_broker.begin()
            answer = client.ask(ListOffsetsRequest(topics=[topic]), ListOffsetsResponse, 7)
            assert held_broker.longest().seconds < MAX_S
            assert answer.topics[0].partitions[0].offset == base + offset


def test_work_for_disconnected_client_is_dropped(held_broker: HeldLoop) -> None:
    """The thread is free long before it would have processed the whole request."""
    sent = many_records(key=b"\x01")
    data = [ProduceRequest.PartitionProduceData(index=0, records=sent)] * 30
    request = ProduceRequest(acks=-1, topic_data=[ProduceRequest.TopicProduceData(name="recent", partition_data=data)])
    with WireClient(held_broker.address) as leaving:
        leaving.send(request, 9)
        time.sleep(0.3)
    began = time.perf_counter()
    produce(held_broker, "recent", sent)
    alone = time.perf_counter()
    produce(held_broker, "recent", sent)
    assert alone - began < 10 * (time.perf_counter() - alone) + 1

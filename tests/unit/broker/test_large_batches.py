"""Small batches with many records in them: they hold the event loop for milliseconds, and the largest are rejected."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any, Final

import pytest

from klamm.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse
from klamm.protocol.records import BATCH_OVERHEAD, Codec, compress, varint, write_crc
from klamm.protocol.records.layout import HEADER
from klamm.server import connection as connections
from klamm.server.connection import ClientConnection
from klamm.storage.log.partition import PartitionLog
from tests.support.held_loop import HeldLoop, a_held_broker
from tests.support.processes import wait_until
from tests.support.wire import SET, WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from klamm.protocol.records import RecordBatch

pytestmark = pytest.mark.process  # takes seconds
MAX_S: Final = 0.05
"""Of processor time of the event loop's thread, as in test_long_requests.py."""
START_MS: Final = 1_700_000_000_000
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
    answers: list[ProduceResponse] = []
    with WireClient(held_broker.address, timeout_s=60) as client:

        def send() -> None:
            answers.append(client.ask(request, ProduceResponse, 9))

        assert held_broker.longest_s_of(send, limit_s=MAX_S) < MAX_S
    return answers[-1].responses[0].partition_responses[0]


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


@pytest.mark.long
def test_timestamp_lookup_in_large_batch_does_not_block_the_loop(held_broker: HeldLoop) -> None:
    with WireClient(held_broker.address, timeout_s=60) as client:
        client.create_topic("looked-up")
        base = client.produce("looked-up", 0, many_records())
        for timestamp, offset in ((START_MS + RECORDS - 5, RECORDS - 5), (-3, RECORDS - 1)):
            wanted = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
            topic = ListOffsetsRequest.ListOffsetsTopic(name="looked-up", partitions=[wanted])
            request = ListOffsetsRequest(topics=[topic])

            def look_up(request: ListOffsetsRequest = request, offset: int = base + offset) -> None:
                answer = client.ask(request, ListOffsetsResponse, 7)
                assert answer.topics[0].partitions[0].offset == offset

            assert held_broker.longest_s_of(look_up, limit_s=MAX_S) < MAX_S


def test_work_for_disconnected_client_is_dropped(held_broker: HeldLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """When ``FINISH_S`` is over, only the batch that a thread is checking is checked to its end."""
    # given
    checked, is_lost = list[object](), threading.Event()
    prepare, connection_lost = PartitionLog.prepare, ClientConnection.connection_lost

    def prepare_after_loss(log: PartitionLog, records: memoryview, **options: Any) -> RecordBatch:
        checked.append(records)
        assert is_lost.wait(120)
        return prepare(log, records, **options)

    def note_loss(connection: ClientConnection, error: Exception | None) -> None:
        connection_lost(connection, error)
        if connection.session.client_port == port:
            is_lost.set()

    monkeypatch.setattr(connections, "FINISH_S", 0.0)
    monkeypatch.setattr(PartitionLog, "prepare", prepare_after_loss)
    monkeypatch.setattr(ClientConnection, "connection_lost", note_loss)
    sent = many_records(key=b"\x01")
    data = [ProduceRequest.PartitionProduceData(index=0, records=sent)] * 30
    request = ProduceRequest(acks=-1, topic_data=[ProduceRequest.TopicProduceData(name="recent", partition_data=data)])
    # when
    with WireClient(held_broker.address) as leaving:
        port = leaving.socket.getsockname()[1]
        leaving.send(request, 9)
        wait_until(lambda: bool(checked), timeout_s=120, what="the first batch")
    with WireClient(held_broker.address, timeout_s=120) as client:
        request.topic_data[0].partition_data = data[:1]
        client.ask(request, ProduceResponse, 9)
    # then
    assert len(checked) == 2, "one of each client"

"""Produce from bytes to bytes."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from klamm.broker.groups.errors import NotCoordinatorError
from klamm.broker.handlers.api_000_produce import API, ROUTE
from klamm.broker.transactions.model import ConcurrentTransactionsError
from klamm.protocol.errors import ErrorCode, KafkaApiError, ProtocolError
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse
from klamm.protocol.records import Codec, Record, encode_batch
from klamm.storage.log.directories import write_topic_id
from tests.support.data_path import ELSEWHERE, HERE, DataPath, opened
from tests.support.logs import batch, read_all

if TYPE_CHECKING:
    from pathlib import Path

broker = pytest.fixture(opened)

KNOWN_ID = UUID(int=100)
UNKNOWN_ID = UUID(int=99_999)


def request(
    records: bytes | memoryview | None,
    *,
    topic: str = "t",
    topic_id: UUID = KNOWN_ID,
    partition: int = 0,
    acks: int = -1,
    transactional_id: str | None = None,
) -> ProduceRequest:
    data = ProduceRequest.PartitionProduceData(index=partition, records=records)
    return ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        transactional_id=transactional_id,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, topic_id=topic_id, partition_data=[data])],
    )


def produce(
    broker: DataPath, message: ProduceRequest, version: int = 13, node_id: int = HERE
) -> ProduceResponse.PartitionProduceResponse:
    response = broker.ask(ROUTE, message, ProduceResponse, version, node_id=node_id)
    return response.responses[0].partition_responses[0]


@pytest.mark.parametrize("version", range(3, 14))
def test_batch_is_appended_in_every_version(broker: DataPath, version: int) -> None:
    produce(broker, request(batch("before")), version)

    answer = produce(broker, request(batch("a", "b")), version)

    assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (0, 1, -1)
    assert answer.log_start_offset == (0 if version >= 5 else -1)
    assert [record.value for record in read_all(broker.log())] == [b"before", b"a", b"b"]


def test_first_batches_wait_for_the_disk_in_threads(broker: DataPath, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[str] = set()

    def write(directory: Path, topic_id: UUID) -> None:
        threads.add(threading.current_thread().name.partition("_")[0])
        write_topic_id(directory, topic_id)

    monkeypatch.setattr("klamm.storage.log.partition.write_topic_id", write)
    message = request(batch("a"))
    message.topic_data[0].partition_data.append(ProduceRequest.PartitionProduceData(index=1, records=batch("b")))

    response = broker.ask(ROUTE, message, ProduceResponse, 13)

    assert [answer.error_code for answer in response.responses[0].partition_responses] == [0, 0]
    assert threads == {"klamm-flush"}


def test_versions_below_3_are_advertised_but_rejected() -> None:
    assert API.min_version == 0
    assert ROUTE.rejected_below == 3


def test_rejected_partition_does_not_fail_others(broker: DataPath) -> None:
    message = request(batch("a"))
    message.topic_data[0].partition_data += [
        ProduceRequest.PartitionProduceData(index=7, records=batch("b")),
        ProduceRequest.PartitionProduceData(index=1, records=batch("c")),
    ]

    response = broker.ask(ROUTE, message, ProduceResponse, 13)

    codes = [answer.error_code for answer in response.responses[0].partition_responses]
    assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]


@pytest.mark.parametrize(
    ("version", "code"), [(12, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (13, ErrorCode.UNKNOWN_TOPIC_ID)]
)
def test_unknown_topic_is_reported_by_name_or_id(broker: DataPath, version: int, code: ErrorCode) -> None:
    response = broker.ask(ROUTE, request(batch("a"), topic="other", topic_id=UNKNOWN_ID), ProduceResponse, version)

    (topic,) = response.responses
    assert topic.partition_responses[0].error_code == code
    assert (topic.name, topic.topic_id) == (("other", UUID(int=0)) if version < 13 else ("", UNKNOWN_ID))


def test_id_of_deleted_topic_is_rejected_after_recreation(broker: DataPath) -> None:
    broker.replace_topic("t")

    assert produce(broker, request(batch("a"))).error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_request_to_another_broker_returns_the_current_leader(broker: DataPath) -> None:
    """KIP-951."""
    response = broker.ask(ROUTE, request(batch("a")), ProduceResponse, 13, node_id=ELSEWHERE)

    (answer,) = response.responses[0].partition_responses
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (HERE, 0)
    assert [(node.node_id, node.host, node.port) for node in response.node_endpoints] == [(HERE, "a", 1)]


@pytest.mark.parametrize("acks", [-2, 2, 7])
def test_invalid_acks_are_rejected(broker: DataPath, acks: int) -> None:
    assert produce(broker, request(batch("a"), acks=acks)).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert broker.log().end_offset == 0


def test_acks_zero_is_not_answered(broker: DataPath) -> None:
    answer = asyncio.run(broker.call(ROUTE, request(batch("a"), acks=0), ProduceResponse, 13))

    assert answer is None
    assert broker.log().end_offset == 1


def test_error_with_acks_zero_closes_the_connection(broker: DataPath) -> None:
    with pytest.raises(ProtocolError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        asyncio.run(broker.call(ROUTE, request(batch("a"), partition=9, acks=0), ProduceResponse, 13))


@pytest.mark.parametrize("records", [None, b""])
def test_partition_without_records_is_rejected(broker: DataPath, records: bytes | None) -> None:
    assert produce(broker, request(records)).error_code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("cut", [1, 16, 60])
def test_truncated_records_are_rejected(broker: DataPath, cut: int) -> None:
    assert produce(broker, request(batch("a")[:-cut])).error_code == ErrorCode.INVALID_RECORD


def test_rejected_records_are_reported_individually(broker: DataPath) -> None:
    """KIP-467."""
    broker.configs["cleanup.policy"] = "compact"
    mixed = encode_batch([Record(b"k", b"1", (), 0, 0), Record(None, b"2", (), 0, 1)])

    answer = produce(broker, request(memoryview(mixed)), 8)

    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in answer.record_errors] == [1]
    assert "without key" in str(answer.record_errors[0].batch_index_error_message)
    assert answer.error_message


def test_zstd_requires_produce_v7(broker: DataPath) -> None:
    """KIP-110."""
    packed = memoryview(encode_batch([Record(b"k", b"1")], codec=Codec.ZSTD))

    assert produce(broker, request(packed), 6).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert produce(broker, request(packed), 7).error_code == 0


def test_produce_without_a_transaction_is_rejected(broker: DataPath) -> None:
    asyncio.run(broker.transactions.start())
    in_transaction = memoryview(
        encode_batch([Record(b"k", b"1")], producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    )

    named = produce(broker, request(in_transaction, transactional_id="x"))
    unnamed = produce(broker, request(in_transaction))

    assert named.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert unnamed.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConcurrentTransactionsError(), ErrorCode.CONCURRENT_TRANSACTIONS),
        (NotCoordinatorError(), ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
def test_producer_retries_when_partition_cannot_be_added_to_its_transaction(
    broker: DataPath, monkeypatch: pytest.MonkeyPatch, error: KafkaApiError, code: ErrorCode
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise error

    asyncio.run(broker.transactions.start())
    identity = asyncio.run(broker.transactions.initialize("x", timeout_ms=1000, expected=None))
    in_transaction = batch(
        "a",
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        base_sequence=0,
        is_transactional=True,
    )
    with monkeypatch.context() as patch:
        patch.setattr(broker.transactions, "add", fail)
        rejected = produce(broker, request(in_transaction, transactional_id="x"))
    retried = produce(broker, request(in_transaction, transactional_id="x"))

    assert (rejected.error_code, rejected.base_offset) == (code, -1)
    assert (retried.error_code, retried.base_offset) == (ErrorCode.NONE, 0)


def test_full_disk_is_a_storage_error(broker: DataPath) -> None:
    produce(broker, request(batch("a")))
    broker.pool.room = 10

    assert produce(broker, request(batch("b"))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    broker.pool.room = None
    assert produce(broker, request(batch("c"))).base_offset == 1


def test_flush_messages_of_one_makes_records_durable_before_the_response(broker: DataPath) -> None:
    broker.configs["flush.messages"] = "1"

    produce(broker, request(batch("a")))

    assert broker.log().recovery_point == 1

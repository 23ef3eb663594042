"""Record batches with one defect each get Apache Kafka 4.4's error codes; accepted ones are stored as in Kafka."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from klamm.protocol.errors import CorruptBatchError
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse
from klamm.protocol.records import RecordBatch, decode_records
from tests.support.damaged_batches import cases
from tests.support.kept_up import KeptUp
from tests.support.klamm import KlammBroker
from tests.support.shared_cluster import unique
from tests.support.wire import SET, WireClient

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.kafka import KafkaCluster

KAFKAS_CODES: Final[Mapping[str, list[int]]] = json.loads(
    Path(__file__).parent.with_name("support").joinpath("kafka_batch_answers.json").read_text()
)
"""Error codes of Apache Kafka 4.4 by case, one for each of the topics below. The last test asks Kafka again."""
_KEPT: Final = ("retention.ms", SET, "-1")
"""The records are old, and looked at after they were written."""
TOPICS: Final = {
    "plain": (_KEPT,),
    "compact": (_KEPT, ("cleanup.policy", SET, "compact")),
    "lz4": (_KEPT, ("compression.type", SET, "lz4")),
    "append": (_KEPT, ("message.timestamp.type", SET, "LogAppendTime")),
    "recent": (_KEPT, ("message.timestamp.before.max.ms", SET, "86400000")),
}
UNKNOWN_SERVER_ERROR, INVALID_TIMESTAMP, UNSUPPORTED_COMPRESSION_TYPE, INVALID_RECORD = -1, 32, 76, 87

UNREADABLE: Final = {
    "record one byte shorter than its length",
    "record of length 0",
    "byte behind the headers",
    "byte behind the payload",
    "100 bytes behind the payload",
    "stream behind the payload",
    "empty frame behind the payload",
    "skippable frame behind the payload",
    "wrong content checksum",
    "stored block of no bytes as end",
}
"""Kafka does not compare the length of a compressed record with its fields, and stops reading at the last record.

Nor does it verify the lz4 content checksum, and it takes any lz4 block of size 0 for the end mark."""
RECOMPRESSED: Final = {"base timestamp -1000", "producer without epoch"}
"""Kafka fails while it builds these again in another codec; klamm does not need to build them."""


class Answer(NamedTuple):
    error_code: int
    stored: object
    """Attributes, largest timestamp, and offset and time of each record; None of a batch that was rejected."""


def answers_of(address: str, prefix: str) -> dict[str, list[Answer]]:
    with WireClient(address) as client, KeptUp(address) as broker:
        for topic, configs in TOPICS.items():
            client.create_topic(prefix + topic)
            client.alter_topic(prefix + topic, configs)
        broker.wait_for_effect()
        return {case.name: [answer(client, prefix, topic, case.batch) for topic in TOPICS] for case in cases()}


def answer(client: WireClient, prefix: str, topic: str, batch: bytes) -> Answer:
    data = ProduceRequest.PartitionProduceData(index=0, records=batch)
    request = ProduceRequest(
        acks=-1,
        timeout_ms=10_000,
        topic_data=[ProduceRequest.TopicProduceData(name=prefix + topic, partition_data=[data])],
    )
    (result,) = client.ask(request, ProduceResponse, 9).responses[0].partition_responses
    if result.error_code:
        return Answer(result.error_code, None)
    stored = client.fetch(prefix + topic, 0, result.base_offset)[0][0]
    if not is_readable(stored):  # Kafka stores some batches as they came
        return Answer(0, "unreadable")
    records = [(record.offset - stored.base_offset, record.timestamp) for record in decode_records(stored)]
    if topic == "append":  # with the time of the broker
        return Answer(0, (stored.attributes, [offset for offset, _ in records]))
    return Answer(0, (stored.attributes, stored.max_timestamp, records))


def is_readable(stored: RecordBatch) -> bool:
    try:
        decode_records(stored)
    except CorruptBatchError:
        return False
    return True


def expected_code(case: str, topic: str, kafkas: int) -> int:
    codec, _, defect = case.partition(": ")
    if codec != "none" and defect in UNREADABLE and not (topic == "lz4" and kafkas == INVALID_RECORD):
        return INVALID_RECORD
    if kafkas == UNKNOWN_SERVER_ERROR:
        if topic == "lz4" and defect in RECOMPRESSED:
            return 0
        if defect in {f"written as codec {number}" for number in (5, 6, 7)}:
            return UNSUPPORTED_COMPRESSION_TYPE
        return INVALID_RECORD
    return kafkas


@pytest.fixture(scope="module")
def klamms() -> dict[str, list[Answer]]:
    with KlammBroker() as broker:
        return answers_of(broker.bootstrap_servers, "damaged-")


def test_klamm_returns_the_codes_recorded_from_kafka(klamms: dict[str, list[Answer]]) -> None:
    expected = {
        case: [expected_code(case, topic, code) for topic, code in zip(TOPICS, codes, strict=True)]
        for case, codes in KAFKAS_CODES.items()
    }
    assert {case: [each.error_code for each in answers] for case, answers in klamms.items()} == expected


def test_batches_rejected_by_klamm_only_are_unreadable(klamms: dict[str, list[Answer]]) -> None:
    stricter = {
        case.partition(": ")[2]
        for case, answers in klamms.items()
        for mine, kafkas in zip(answers, KAFKAS_CODES[case], strict=True)
        if mine.error_code and kafkas == 0
    }
    assert stricter == UNREADABLE


@pytest.mark.long
def test_real_kafka_returns_recorded_codes_and_stores_the_same_batches(
    real_kafka: KafkaCluster, klamms: dict[str, list[Answer]]
) -> None:
    kafkas = answers_of(real_kafka.bootstrap_servers, unique("damaged-"))
    assert {case: [each.error_code for each in answers] for case, answers in kafkas.items()} == KAFKAS_CODES
    for case, answers in kafkas.items():
        for theirs, mine in zip(answers, klamms[case], strict=True):
            if theirs.error_code == mine.error_code == 0:
                assert mine.stored == theirs.stored, case

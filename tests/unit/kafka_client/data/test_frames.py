from __future__ import annotations

from uuid import UUID

import pytest

from klamm.kafka_client.data.fetch import (
    EpochEnd,
    FetchLimits,
    WantedRecords,
    fetch_request,
    fetched_partitions,
)
from klamm.kafka_client.data.produce import PartitionRecords, TopicName, produce_body
from klamm.protocol.codec import decode, encode
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.messages.produce import ProduceRequest

IDS = {"t": UUID(int=1), "u": UUID(int=2)}


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("size", [1, 200, 70_000])
def test_produce_requests_of_every_version_decode_to_their_input(version: int, size: int) -> None:
    """The other side of the comparison is the codec, which real brokers have checked."""
    batches = [
        PartitionRecords(TopicName(name, IDS[name].bytes), partition, memoryview(bytes([partition]) * size))
        for name, partition in (("t", 0), ("t", 3), ("u", 1))
    ]
    body = b"".join(bytes(part) for part in produce_body(version, batches, timeout_ms=1234))
    request = decode(ProduceRequest, version, body)
    assert (request.transactional_id, request.acks, request.timeout_ms) == (None, -1, 1234)
    read = {
        (topic.topic_id if version >= 13 else topic.name, partition.index): bytes(partition.records or b"")
        for topic in request.topic_data
        for partition in topic.partition_data
    }
    wanted = {
        (IDS[entry.topic.name] if version >= 13 else entry.topic.name, entry.partition): bytes(entry.records)
        for entry in batches
    }
    assert read == wanted
    assert len(encode(request, version)) == len(body)


@pytest.mark.parametrize("version", range(3, 14))
def test_transactional_id_is_sent_in_every_produce_version(version: int) -> None:
    records = [PartitionRecords(TopicName("t", IDS["t"].bytes), 0, memoryview(b"r"))]
    body = produce_body(version, records, timeout_ms=1, transactional_id="A-mm2-klamm-A-4-0")
    request = decode(ProduceRequest, version, b"".join(bytes(part) for part in body))
    assert request.transactional_id == "A-mm2-klamm-A-4-0"


def test_records_are_sent_without_a_copy() -> None:
    records = memoryview(bytearray(1000))
    body = produce_body(9, [PartitionRecords(TopicName("t", bytes(16)), 0, records)], timeout_ms=1)
    assert any(part is records for part in body)


@pytest.mark.parametrize("version", range(4, 18))
def test_fetch_requests_of_every_version_decode_to_their_input(version: int) -> None:
    wanted = [
        WantedRecords("t", IDS["t"], 0, 5),
        WantedRecords("u", IDS["u"], 1, 6),
        WantedRecords("t", IDS["t"], 2, 7),
    ]
    request = fetch_request(wanted, FetchLimits(100, 50, 1, 250), read_committed=True)
    read = decode(FetchRequest, version, encode(request, version))
    assert (read.max_bytes, read.min_bytes, read.max_wait_ms, read.isolation_level) == (100, 1, 250, 1)
    assert [
        (topic.topic_id if version >= 13 else topic.topic, [(p.partition, p.fetch_offset) for p in topic.partitions])
        for topic in read.topics
    ] == [
        (IDS["t"] if version >= 13 else "t", [(0, 5), (2, 7)]),
        (IDS["u"] if version >= 13 else "u", [(1, 6)]),
    ]


@pytest.mark.parametrize(("version", "read_committed"), [(11, False), (11, True), (17, False), (17, True)])
def test_fetch_answers_are_reported_by_topic_name(version: int, read_committed: bool) -> None:
    partition = FetchResponse.PartitionData(
        partition_index=4,
        high_watermark=20,
        last_stable_offset=15,
        aborted_transactions=[FetchResponse.AbortedTransaction(producer_id=3, first_offset=9)],
        records=b"abc",
    )
    topic = FetchResponse.FetchableTopicResponse(topic="t", topic_id=IDS["t"], partitions=[partition])
    response = decode(FetchResponse, version, encode(FetchResponse(responses=[topic]), version))
    (fetched,) = fetched_partitions(
        response, {IDS["t"]: "t"}, with_topic_ids=version >= 13, read_committed=read_committed
    )
    assert (fetched.topic, fetched.partition, bytes(fetched.records)) == ("t", 4, b"abc")
    assert fetched.end_offset == (15 if read_committed else 20)
    assert [entry.producer_id for entry in fetched.aborted or ()] == ([3] if read_committed else [])


@pytest.mark.parametrize("version", range(4, 18))
def test_leader_epochs_and_rack_are_sent_in_versions_that_have_them(version: int) -> None:
    """KIP-320, KIP-392 and KIP-595: current_leader_epoch from 9, rack_id from 11, last_fetched_epoch from 12 on."""
    wanted = [WantedRecords("t", IDS["t"], 0, 5, current_leader_epoch=7, last_fetched_epoch=6)]
    request = fetch_request(wanted, FetchLimits(100, 50, 1, 250, rack_id="near"), read_committed=True)
    read = decode(FetchRequest, version, encode(request, version))
    (partition,) = read.topics[0].partitions
    assert partition.current_leader_epoch == (7 if version >= 9 else -1)
    assert partition.last_fetched_epoch == (6 if version >= 12 else -1)
    assert read.rack_id == ("near" if version >= 11 else "")


def test_diverging_epoch_and_preferred_read_replica_are_returned() -> None:
    partition = FetchResponse.PartitionData(
        diverging_epoch=FetchResponse.EpochEndOffset(epoch=3, end_offset=40), preferred_read_replica=2
    )
    topic = FetchResponse.FetchableTopicResponse(
        topic_id=IDS["t"], partitions=[partition, FetchResponse.PartitionData()]
    )
    response = decode(FetchResponse, 17, encode(FetchResponse(responses=[topic]), 17))
    diverging, plain = fetched_partitions(response, {IDS["t"]: "t"}, with_topic_ids=True, read_committed=False)
    assert (diverging.diverging, diverging.preferred_read_replica) == (EpochEnd(3, 40), 2)
    assert (plain.diverging, plain.preferred_read_replica) == (None, -1)


def test_topic_that_was_not_requested_is_skipped() -> None:
    topics = [
        FetchResponse.FetchableTopicResponse(topic_id=IDS[name], partitions=[FetchResponse.PartitionData()])
        for name in ("u", "t")
    ]
    response = decode(FetchResponse, 17, encode(FetchResponse(responses=topics), 17))
    partitions = fetched_partitions(response, {IDS["t"]: "t"}, with_topic_ids=True, read_committed=False)
    assert [fetched.topic for fetched in partitions] == ["t"]

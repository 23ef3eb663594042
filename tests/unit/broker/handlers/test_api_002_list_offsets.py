"""ListOffsets from bytes to bytes."""

from __future__ import annotations

import pytest

from klamm.broker.handlers.api_002_list_offsets import ROUTE
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from klamm.protocol.records import Codec, Record, encode_batch
from klamm.storage.log import delete_records
from tests.support.data_path import ELSEWHERE, HERE, DataPath, opened
from tests.support.logs import batch

broker = pytest.fixture(opened)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
EARLIEST_PENDING_UPLOAD = -6


def ask(
    broker: DataPath,
    timestamp: int,
    *,
    version: int = 10,
    topic: str = "t",
    partition: int = 0,
    epoch: int = -1,
    node_id: int = HERE,
    times: int = 1,
) -> ListOffsetsResponse.ListOffsetsPartitionResponse:
    wanted = ListOffsetsRequest.ListOffsetsPartition(
        partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch
    )
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[wanted] * times)]
    )
    response = broker.ask(ROUTE, request, ListOffsetsResponse, version, node_id=node_id)
    return response.topics[0].partitions[-1]


def answer(broker: DataPath, timestamp: int, version: int = 10) -> tuple[int, int, int]:
    item = ask(broker, timestamp, version=version)
    assert item.error_code == 0
    return item.timestamp, item.offset, item.leader_epoch


@pytest.mark.parametrize("version", range(1, 11))
def test_both_ends_are_reported_in_every_version(broker: DataPath, version: int) -> None:
    broker.log().append(batch("a", "b", "c"))
    delete_records(broker.log(), 1)

    epoch = 0 if version >= 4 else -1
    assert answer(broker, LATEST, version) == (-1, 3, epoch)
    assert answer(broker, EARLIEST, version) == (-1, 1, epoch)


def test_empty_partition_has_both_ends_and_no_timestamp(broker: DataPath) -> None:
    assert answer(broker, LATEST) == (-1, 0, 0)
    assert answer(broker, EARLIEST) == (-1, 0, 0)
    assert answer(broker, MAX_TIMESTAMP) == (-1, -1, -1)
    assert answer(broker, 0) == (-1, -1, -1)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_first_record_with_timestamp_is_found_within_batch(broker: DataPath, codec: Codec) -> None:
    for start in (100, 200):
        records = [Record(b"k", b"v", (), start + 10 * offset, offset) for offset in range(3)]
        broker.log().append(memoryview(encode_batch(records, codec=codec)))

    assert answer(broker, 0) == (100, 0, 0)
    assert answer(broker, 100) == (100, 0, 0)
    assert answer(broker, 101) == (110, 1, 0)
    assert answer(broker, 121) == (200, 3, 0)
    assert answer(broker, 220) == (220, 5, 0)
    assert answer(broker, 221) == (-1, -1, -1)


def test_unordered_timestamps_are_found_across_segments(broker: DataPath) -> None:
    """KIP-734 for the largest."""
    broker.configs |= {"segment.bytes": "3000", "index.interval.bytes": "200"}
    times = [5_000 + (number * 7919) % 1000 for number in range(200)]
    for time in times:
        broker.log().append(batch("x", at=time))

    assert len(broker.log().segments) > 3
    for wanted in (5000, 5001, 5400, max(times)):
        offset = next(offset for offset, time in enumerate(times) if time >= wanted)
        assert answer(broker, wanted) == (times[offset], offset, 0)
    largest = max(times)
    assert answer(broker, MAX_TIMESTAMP) == (largest, times.index(largest), 0)


def test_deleted_records_are_not_found(broker: DataPath) -> None:
    for time in (10, 20, 30):
        broker.log().append(batch("x", at=time))
    delete_records(broker.log(), 2)

    assert answer(broker, 5) == (30, 2, 0)


def test_largest_timestamp_includes_deleted_records_of_remaining_segments(broker: DataPath) -> None:
    """As in Kafka's UnifiedLog.fetchOffsetByTimestamp."""
    for time in (10, 30, 20):
        broker.log().append(batch("x", at=time))
    delete_records(broker.log(), 2)
    assert answer(broker, MAX_TIMESTAMP) == (30, 1, 0)

    broker.log().roll()
    broker.log().append(batch("x", at=5))
    delete_records(broker.log(), 3)  # the first segment is removed
    assert answer(broker, MAX_TIMESTAMP) == (5, 3, 0)


def test_local_and_tiered_offsets_are_those_of_an_untiered_log(broker: DataPath) -> None:
    """KIP-405, KIP-1005, KIP-1023."""
    broker.log().append(batch("x"))

    assert answer(broker, EARLIEST_LOCAL) == (-1, 0, 0)
    assert answer(broker, LATEST_TIERED) == (-1, -1, -1)
    assert answer(broker, EARLIEST_PENDING_UPLOAD, 11) == (-1, -1, -1)


def test_record_without_timestamp_is_the_largest_of_its_kind(broker: DataPath) -> None:
    broker.log().append(batch("a", at=-1))

    assert answer(broker, MAX_TIMESTAMP) == (-1, 0, 0)


@pytest.mark.parametrize(
    ("timestamp", "since"), [(MAX_TIMESTAMP, 7), (EARLIEST_LOCAL, 8), (LATEST_TIERED, 9), (EARLIEST_PENDING_UPLOAD, 11)]
)
def test_special_timestamps_require_their_version(broker: DataPath, timestamp: int, since: int) -> None:
    assert ask(broker, timestamp, version=since - 1).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert ask(broker, timestamp, version=since).error_code == 0
    assert ask(broker, -7, version=11).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_leader_epoch_is_that_of_the_record(broker: DataPath) -> None:
    broker.log().append(batch("x", at=10))
    broker.log().leader_epoch = 4
    broker.log().append(batch("x", at=20))

    assert answer(broker, 10) == (10, 0, 0)
    assert answer(broker, 20) == (20, 1, 4)
    assert answer(broker, EARLIEST) == (-1, 0, 0)
    assert answer(broker, LATEST) == (-1, 2, 4)


def test_invalid_list_offsets_requests_are_rejected(broker: DataPath) -> None:
    assert ask(broker, LATEST, topic="other").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ask(broker, LATEST, partition=9).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ask(broker, LATEST, node_id=ELSEWHERE).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert ask(broker, LATEST, epoch=1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert ask(broker, LATEST, times=2).error_code == ErrorCode.INVALID_REQUEST
    assert (ask(broker, LATEST, partition=9).offset, ask(broker, LATEST, partition=9).timestamp) == (-1, -1)

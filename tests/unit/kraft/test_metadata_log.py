"""Reader of the metadata log: what it requests, and which records it replays."""

from __future__ import annotations

from uuid import UUID

import pytest

from klamm.kafka_client.errors import ConnectionLostError
from klamm.kraft.errors import ClusterActionDeniedError, WrongClusterError
from klamm.kraft.log_dirs import log_dir_of
from klamm.kraft.metadata_log import MetadataLogReader
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.messages.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from klamm.protocol.messages.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from tests.support.metadata_log import control_batch, log_batch

Data = FetchResponse.PartitionData


def topic(name: str) -> TopicRecord:
    return TopicRecord(name=name, topic_id=UUID(bytes=name.encode().ljust(16)))


def response(partition: Data, error_code: int = 0) -> FetchResponse:
    return FetchResponse(
        error_code=error_code, responses=[FetchResponse.FetchableTopicResponse(partitions=[partition])]
    )


def records(data: bytes, high_watermark: int) -> FetchResponse:
    return response(Data(records=data, high_watermark=high_watermark))


def piece(data: bytes, *, size: int, error_code: int = 0) -> FetchSnapshotResponse:
    partition = FetchSnapshotResponse.PartitionSnapshot(unaligned_records=data, size=size, error_code=error_code)
    return FetchSnapshotResponse(topics=[FetchSnapshotResponse.TopicSnapshot(partitions=[partition])])


def fetch(reader: MetadataLogReader) -> FetchRequest.FetchPartition:
    request = reader.request()
    assert isinstance(request, FetchRequest)
    return request.topics[0].partitions[0]


def names(reader: MetadataLogReader) -> set[str]:
    return set(reader.image.topic_ids)


@pytest.fixture
def reader() -> MetadataLogReader:
    return MetadataLogReader(9, "cluster", log_dir_of("cluster", 9))


def test_first_request_starts_at_offset_0(reader: MetadataLogReader) -> None:
    request = reader.request()
    assert isinstance(request, FetchRequest)
    assert (request.cluster_id, request.replica_id, request.replica_state.replica_id) == ("cluster", 9, 9)
    assert fetch(reader).replica_directory_id == log_dir_of("cluster", 9)
    assert (fetch(reader).fetch_offset, fetch(reader).last_fetched_epoch, fetch(reader).current_leader_epoch) == (
        0,
        0,
        0,
    )
    assert not reader.is_caught_up


def test_committed_records_are_replayed_and_the_next_fetch_continues(reader: MetadataLogReader) -> None:
    # when
    has_image = reader.receive(records(log_batch(0, topic("a"), topic("b"), epoch=3) + control_batch(2, epoch=4), 3))
    # then
    assert has_image
    assert (names(reader), reader.image.offset, reader.is_caught_up) == ({"a", "b"}, 2, True)
    assert (fetch(reader).fetch_offset, fetch(reader).last_fetched_epoch) == (3, 4)


def test_records_above_the_high_watermark_wait_until_they_are_committed(reader: MetadataLogReader) -> None:
    # when
    assert reader.receive(records(log_batch(0, topic("a")) + log_batch(1, topic("b")), 1))
    # then
    assert (names(reader), fetch(reader).fetch_offset, reader.image.offset) == ({"a"}, 2, 0)
    assert reader.receive(records(b"", 2))
    assert (names(reader), reader.image.offset) == ({"a", "b"}, 1)


def test_uncommitted_records_that_a_new_leader_lacks_are_dropped(reader: MetadataLogReader) -> None:
    # given
    reader.receive(records(log_batch(0, topic("a"), epoch=1) + log_batch(1, topic("lost"), epoch=1), 1))
    diverging = Data(diverging_epoch=FetchResponse.EpochEndOffset(epoch=1, end_offset=1), high_watermark=1)
    # when
    assert not reader.receive(response(diverging))
    # then
    assert (fetch(reader).fetch_offset, fetch(reader).last_fetched_epoch) == (1, 1)
    reader.receive(records(log_batch(1, topic("b"), epoch=2), 2))
    assert names(reader) == {"a", "b"}


def test_log_without_the_committed_records_is_of_another_cluster(reader: MetadataLogReader) -> None:
    reader.receive(records(log_batch(0, topic("a")), 1))
    diverging = Data(diverging_epoch=FetchResponse.EpochEndOffset(epoch=0, end_offset=0))
    with pytest.raises(WrongClusterError, match="lost committed records: it differs before offset 1"):
        reader.receive(response(diverging))


def test_request_with_an_old_leader_epoch_is_repeated_with_the_current_one(reader: MetadataLogReader) -> None:
    leader = FetchResponse.LeaderIdAndEpoch(leader_id=1, leader_epoch=7)
    reader.receive(records(log_batch(0, topic("a")), 1))
    assert reader.is_caught_up
    assert not reader.receive(response(Data(error_code=ErrorCode.FENCED_LEADER_EPOCH, current_leader=leader)))
    assert fetch(reader).current_leader_epoch == 7
    assert not reader.is_caught_up, "the response does not say what is committed"


def test_snapshot_is_read_in_pieces_and_the_fetch_continues_at_its_end(reader: MetadataLogReader) -> None:
    # given
    data = log_batch(0, topic("a")) + log_batch(1, topic("b")) + control_batch(2)
    snapshot = FetchResponse.SnapshotId(end_offset=100, epoch=4)
    # when
    assert not reader.receive(response(Data(snapshot_id=snapshot, high_watermark=120)))
    first = reader.request()
    assert isinstance(first, FetchSnapshotRequest)
    assert not reader.receive(piece(data[:50], size=len(data)))
    second = reader.request()
    assert isinstance(second, FetchSnapshotRequest)
    assert reader.receive(piece(data[50:], size=len(data)))
    # then
    wanted = first.topics[0].partitions[0]
    assert (wanted.snapshot_id.end_offset, wanted.snapshot_id.epoch, wanted.position) == (100, 4, 0)
    assert second.topics[0].partitions[0].position == 50
    assert (names(reader), reader.image.offset) == ({"a", "b"}, 99)
    assert (fetch(reader).fetch_offset, fetch(reader).last_fetched_epoch) == (100, 4)
    assert not reader.is_caught_up


def test_snapshot_replaces_the_image_but_keeps_the_offset_of_registrations(reader: MetadataLogReader) -> None:
    # given
    first = RegisterBrokerRecord(broker_id=1, broker_epoch=1, incarnation_id=UUID(int=1))
    second = RegisterBrokerRecord(broker_id=2, broker_epoch=1, incarnation_id=UUID(int=2))
    reader.receive(records(log_batch(0, topic("gone")) + log_batch(1, first) + log_batch(2, second), 3))
    later = RegisterBrokerRecord(broker_id=2, broker_epoch=50, incarnation_id=UUID(int=3))
    data = log_batch(0, first, later)
    # when
    reader.receive(response(Data(snapshot_id=FetchResponse.SnapshotId(end_offset=100, epoch=1))))
    reader.receive(piece(data, size=len(data)))
    # then
    assert names(reader) == set()
    assert {broker.node_id: broker.registered_at for broker in reader.image.brokers.values()} == {1: 1, 2: 99}


@pytest.mark.parametrize("code", [ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE])
def test_deleted_snapshot_is_looked_up_again(reader: MetadataLogReader, code: ErrorCode) -> None:
    reader.receive(response(Data(snapshot_id=FetchResponse.SnapshotId(end_offset=100, epoch=4))))
    assert not reader.receive(piece(b"", size=0, error_code=code))
    assert fetch(reader).fetch_offset == 0


def test_transaction_of_the_controller_is_replayed_when_it_ends(reader: MetadataLogReader) -> None:
    # given
    begin = log_batch(0, topic("a"), BeginTransactionRecord(), topic("b"))
    # when
    assert not reader.receive(records(begin, 3))
    assert (reader.image.offset, reader.is_caught_up) == (-1, True)
    assert reader.receive(records(log_batch(3, EndTransactionRecord(), topic("c")), 5))
    # then
    assert (names(reader), reader.image.offset) == ({"a", "b", "c"}, 4)


def test_aborted_transaction_of_the_controller_has_no_effect(reader: MetadataLogReader) -> None:
    reader.receive(records(log_batch(0, BeginTransactionRecord(), topic("a")), 2))
    reader.receive(records(log_batch(2, AbortTransactionRecord(reason="failover"), topic("b")), 4))
    assert names(reader) == {"b"}


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ClusterActionDeniedError),
        (ErrorCode.INCONSISTENT_CLUSTER_ID, WrongClusterError),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ConnectionLostError),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, ConnectionLostError),
    ],
)
def test_rejection_is_named(reader: MetadataLogReader, code: ErrorCode, error: type[Exception]) -> None:
    with pytest.raises(error):
        reader.receive(FetchResponse(error_code=code))
    with pytest.raises(error):
        reader.receive(response(Data(error_code=code)))

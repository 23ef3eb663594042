"""Partitions that are offline after a failed fsync, as APIs describe them, and as requests to them are answered."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest

from klamm.broker.handlers import (
    api_001_fetch,
    api_002_list_offsets,
    api_003_metadata,
    api_021_delete_records,
    api_023_offset_for_leader_epoch,
    api_035_describe_log_dirs,
    api_043_elect_leaders,
    api_061_describe_producers,
    api_075_describe_topic_partitions,
)
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from klamm.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from klamm.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from klamm.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from klamm.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from tests.support.data_path import HERE, DataPath, opened
from tests.support.logs import batch

broker = pytest.fixture(opened)


@pytest.fixture
def half(broker: DataPath) -> DataPath:
    """A topic of which partition 0 is online and partition 1 offline."""
    broker.start_epoch(4)
    broker.log("t", 1).append(batch("x"))
    broker.logs.take_offline(broker.log("t", 1), OSError(errno.EIO, "Input/output error"))
    broker.broker_configs["max.request.partition.size.limit"] = 2000
    broker.services.configs.describe = lambda *_, **__: [SimpleNamespace(value=str(broker.log().directory.parent))]
    broker.services.configs.cordoned_nodes = frozenset
    return broker


def test_metadata_reports_no_leader(half: DataPath) -> None:
    metadata = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="t")])

    (topic,) = half.ask(api_003_metadata.ROUTE, metadata, MetadataResponse, 12).topics

    online, offline = topic.partitions
    assert (topic.error_code, online.error_code, offline.error_code) == (0, 0, ErrorCode.LEADER_NOT_AVAILABLE)
    assert (online.leader_id, online.offline_replicas, online.leader_epoch) == (HERE, [], 4)
    assert (offline.leader_id, offline.offline_replicas, offline.leader_epoch) == (-1, [HERE], 4)
    assert (offline.replica_nodes, offline.isr_nodes) == ([HERE], [HERE])


def test_describe_topic_partitions_reports_no_leader(half: DataPath) -> None:
    description = DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsRequest.TopicRequest(name="t")], response_partition_limit=10
    )

    (topic,) = half.ask(api_075_describe_topic_partitions.ROUTE, description, DescribeTopicPartitionsResponse, 0).topics

    online, offline = topic.partitions
    assert (online.leader_id, online.offline_replicas) == (HERE, [])
    assert (offline.leader_id, offline.offline_replicas, offline.leader_epoch) == (-1, [HERE], 4)


def test_log_dir_with_offline_partition_has_an_error_and_lists_the_others(half: DataPath) -> None:
    wanted = DescribeLogDirsRequest.DescribableLogDirTopic(topic="t", partitions=[0, 1])

    (directory,) = half.ask(
        api_035_describe_log_dirs.ROUTE, DescribeLogDirsRequest(topics=[wanted]), DescribeLogDirsResponse, 4
    ).results

    assert directory.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert Path(directory.log_dir).is_dir()
    assert [partition.partition_index for partition in directory.topics[0].partitions] == [0]


@pytest.mark.parametrize("timestamp", [-1, -2, 0])
def test_list_offsets_is_rejected(half: DataPath, timestamp: int) -> None:
    wanted = ListOffsetsRequest.ListOffsetsPartition(partition_index=1, timestamp=timestamp)
    request = ListOffsetsRequest(topics=[ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[wanted])])

    (topic,) = half.ask(api_002_list_offsets.ROUTE, request, ListOffsetsResponse, 10).topics

    assert [item.error_code for item in topic.partitions] == [ErrorCode.KAFKA_STORAGE_ERROR]


def test_delete_records_is_rejected(half: DataPath) -> None:
    log = half.log("t", 1)
    wanted = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=1, offset=-1)
    request = DeleteRecordsRequest(topics=[DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[wanted])])

    (topic,) = half.ask(api_021_delete_records.ROUTE, request, DeleteRecordsResponse, 2).topics

    assert [item.error_code for item in topic.partitions] == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert (log.log_start_offset, log.end_offset) == (0, 1)


def test_offset_for_leader_epoch_is_rejected(half: DataPath) -> None:
    wanted = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=1, leader_epoch=0)
    request = OffsetForLeaderEpochRequest(
        topics=[OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic="t", partitions=[wanted])]
    )

    (topic,) = half.ask(api_023_offset_for_leader_epoch.ROUTE, request, OffsetForLeaderEpochResponse, 4).topics

    assert [item.error_code for item in topic.partitions] == [ErrorCode.KAFKA_STORAGE_ERROR]


@pytest.mark.parametrize("isolation_level", [0, 1])
def test_fetch_at_the_end_is_rejected(half: DataPath, isolation_level: int) -> None:
    wanted = FetchRequest.FetchPartition(partition=1, fetch_offset=1, partition_max_bytes=1000)
    request = FetchRequest(
        topics=[FetchRequest.FetchTopic(topic="t", partitions=[wanted])],
        max_wait_ms=0,
        min_bytes=1,
        isolation_level=isolation_level,
    )

    (topic,) = half.ask(api_001_fetch.ROUTE, request, FetchResponse, 12).responses

    assert [item.error_code for item in topic.partitions] == [ErrorCode.KAFKA_STORAGE_ERROR]


def test_describe_producers_is_rejected(half: DataPath) -> None:
    wanted = DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[1])

    (topic,) = half.ask(
        api_061_describe_producers.ROUTE, DescribeProducersRequest(topics=[wanted]), DescribeProducersResponse, 0
    ).topics

    assert [item.error_code for item in topic.partitions] == [ErrorCode.KAFKA_STORAGE_ERROR]


@pytest.mark.parametrize(
    ("election_type", "code"),
    [(0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE), (1, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)],
)
@pytest.mark.parametrize("names_partitions", [False, True])
def test_leader_election_finds_no_leader(
    half: DataPath, election_type: int, code: ErrorCode, names_partitions: bool
) -> None:
    """As in Kafka, partitions that need no election are left out if the request names none."""
    named = [ElectLeadersRequest.TopicPartitions(topic="t", partitions=[0, 1])]
    request = ElectLeadersRequest(election_type=election_type, topic_partitions=named if names_partitions else None)

    (topic,) = half.ask(api_043_elect_leaders.ROUTE, request, ElectLeadersResponse, 2).replica_election_results

    others = [(0, ErrorCode.ELECTION_NOT_NEEDED)] if names_partitions else []
    assert [(item.partition_id, item.error_code) for item in topic.partition_result] == [*others, (1, code)]

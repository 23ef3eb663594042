"""Partitions that are offline after a failed fsync, as the APIs that describe partitions return them."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest

from klamm.broker.handlers import api_003_metadata, api_035_describe_log_dirs, api_075_describe_topic_partitions
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from klamm.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.support.data_path import HERE, DataPath, opened

broker = pytest.fixture(opened)


@pytest.fixture
def half(broker: DataPath) -> DataPath:
    """A topic of which partition 0 is online and partition 1 offline."""
    broker.start_epoch(4)
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

"""DescribeLogDirs (KIP-113, KIP-827): sizes equal those of the files, for open and closed logs."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

import pytest

import klamm
from klamm.admin import AdminClient, LogDirDescription, NewTopic, ReplicaInfo, TopicPartition
from klamm.protocol.errors import ErrorCode, KafkaApiError
from klamm.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from klamm.protocol.records import Record, encode_batch
from tests.support.processes import wait_until
from tests.support.record_times import RECENT_MS
from tests.support.security import PASSWORDS, sasl_settings
from tests.support.wire import RejectedError, WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

TOPIC = "log-dirs"
WRITTEN, EMPTY = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
ON_BOTH = TopicPartition("log-dirs-both", 0)
RECORD = bytes(encode_batch([Record(None, b"x" * 1000, (), RECENT_MS)]))


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log-dirs")


@pytest.fixture(scope="module")
def broker(data_dir: Path) -> Iterator[klamm.Broker]:
    """Broker with two ids, each with a partition of its own, and one partition with a replica on both."""
    with klamm.Broker(data_dir=data_dir, brokers=2) as running:
        with AdminClient(running.bootstrap_servers) as admin:
            two = NewTopic(name=TOPIC, replicas_assignments={0: (1,), 1: (2,)})
            on_one = NewTopic(name=ON_BOTH.topic, replicas_assignments={0: (2, 1)})
            admin.create_topics([two, on_one]).all().result()
        with WireClient(running.bootstrap_servers.split(",")[0]) as client:
            client.produce(TOPIC, 0, RECORD)
            client.produce(TOPIC, 0, RECORD)
        yield running


def described(broker: klamm.Broker) -> Mapping[int, Mapping[str, LogDirDescription]]:
    with AdminClient(broker.bootstrap_servers) as admin:
        return admin.describe_log_dirs([1, 2]).all().result()


def test_log_dirs_report_replicas_per_broker_with_file_sizes(broker: klamm.Broker, data_dir: Path) -> None:
    # when
    dirs = described(broker)
    # then
    written = ReplicaInfo(size=2 * len(RECORD), offset_lag=0, is_future=False)
    empty = ReplicaInfo(size=0, offset_lag=0, is_future=False)
    (first,), (two,) = dirs[1].values(), dirs[2].values()
    assert list(dirs[1]) == list(dirs[2]) == [str(data_dir)]
    assert (first.error, dict(first.replicas)) == (None, {WRITTEN: written, ON_BOTH: empty})
    assert (two.error, dict(two.replicas)) == (None, {EMPTY: empty, ON_BOTH: empty})
    assert first.total_bytes == shutil.disk_usage(data_dir).total
    assert first.usable_bytes is not None
    assert 0 < first.usable_bytes < first.total_bytes
    on_disk = sum(path.stat().st_size for path in data_dir.glob(f"**/{TOPIC}-0/*.log"))
    assert on_disk == written.size


def test_log_size_is_reported_before_the_log_is_opened(broker: klamm.Broker, data_dir: Path) -> None:
    # given
    before = {node_id: dict(dirs[str(data_dir)].replicas) for node_id, dirs in described(broker).items()}
    # when
    broker.stop()
    broker.start()
    # then
    after = {node_id: dict(dirs[str(data_dir)].replicas) for node_id, dirs in described(broker).items()}
    assert after == before


@pytest.mark.parametrize("version", range(1, 5))
def test_requested_partitions_are_reported_once(broker: klamm.Broker, version: int) -> None:
    # given
    Topic = DescribeLogDirsRequest.DescribableLogDirTopic  # noqa: N806  # a class
    topics = [
        Topic(topic=TOPIC, partitions=[0, 7, 0, -1]),
        Topic(topic=TOPIC, partitions=[0]),
        Topic(topic="nothing", partitions=[0]),
    ]
    # when
    with WireClient(broker.bootstrap_servers.split(",")[0]) as client:
        answer = client.ask(DescribeLogDirsRequest(topics=topics), DescribeLogDirsResponse, version)
        empty = client.ask(DescribeLogDirsRequest(topics=[]), DescribeLogDirsResponse, version)
    # then
    (directory,) = answer.results
    assert [(t.name, [(p.partition_index, p.partition_size) for p in t.partitions]) for t in directory.topics] == [
        (TOPIC, [(0, 2 * len(RECORD))])
    ]
    assert (directory.total_bytes > 0) == (version >= 4)
    assert [result.topics for result in empty.results] == [[]]


def test_describe_log_dirs_without_cluster_describe_is_rejected() -> None:
    with (
        klamm.Broker(listen="SASL_PLAINTEXT://127.0.0.1:0", config=sasl_settings(authorizer=True)) as guarded,
        AdminClient(
            guarded.bootstrap_servers,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_plain_username="mallory",
            sasl_plain_password=PASSWORDS["mallory"],
        ) as admin,
    ):
        error = admin.describe_log_dirs([1]).values()[1].exception(60)
    assert isinstance(error, KafkaApiError)
    assert error.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def is_written(client: WireClient) -> bool:
    with contextlib.suppress(RejectedError):
        client.produce("log-dirs-size", 0, RECORD)
        return True
    return False


@pytest.mark.parametrize("against", ["klamm", "kafka"])
def test_log_size_of_a_record_matches_kafka(against: str, request: pytest.FixtureRequest) -> None:
    cluster = request.getfixturevalue({"klamm": "broker", "kafka": "real_kafka"}[against])
    address = cluster.bootstrap_servers.split(",")[0]
    with AdminClient(address) as admin:
        admin.create_topics([NewTopic(name="log-dirs-size", replicas_assignments={0: (1,)})]).all().result()
        with WireClient(address) as client:
            wait_until(lambda: is_written(client), timeout_s=30, what="the leader to know that it leads")
        (directory,) = admin.describe_log_dirs([1]).all().result()[1].values()
        assert directory.replicas[TopicPartition("log-dirs-size", 0)] == ReplicaInfo(
            size=len(RECORD), offset_lag=0, is_future=False
        )
        admin.delete_topics(["log-dirs-size"]).all().result()

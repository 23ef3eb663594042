"""Replica mode on Apache Kafka: klamm is a broker of the cluster, and its replicas hold the bytes of the source topics.

Source and target are the same cluster. Remote topics are created with klamm as the only replica, and a reassignment to
the real brokers stays in progress, so no other replica is in the ISR.
"""

from __future__ import annotations

import base64
import contextlib
import os
import pickle
import re
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as ConfluentPartition

from klamm.admin import ActiveProducer, AdminClient, NewPartitions, NewTopic, OffsetSpec, TopicPartition
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.cluster import Cluster
from klamm.kafka_client.errors import ConnectionLostError
from klamm.kraft.image import BrokerEndpoint
from klamm.kraft.observer import MetadataObserver
from klamm.mirror.copy.equal_offsets import ReplicaSettings
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.records.worker_offsets import mirrored_offsets
from klamm.mirror.replica import placement
from klamm.mirror.replica.copier import ReplicaCopier
from klamm.mirror.replica.fenced_brokers import fenced_brokers
from klamm.mirror.replica.remote_topics import ReplicaTopics
from klamm.mirror.replica.state import TopicStateStore
from klamm.mirror.replica.target_brokers import TargetBrokers
from klamm.mirror.replica.target_nodes import target_nodes
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.spark.worker import new_copier
from klamm.mirror.status.tail_reader import newest_timestamps
from klamm.mirror.status.verify import verify_flow
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.records import Codec, Record, TimestampType, encode_batch, iter_batches
from klamm.protocol.records.layout import LEADER_EPOCH_AT
from klamm.server.listeners import Address
from tests.support.copiers import copy_settings
from tests.support.equal_offsets import EqualFlow
from tests.support.kafka import KafkaCluster
from tests.support.mirror import create_topic, delete_records
from tests.support.processes import free_port, wait_until
from tests.support.transactional_clients import Confluent
from tests.support.wire import RejectedError, WireClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from klamm.kraft.image import ClusterImage
    from klamm.mirror.copy.settings import CopySettings
    from klamm.mirror.progress.partition_progress import PartitionProgress
    from klamm.mirror.settings.flow import FlowSettings

KLAMM, OTHER_KLAMM = 9, 10
TIME = 1_700_000_000_000
FOREVER = {"retention.ms": "-1"}
REMOTE_PREFIX = "to-"
COMPACTED = {"cleanup.policy": "compact", "segment.ms": "1000", "min.cleanable.dirty.ratio": "0.001"}


CLUSTERS = ((1, False), (3, False), (3, True)) if os.environ.get("KLAMM_SOAK") else ((1, False),)
"""Numbers of nodes, and whether another one is the controller."""


@pytest.fixture(scope="module", params=CLUSTERS)
def cluster(request: pytest.FixtureRequest, java: None) -> Iterator[KafkaCluster]:
    """A cluster that klamm joins. It has the topic of group offsets, which must not be placed on klamm."""
    nodes, with_controller = request.param
    configs = {"log.cleaner.backoff.ms": "200"}
    with KafkaCluster(nodes, configs, with_controller=with_controller) as running:
        consumer = Consumer({"bootstrap.servers": running.bootstrap_servers, "group.id": "none"})

        def has_coordinator() -> bool:
            try:
                consumer.committed([ConfluentPartition("none", 0)], timeout=60)
            except KafkaException:  # a new coordinator may not know yet that it is one
                return False
            return True

        wait_until(has_coordinator, timeout_s=60, what="the coordinator of a group")
        consumer.close()
        yield running


class Flow:
    """Source topics of one partition and the remote topics that klamm leads. The id of the flow before is reused."""

    def __init__(self, cluster: KafkaCluster, *configs: dict[str, str], node_id: int = KLAMM) -> None:
        self.cluster = cluster
        self.node_id = node_id
        cluster.unregister(node_id)
        self.source = cluster.bootstrap_servers
        self.alias = f"A{uuid4().hex[:8]}"
        self.topics = [f"{self.alias}-{number}" for number in range(len(configs or (FOREVER,)))]
        self.remote = [f"{REMOTE_PREFIX}{topic}" for topic in self.topics]
        self.port = free_port()
        self.may_lose = False
        for topic, own in zip(self.topics, configs or (FOREVER,), strict=True):
            create_topic(cluster.bootstrap_servers, topic, 1, own, replication=len(cluster.nodes))
        offsets_topic = f"mm2-offsets.{self.alias}.internal"
        create_topic(cluster.bootstrap_servers, offsets_topic, 1, {"cleanup.policy": "compact"}, len(cluster.nodes))

    @property
    def topic(self) -> str:
        return self.topics[0]

    @property
    def settings(self) -> CopySettings:
        servers = self.cluster.bootstrap_servers
        endpoint = BrokerEndpoint(name="PLAINTEXT", host="127.0.0.1", port=self.port, security_protocol="PLAINTEXT")
        controllers = tuple(self.cluster.bootstrap_controllers.split(","))
        return replace(
            copy_settings(self.source, servers, alias=self.alias),
            read_committed=False,
            join_up_to=0,
            continue_after_loss=self.may_lose,
            replica=ReplicaSettings(
                node_id=self.node_id,
                controllers=ConnectionSettings(bootstrap_servers=controllers, client_id="klamm"),
                listeners=(endpoint,),
                bind=(Address(host="127.0.0.1", port=self.port),),
            ),
        )

    @property
    def properties(self) -> FlowSettings:
        """Settings of a file with this flow."""
        servers = self.cluster.bootstrap_servers
        file = {
            "clusters": f"{self.alias}, B",
            f"{self.alias}.bootstrap.servers": servers,
            "B.bootstrap.servers": servers,
            "B.bootstrap.controllers": self.cluster.bootstrap_controllers,
            f"{self.alias}->B.enabled": "true",
            "topics": ", ".join(self.topics),
            "klamm.offsets": "preserve",
            "klamm.offsets.by": "replica",
            "klamm.replica.experimental": "true",
            "klamm.replica.node.id": str(self.node_id),
            "klamm.replica.listeners": f"127.0.0.1:{self.port}",
        }
        (settings,) = parse_settings(file).flows
        return settings

    @property
    def partitions(self) -> list[PartitionId]:
        return [PartitionId(topic, 0, remote) for topic, remote in zip(self.topics, self.remote, strict=True)]

    def create_remote(self) -> None:
        """Create the remote topics in the safe form. klamm must be registered."""
        configs = {"retention.ms": "-1", "unclean.leader.election.enable": "false"}
        new = [NewTopic(name=name, replicas_assignments={0: (self.node_id,)}, configs=configs) for name in self.remote]
        with AdminClient(self.cluster.bootstrap_servers) as admin:
            admin.create_topics(new).all().result(300)
            real = sorted(self.cluster.nodes)
            admin.alter_partition_reassignments({TopicPartition(name, 0): real for name in self.remote}).all().result(
                30
            )

    def produce(self, *counts: int, topic: str = "", codec: Codec = Codec.NONE) -> None:
        """Append batches to a topic, the source unless another is named, as soon as it has a leader."""
        topic = topic or self.topic
        batches = [
            encode_batch([Record(b"k%d" % at, b"v" * 50, (), TIME, at) for at in range(count)], codec=codec)
            for count in counts
        ]

        def are_appended() -> bool:
            try:
                with WireClient(self.leader_of(topic)) as client:
                    while batches:
                        client.produce(topic, 0, batches[0])
                        del batches[0]
            except (ConnectionRefusedError, KeyError):  # the leader has ended, or there is none
                return False
            except RejectedError as error:  # the leader that the metadata name does not know yet that it is one
                if error.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    raise
                return False
            return True

        wait_until(are_appended, timeout_s=300, what=f"a leader of {topic}")

    def leader_of(self, topic: str) -> str:
        with AdminClient(self.cluster.bootstrap_servers) as admin:
            leader = admin.describe_topics([topic]).all().result(300)[topic].partitions[0].leader
        node = self.cluster.nodes[leader]
        return f"{node.host}:{node.port}"

    def end_of(self, topic: str) -> int:
        with WireClient(self.leader_of(topic)) as client:
            return client.end_offset(topic, 0)

    def stored(self, topic: str, node_id: int) -> list[bytes]:
        """Return the batches in the segments of a replica."""
        directory = self.cluster.nodes[node_id].directory / "data" / f"{topic}-0"
        while True:
            try:
                data = b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))
                break
            except FileNotFoundError:  # compaction has replaced a segment since they were listed
                continue
        return [bytes(batch.buffer) for batch in iter_batches(data, allow_partial_tail=True)]

    def log_files(self, topic: str, node_id: int) -> set[int]:
        """Return the inodes of the segments of a replica."""
        directory = self.cluster.nodes[node_id].directory / "data" / f"{topic}-0"
        return {path.stat().st_ino for path in directory.glob("*.log")}

    def assert_equal(self) -> None:
        """Compare the segments of all replicas with those of the source's leader."""
        for topic, remote in zip(self.topics, self.remote, strict=True):
            expected = self.stored(topic, 1)
            for node_id in self.cluster.nodes:
                assert self.stored(remote, node_id) == expected, (topic, node_id)


class Running:
    """A copier in a thread."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.copier = new_copier(flow.settings, flow.partitions)
        self.ended = threading.Event()
        self.rows: list[PartitionProgress] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self.copier.run(self.ended.is_set, self._note)

    def _note(self) -> None:
        self.rows = list(self.copier.progress())

    def start(self) -> None:
        self._thread.start()

    def wait(self, condition: Callable[[list[PartitionProgress]], bool], what: str) -> None:
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: bool(self.rows) and condition(self.rows), timeout_s=40, what=what)
        assert condition(self.rows), self.rows

    def wait_for_replicas(self) -> None:
        """Wait until all replicas have the sources' records."""
        ends = {topic: self.flow.end_of(topic) for topic in self.flow.topics}
        self.wait(lambda rows: all(row.next_offset >= ends[row.topic] for row in rows), f"{ends}")

    def close(self) -> None:
        self.ended.set()
        self._thread.join(60)
        self.copier.close()


@contextlib.contextmanager
def running(flow: Flow, *, is_new: bool = True) -> Iterator[Running]:
    copier = Running(flow)
    copier.copier.node.start()  # type: ignore[attr-defined] # the copier of this mode
    if is_new:
        flow.create_remote()
    copier.start()
    try:
        yield copier
    finally:
        copier.close()


def test_replicas_hold_the_bytes_of_each_codec_and_of_transactions(cluster: KafkaCluster) -> None:
    flow = Flow(cluster, FOREVER, FOREVER)
    for codec in Codec:
        flow.produce(3, 20, codec=codec)
    with Confluent(cluster.bootstrap_servers, flow.topics[1]) as producer:
        for end_transaction in (producer.commit, producer.abort, producer.commit):
            producer.begin()
            producer.send(flow.topics[1], "v")
            end_transaction()

    with running(flow) as copier:
        copier.wait_for_replicas()
        flow.produce(5, 7)
        copier.wait_for_replicas()

    flow.assert_equal()


def test_replicas_are_verified_and_sampled_before_the_promotion(cluster: KafkaCluster) -> None:
    """klamm leads the partition and has no records: klamm's own readers read a replica, too."""
    # given
    flow = Flow(cluster)
    flow.remote = [flow.properties.remote_topic(flow.topic)]
    flow.produce(3, 20)
    remote = TopicPartition(flow.remote[0], 0)
    with running(flow) as copier, AdminClient(cluster.bootstrap_servers) as admin:
        copier.wait_for_replicas()
        wait_until(
            lambda: mirrored_offsets(flow.properties) == {(flow.topic, 0): 22}, timeout_s=30, what="the source offset"
        )
        # when
        (verdict,) = verify_flow(flow.properties)
        batches = admin.fetch_batches({remote: 0}, max_bytes=1 << 20, partition_max_bytes=1 << 20).result(30)
        with Cluster.connected(flow.settings.target, flow.remote) as target:
            newest = newest_timestamps(target, {(remote.topic, 0): 23}, budget_s=30.0)
    # then
    assert (verdict.problem, verdict.mirrored, verdict.lag) == ("", 23, 0)
    assert verdict.findings is not None
    assert (verdict.findings.same, verdict.findings.missing, verdict.findings.surplus) == (23, 0, 0)
    assert [batch.record_count for batch in iter_batches(batches[remote])] == [3, 20]
    assert newest == ({remote.topic: TIME}, True)


def end_segments(flow: Flow) -> None:
    """Let compaction take what was written: records with so much newer timestamps end the segment."""
    with WireClient(flow.leader_of(flow.topic)) as client:
        for number in (1, 2):
            newer = time.time_ns() // 1_000_000 + 10_000 * number
            client.produce(flow.topic, 0, encode_batch([Record(b"n%d" % number, b"v", (), newer, 0)]))


@pytest.mark.long
def test_replicas_hold_the_holes_of_compaction(cluster: KafkaCluster) -> None:
    flow = Flow(cluster, COMPACTED)
    flow.produce(6, 3, 5)
    end_segments(flow)
    wait_until(
        lambda: len(flow.stored(flow.topic, 1)) < 5 or any(map(_has_hole, flow.stored(flow.topic, 1))),
        timeout_s=60,
        what="compaction",
    )

    with running(flow) as copier:
        copier.wait_for_replicas()

    flow.assert_equal()


def test_replicas_hold_log_append_times_tombstones_and_headers(cluster: KafkaCluster) -> None:
    flow = Flow(cluster, {**FOREVER, "message.timestamp.type": "LogAppendTime"})
    records = [Record(b"k", None, (("h", b"v"), ("none", None)), TIME, 0), Record(None, b"v", (), TIME, 1)]
    with WireClient(flow.leader_of(flow.topic)) as client:
        for codec in (Codec.NONE, Codec.ZSTD):
            client.produce(flow.topic, 0, encode_batch(records, codec=codec))

    with running(flow) as copier:
        copier.wait_for_replicas()

    flow.assert_equal()
    assert all(
        next(iter_batches(data)).timestamp_type is TimestampType.LOG_APPEND_TIME
        for data in flow.stored(flow.remote[0], 1)
    )


@pytest.mark.long
def test_replicas_hold_the_empty_batch_that_compaction_leaves_of_a_producer(cluster: KafkaCluster) -> None:
    flow = Flow(cluster, COMPACTED)
    _send(cluster.bootstrap_servers, flow.topic, b"first", key=b"k0")
    flow.produce(1)
    end_segments(flow)
    wait_until(lambda: _counts(flow.stored(flow.topic, 1))[0] == 0, timeout_s=60, what="compaction")

    with running(flow) as copier:
        copier.wait_for_replicas()

    flow.assert_equal()
    assert _counts(flow.stored(flow.remote[0], 1))[0] == 0


@pytest.mark.long
def test_replicas_hold_messages_of_an_old_format(cluster: KafkaCluster) -> None:
    """Brokers keep those that were written before Kafka 0.11. By replay, their records have their offsets, too."""
    flow, replayed = Flow(cluster), EqualFlow(cluster.bootstrap_servers, cluster.bootstrap_servers)
    topics = flow.topic, replayed.topic
    for topic in topics:
        flow.produce(1, topic=topic)
    body = struct.pack(">bbqii", 1, Codec.NONE, TIME, -1, 1) + b"v"
    old = struct.pack(">qiI", 0, len(body) + 4, zlib.crc32(body)) + body
    for node in cluster.nodes.values():
        node.kill()
        directories = [node.directory / "data" / f"{topic}-0" for topic in topics]
        for directory in filter(Path.exists, directories):
            for path in directory.glob(f"{0:020d}.*"):
                path.unlink()
            (directory / f"{0:020d}.log").write_bytes(old)
    for node in cluster.nodes.values():
        node.launch()
    cluster.wait_ready()

    def is_led() -> bool:
        try:
            return all(flow.end_of(topic) >= 0 for topic in topics)
        except (RejectedError, KeyError):  # the leader that the metadata name does not know it yet, or there is none
            return False

    wait_until(is_led, timeout_s=60, what="the leader of the source")
    for topic in topics:
        flow.produce(2, topic=topic)

    with running(flow) as copier:
        copier.wait_for_replicas()
    replayed.copy()

    flow.assert_equal()
    assert flow.stored(flow.remote[0], 1)[0] == old
    assert replayed.assert_equal()[0] == (TIME, None, b"v", ())


def _counts(batches: list[bytes]) -> list[int]:
    return [next(iter_batches(data)).record_count for data in batches]


def _has_hole(data: bytes) -> bool:
    (batch,) = iter_batches(data)
    return batch.record_count < batch.last_offset_delta + 1


@pytest.mark.long
def test_replicas_of_a_purged_source_start_at_its_log_start(cluster: KafkaCluster) -> None:
    flow = Flow(cluster)
    flow.produce(*[10] * 9)
    delete_records(cluster.bootstrap_servers, flow.topic, 0, before=55)

    with running(flow) as copier:
        copier.wait_for_replicas()

    expected = flow.stored(flow.topic, 1)[5:]
    for node_id in cluster.nodes:
        assert flow.stored(flow.remote[0], node_id) == expected


@pytest.mark.long
def test_i1_empty_source_halts_and_no_byte_leaves_the_replicas(cluster: KafkaCluster) -> None:
    flow, wrong = Flow(cluster), Flow(cluster)
    flow.produce(5, 5)
    with running(flow) as copier:
        copier.wait_for_replicas()
    before = {node_id: flow.stored(flow.remote[0], node_id) for node_id in cluster.nodes}
    wrong.alias, wrong.remote = flow.alias, flow.remote
    wrong.produce(1)

    with running(wrong, is_new=False) as copier:
        copier.wait(lambda rows: rows[0].state is CopyState.STOPPED, "a stop")
        (row,) = copier.rows

    assert "ends at offset 10, but the source ends at offset 1" in row.reason
    assert {node_id: flow.stored(flow.remote[0], node_id) for node_id in cluster.nodes} == before


@pytest.mark.long
def test_remote_topic_is_read_after_a_restart_without_the_source(cluster: KafkaCluster) -> None:
    flow = Flow(cluster)
    flow.produce(5, 5)
    with running(flow) as copier:
        copier.wait_for_replicas()
    before = {node_id: flow.stored(flow.remote[0], node_id) for node_id in cluster.nodes}
    flow.source = f"127.0.0.1:{free_port()}"

    with running(flow, is_new=False) as copier:
        copier.wait(lambda rows: flow.source in rows[0].reason, "the loss of the source")
        records = _consume(cluster.bootstrap_servers, flow.remote[0], "read_uncommitted")

    assert [offset for offset, _ in records] == list(range(10))
    assert {node_id: flow.stored(flow.remote[0], node_id) for node_id in cluster.nodes} == before


@pytest.mark.long
def test_topic_of_others_on_klamm_is_moved_to_its_other_brokers(cluster: KafkaCluster) -> None:
    flow = Flow(cluster)
    name = f"other-{flow.alias}"
    # given: a topic of the flow is missing, so klamm accepts partitions
    with running(flow, is_new=False), AdminClient(cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name=name, replicas_assignments={0: (KLAMM, 1)})]).all().result(300)
        topics = ReplicaTopics(flow.properties, admin, KLAMM)
        reasons: dict[str, str] = {}

        def is_reported() -> bool:  # the broker follows its controller
            reasons.update(topics.misplaced(flow.remote))
            return name in reasons

        # when
        wait_until(is_reported, timeout_s=300, what="the new topic in the metadata")
        # then
        assert "they are moved away" in reasons[name]

        def is_moved() -> bool:
            (topic,) = admin.describe_topics([name]).all().result(300).values()
            return (topic.partitions[0].replicas, topic.partitions[0].leader) == ((1,), 1)

        wait_until(is_moved, timeout_s=30, what="the other replica alone")
        _send(cluster.bootstrap_servers, name, b"v")


@pytest.mark.long
def test_halted_partition_goes_on_after_a_restart_by_an_operator(cluster: KafkaCluster) -> None:
    flow = Flow(cluster)
    flow.produce(5, 5)
    with running(flow) as copier:
        copier.wait_for_replicas()
        assert isinstance(copier.copier, ReplicaCopier)
        node = copier.copier.node
        leader = node.partition(flow.remote[0], 0)
        assert leader is not None
        node.call(leader.halt, "halted by the test")
        copier.wait(lambda rows: rows[0].state is CopyState.STOPPED, "a stop")
        flow.produce(3)

        copier.copier.restarts = {flow.topic: 1}
        copier.wait_for_replicas()

    flow.assert_equal()


def test_i2_added_partitions_are_in_sync_on_klamm_alone(cluster: KafkaCluster) -> None:
    flow = Flow(cluster)
    flow.produce(5)
    replica, (remote,), real = flow.settings.replica, flow.remote, sorted(cluster.nodes)
    assert replica is not None
    new = [TopicPartition(remote, number) for number in (1, 2)]
    with running(flow) as copier, AdminClient(cluster.bootstrap_servers) as admin:
        copier.wait_for_replicas()
        assert isinstance(copier.copier, ReplicaCopier)
        member = copier.copier.node.member
        assert member is not None
        copier.copier.node.assign([(remote, number) for number in range(3)])

        def rejection() -> str:
            alone = {remote: NewPartitions(3, ((KLAMM,),) * 2)}
            return str(admin.create_partitions(alone).values()[remote].exception(30))

        wait_until(lambda: "cordoned" not in rejection(), timeout_s=30, what="the end of the cordon")
        assert "not consistent with previous partitions" in rejection()
        with (
            Cluster.connected(flow.settings.target) as target,
            fenced_brokers(replica, target, len(real)) as fenced,
        ):
            assert placement.add(admin, {remote: range(1, 3)}, {remote: (KLAMM, *fenced)}) == {remote: None}
            placement.let_be_alone(admin, new, KLAMM)
        nodes = [node for node in admin.describe_cluster().result(300).nodes if node.id != KLAMM]
        assert set(placement.spread(admin, new, nodes, len(real)).values()) == {None}

        def is_spread(image: ClusterImage) -> bool:
            partitions = image.topics[image.topic_ids[remote]].partitions
            return len(partitions) == 3 and all(set(each.replicas) == {KLAMM, *real} for each in partitions.values())

        image = member.observer.wait_for(is_spread, 30)
    for partition in image.topics[image.topic_ids[remote]].partitions.values():
        assert (partition.leader, partition.isr, partition.removing) == (KLAMM, (KLAMM,), (KLAMM,))
    assert image.brokers.keys() == {KLAMM, *real}


SERVE = """
import base64, pickle, sys
from klamm.mirror.spark.worker import new_copier
settings, partitions = pickle.loads(base64.b64decode(sys.argv[1]))
new_copier(settings, partitions).run(lambda: False)
"""


@contextlib.contextmanager
def killed_process(flow: Flow) -> Iterator[None]:
    """Run a copier in a process of its own, which is killed at the end."""
    work = base64.b64encode(pickle.dumps((flow.settings, flow.partitions))).decode()
    process = subprocess.Popen([sys.executable, "-c", SERVE, work])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.long
def test_killed_klamm_returns_and_goes_on(cluster: KafkaCluster) -> None:
    flow = Flow(cluster)
    flow.produce(5, 5)
    with running(flow) as copier:
        copier.wait_for_replicas()
    for number in range(1, 3):
        with killed_process(flow):
            flow.produce(*[number] * 4)
            end = flow.end_of(flow.topic)
            wait_until(lambda end=end: _end_of_log(flow) == end, timeout_s=60, what="the replicas")  # type: ignore[misc]
    flow.produce(7)

    with running(flow, is_new=False) as copier:
        copier.wait_for_replicas()

    flow.assert_equal()


def _end_of_log(flow: Flow) -> int:
    ends = []
    for node_id in flow.cluster.nodes:
        batches = flow.stored(flow.remote[0], node_id)
        ends.append(next(iter_batches(batches[-1])).last_offset + 1 if batches else 0)
    return min(ends)


@pytest.mark.long
def test_restarted_broker_catches_up_and_the_source_goes_on_with_a_higher_epoch(cluster: KafkaCluster) -> None:
    flow = Flow(cluster)
    flow.produce(5, 5)
    with running(flow) as copier:
        copier.wait_for_replicas()
        cluster.restart(1, kill=True)
        for number in range(3):
            _send(cluster.bootstrap_servers, flow.topic, b"%d" % number)
        copier.wait_for_replicas()

    flow.assert_equal()
    epochs = [next(iter_batches(data)).partition_leader_epoch for data in flow.stored(flow.remote[0], 1)]
    assert epochs == sorted(epochs)
    assert epochs[-1] > epochs[0]


def test_promoted_topic_is_written_by_new_producers_and_klamm_leaves_no_trace(cluster: KafkaCluster) -> None:
    servers = cluster.bootstrap_servers
    with AdminClient(servers) as admin:  # klamm still leads those of other flows
        others = [name for name in admin.list_topics().result() if re.match(rf"{REMOTE_PREFIX}|A\w+\.", name)]
        admin.delete_topics(others).all().result()
    flow = Flow(cluster)
    flow.produce(3, 5)
    with Confluent(servers, f"done-{flow.alias}") as producer:
        producer.begin()
        producer.send(flow.topic, "committed")
        producer.commit()
    remote = TopicPartition(flow.remote[0], 0)
    with Confluent(servers, f"open-{flow.alias}") as left_open, AdminClient(servers) as admin:
        with running(flow) as copier:
            left_open.begin()
            left_open.send(flow.topic, "open")
            flow.produce(2)
            copier.wait_for_replicas()
            sealed_end = flow.end_of(flow.topic)
            source = TopicPartition(flow.topic, 0)

            def stable_end(partition: TopicPartition) -> int:
                ends = admin.list_offsets({partition: OffsetSpec.LATEST}, read_committed=True)
                return ends.all().result()[partition].offset

            wait_until(
                lambda: stable_end(remote) == stable_end(source) < sealed_end,
                timeout_s=30,
                what="the last stable offset of a replica",
            )
            # when
            copier.copier.promoted = {flow.topic: "PROMOTED"}
            copier.wait(lambda rows: rows[0].state is CopyState.PROMOTED, "the promotion")
            # then
            (row,) = copier.rows
            assert row.next_offset == sealed_end
            report = re.search(r"; 1 open transaction aborted, .*, new producer ids from (\d+); (.*)$", row.reason)
            assert report is not None, row.reason
            # the source is the same cluster here
            assert f"producer ids are in the log: done-{flow.alias}, open-{flow.alias}. A restart" in report[2]
            of_source = admin.describe_producers([TopicPartition(flow.topic, 0)]).all().result()
            assert int(report[1]) > max(each.producer_id for each in of_source[TopicPartition(flow.topic, 0)])
            (topic,) = admin.describe_topics(flow.remote).all().result().values()
            assert set(topic.partitions[0].isr) == set(topic.partitions[0].replicas) == set(cluster.nodes)
            of_target = admin.describe_producers([remote]).all().result()[remote]
            assert [each.transaction_start_offset for each in of_target] == [None] * 2
        # when the flow is stopped
        assert traces(flow, admin) == []
        left_open.abort()
    for isolation in ("read_uncommitted", "read_committed"):
        expected = [each for each in _consume(servers, flow.topic, isolation) if each[0] < sealed_end]
        assert _consume(servers, remote.topic, isolation) == expected
        assert expected
    _send(servers, remote.topic, b"idempotent")
    with Confluent(servers, f"new-{flow.alias}") as producer:
        producer.begin()
        producer.send(remote.topic, "transactional")
        producer.commit()
    values = [value for _, value in _consume(servers, remote.topic, "read_committed")]
    assert values[-2:] == [b"idempotent", b"transactional"]


def traces(flow: Flow, admin: AdminClient) -> list[object]:
    """Return what the target knows of klamm: its registration, also a fenced one, replicas, and its stored state."""
    settings = flow.settings
    store = TopicStateStore(
        settings.target, topic=settings.source_offsets_topic, source_alias=flow.alias, node_id=flow.node_id
    )
    controllers = tuple(flow.cluster.bootstrap_controllers.split(","))
    observer = MetadataObserver(ConnectionSettings(bootstrap_servers=controllers, client_id="klamm"))
    with contextlib.closing(observer):
        observer.start()
        image = observer.wait_until_caught_up(30)
    replicas = [
        (topic.name, index)
        for topic in image.topics.values()
        for index, partition in topic.partitions.items()
        if flow.node_id in partition.replicas
    ]
    return [each for each in (image.brokers.get(flow.node_id), store.load(), *replicas) if each is not None]


def test_flows_of_one_target_know_each_other_as_brokers_without_storage(cluster: KafkaCluster) -> None:
    flow, other = Flow(cluster), Flow(cluster, node_id=OTHER_KLAMM)
    for each in (flow, other):
        each.produce(3, 5)
    with running(flow) as copier, AdminClient(cluster.bootstrap_servers) as admin:
        with running(other) as copier_of_other:
            copier.wait_for_replicas()
            copier_of_other.wait_for_replicas()
            # then
            for each in (flow, other):
                with Cluster.connected(each.settings.target) as target:
                    assert target.node_ids >= {KLAMM, OTHER_KLAMM}
                    nodes = target_nodes(target)
                assert (nodes.brokers, set(nodes.klamms)) == (frozenset(cluster.nodes), {KLAMM, OTHER_KLAMM})
                topics = ReplicaTopics(each.properties, admin, each.node_id)
                assert {node.id for node in topics._brokers()} == cluster.nodes.keys()
                with WireClient(f"127.0.0.1:{each.port}") as client:  # which passes it on to a broker
                    assert client.ask(MetadataRequest(), MetadataResponse, 9).cluster_id == cluster.cluster_id
            assert ReplicaTopics(flow.properties, admin, KLAMM).led_by_other_flows([*flow.remote, *other.remote]) == {
                other.remote[0]: OTHER_KLAMM
            }
            image = image_of(copier)
            assert {each.node_id for each in image.live_brokers} == cluster.nodes.keys()
            assert image.brokers[KLAMM].features == image.brokers[OTHER_KLAMM].features == image.brokers[1].features
            # when
            promote(other, copier_of_other)
            flow.produce(2)
            copier.wait_for_replicas()
            demote(other, copier_of_other)
            other.produce(2)
            copier_of_other.wait_for_replicas()
            promote(other, copier_of_other)
        # then
        assert traces(other, admin) == []
        _send(cluster.bootstrap_servers, other.remote[0], b"v")
        before = replicas_of(copier, flow)
        flow.produce(1)
        copier.wait_for_replicas()
        assert replicas_of(copier, flow) == before
    flow.assert_equal()


def image_of(copier: Running) -> ClusterImage:
    """Return the metadata of the target that a copier follows."""
    assert isinstance(copier.copier, ReplicaCopier)
    assert copier.copier.node.member is not None
    return copier.copier.node.member.observer.image


def key_of(copier: Running, flow: Flow) -> tuple[UUID, int]:
    """Return topic id and partition number of the remote topic of a flow."""
    return image_of(copier).topic_ids[flow.remote[0]], 0


def replicas_of(copier: Running, flow: Flow) -> tuple[tuple[int, ...], ...]:
    """Return the replicas of the remote topic of a flow, those that are added and those that are removed."""
    partition = image_of(copier).partition(*key_of(copier, flow))
    assert partition is not None
    return partition.replicas, partition.adding, partition.removing


def _away(*_: object) -> None:
    raise ConnectionLostError("broker 1 does not respond")


@pytest.mark.long
def test_next_process_ends_the_transactions_of_a_promotion_that_was_interrupted(
    cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers, flow = cluster.bootstrap_servers, Flow(cluster)
    flow.produce(3)
    remote = TopicPartition(flow.remote[0], 0)
    with Confluent(servers, f"open-{flow.alias}") as left_open, AdminClient(servers) as admin:
        left_open.begin()
        left_open.send(flow.topic, "open")
        with monkeypatch.context() as patch:
            patch.setattr(TargetBrokers, "abort", _away)
            with running(flow) as copier:
                copier.wait_for_replicas()
                copier.copier.promoted = {flow.topic: "PROMOTED"}
                copier.wait(lambda rows: "broker 1 does not respond" in rows[0].reason, "the failure")
        assert [each.transaction_start_offset for each in _producers(admin, remote)] == [3]
        with running(flow, is_new=False) as copier:
            copier.copier.promoted = {flow.topic: "PROMOTED"}
            copier.wait(lambda rows: rows[0].state is CopyState.PROMOTED, "the promotion")
            (row,) = copier.rows
        assert row.next_offset == 4
        assert row.reason.startswith("handed over by an earlier process; 1 open transaction aborted")
        assert [each.transaction_start_offset for each in _producers(admin, remote)] == [None]


def _producers(admin: AdminClient, partition: TopicPartition) -> tuple[ActiveProducer, ...]:
    return admin.describe_producers([partition]).all().result()[partition]


@pytest.mark.long
def test_topic_whose_promotion_is_withdrawn_is_mirrored_again(
    cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Flow(cluster)
    flow.produce(3)
    monkeypatch.setattr(TargetBrokers, "producers", _away)
    with running(flow) as copier:
        copier.wait_for_replicas()
        copier.copier.promoted = {flow.topic: "PROMOTED"}
        copier.wait(lambda rows: "not promoted yet: broker 1 does not respond" in rows[0].reason, "the failure")
        flow.produce(2)
        copier.copier.promoted = {}
        copier.wait_for_replicas()

    flow.assert_equal()


def promote(flow: Flow, copier: Running) -> None:
    """Let the brokers lead the remote topic."""
    copier.copier.demoted = frozenset()
    copier.copier.promoted = {flow.topic: "PROMOTED"}
    copier.wait(lambda rows: rows[0].state is CopyState.PROMOTED, "the promotion")


def demote(flow: Flow, copier: Running) -> None:
    """Let klamm lead the remote topic again."""
    copier.copier.promoted = {}
    copier.copier.demoted = frozenset({flow.topic})


def without_epochs(batches: list[bytes]) -> list[bytes]:
    """Return batches with leader epoch 0. The checksum does not cover it."""
    return [each[:LEADER_EPOCH_AT] + bytes(4) + each[LEADER_EPOCH_AT + 4 :] for each in batches]


def test_promoted_topic_is_taken_back_with_its_records_and_mirrored_on(cluster: KafkaCluster) -> None:
    servers, flow = cluster.bootstrap_servers, Flow(cluster)
    flow.produce(3, 5)
    with running(flow) as copier:
        copier.wait_for_replicas()
        files = {node: flow.log_files(flow.remote[0], node) for node in cluster.nodes}
        promote(flow, copier)
        assert [offset for offset, _ in _consume(servers, flow.remote[0], "read_committed")] == list(range(8))
        # when
        demote(flow, copier)
        flow.produce(2)
        copier.wait_for_replicas()
        # then: the replicas kept their logs, and hold the batches with the epoch of klamm
        assert {node: flow.log_files(flow.remote[0], node) for node in cluster.nodes} == files
        for node in cluster.nodes:
            batches = flow.stored(flow.remote[0], node)
            epochs = [next(iter_batches(each)).partition_leader_epoch for each in batches]
            assert batches[:2] == flow.stored(flow.topic, 1)[:2]
            assert without_epochs(batches) == without_epochs(flow.stored(flow.topic, 1))
            assert epochs[2] > epochs[1]


@pytest.mark.long
def test_leader_epochs_of_a_topic_that_was_taken_back_are_known_to_another_process(cluster: KafkaCluster) -> None:
    servers, flow = cluster.bootstrap_servers, Flow(cluster)
    flow.produce(3, 5)
    with running(flow) as copier:
        copier.wait_for_replicas()
        promote(flow, copier)
        demote(flow, copier)
        flow.produce(2)
        copier.wait_for_replicas()
    flow.produce(4)
    with running(flow, is_new=False) as copier:
        copier.wait_for_replicas()
        promote(flow, copier)
        demote(flow, copier)
        flow.produce(1)
        copier.wait_for_replicas()
        promote(flow, copier)
    _send(servers, flow.remote[0], b"after")
    assert len({tuple(flow.stored(flow.remote[0], node)) for node in cluster.nodes}) == 1
    records = _consume(servers, flow.remote[0], "read_committed")
    assert records == [*_consume(servers, flow.topic, "read_committed"), (15, b"after")]


DIE_AFTER = """
import base64, os, pickle, signal, sys
from klamm.mirror.replica.demotion import Demotion
from klamm.mirror.spark.worker import new_copier
settings, partitions = pickle.loads(base64.b64decode(sys.argv[1]))
step = getattr(Demotion, sys.argv[2])
def die_after(self, *arguments):
    step(self, *arguments)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(Demotion, sys.argv[2], die_after)
copier = new_copier(settings, partitions)
copier.demoted = frozenset({partitions[0].topic})
copier.run(lambda: False)
"""


@pytest.mark.long
def test_killed_klamm_takes_a_topic_back_from_the_step_at_which_it_died(cluster: KafkaCluster) -> None:
    flow = Flow(cluster)
    flow.produce(3, 5)
    with running(flow) as copier:
        copier.wait_for_replicas()
        files = {node: flow.log_files(flow.remote[0], node) for node in cluster.nodes}
        promote(flow, copier)
    flow.produce(2)
    work = base64.b64encode(pickle.dumps((flow.settings, flow.partitions))).decode()
    for step in ("_check", "_join", "_lead", "_be_alone", "give_back"):
        command = [sys.executable, "-c", DIE_AFTER, work, step]
        assert subprocess.run(command, timeout=120, check=False).returncode == -signal.SIGKILL, step
        stored = {len(flow.stored(flow.remote[0], node)) for node in cluster.nodes}
        assert stored == {2}, step

    with running(flow, is_new=False) as copier:
        copier.copier.demoted = frozenset({flow.topic})
        copier.wait_for_replicas()

    assert {node: flow.log_files(flow.remote[0], node) for node in cluster.nodes} == files
    for node in cluster.nodes:
        assert without_epochs(flow.stored(flow.remote[0], node)) == without_epochs(flow.stored(flow.topic, 1))


@pytest.mark.long
def test_topic_that_was_written_since_its_promotion_is_not_taken_back(cluster: KafkaCluster) -> None:
    flow = Flow(cluster)
    flow.produce(3)
    with running(flow) as copier:
        copier.wait_for_replicas()
        promote(flow, copier)
        _send(cluster.bootstrap_servers, flow.remote[0], b"own")
        # when
        demote(flow, copier)
        # then
        rejection = "ends at offset 4, not at 3, where klamm handed it over"
        copier.wait(lambda rows: rejection in rows[0].reason, "the rejection")
        _send(cluster.bootstrap_servers, flow.remote[0], b"more")
    assert len(_consume(cluster.bootstrap_servers, flow.remote[0], "read_committed")) == 5


def _send(servers: str, topic: str, value: bytes, key: bytes | None = None) -> None:
    """Write a record by an idempotent producer, which waits for the leader."""
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    errors: list[object] = []
    producer.produce(topic, value, key=key, partition=0, on_delivery=lambda error, _: errors.append(error))
    producer.flush(60)
    assert errors == [None]


def _consume(servers: str, topic: str, isolation: str) -> list[tuple[int, bytes]]:
    """Return offset and value of all records up to the end that the isolation level shows."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "none",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([ConfluentPartition(topic, 0, 0)])
    records: list[tuple[int, bytes]] = []
    try:
        while True:
            message = consumer.poll(60)
            assert message is not None, f"no end of {topic}"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return records
            offset, value = message.offset(), message.value()
            assert offset is not None
            records.append((offset, value or b""))
    finally:
        consumer.close()

"""Side by side with the real thing: Kafka's client library reads what the mirror writes, and MirrorMaker 2 and the
mirror take over from each other."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from confluent_kafka import Consumer

import klamm
from klamm.cli import main as cli
from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.errors import ConnectionLostError
from klamm.mirror.cluster_admin import GroupUse, group_uses, new_client
from klamm.mirror.copy.source_offset_store import SourceOffsetStore
from klamm.mirror.records.formats import Checkpoint, OffsetSync
from klamm.mirror.records.internal_topic import ControlConnection
from klamm.mirror.records.source_offsets import SourceOffset
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.topics.heartbeats import Heartbeats
from klamm.properties import parse_properties
from tests.support.mirror import Seen, create_topic, delete_topic, produce, properties, read, wait_for_records
from tests.support.mirror_fakes import FakeCluster
from tests.support.mirror_groups import Copying, commit, committed, rounds
from tests.support.mirrormaker import MirrorMaker, java_virtual_machine
from tests.support.processes import wait_until
from tests.support.record_times import RECENT_MS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from klamm.mirror.settings.flow import FlowSettings
    from tests.support.kafka import KafkaCluster

IS_SOAK = bool(os.environ.get("KLAMM_SOAK"))
SOON = """
sync.group.offsets.enabled = true
emit.checkpoints.interval.seconds = 1
sync.group.offsets.interval.seconds = 1
refresh.groups.interval.seconds = 1
offset.flush.interval.ms = 1000
status.storage.replication.factor = 1
config.storage.replication.factor = 1
"""

OWN_POSITIONS = """
{alias}->B.offsets.storage.topic = {topic}-positions
offset.storage.topic = {topic}-workers
config.storage.topic = {topic}-configs
status.storage.topic = {topic}-status
B.group.id = {topic}
B.exactly.once.source.support = enabled
{alias}.consumer.isolation.level = read_committed
emit.checkpoints.enabled = false
{alias}->B.source.cluster.alias =
{alias}->B.replication.policy.separator =
"""


class Names:
    """Those of one run of a test: all share the target, which remembers what an earlier run mirrored."""

    def __init__(self, topic: str) -> None:
        unique = uuid4().hex[:6]
        self.alias, self.topic, self.group = f"A{unique}", f"{topic}-{unique}", f"app-{unique}"
        self.remote_topic = f"{self.alias}.{self.topic}"
        self.checkpoints = f"{self.alias}.checkpoints.internal"

    def properties(self, source: str, target: str, more: str = "") -> str:
        """Return a file for both mirrors."""
        more = SOON + f"B->{self.alias}.emit.heartbeats.enabled = false\n" + more
        return properties(source, target, more, topics=self.topic, alias=self.alias)


@pytest.fixture
def kafka(real_kafka: KafkaCluster) -> Iterator[KafkaCluster]:
    """Real Kafka without MirrorMaker's heartbeats, whose topic has the same name for all flows."""
    yield real_kafka
    delete_topic(real_kafka.bootstrap_servers, "heartbeats")


def numbered(first: int, count: int) -> list[tuple[int, Seen]]:
    return [(0, Seen(b"k", b"%d" % number, (), RECENT_MS + number)) for number in range(first, first + count)]


@pytest.mark.long
def test_mirror_client_reads_checkpoints_and_heartbeats(java: None) -> None:
    """K894-41, K894-44: translateOffsets, replicationHops, upstreamClusters, heartbeatTopics, checkpointTopics."""
    with klamm.Broker() as here, klamm.Broker() as there:
        # given
        create_topic(here.bootstrap_servers, "orders")
        produce(here.bootstrap_servers, "orders", numbered(0, 300))
        commit(here.bootstrap_servers, "billing", "orders", 123, metadata="noted")
        settings = parse_settings(
            parse_properties(properties(here.bootstrap_servers, there.bootstrap_servers, topics="orders"))
        )
        _beat_on_the_source(here.bootstrap_servers)
        with Copying(settings.flows[0]) as copying:
            copying.wait_for(300)
        rounds(settings.flows[0])
        with java_virtual_machine() as jvm:
            # when
            mirrored = jvm.org.apache.kafka.connect.mirror.RemoteClusterUtils
            target = {"bootstrap.servers": there.bootstrap_servers}
            offsets = mirrored.translateOffsets(target, "A", "billing", jvm.java.time.Duration.ofSeconds(30))
            ((partition, found),) = [(entry.getKey(), entry.getValue()) for entry in offsets.entrySet()]
            # then
            assert (partition.topic(), partition.partition()) == ("A.orders", 0)
            assert (found.offset(), found.metadata()) == (123, "noted")
            assert mirrored.replicationHops(target, "A") == 1
            assert mirrored.replicationHops(target, "C") == -1
            assert set(mirrored.upstreamClusters(target)) == {"A"}
            assert set(mirrored.heartbeatTopics(target)) == {"A.heartbeats"}
            assert set(mirrored.checkpointTopics(target)) == {"A.checkpoints.internal"}


def _beat_on_the_source(address: str) -> None:
    """Let B->A write one heartbeat into A, as the mirror's driver does every second."""
    create_topic(address, "heartbeats", 1, {"cleanup.policy": "compact"})
    text = properties("nowhere:1", address, topics="x").replace("A", "X").replace("B", "A").replace("X", "B")
    (pair,) = [each for each in parse_settings(parse_properties(text)).heartbeats if each.name == "B->A"]
    connection = ControlConnection(ConnectionSettings.of((address,), {}, "test"))

    try:
        assert Heartbeats(pair, FakeCluster(heartbeats=1), connection).beat()
    finally:
        connection.close()


@pytest.mark.long
def test_takeover_from_and_back_to_mirrormaker(
    java: None, kafka: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """K894-38, K894-40, K894-41, K894-43: nothing is lost, nothing comes twice, groups continue.

    All of it through a gateway in front of Kafka.
    """
    with klamm.Broker() as here, klamm.Gateway(kafka.bootstrap_servers) as gateway:
        source, target = here.bootstrap_servers, gateway.bootstrap_servers
        names = Names("taken")
        create_topic(source, names.topic, 1, {"retention.ms": "-1"})
        file = names.properties(source, target)
        # given
        _advance(source, names, first=0, group_at=120)
        with MirrorMaker(file, tmp_path) as mirrormaker:
            _wait_until_mirrored(target, names, 300, 120, mirrormaker)
        _check_status(capsys, target, names)
        # when
        _advance(source, names, first=300, group_at=450)
        flow = parse_settings(parse_properties(file)).flows[0]
        with Copying(flow) as copying:
            copying.wait_for(600)
        rounds(flow)
        assert committed(target, names.group) == {names.remote_topic: 450}
        # then
        _advance(source, names, first=600, group_at=750)
        with MirrorMaker(file, tmp_path) as mirrormaker:
            _wait_until_mirrored(target, names, 900, 750, mirrormaker)
        wanted = [record for _, record in numbered(0, 900)]
        assert read(target, names.remote_topic, {0: 900})[0] == wanted
        stands = [each.downstream_offset for each in _checkpoints(target, names)]
        assert stands == sorted(stands), "a checkpoint went back"
        assert 450 in stands
        _check_syncs(source)


def _advance(source: str, names: Names, *, first: int, group_at: int) -> None:
    produce(source, names.topic, numbered(first, 300))
    commit(source, names.group, names.topic, group_at)


def _checkpoints(target: str, names: Names) -> list[Checkpoint]:
    records = wait_for_records(target, names.checkpoints, 1)
    found = [Checkpoint.parse(record.key or b"", record.value or b"") for record in records]
    return [each for each in found if each.group == names.group]


def _wait_until_mirrored(target: str, names: Names, count: int, upstream: int, mirrormaker: MirrorMaker) -> None:
    """Wait for records, and for a checkpoint of where the group stands."""
    wait_for_records(target, names.remote_topic, count, timeout_s=150, alive=mirrormaker.check_alive)
    wait_until(
        lambda: upstream in {each.upstream_offset for each in _checkpoints(target, names)},
        timeout_s=60,
        what=f"a checkpoint of {upstream}",
        interval_s=0.2,
        alive=mirrormaker.check_alive,
    )


def _check_syncs(source: str) -> None:
    """Check that every sync belongs to an existing record, whichever program wrote it."""
    records = wait_for_records(source, "mm2-offset-syncs.B.internal", 3)
    for record in records:
        sync = OffsetSync.parse(record.key or b"", record.value or b"")
        assert sync.upstream_offset == sync.downstream_offset < 900


def _check_status(capsys: pytest.CaptureFixture[str], target: str, names: Names) -> None:
    """Check that the status is read from what MirrorMaker 2 left on the target."""
    assert cli(["mirror", "status", "--bootstrap-server", target, "--source", names.alias, "-o", "json"]) == 0
    (flow,) = json.loads(capsys.readouterr().out)["flows"]
    (taken,) = [topic for topic in flow["topics"] if topic["topic"] == names.topic]
    assert (flow["flow"], taken["remote_topic"]) == (f"{names.alias}->B", names.remote_topic)
    assert taken["partitions"][0]["next_offset"] == 300
    assert (names.alias, "B") in {(beat["source"], beat["target"]) for beat in flow["heartbeats"]}
    assert names.group in {group["group"] for group in flow["groups"]}
    assert flow["newest_record_age_s"] > 0
    assert any("whether MirrorMaker 2 used transactions" in what for what in flow["unknown"])


@pytest.mark.long
def test_takeover_with_own_offsets_topic(java: None, kafka: KafkaCluster, tmp_path: Path) -> None:
    """K894-38, K894-39, KIP-618: exactly once, with names without a prefix; the worker's topic does not count."""
    with klamm.Broker() as here:
        source, target = here.bootstrap_servers, kafka.bootstrap_servers
        names = Names("once")
        create_topic(source, names.topic, 1, {"retention.ms": "-1"})
        file = names.properties(source, target, OWN_POSITIONS.format(alias=names.alias, topic=names.topic))
        flow = parse_settings(parse_properties(file)).flows[0]
        # given
        produce(source, names.topic, numbered(0, 300))
        with MirrorMaker(file, tmp_path) as mirrormaker:
            _wait_for_position(flow, names, 299, mirrormaker)
        _put_back(flow, names, 9)
        # when
        produce(source, names.topic, numbered(300, 300))
        with Copying(flow) as copying:
            copying.wait_for(600)
        # then
        if IS_SOAK:  # as after the takeover from the usual offsets topic above
            produce(source, names.topic, numbered(600, 300))
            with MirrorMaker(file, tmp_path) as mirrormaker:
                _wait_for_position(flow, names, 899, mirrormaker)
        count = 900 if IS_SOAK else 600
        assert read(target, names.topic, {0: count})[0] == [record for _, record in numbered(0, count)]


def _wait_for_position(flow: FlowSettings, names: Names, offset: int, mirrormaker: MirrorMaker) -> None:
    """Wait until the flow's own offsets topic contains the source offset of a record."""

    def is_there() -> bool:
        with _positions(flow, flow.source_offsets_topic) as store, contextlib.suppress(ConnectionLostError):
            return store.read().offsets.get((names.topic, 0)) == offset
        return False

    wait_until(is_there, timeout_s=150, what=f"position {offset}", interval_s=0.2, alive=mirrormaker.check_alive)


def _put_back(flow: FlowSettings, names: Names, offset: int) -> None:
    """Let the worker's topic hold an old position, as if repeating later ones there had failed: Kafka warns."""
    assert flow.worker_offsets_topic is not None
    with _positions(flow, flow.worker_offsets_topic) as store:
        store.write({(names.topic, 0): SourceOffset(offset + 1)})


def _positions(flow: FlowSettings, topic: str) -> contextlib.closing[SourceOffsetStore]:
    settings = ConnectionSettings.of(flow.target.bootstrap_servers, {}, "test")
    pool = BufferPool(max_free_bytes=1_000_000)
    return contextlib.closing(SourceOffsetStore(settings, pool, topic=topic, source_alias=flow.source_alias))


def test_kip_848_group_counts_as_group_with_members(real_kafka: KafkaCluster) -> None:
    """K894-43: DescribeGroups does not know it, but ConsumerGroupDescribe does (KIP-848)."""
    # given
    address, name = real_kafka.bootstrap_servers, f"newer-{uuid4().hex[:6]}"
    create_topic(address, name)
    consumer = Consumer({"bootstrap.servers": address, "group.id": name, "group.protocol": "consumer"})
    consumer.subscribe([name])
    admin = new_client([address], {}, timeout_ms=20_000)
    # when
    try:
        wait_until(lambda: consumer.poll(0.2) is None and consumer.assignment() != [], timeout_s=60, what="a member")
        state = group_uses(admin, [name, "nobody"])
    finally:
        consumer.close()
        admin.close()
    # then
    mine = state[name]
    assert state["nobody"] == GroupUse("Dead", 0)
    assert isinstance(mine, GroupUse)
    assert mine.state in {"Stable", "Reconciling", "Assigning"}
    assert mine.members == "1 member"

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import pytest

import klamm
from klamm.kafka_client.errors import ConnectionLostError
from klamm.mirror.records.formats import Heartbeat
from klamm.mirror.records.internal_topic import ControlConnection
from klamm.mirror.run import run
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.topics.claims import FlowClaim
from klamm.mirror.topics.heartbeats import Heartbeats, write_heartbeats
from tests.support.long_tests import long_only
from tests.support.mirror import delete_topic, properties, topic_configs, wait_for_records
from tests.support.mirror_fakes import FakeCluster, rejection
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from klamm.mirror.settings.groups import HeartbeatSettings
    from klamm.protocol.records import Record

NOON = 1_700_000_000.0


def pair(target: str = "b:1", **more: str) -> HeartbeatSettings:
    file = {
        "clusters": "A,B",
        "A.bootstrap.servers": "a:1",
        "B.bootstrap.servers": target,
        "A->B.enabled": "true",
    }
    flows = parse_settings(file | {key.replace("_", "."): value for key, value in more.items()}).heartbeats
    return next(each for each in flows if each.name == "A->B")


class Writer(ControlConnection):
    """Writer that keeps its records, and rejects them if a test says so."""

    def __init__(self) -> None:
        self.written: list[tuple[str, Record]] = []
        self.rejects = ""

    def write(self, topic: str, records: Sequence[Record]) -> None:
        if self.rejects:
            raise ConnectionLostError(self.rejects)
        self.written += [(topic, record) for record in records]


def test_heartbeat_has_pair_and_time_in_compacted_topic() -> None:
    """K894-44: Heartbeats: every 1 s to topic ``heartbeats`` on the flow's *target* cluster.

    K894-45: Internal topics: 1 partition, compacted, RF 3 default; existing topic is fine; no right to create -> assume
    it exists.
    """
    target, writer = FakeCluster(), Writer()
    heartbeats = Heartbeats(pair(), target, writer, now=lambda: NOON)
    assert heartbeats.beat()
    assert heartbeats.beat()
    (topic,) = target.created
    assert (topic.name, topic.num_partitions, topic.replication_factor) == ("heartbeats", 1, 3)
    assert topic.configs == {"cleanup.policy": "compact"}
    wanted = Heartbeat(source_alias="A", target_alias="B", timestamp=int(NOON * 1000))
    assert [(name, record.key, record.value) for name, record in writer.written] == [
        ("heartbeats", wanted.key(), wanted.value())
    ] * 2
    assert writer.written[0][1].timestamp == wanted.timestamp


def test_existing_heartbeats_topic_needs_no_create_right() -> None:
    """K894-45: Internal topics: 1 partition, compacted, RF 3 default; existing topic is fine; no right to create ->
    assume it exists.
    """
    for name in ("TOPIC_ALREADY_EXISTS", "TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"):
        target = FakeCluster(heartbeats=1)
        target.rejects["heartbeats"] = rejection(name, "")
        assert Heartbeats(pair(), target, Writer()).beat()


def test_failure_is_logged_once_until_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    """K894-44: Heartbeats: every 1 s to topic ``heartbeats`` on the flow's *target* cluster."""
    target, writer, now = FakeCluster(), Writer(), NOON
    heartbeats = Heartbeats(pair(), target, writer, now=lambda: now)
    target.rejects["heartbeats"] = rejection("INVALID_REPLICATION_FACTOR", "only 1 broker")
    with caplog.at_level(logging.INFO):
        assert [heartbeats.beat() for _ in range(3)] == [False] * 3
        del target.rejects["heartbeats"]
        writer.rejects = "b:1: rejected"
        heartbeats.beat()
        now += 10
        heartbeats.beat()
        writer.rejects = ""
        assert heartbeats.beat()
    first, second, third = [record.getMessage() for record in caplog.records]
    assert "with heartbeats.topic.replication.factor=3: INVALID_REPLICATION_FACTOR: only 1 broker" in first
    assert (
        "cannot write heartbeats to cluster B: b:1: rejected. Set emit.heartbeats.enabled=false to disable them"
        in second
    )
    assert third == "A->B: heartbeats are written again"


def test_deleted_heartbeats_topic_is_created_again() -> None:
    """Without a claim the topic is only written, so a failed write has to show it."""
    target, writer = FakeCluster(), Writer()
    heartbeats = Heartbeats(pair(), target, writer, now=lambda: NOON)
    assert heartbeats.beat()
    writer.rejects = "Partition 0 of heartbeats does not exist or has no leader at present"
    assert not heartbeats.beat()
    assert not heartbeats.beat(), "the topic exists, but its partition has no leader"
    assert len(target.created) == 1
    del target.topics["heartbeats"]
    assert not heartbeats.beat()
    assert len(target.created) == 2
    writer.rejects = ""
    assert heartbeats.beat()


def test_new_heartbeats_topic_may_be_unknown_at_first(caplog: pytest.LogCaptureFixture) -> None:
    """K894-44: no alarm at each first start."""
    writer, now = Writer(), NOON
    heartbeats = Heartbeats(pair(), FakeCluster(), writer, now=lambda: now)
    writer.rejects = "Partition 0 of heartbeats does not exist or has no leader at present"
    with caplog.at_level(logging.INFO):
        assert not heartbeats.beat()
        now += 9
        assert not heartbeats.beat()
        assert not caplog.records
        now += 1
        assert not heartbeats.beat()
    assert "has no leader at present" in caplog.text


@pytest.mark.process
def test_heartbeats_of_pair_without_flow_are_written() -> None:
    """K894-44: Heartbeats: every 1 s to topic ``heartbeats`` on the flow's *target* cluster."""
    with klamm.Broker() as there:
        # given
        more = {"A->B.enabled": "false", "heartbeats.topic.replication.factor": "1"}
        stop = threading.Event()
        settings = pair(there.bootstrap_servers, **more)
        thread = threading.Thread(target=write_heartbeats, args=(settings, stop))
        # when
        thread.start()
        try:
            first, second, *_ = wait_for_records(there.bootstrap_servers, "heartbeats", 2)
        finally:
            stop.set()
            thread.join(20)
        # then
        assert not thread.is_alive()
        assert first.key == second.key == bytes.fromhex("000141 000142")
        assert Heartbeat.parse(first.key or b"", first.value or b"").timestamp == first.timestamp < second.timestamp
        assert topic_configs(there.bootstrap_servers, "heartbeats") == {"cleanup.policy": "compact"}


@pytest.mark.process
@pytest.mark.parametrize("has_claim", [False, *long_only(True)])
def test_heartbeats_continue_after_their_topic_was_deleted(*, has_claim: bool) -> None:
    with klamm.Broker() as there:
        # given
        stop = threading.Event()
        settings = pair(there.bootstrap_servers, **{"heartbeats.topic.replication.factor": "1"})
        claim = FlowClaim() if has_claim else None
        more = {"claim": claim, "instance": "here, process 1, ab"}
        thread = threading.Thread(target=write_heartbeats, args=(settings, stop), kwargs=more)
        thread.start()
        try:
            wait_for_records(there.bootstrap_servers, "heartbeats", 1)
            assert claim is None or claim.wait_held(60)
            # when
            delete_topic(there.bootstrap_servers, "heartbeats")
            # then
            wait_for_records(there.bootstrap_servers, "heartbeats", 1)
            if claim is not None:
                wait_until(lambda: claim.times_taken > 1, timeout_s=60, what="a claim in the new topic")
        finally:
            stop.set()
            thread.join(20)
        assert not thread.is_alive()
        assert topic_configs(there.bootstrap_servers, "heartbeats") == {"cleanup.policy": "compact"}


@pytest.mark.process
def test_file_without_flow_writes_heartbeats_for_every_pair(tmp_path: Path) -> None:
    """K894-44: as MirrorMaker does; neither Spark nor Java are needed for it."""
    with klamm.Broker() as here, klamm.Broker() as there:
        # given
        file = tmp_path / "mm2.properties"
        text = properties(here.bootstrap_servers, there.bootstrap_servers, topics=".*")
        file.write_text(text.replace("A->B.enabled = true", "A->B.enabled = false"))
        stop = threading.Event()
        codes: list[int] = []
        thread = threading.Thread(target=lambda: codes.append(run(file, stop=stop)))
        # when
        thread.start()
        try:
            pairs = [
                record.key
                for broker in (here, there)
                for record in wait_for_records(broker.bootstrap_servers, "heartbeats", 1)[:1]
            ]
        finally:
            stop.set()
            thread.join(30)
        # then
        assert pairs == [bytes.fromhex("000142 000141"), bytes.fromhex("000141 000142")]
        assert codes == [0]

"""``klamm mirror status`` of real flows, read from the target alone."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

import klamm
from klamm.cli import main as cli
from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.cluster import Cluster
from klamm.kafka_client.internal_topic import write_records
from klamm.mirror.records.formats import OffsetSync
from klamm.mirror.records.internal_topic import ControlConnection
from klamm.mirror.records.source_offsets import SourcePartition, key_bytes, value_bytes
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.status.tail_reader import read_tail
from klamm.mirror.topics.heartbeats import Heartbeats
from klamm.properties import parse_properties
from klamm.protocol.records import Record
from tests.support.mirror import Seen, create_topic, produce, properties
from tests.support.mirror_fakes import FakeCluster
from tests.support.mirror_groups import Copying, commit, rounds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EXACTLY = "klamm.exactly.once = true\noffset-syncs.topic.location = target\nrefresh.groups.interval.seconds = 1\n"


@pytest.fixture
def target() -> Iterator[klamm.Broker]:
    with klamm.Broker() as broker:
        yield broker


def status(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    """Run the command; return the flow that it shows."""
    capsys.readouterr()
    assert cli(["mirror", "status", *words, "-o", "json"]) == code
    (flow,) = json.loads(capsys.readouterr().out)["flows"]
    return dict(flow)


def test_status_shows_progress_with_and_without_source(
    target: klamm.Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given
    there = target.bootstrap_servers
    written_ms = int(time.time() * 1000) - 90_000
    with klamm.Broker() as source:
        here = source.bootstrap_servers
        create_topic(here, "orders", 2)
        file = tmp_path / "mm2.properties"
        file.write_text(properties(here, there, EXACTLY, topics="orders|late"))
        settings = parse_settings(parse_properties(file.read_text()))
        produce(here, "orders", [(at % 2, Seen(b"k", b"v", (), written_ms + at)) for at in range(100)])
        commit(here, "billing", "orders", 20)
        with Copying(settings.flows[0]) as copying:
            copying.wait_for(100)
        rounds(settings.flows[0])
        _beat(settings, there)
        create_topic(here, "late")
        produce(here, "orders", [(0, Seen(b"k", b"v", (), written_ms))] * 7)
        produce(here, "late", [(0, Seen(b"k", b"v", (), written_ms))] * 3)
        # when the source is there
        flow = status(capsys, str(file))
        # then
        assert (flow["flow"], flow["lag"], flow["unknown"]) == ("A->B", 10, [])
        assert {topic["topic"]: (topic["exists"], topic["lag"]) for topic in flow["topics"]} == {
            "orders": (True, 7),
            "late": (False, 3),
        }
    # when it is away
    flow = status(capsys, str(file))
    # then
    assert flow["lag"] is None
    assert any("cluster A cannot be reached" in what for what in flow["unknown"])
    # when nobody named it
    flow = status(capsys, "--bootstrap-server", there)
    # then
    (orders,) = flow["topics"]
    assert (flow["flow"], orders["remote_topic"]) == ("A->B", "A.orders")
    assert [(one["next_offset"], one["lag"]) for one in orders["partitions"]] == [(50, None), (50, None)]
    # by the records, not by the markers of the transactions behind them
    assert flow["newest_record_age_s"] >= 89
    assert flow["newest_record_age_s"] - flow["source_offset_written_age_s"] >= 89
    assert [(beat["source"], beat["target"]) for beat in flow["heartbeats"]] == [("A", "B")]
    assert [(group["group"], group["partitions"]) for group in flow["groups"]] == [("billing", 1)]
    assert (flow["offset_syncs"]["partitions"], flow["exactly_once_shards"]) == (2, {"count": 1, "before": []})
    assert any("without the address of cluster A" in what for what in flow["unknown"])
    # when another one is asked for
    assert status(capsys, "--bootstrap-server", there, "--source", "X", code=1)["found"] is False


def test_status_ignores_offset_syncs_of_opposite_flow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """K894-40: on B the syncs of A->B, kept at their target, and of B->A, kept at their source, have the same name."""
    with klamm.Broker() as broker:
        _flow_back(broker.bootstrap_servers, tmp_path / "mm2.properties", capsys)


def _flow_back(there: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # given
    where = SourcePartition("A", "paid", 0)
    connection = ControlConnection(ConnectionSettings.of((there,), {}, "test"))
    back = OffsetSync(topic="returns", partition=0, upstream_offset=5, downstream_offset=5)
    own = OffsetSync(topic="paid", partition=0, upstream_offset=7, downstream_offset=7)
    for topic, records in {
        "mm2-offsets.A.internal": [Record(key=key_bytes(where), value=value_bytes(9))],
        "mm2-offset-syncs.A.internal": [Record(key=each.key(), value=each.value()) for each in (back, own)],
    }.items():
        create_topic(there, topic)
        connection.write(topic, records)
    connection.close()
    # when
    by_file, by_address = {}, status(capsys, "--bootstrap-server", there, "--source", "A")
    for location in ("source", "target"):
        more = f"offset-syncs.topic.location = {location}\n"
        file.write_text(properties("127.0.0.1:1", there, more, topics="paid"))
        by_file[location] = status(capsys, str(file), "--target-only")["offset_syncs"]
    # then
    assert by_file["source"] is None
    assert by_file["target"]["partitions"] == by_address["offset_syncs"]["partitions"] == 1


@pytest.mark.long
def test_status_prefers_flow_offsets_topic(
    target: klamm.Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """KIP-618."""
    # given
    there = target.bootstrap_servers
    connection = ControlConnection(ConnectionSettings.of((there,), {}, "test"))
    for topic, offsets in {"own-workers": {"both": 9, "workers": 3}, "own-positions": {"both": 4}}.items():
        create_topic(there, topic)
        pairs = ((key_bytes(SourcePartition("A", name, 0)), value_bytes(offset)) for name, offset in offsets.items())
        connection.write(topic, [Record(key=key, value=value) for key, value in pairs])
    connection.close()
    more = "offset.storage.topic = own-workers\nA->B.offsets.storage.topic = own-positions\n"
    file = tmp_path / "mm2.properties"
    file.write_text(properties("127.0.0.1:1", there, more, topics="both|workers"))
    # when
    flow = status(capsys, str(file), "--target-only")
    # then
    next_offsets = {topic["topic"]: topic["partitions"][0]["next_offset"] for topic in flow["topics"]}
    assert (next_offsets["both"], next_offsets["workers"]) == (5, 4)


def _beat(settings: Any, address: str) -> None:
    create_topic(address, "heartbeats", 1, {"cleanup.policy": "compact"})
    connection = ControlConnection(ConnectionSettings.of((address,), {}, "test"))

    (pair,) = [each for each in settings.heartbeats if each.name == "A->B"]
    try:
        assert Heartbeats(pair, FakeCluster(heartbeats=1), connection).beat()
    finally:
        connection.close()


@pytest.mark.long
def test_tail_reader_finds_newest_record_within_budget(target: klamm.Broker) -> None:
    # given
    create_topic(target.bootstrap_servers, "long", 2)
    cluster = Cluster(ConnectionSettings.of((target.bootstrap_servers,), {}, "test"), BufferPool(max_free_bytes=0))
    for first in range(0, 6000, 1000):
        records = [
            Record(key=b"old" if at == 0 else b"k%d" % (at % 5), value=b"%d" % at) for at in range(first, first + 1000)
        ]
        numbered = [record._replace(offset=at) for at, record in enumerate(records)]
        write_records(cluster, "long", {1: numbered}, timeout_s=10)
    clock = iter(range(100))
    # when
    everything = read_tail(cluster, "long", budget_s=60)
    end_only = read_tail(cluster, "long", budget_s=0, clock=lambda: next(clock))
    until = read_tail(cluster, "long", budget_s=60, enough=lambda newest: b"k1" in newest)
    # then
    assert everything is not None
    assert end_only is not None
    assert until is not None
    assert everything.newest[b"old"].value == b"0"
    assert everything.newest[b"k3"].value == b"5998"
    assert (everything.is_complete, end_only.is_complete, until.is_complete) == (True, False, True)
    assert b"old" not in end_only.newest
    assert b"old" not in until.newest
    assert read_tail(cluster, "nowhere", budget_s=1) is None
    cluster.close()

"""A mirror on Spark from end to end: status, metrics, groups, heartbeats, kills, commands and verify (K894-47)."""

from __future__ import annotations

import json
import re
import urllib.request
from typing import TYPE_CHECKING, Any

from klamm.cli.mirror import main as klamm_mirror
from klamm.mirror.records.formats import Checkpoint, Heartbeat
from tests.spark.test_mirror_commands import listener, states
from tests.spark.test_mirror_interrupted import assert_ended_in_order, family, signal_twice
from tests.support.klamm import KlammBroker
from tests.support.mirror import MirrorProcess, Seen, create_topic, produce, properties, read, wait_for_records
from tests.support.mirror_groups import commit, committed
from tests.support.processes import wait_until
from tests.support.record_times import RECENT_MS

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

_SETTINGS = """
klamm.exactly.once = true
klamm.metrics.listen = 127.0.0.1:0
sync.group.offsets.enabled = true
emit.checkpoints.interval.seconds = 1
sync.group.offsets.interval.seconds = 1
"""
_TAGS = 'source="A",target="B",topic="A.watched"'


def _get(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=20) as answer:
        text: str = answer.read().decode()
        return text


def _gauges(page: str) -> dict[str, float]:
    """Return the sums over the partitions of the watched topic, by gauge."""
    out: dict[str, float] = {}
    pattern = r"kafka_connect_mirror_mirrorsourceconnector_(\w+)\{" + re.escape(_TAGS) + r',partition="\d"\} (.+)'
    for name, value in re.findall(pattern, page):
        out[name] = out.get(name, 0.0) + float(value)
    return out


def test_status_metrics_and_verify_follow_running_mirror(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """K894-41, K894-43, K894-44: heartbeats of both pairs; those of the source are mirrored, and not counted.

    K894-47: Metrics of 3.6.

    K894-38, K894-39: a killed worker and a killed driver lose no record and repeat none. The next process keeps the
    state that a command has requested, and ends on Ctrl-C.
    """
    # given
    with KlammBroker() as source, KlammBroker() as target:
        here, there = source.bootstrap_servers, target.bootstrap_servers
        create_topic(here, "watched", 2, {"retention.ms": "-1", "min.insync.replicas": "2"})
        produce(here, "watched", _watched(0, 200))
        create_topic(here, "orders", 1, {"retention.ms": "-1"})
        orders = [(0, Seen(b"k", b"%d" % number, (), RECENT_MS)) for number in range(500)]
        # In one batch, so in one transaction: its end takes an offset of the target, behind those of the group.
        produce(here, "orders", orders, {"linger.ms": 60_000})
        commit(here, "billing", "orders", 321)
        file = properties(here, there, _SETTINGS, topics="watched,orders")
        # when
        with MirrorProcess(file, tmp_path) as mirror:
            mirror.wait_for("700/700 records")
            _assert_shown(listener(mirror))
            wait_until(
                lambda: committed(there, "billing") == {"A.orders": 321}, timeout_s=60, what="billing", interval_s=0.2
            )
            assert _heartbeats(there) == {("A", "B"), ("B", "A")}
            mirror.workers(source.ports[0])[0].kill()
            produce(here, "watched", _watched(200, 100))
            mirror.wait_for("800/800 records")
            _pause_orders(listener(mirror))
            produce(here, "watched", _watched(300, 100))
            mirror.kill()
        produce(here, "orders", orders)
        (tmp_path / "again").mkdir()
        with MirrorProcess(file, tmp_path / "again", as_users_run_it=True) as again:
            address = listener(again)
            arrived = read(there, "A.watched", {0: 200, 1: 200}, timeout_s=120)
            assert {at: len(records) for at, records in arrived.items()} == {0: 200, 1: 200}
            wait_until(lambda: states(address).get("orders") == "PAUSED", timeout_s=240, what="the pause")
            assert len(read(there, "A.orders", {0: 500})[0]) == 500
            assert klamm_mirror(["resume", "A->B", "orders", "--metrics", address]) == 0
            assert len(read(there, "A.orders", {0: 1_000}, timeout_s=60)[0]) == 1_000
            commit(here, "billing", "orders", 432)
            processes = family(again)
            signal_twice(again, "the terminal")
            assert_ended_in_order(again, processes)
        capsys.readouterr()
        verify = ["verify", str(tmp_path / "mm2.properties"), "--topics", "watched"]
        verified = klamm_mirror(verify), capsys.readouterr().out
        produce(there, "A.watched", [(1, Seen(b"k", b"from somebody else", (), RECENT_MS))])
        spoiled = klamm_mirror(verify), capsys.readouterr().out
        # then
        assert committed(there, "billing") == {"A.orders": 432}, "a mirror that ends does a last round"
        checkpoints = _checkpoints(there)
    assert (checkpoints[0], checkpoints[-1]) == (("billing", 321), ("billing", 432))
    assert verified[0] == 0, verified[1]
    assert "A->B: 2 partitions, 400 records equal on both sides, 0 not mirrored yet" in verified[1]
    assert spoiled[0] == 1
    assert "on the target only: 1, the first is offset " in spoiled[1]
    lines = again.text().splitlines()
    assert "A->B STOPPED" in lines[-1]
    assert [line for line in lines if not line.startswith("20") or " klamm." not in line] == []


def _watched(first: int, count: int) -> list[tuple[int, Seen]]:
    return [(number % 2, Seen(None, b"v" * 100, (), RECENT_MS + number)) for number in range(first, first + count)]


def _pause_orders(address: str) -> None:
    assert klamm_mirror(["pause", "A->B", "orders", "--metrics", address]) == 0
    wait_until(lambda: states(address)["orders"] == "PAUSED", timeout_s=60, what="the pause")


def _assert_shown(address: str) -> None:
    """Expect the copied records and a config that differs in the metrics, in the status and on the page."""

    def all_arrived() -> bool:
        return _gauges(_get(address, "/metrics")).get("record_count") == 200

    def configs_compared() -> bool:
        return bool(json.loads(_get(address, "/status.json"))["config_differences"].get("A->B"))

    wait_until(all_arrived, timeout_s=90, what="200 records in the metrics", interval_s=0.2)
    wait_until(configs_compared, timeout_s=60, what="the configs to be compared", interval_s=0.2)
    gauges, page = _gauges(_get(address, "/metrics")), _get(address, "/")
    status: dict[str, Any] = json.loads(_get(address, "/status.json"))
    assert gauges["record_lag"] == 0
    assert gauges["byte_count"] > 200 * 100
    assert gauges["replication_latency_ms_max"] >= gauges["replication_latency_ms_min"] > 2 * 3_600_000
    assert gauges["record_age_ms"] > 0
    [flow] = status["flows"]
    assert (flow["flow"], flow["state"], flow["lag"]) == ("A->B", "RUNNING", 0)
    differing = {row["name"]: row["rule"] for row in status["config_differences"]["A->B"]}
    assert differing["min.insync.replicas"] == "excluded (config.properties.exclude)"
    assert "A.watched" in page
    assert "min.insync.replicas" in page.replace("<wbr>", "")


def _heartbeats(target: str) -> set[tuple[str, str]]:
    """Return the cluster pairs that have heartbeats on the target."""
    records = (*wait_for_records(target, "heartbeats", 2), *wait_for_records(target, "A.heartbeats", 2))
    heartbeats = [Heartbeat.parse(record.key or b"", record.value or b"") for record in records]
    return {(heartbeat.source_alias, heartbeat.target_alias) for heartbeat in heartbeats}


def _checkpoints(target: str) -> list[tuple[str, int]]:
    """Return group and offset of each checkpoint."""
    records = wait_for_records(target, "A.checkpoints.internal", 2)
    checkpoints = [Checkpoint.parse(record.key or b"", record.value or b"") for record in records]
    return [(each.group, each.downstream_offset) for each in checkpoints]


def test_metrics_address_in_use_fails_at_start(tmp_path: Path) -> None:
    # given
    with KlammBroker() as broker:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        file = properties(
            broker.bootstrap_servers, broker.bootstrap_servers, f"klamm.metrics.listen = {host}:{port}\n", topics="t"
        )
        # when
        with MirrorProcess(file, tmp_path) as mirror:
            code = mirror.wait(60)
    # then
    assert code == 2
    assert f"klamm.metrics.listen={host}:{port}: Address already in use" in mirror.text()

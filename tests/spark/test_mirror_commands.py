"""Commands for a running mirror: pause, stop and reset, and a process that starts later and stays paused."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from klamm.cli import main
from tests.support.class_archives import write_spark_archive
from tests.support.klamm import KlammBroker
from tests.support.mirror import MirrorProcess, Seen, create_topic, produce, properties, wait_for_records
from tests.support.processes import wait_until

FLOW = "A->B"


def records(count: int) -> list[tuple[int, Seen]]:
    """Return records for partition 0."""
    return [(0, Seen(b"k", b"v%d" % number, (), 1_700_000_000_000 + number)) for number in range(count)]


def listener(mirror: MirrorProcess) -> str:
    """Return host and port of the status listener."""
    wait_until(lambda: "Status on" in mirror.text(), timeout_s=60, what="the listener")
    address = re.search(r"Status on http://(\S+?)/", mirror.text())
    assert address is not None
    return address[1]


def flow_of(address: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{address}/status.json", timeout=20) as answer:
        (flow,) = json.load(answer)["flows"]
        assert isinstance(flow, dict)
        return flow


def states(address: str) -> dict[str, str]:
    return {partition["topic"]: partition["state"] for partition in flow_of(address)["partitions"]}


@pytest.mark.long
def test_paused_stopped_and_reset_topics_across_two_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], java: None
) -> None:
    archive = write_spark_archive()
    with KlammBroker() as source, KlammBroker() as target:
        a, b = source.bootstrap_servers, target.bootstrap_servers
        for topic in ("orders", "users"):
            create_topic(a, topic)
            produce(a, topic, records(10))
        keys = properties(a, b, "klamm.metrics.listen = 127.0.0.1:0\n", topics="orders,users")

        def run(address: str, *words: str) -> str:
            capsys.readouterr()
            assert main(["mirror", *words, "--metrics", address]) == 0, capsys.readouterr().err
            return capsys.readouterr().out

        (tmp_path / "1").mkdir()
        with MirrorProcess(keys, tmp_path / "1") as mirror:
            wait_for_records(b, "A.orders", 10)
            wait_for_records(b, "A.users", 10)
            assert str(archive.path) in Path(f"/proc/{mirror.jvm().pid}/maps").read_text()
            address = listener(mirror)
            assert run(address, "pause", FLOW, "orders") == f"{FLOW}: RUNNING\n{FLOW}: topic orders: PAUSED\n"
            wait_until(lambda: states(address)["orders"] == "PAUSED", timeout_s=60, what="the pause")
            produce(a, "orders", records(5))
            produce(a, "users", records(5))
            wait_for_records(b, "A.users", 15)
            assert run(address, "stop", FLOW, "users").endswith("topic users: STOPPED\n")
            wait_until(lambda: "users" not in states(address), timeout_s=60, what="the stop")
            plan = run(address, "reset", FLOW, "users", "--shift-by", "-3")
            assert "15              12          3 offsets are mirrored again, as duplicates in A.users" in plan
            assert "1 source offset would be set" in plan
            assert "1 source offset set" in run(address, "reset", FLOW, "users", "--shift-by", "-3", "--yes")
            assert main(["mirror", "reset", FLOW, "orders", "--to-latest", "--metrics", address]) == 1
            assert "topic orders is PAUSED: first klamm mirror stop 'A->B' orders" in capsys.readouterr().err
            assert mirror.stop() == 0
        assert main(["mirror", "status", str(tmp_path / "1" / "mm2.properties")]) == 0
        assert "requested state       RUNNING; orders PAUSED, users STOPPED" in capsys.readouterr().out
        (tmp_path / "2").mkdir()
        with MirrorProcess(keys, tmp_path / "2") as mirror:
            address = listener(mirror)
            wait_until(lambda: states(address).get("orders") == "PAUSED", timeout_s=120, what="the pause")
            assert "users" not in states(address)
            assert len(wait_for_records(b, "A.orders", 10)) == 10
            assert run(address, "resume", FLOW) == f"{FLOW}: RUNNING\n"
            wait_for_records(b, "A.orders", 15)
            wait_for_records(b, "A.users", 18)
            assert run(address, "stop", FLOW) == f"{FLOW}: STOPPED\n"
            wait_until(lambda: flow_of(address)["state"] == "STOPPED", timeout_s=60, what="the stop")
            assert main(["mirror", "restart", FLOW, "orders", "--metrics", address]) == 1
            assert f"it and its topics are STOPPED: first klamm mirror resume '{FLOW}'" in capsys.readouterr().err
            assert mirror.stop() == 0

"""Signals to a running mirror, and a JVM that dies under it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Final

import psutil  # type: ignore[import-untyped]
import pytest

from klamm.admin import AdminClient, OffsetSpec, TopicPartition
from tests.support.klamm import KlammBroker
from tests.support.mirror import MirrorProcess, Seen, create_topic, produce, properties, read
from tests.support.processes import wait_until
from tests.support.record_times import RECENT_MS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MORE: Final = "emit.checkpoints.enabled = false\nemit.heartbeats.enabled = false\n"


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[KlammBroker, KlammBroker]]:
    with KlammBroker() as source, KlammBroker() as target:
        create_topic(source.bootstrap_servers, "t")
        yield source, target


@pytest.fixture
def mirror(brokers: tuple[KlammBroker, KlammBroker], tmp_path: Path) -> Iterator[MirrorProcess]:
    source, target = brokers
    file = properties(source.bootstrap_servers, target.bootstrap_servers, _MORE, topics="t")
    with MirrorProcess(file, tmp_path, as_users_run_it=True) as mirror:
        yield mirror


def family(mirror: MirrorProcess) -> list[psutil.Process]:
    """The mirror's process and all that it has started."""
    driver = psutil.Process(mirror.process.pid)
    return [*driver.children(recursive=True), driver]


def assert_ended_in_order(mirror: MirrorProcess, processes: list[psutil.Process]) -> None:
    """Expect exit code 0, no process left, and a log without a trace of Python or Java."""
    assert mirror.wait() == 0, mirror.text()[-4000:]
    assert psutil.wait_procs(processes, timeout=300)[1] == []
    assert_readable(mirror)


def assert_readable(mirror: MirrorProcess) -> None:
    text = mirror.text()
    assert "Traceback" not in text
    assert "\tat " not in text


def signal_twice(mirror: MirrorProcess, to: str) -> None:
    """Signal a mirror, and again while it ends.

    systemd signals every process of a service, which includes the process group. A terminal sends Ctrl-C to the group.
    """
    processes = family(mirror)
    for _ in range(2):
        if to == "every process":
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGTERM)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(mirror.process.pid, signal.SIGINT)
        time.sleep(0.3)


@pytest.mark.long
def test_ctrl_c_stops_mirror_gracefully(mirror: MirrorProcess) -> None:
    """The log holds a line with its time where something changed, and nothing of what Spark writes while it starts."""
    # given
    mirror.wait_for("lag 0")
    time.sleep(1.5)
    processes = family(mirror)
    # when
    signal_twice(mirror, "the terminal")
    # then
    assert_ended_in_order(mirror, processes)
    lines = mirror.text().splitlines()
    assert "A->B STOPPED" in lines[-1]
    assert [line for line in lines if not line.startswith("20") or " klamm." not in line] == []
    assert len([line for line in lines if " A->B RUNNING" in line]) <= 2


@pytest.mark.long
def test_signal_before_jvm_start_stops_mirror_gracefully(mirror: MirrorProcess) -> None:
    # given: scripts of Spark, or the JVM that they ask for the command line
    wait_until(lambda: len(family(mirror)) > 1, timeout_s=300, what="a process of Spark")
    processes = family(mirror)
    # when
    os.killpg(mirror.process.pid, signal.SIGINT)
    # then
    assert_ended_in_order(mirror, processes)


@pytest.mark.long
@pytest.mark.parametrize("after_s", [0.0, 1.5] if os.environ.get("KLAMM_SOAK") else [1.5])
def test_signal_during_spark_start_stops_mirror_gracefully(mirror: MirrorProcess, after_s: float) -> None:
    # given
    mirror.jvm()
    time.sleep(after_s)
    processes = family(mirror)
    # when
    os.killpg(mirror.process.pid, signal.SIGINT)
    # then
    assert_ended_in_order(mirror, processes)


@pytest.mark.long
def test_mirror_stops_without_target(mirror: MirrorProcess, brokers: tuple[KlammBroker, KlammBroker]) -> None:
    # given
    source, target = brokers
    mirror.wait_for("lag 0")
    processes = family(mirror)
    os.kill(target.pid, signal.SIGSTOP)
    try:
        produce(source.bootstrap_servers, "t", [(0, Seen(None, b"in flight", (), RECENT_MS))])
        time.sleep(1)
        # when
        mirror.process.terminate()
        code = mirror.wait()
    finally:
        os.kill(target.pid, signal.SIGCONT)
    # then
    assert code == 0
    assert "Tasks did not end within 3 s; their records in flight are copied again" in mirror.text()
    assert "Traceback" not in mirror.text()
    assert psutil.wait_procs(processes, timeout=300)[1] == []


@pytest.mark.soak
def test_dead_jvm_is_logged_and_replaced(mirror: MirrorProcess, brokers: tuple[KlammBroker, KlammBroker]) -> None:
    """The shorter form is in ``test_mirror_rig.py``, where the JVM is killed among other things."""
    # given
    source, target = brokers
    mirror.wait_for("lag 0")
    jvm = mirror.jvm()
    end = TopicPartition("A.t", 0)
    with AdminClient(target.bootstrap_servers) as admin:
        before = admin.list_offsets({end: int(OffsetSpec.LATEST)}).values()[end].result(300).offset
    # when
    jvm.kill()
    mirror.wait_for("Spark's JVM")
    produce(source.bootstrap_servers, "t", [(0, Seen(None, b"after", (), RECENT_MS))])
    arrived = read(target.bootstrap_servers, "A.t", {0: before + 1}, timeout_s=180)[0]
    processes = family(mirror)
    signal_twice(mirror, "every process")
    # then
    assert_ended_in_order(mirror, processes)
    assert "A->B STOPPED" in mirror.text().splitlines()[-1]
    assert [record.value for record in arrived].count(b"after") == 1
    [line] = [line for line in mirror.text().splitlines() if "Spark" in line and "WARNING" in line]
    assert f"Spark's JVM (pid {jvm.pid}) was killed by SIGKILL; a new session is started" in line

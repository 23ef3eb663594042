"""A following report that is killed: the next run resumes exactly at the checkpoint."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sys
import threading
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]
import pytest

from klamm.client_configs.registrations import TOPIC
from klamm.clients import KafkaProducer
from klamm.registration_report.report import Following, Report, Scope
from klamm.registration_report.spark.job import Job
from tests.support.klamm import KlammBroker
from tests.support.processes import start_process, stop_process, wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

_STREAMS = ("state", "windows")
_TIMEOUT_S = 300.0
"""A bound, not a pace: beside other work on two cores Spark may need a minute and a half to start."""
_MAX_CLIENTS = 60
_WINDOW = "1000 days"
_FOLLOW = f"""
import sys
from pathlib import Path
from klamm.registration_report.main import run_report
from klamm.registration_report.report import Following, Scope
quick_to_start = {{
    "spark.master": "local[1,4]",
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}}
run_report(sys.argv[1], sys.stdout, output_format="json", spark_properties=quick_to_start,
    scope=Scope(window="{_WINDOW}"), following=Following(every_s=0.5, checkpoint=Path(sys.argv[2])))
"""


class EnoughError(Exception):
    """Ends a report that would follow for ever."""


def reasons(text: str) -> str:
    """Return the lines of a log that name an error: the end of a log is Spark's plan, which names none."""
    return "\n".join(line for line in text.splitlines() if re.search(r"ERROR|Error\b|Exception|Timed out", line))


def register(servers: str, clients: range) -> None:
    for number in clients:
        KafkaProducer(bootstrap_servers=servers, client_id=f"app-{number}", acks=1, enable_idempotence=False).close()


def newest(checkpoint: Path, stream: str, kind: str) -> int:
    """Return the newest round of a stream that is planned (``offsets``) or done (``commits``); -1: none."""
    names = (path.name for path in (checkpoint / stream / kind).glob("[0-9]*"))
    return max((int(name) for name in names if name.isdigit()), default=-1)


def is_at_work(checkpoint: Path, stream: str) -> bool:
    return newest(checkpoint, stream, "offsets") > newest(checkpoint, stream, "commits")


def kill_hard_if(process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> bool:
    """SIGKILL for the report, its JVM and its workers, none after the other's farewell, if a condition still holds."""
    everybody = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    _send_signal(everybody, signal.SIGSTOP)
    holds = condition()
    _send_signal(everybody, signal.SIGKILL if holds else signal.SIGCONT)
    if holds:
        process.wait()
    return holds


def _send_signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # a worker that just ended by itself
            process.send_signal(number)


def follow_on(servers: str, checkpoint: Path, clients: int) -> list[Report]:
    """Go on from the checkpoint until a report knows so many clients, in its windows too; returns all reports."""
    reports: list[Report] = []

    def publish(report: Report) -> None:
        reports.append(report)
        if report.clients == sum(window.clients for window in report.windows) == clients:
            raise EnoughError

    with pytest.raises(EnoughError):
        Job(servers, {}, {}, scope=Scope(window=_WINDOW)).follow(publish, Following(every_s=0.5, checkpoint=checkpoint))
    return reports


@pytest.mark.long
def test_kill_9_counts_every_registration_once(spark: SparkSession, tmp_path: Path) -> None:
    """K649-39: A client registers its supported keys at start-up through a DescribeClientConfigs request
    (SupportedConfigs non-null).
    """
    checkpoint, log, output = tmp_path / "kept", tmp_path / "log", tmp_path / "out.json"
    with KlammBroker() as broker:
        servers = broker.bootstrap_servers
        # given
        register(servers, range(5))
        with output.open("wb") as out:
            process = start_process([sys.executable, "-c", _FOLLOW, servers, checkpoint], log=log, stdout=out.fileno())

        def alive() -> None:
            assert process.poll() is None, reasons(log.read_text())

        def in_a_round() -> bool:
            return any(is_at_work(checkpoint, stream) for stream in _STREAMS)

        def has_begun(before: dict[str, int]) -> bool:
            return any(newest(checkpoint, stream, "offsets") > before[stream] for stream in _STREAMS)

        def wait(condition: Callable[[], bool], what: str, interval_s: float = 0.02) -> None:
            wait_until(condition, timeout_s=_TIMEOUT_S, what=what, interval_s=interval_s, alive=alive)

        try:
            wait(lambda: '"clients": 5,' in output.read_text(), "a report that knows the first five")
            assert not re.search("log level| WARN |log4j profile", log.read_text()), "Spark's start is silent"
            # when
            clients, killed = 5, False
            while not killed and clients < _MAX_CLIENTS:
                wait(lambda: not in_a_round(), "both streams to be done")
                before = {stream: newest(checkpoint, stream, "offsets") for stream in _STREAMS}
                registering = threading.Thread(target=register, args=(servers, range(clients, clients + 2)))
                registering.start()
                # It may be done again when we look: then it is the next round's turn.
                wait(lambda: has_begun(before), "work to be done", 0.002)  # noqa: B023 - called at once
                killed = kill_hard_if(process, in_a_round)
                registering.join()
                clients += 2
            assert killed, "every round was over before it could be interrupted"
        finally:
            stop_process(process)
        register(servers, range(clients, clients + 3))
        clients += 3
        reports = follow_on(servers, checkpoint, clients)
    # then
    assert (reports[0].clients, reports[0].records) in {(number, number) for number in range(5, clients + 1)}
    assert (reports[-1].clients, reports[-1].records) == (clients, clients), "each client registered once"
    assert [window.clients for window in reports[-1].windows] == [clients]
    assert reports[-1].reach[0].following == clients
    ends = json.loads(_last_line(checkpoint / "state" / "offsets"))
    assert sum(ends[TOPIC].values()) == clients, "and each record was read"


def _last_line(rounds: Path) -> str:
    latest = max(
        (path for path in rounds.iterdir() if re.fullmatch(r"\d+", path.name)), key=lambda path: int(path.name)
    )
    return latest.read_text(encoding="utf-8").splitlines()[-1]

"""The mirror on a standalone cluster of Spark: a master and two workers of one core each."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]
import pyspark
import pytest

from klamm.java import require_java
from klamm.mirror.spark.session import write_interpreter
from klamm.mirror.spark.shipping import write_archive
from tests.support.klamm import KlammBroker
from tests.support.mirror import Seen, create_topic, produce, properties, read
from tests.support.processes import free_port, start_process, stop_process, wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "mirror_submit.py"
SPARK_HOME = Path(pyspark.__file__).parent
FOREVER = {"retention.ms": "-1"}
YEAR_2013 = 1_356_998_400_000
SPARK = """
spark.driver.host = 127.0.0.1
spark.executor.memory = 512m
spark.executor.cores = 1
spark.executor.extraJavaOptions = {quick_jvm}
heartbeats.replication.enabled = false
tasks.max = 2
"""


class StandaloneCluster:
    """Spark's own master and workers, on free ports of this machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.url = f"spark://127.0.0.1:{free_port()}"
        self.quick_jvm = f"{os.environ['SPARK_SUBMIT_OPTS']} -XX:+UseSerialGC"
        """Options of the drivers, which Spark's other processes can use as well."""
        python = str(write_interpreter(directory))
        self.environ = {
            **os.environ,
            "JAVA_HOME": str(require_java()),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": self.quick_jvm,
            "SPARK_NO_DAEMONIZE": "1",
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
        }
        self.workers: list[subprocess.Popen[bytes]] = []

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Start the master and two workers; stop all of them."""
        with contextlib.ExitStack() as stopping:
            ports = "--port", self.url.rpartition(":")[2], "--webui-port", str(free_port())
            stopping.callback(stop_process, self._start("master.Master", "--host", "127.0.0.1", *ports))
            self.wait_for_log("master", "I have been elected leader")
            for number in range(2):
                web = "--webui-port", str(free_port()), "--work-dir", str(self._directory / f"work{number}")
                worker = self._start("worker.Worker", "--host", "127.0.0.1", "-c", "1", "-m", "1g", *web, self.url)
                stopping.callback(stop_process, worker)
                self.workers.append(worker)
            yield

    def _start(self, master_or_worker: str, *arguments: str) -> subprocess.Popen[bytes]:
        spark_class = SPARK_HOME / "bin" / "spark-class"
        log = self._directory / f"{master_or_worker.partition('.')[0]}.log"
        return start_process(
            [spark_class, f"org.apache.spark.deploy.{master_or_worker}", *arguments],
            log=log,
            env=self.environ,
            cwd=self._directory,
        )

    def wait_for_log(self, name: str, text: str) -> None:
        log = self._directory / f"{name}.log"
        wait_until(lambda: text in log.read_text(errors="replace"), timeout_s=120, what=text, interval_s=0.2)


@pytest.fixture(scope="module")
def broker() -> Iterator[KlammBroker]:
    """Source and target in one."""
    with KlammBroker() as running:
        yield running


def numbered(first: int, count: int) -> list[tuple[int, Seen]]:
    return [(number % 4, Seen(b"k", b"%d" % number, (), YEAR_2013 + number)) for number in range(first, first + count)]


def copying_processes(broker: KlammBroker, below: psutil.Process) -> set[int]:
    """Spark's Python workers below a worker that are connected to the broker."""
    pids = set()
    with contextlib.suppress(psutil.Error):
        for child in below.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                ports = {each.raddr.port for each in child.net_connections("tcp") if each.raddr}
                pids |= {child.pid} if broker.ports[0] in ports else set()
    return pids


@pytest.mark.long
def test_submitted_mirror_copies_on_both_workers_and_survives_kill_of_one(
    java: None, broker: KlammBroker, tmp_path: Path
) -> None:
    # given
    address = broker.bootstrap_servers
    create_topic(address, "spread", 4, FOREVER)
    records = numbered(0, 400)
    produce(address, "spread", records)
    cluster = StandaloneCluster(tmp_path)
    file = tmp_path / "mm2.properties"
    file.write_text(properties(address, address, SPARK.format(quick_jvm=cluster.quick_jvm), topics="spread"))
    archive = write_archive(tmp_path / "klamm.zip")
    log = tmp_path / "mirror.log"
    submit = [SPARK_HOME / "bin" / "spark-submit", "--master", cluster.url, "--py-files", archive, EXAMPLE, file]
    with cluster.running():
        mirror = start_process([str(part) for part in submit], log=log, env=cluster.environ, cwd=tmp_path)
        try:

            def alive() -> None:
                assert mirror.poll() is None, log.read_text(errors="replace")[-6000:]

            workers = [psutil.Process(worker.pid) for worker in cluster.workers]
            wait_until(
                lambda: all(copying_processes(broker, worker) for worker in workers),
                timeout_s=180, what="tasks on both workers", interval_s=0.5, alive=alive,
            )  # fmt: skip
            # when
            cluster.workers[0].kill()
            more = numbered(400, 400)
            produce(address, "spread", more)
            # then
            arrived = read(address, "A.spread", dict.fromkeys(range(4), 200), timeout_s=150)
            alive()
        finally:
            stop_process(mirror, grace_s=60)
            if sys.exc_info()[0] is not None:
                sys.stderr.write(log.read_text(errors="replace")[-8000:])
    everything = [*records, *more]
    for partition in range(4):
        # At least once: what was in flight when the worker died may be there twice.
        assert set(arrived[partition]) == {record for at, record in everything if at == partition}

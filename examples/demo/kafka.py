"""One node of Apache Kafka from Maven, as a cluster that is not klamm's own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Final, Self

from klamm.admin import AdminClient
from klamm.java import require_java
from klamm.kafka_client.errors import CLUSTER_ERRORS

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

RELEASE: Final = "4.4.0"
MAVEN_S: Final = 240.0
"""Seconds for Maven: the first time it downloads 90 MB."""
START_S: Final = 90.0
"""Seconds for the start of the node."""
_STOP_S: Final = 20.0
_ATTEMPT_MS: Final = 1000
_CLUSTER_ID: Final = "klamm-demo-of-gateway0"
_DEPENDENCY: Final = (
    "<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
)
_LOG4J: Final = "2.24.3"
_PROJECT: Final = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>klamm</groupId><artifactId>demo</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    {_DEPENDENCY.format(group="org.apache.kafka", name="kafka_2.13", version=RELEASE)}
    {_DEPENDENCY.format(group="org.apache.logging.log4j", name="log4j-slf4j-impl", version=_LOG4J)}
    {_DEPENDENCY.format(group="org.apache.logging.log4j", name="log4j-core", version=_LOG4J)}
  </dependencies>
</project>
"""
_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath"
_JVM: Final = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_PROPERTIES: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
offsets.topic.num.partitions=1
group.consumer.min.heartbeat.interval.ms=1000
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


class KafkaUnavailableError(RuntimeError):
    """Apache Kafka cannot be had or does not start. The message has the reason."""


class ApacheKafka:
    """One node of Apache Kafka. A context manager that starts and stops it.

    Args:
        directory: Directory for its files.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "apache-kafka"
        self._process: subprocess.Popen[bytes] | None = None
        self.bootstrap_servers = ""

    def __enter__(self) -> Self:
        """Download what is missing, and start the node.

        Raises:
            KafkaUnavailableError: Maven is missing or does not reach its repository, or the node does not start.
        """
        self._directory.mkdir()
        java = str(require_java() / "bin" / "java")
        jars = self._class_path()
        settings = self._directory / "server.properties"
        port, controller = _free_ports()
        data = self._directory / "data"
        settings.write_text(_PROPERTIES.format(port=port, controller=controller, data=data), encoding="utf-8")
        log = self._directory / "server.log"
        words = ("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(settings))
        with log.open("wb") as output:
            run = [java, *_JVM, "-cp", jars]
            if subprocess.run([*run, *words], stdout=output, stderr=output, check=False).returncode:
                raise KafkaUnavailableError(f"the data directory cannot be formatted: {_last_line(log)}")
            self._process = subprocess.Popen([*run, "kafka.Kafka", str(settings)], stdout=output, stderr=output)
        self.bootstrap_servers = f"127.0.0.1:{port}"
        try:
            self._wait(self._process, log)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the node."""
        self.stop()

    def stop(self) -> None:
        """Stop the node in order, or kill it after a while."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _class_path(self) -> str:
        """Return the class path of the node, from Maven's local repository or from its remote one."""
        maven = shutil.which("mvn")
        if maven is None:
            raise KafkaUnavailableError("there is no mvn on the PATH")
        project, found = self._directory / "pom.xml", self._directory / "classpath"
        project.write_text(_PROJECT, encoding="utf-8")
        command = [maven, "-q", "-B", "-f", str(project), _PLUGIN, f"-Dmdep.outputFile={found}"]
        environment = os.environ | {"JAVA_HOME": str(require_java())}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=MAVEN_S, check=False, env=environment
            )
        except subprocess.TimeoutExpired:
            raise KafkaUnavailableError(f"Maven did not end within {MAVEN_S:.0f} s") from None
        if done.returncode or not found.is_file():
            reason = next((line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line), "no reason")
            raise KafkaUnavailableError(f"Maven: {reason[:300]}")
        return found.read_text(encoding="utf-8").strip()

    def _wait(self, process: subprocess.Popen[bytes], log: Path) -> None:
        """Wait until the node responds."""
        deadline = time.monotonic() + START_S
        with AdminClient(self.bootstrap_servers) as admin:
            while True:
                try:
                    admin.describe_cluster(timeout_ms=_ATTEMPT_MS).result()
                except CLUSTER_ERRORS as error:
                    if process.poll() is not None:
                        raise KafkaUnavailableError(f"the node ended: {_last_line(log)}") from None
                    if time.monotonic() > deadline:
                        raise KafkaUnavailableError(f"the node does not respond: {error}") from None
                    time.sleep(0.1)
                else:
                    return


def _free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        return first.getsockname()[1], second.getsockname()[1]


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "its log is empty")

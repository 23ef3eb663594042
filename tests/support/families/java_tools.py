"""Java clients of Apache Kafka 4.4, through the programs of Kafka's own system tests."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.families.model import Delivery, Family, RunningConsumer, RunningProducer
from tests.support.java import clients_class_path, java_command
from tests.support.kafka_tools import run_tool
from tests.support.processes import start_process, stop_process

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_TOPICS = "org.apache.kafka.tools.TopicCommand"
_CONFIGS = "kafka.admin.ConfigCommand"
# The program turns off retries, and with them idempotence. This restores the client's defaults.
_PRODUCER_SETTINGS = "retries=2147483647\nenable.idempotence=true\ncompression.type=zstd\n"


class _Producer(RunningProducer):
    _process: subprocess.Popen[bytes]
    _scratch: tempfile.TemporaryDirectory[str]

    def _prepare(self) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="klamm-java-")
        settings = Path(self._scratch.name) / "producer.properties"
        settings.write_text(_PRODUCER_SETTINGS)
        self._process = _start(
            "VerifiableProducer", "--bootstrap-server", self.bootstrap_servers, "--topic", self.topic,
            "--max-messages", str(self.count), "--throughput", str(self.records_per_s),
            "--repeating-keys", "97", "--command-config", str(settings),
        )  # fmt: skip

    def _work(self) -> None:
        for event in _events(self._process):
            match event["name"]:
                case "producer_send_success":
                    self.acknowledged.append(_delivery(event))
                case "producer_send_error":
                    self.failures.append(f"{event['value']}: {event['exception']} {event['message']}")
        self._process.wait()

    def stop(self, timeout_s: float = 30.0) -> None:
        stop_process(self._process)
        super().stop(timeout_s)
        self._scratch.cleanup()


class _Consumer(RunningConsumer):
    _process: subprocess.Popen[bytes]

    def _prepare(self) -> None:
        self._process = _start(
            "VerifiableConsumer", "--bootstrap-server", self.bootstrap_servers, "--topic", self.topic,
            "--group-id", self.group, "--verbose", "--reset-policy", "earliest",
        )  # fmt: skip

    def _work(self) -> None:
        for event in _events(self._process):
            match event["name"]:
                case "record_data":
                    self.delivered.append(_delivery(event))
                case "partitions_assigned":
                    self.assignment = frozenset(partition["partition"] for partition in event["partitions"])
                case "partitions_revoked":
                    self.assignment = frozenset()
        self._process.wait()

    def stop(self, timeout_s: float = 30.0) -> None:
        self._process.terminate()  # its shutdown hook leaves the group; the rest of its output is read to the end
        try:
            super().stop(timeout_s)
        finally:
            stop_process(self._process)


def _start(program: str, *args: str) -> subprocess.Popen[bytes]:
    return start_process(
        java_command(f"org.apache.kafka.tools.{program}", *args, jars=clients_class_path()), stdout=subprocess.PIPE
    )


def _events(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


def _delivery(event: Mapping[str, Any]) -> Delivery:
    return Delivery(partition=event["partition"], offset=event["offset"], value=int(event["value"]))


class _Admin:
    """kafka-topics.sh and kafka-configs.sh, without the scripts around them."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._server = ("--bootstrap-server", bootstrap_servers)

    def create_topic(self, name: str, *, partitions: int, configs: Mapping[str, str]) -> None:
        settings = [part for key, value in configs.items() for part in ("--config", f"{key}={value}")]
        run_tool(_TOPICS, *self._server, "--create", "--topic", name, "--partitions", str(partitions), *settings)

    def create_partitions(self, name: str, *, total: int) -> None:
        run_tool(_TOPICS, *self._server, "--alter", "--topic", name, "--partitions", str(total))

    def partition_count(self, name: str) -> int:
        described = run_tool(_TOPICS, *self._server, "--describe", "--if-exists", "--topic", name)
        counted = re.search(r"PartitionCount: (\d+)", described)
        return int(counted[1]) if counted else 0

    def describe_config(self, name: str) -> Mapping[str, str]:
        described = run_tool(
            _CONFIGS, *self._server, "--describe", "--all", "--entity-type", "topics", "--entity-name", name
        )
        return dict(re.findall(r"^\s+([a-z.]+)=(\S*) sensitive=", described, re.MULTILINE))

    def alter_config(self, name: str, configs: Mapping[str, str]) -> None:
        added = ",".join(f"{key}=[{value}]" for key, value in configs.items())
        run_tool(
            _CONFIGS, *self._server, "--alter", "--entity-type", "topics", "--entity-name", name, "--add-config", added
        )

    def delete_topic(self, name: str) -> None:
        run_tool(_TOPICS, *self._server, "--delete", "--topic", name)

    def close(self) -> None:
        """Do nothing: each call was a run of a tool."""


JAVA = Family(
    name="java", admin=_Admin, producer=_Producer, consumer=_Consumer, alters_incrementally=True, needs_java=True
)

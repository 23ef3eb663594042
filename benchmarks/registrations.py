"""The registration report: ``klamm registrations report`` on Spark, and one plain Python process on the same topic."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Producer

from benchmarks.measure import Measurement, Plan, alternate, cpu_seconds, pss_mebibytes
from benchmarks.sides import apache_kafka
from klamm.admin import AdminClient, NewTopic
from klamm.client_configs.registrations import TOPIC, TOPIC_CONFIGS
from tests.support.class_archives import write_spark_archive
from tests.support.processes import start_process, stop_process

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Mapping, Sequence

_PARTITIONS: Final = 4
_RECORDS_PER_CLIENT: Final = 5
_USERS: Final = 1_000
_START_MS: Final = 1_760_000_000_000
_SPAN_MS: Final = 90 * 86_400_000
_SOFTWARE: Final = ("klamm-kafka-python", "apache-kafka-java", "librdkafka", "confluent-kafka-python", "aiokafka")
_CONFIGS: Final = ("acks", "session.timeout.ms", "heartbeat.interval.ms")
_LISTS: Final = tuple(
    json.dumps([name for bit, name in enumerate(_CONFIGS) if number >> bit & 1], separators=(",", ":"))
    for number in range(8)
)
_TIMEOUT_S: Final = 3_600.0
_SAMPLE_S: Final = 0.5


def run(plan: Plan) -> Iterator[Measurement]:
    """Measure both over one and over ten million records, a fifth as many clients; quick: over 500,000."""
    for records in (500_000,) if plan.quick else (1_000_000, 10_000_000):
        yield from _over(records, plan)


def _over(records: int, plan: Plan) -> Iterator[Measurement]:
    with apache_kafka() as cluster:
        make_topic(cluster.bootstrap_servers)
        fill(cluster.bootstrap_servers, records)
        klamm = [str(Path(sys.executable).with_name("klamm")), "registrations", "report", "-o", "json"]
        plain = [sys.executable, "-m", "benchmarks.registrations_plain"]
        told: dict[str, Any] = {}

        def side(name: str, command: Sequence[str]) -> Mapping[str, float]:
            values, document = measure([*command, "--bootstrap-server", cluster.bootstrap_servers], records)
            told[name] = {key: document[key] for key in ("clients", "records", "reach", "windows")}
            if len(told) > 1 and len({json.dumps(one, sort_keys=True) for one in told.values()}) > 1:
                raise AssertionError(f"The sides tell different things: {told}"[:2_000])
            return values

        sides = {"klamm": lambda: side("klamm", klamm), "plain Python": lambda: side("plain Python", plain)}
        # One round: what it costs is told by the two sizes, and ten million records take minutes.
        yield from alternate(sides, benchmark=f"registration report, {records:,} records", plan=plan, rounds=1)


def make_topic(servers: str) -> None:
    """Make the topic as the broker of klamm makes it: nothing in it expires."""
    topic = NewTopic(name=TOPIC, num_partitions=_PARTITIONS, replication_factor=1, configs=dict(TOPIC_CONFIGS))
    with AdminClient(servers) as admin:
        admin.create_topics([topic]).all().result()


def fill(servers: str, records: int) -> None:
    """Write synthetic registrations: each client registers five times, newer versions later, 1 % are tombstones."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 50, "batch.size": 262_144, "acks": 1})
    clients = max(1, records // _RECORDS_PER_CLIENT)
    for number in range(records):
        key, value = record(number, clients)
        at_ms = _START_MS + number * _SPAN_MS // records
        # A client's records stay in one partition, in order.
        where = (number * 7_919 % clients) % _PARTITIONS
        while True:
            try:
                producer.produce(TOPIC, key=key, value=value, partition=where, timestamp=at_ms)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 10_000 == 0:
            producer.poll(0)
    producer.flush()


def record(number: int, clients: int) -> tuple[bytes, bytes | None]:
    """Return key and value of one synthetic registration."""
    client, again = number * 7_919 % clients, number // clients
    key = f'{{"client-id":"app-{client}","user":"user-{client % _USERS}"}}'.encode()
    if number % 100 == 0:
        return key, None
    software = _SOFTWARE[client % len(_SOFTWARE)]
    information = f"{software}/{1 + client % 4}.{again}.{client % 3}"
    supported = _LISTS[(client + again) % len(_LISTS)]
    return key, f'{{"client_information":"{information}","supported_configs":{supported},"version":0}}'.encode()


def measure(command: Sequence[str], records: int) -> tuple[Mapping[str, float], Any]:
    """Run a command that prints a report as JSON; returns its time, CPU, and peak memory, and the report.

    Raises:
        RuntimeError: It failed.
    """
    scratch = Path(tempfile.mkdtemp(prefix="klamm-registrations-"))
    output = scratch / "report.json"
    write_spark_archive()
    began = time.monotonic()
    try:
        with output.open("wb") as out:
            process = start_process(command, log=scratch / "log", stdout=out.fileno())
            try:
                watched = Watch(process)
                process.wait(_TIMEOUT_S)
                seconds = time.monotonic() - began
                peak, cpu = watched.end()
            finally:
                stop_process(process)
        if process.returncode != 0:
            raise RuntimeError(f"{command} ended with {process.returncode}: {(scratch / 'log').read_text()[-2_000:]}")
        values = {"s": seconds, "records/s": records / seconds, "CPU s": cpu, "peak PSS MiB": peak}
        return values, json.loads(output.read_text())
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


class Watch:
    """Looks at a process tree twice a second: the most memory it held, and its CPU time when it was last seen."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._peak = self._cpu = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.is_set():
            self._peak = max(self._peak, pss_mebibytes([self._process.pid]))
            self._cpu = max(self._cpu, cpu_seconds([self._process.pid]))
            self._ended.wait(_SAMPLE_S)

    def end(self) -> tuple[float, float]:
        """Stop looking; returns MiB and seconds."""
        self._ended.set()
        self._thread.join()
        return self._peak, self._cpu

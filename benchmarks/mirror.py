"""Apache Kafka to Apache Kafka: klamm's mirror on Spark, MirrorMaker 2 as shipped, MirrorMaker 2 tuned."""

from __future__ import annotations

import contextlib
import functools
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.measure import Measurement, Plan, alternate, cpu_seconds, pss_mebibytes, wait_for
from benchmarks.sides import apache_kafka
from benchmarks.throughput import produce
from tests.support.java import java_command
from tests.support.processes import start_process, stop_process
from tests.support.wire import RefusedError, WireClient

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Mapping

    from tests.support.kafka import KafkaCluster

_RECORD_BYTES: Final = 512
_PARTITIONS: Final = 4
_MEGA: Final = 1_000_000
_TIMEOUT_S: Final = 900.0
_START_TIMEOUT_S: Final = 120.0
_TOPIC: Final = "load"
_REMOTE: Final = "source.load"
_WARM_UP: Final = "warm-up"
_WARM_UP_RECORDS: Final = 400_000
"""200 MB into a target that has just started: its compiler is done with the hot paths before anybody is timed."""
_BATCH_SIZES: Final = {
    "128 KiB": ("batch.size=131072", "linger.ms=100"),
    "16 KiB": ("batch.size=16384", "linger.ms=100"),
}

_TUNED: Final = """
tasks.max=2
source.consumer.max.partition.fetch.bytes=4194304
source.consumer.fetch.max.bytes=52428800
source.consumer.fetch.min.bytes=1048576
source.consumer.fetch.max.wait.ms=100
source.consumer.max.poll.records=20000
target.producer.batch.size=524288
target.producer.linger.ms=20
target.producer.buffer.memory=134217728
"""
"""Producer batches and linger, fetch sizes, two tasks for two cores; the heap is that of the start script (2 GB)."""


def run(plan: Plan) -> Iterator[Measurement]:
    """Measure all three for 128 KiB and 16 KiB batches of 512-byte records; each round has a fresh target cluster."""
    records = (600 if plan.quick else 4_000) * _MEGA // _RECORD_BYTES
    for label, producer in _BATCH_SIZES.items():
        with apache_kafka() as source:
            with WireClient(source.bootstrap_servers) as client:
                client.create_topic(_TOPIC, partitions=_PARTITIONS)
            produce(source.bootstrap_servers, _TOPIC, records, producer)
            sides = {
                "klamm": functools.partial(_mirror, source, _start_klamm, records, producer, ""),
                "MirrorMaker 2": functools.partial(_mirror, source, _start_mirrormaker, records, producer, ""),
                "MirrorMaker 2, tuned": functools.partial(
                    _mirror, source, _start_mirrormaker, records, producer, _TUNED
                ),
            }
            yield from alternate(sides, benchmark=f"mirror, batches of {label}", plan=plan, rounds=plan.rounds(3))


def _start_klamm(properties: Path, log: Path) -> subprocess.Popen[bytes]:
    return start_process([Path(sys.executable).with_name("klamm"), "mirror", properties], log=log)


def _start_mirrormaker(properties: Path, log: Path) -> subprocess.Popen[bytes]:
    command = java_command(
        "org.apache.kafka.connect.mirror.MirrorMaker",
        str(properties),
        heap="2G",
        jvm_options=("-server", "-Xms256M", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    )
    return start_process(command, log=log)


def _mirror(
    source: KafkaCluster,
    start: Callable[[Path, Path], subprocess.Popen[bytes]],
    records: int,
    producer: tuple[str, ...],
    more: str,
) -> Mapping[str, float]:
    with apache_kafka() as target, _scratch() as scratch:
        with WireClient(target.bootstrap_servers) as client:
            client.create_topic(_WARM_UP, partitions=_PARTITIONS)
        produce(target.bootstrap_servers, _WARM_UP, _WARM_UP_RECORDS, producer)
        properties = scratch / "mm2.properties"
        properties.write_text(_properties(source.bootstrap_servers, target.bootstrap_servers) + more)
        log = scratch / "mirror.log"
        began = time.monotonic()
        mirror = start(properties, log)
        try:
            return _watch(mirror, (*source.pids, *target.pids, mirror.pid), target, records, began)
        except (TimeoutError, ChildProcessError) as error:
            error.add_note(log.read_text(errors="replace")[-4000:])
            raise
        finally:
            mirror.send_signal(signal.SIGTERM)
            stop_process(mirror, grace_s=30.0)


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="klamm-bench-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _watch(
    mirror: subprocess.Popen[bytes], pids: tuple[int, ...], target: KafkaCluster, records: int, began: float
) -> Mapping[str, float]:
    """Time, CPU and memory between the first and the last record on the target."""

    def alive() -> None:
        if mirror.poll() is not None:
            raise ChildProcessError(f"The mirror ended with exit status {mirror.returncode}")

    with WireClient(target.bootstrap_servers) as client:

        def reached(count: int) -> bool:
            alive()
            return _mirrored(client) >= count

        wait_for(lambda: reached(1), timeout_s=_START_TIMEOUT_S, what="the first record")
        first, early = time.monotonic(), _mirrored(client)
        spent, own = cpu_seconds(pids), cpu_seconds([mirror.pid])
        with _PeakMemory(mirror.pid) as memory:
            wait_for(lambda: reached(records), timeout_s=_TIMEOUT_S, what=f"{records} records", interval_s=0.02)
            last = time.monotonic()
            spent, own = cpu_seconds(pids) - spent, cpu_seconds([mirror.pid]) - own
        exceeding = _mirrored(client) - records
    if exceeding:
        raise RuntimeError(f"{exceeding} records too many arrived")
    gigabytes = (records - early) * _RECORD_BYTES / 1e9
    return {
        "MB/s": gigabytes * 1e3 / (last - first),
        "CPU s/GB": spent / gigabytes,
        "of it mirror": own / gigabytes,
        "mirror PSS MiB": memory.peak,
        "first record s": first - began,
    }


def _mirrored(client: WireClient) -> int:
    try:
        return sum(client.end_offset(_REMOTE, partition) for partition in range(_PARTITIONS))
    except RefusedError:
        return 0  # the remote topic is not there yet


class _PeakMemory:
    """Looks once a second at the memory of a process tree while the block runs."""

    def __init__(self, pid: int) -> None:
        self.peak = 0.0
        self._pid = pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, name="memory", daemon=True)

    def _look(self) -> None:
        while True:
            self.peak = max(self.peak, pss_mebibytes([self._pid]))
            if self._done.wait(1.0):
                return

    def __enter__(self) -> _PeakMemory:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._done.set()
        self._thread.join()


def _properties(source: str, target: str) -> str:
    return f"""clusters=source,target
source.bootstrap.servers={source}
target.bootstrap.servers={target}
source->target.enabled=true
source->target.topics={_TOPIC}
target->source.enabled=false
replication.factor=1
checkpoints.topic.replication.factor=1
heartbeats.topic.replication.factor=1
offset-syncs.topic.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
config.storage.replication.factor=1
"""

"""The mirrors under measurement, started as their users start them, between two clusters of Apache Kafka."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from benchmarks.sides import with_wheel
from tests.support.class_archives import write_spark_archive
from tests.support.java import java_command
from tests.support.processes import free_port, start_process, stop_process
from tests.support.wire import RejectedError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    from tests.support.wire import WireClient

TOPIC: Final = "load"
REMOTE: Final = "source.load"
PARTITIONS: Final = 4
EXACTLY_ONCE: Final = """
target.exactly.once.source.support=enabled
source.consumer.isolation.level=read_committed
dedicated.mode.enable.internal.rest=true
"""
EQUAL_OFFSETS: Final = """
source->target.klamm.offsets=preserve
"""
REPLICA: Final = """
source->target.klamm.offsets=preserve
source->target.klamm.offsets.by=replica
source->target.klamm.replica.experimental=true
source->target.klamm.replica.node.id=1000
source->target.klamm.replica.listeners={listener}
target.bootstrap.controllers={controllers}
"""
"""Equal offsets by a broker of the target that has no storage."""
TUNED: Final = """
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


class Cluster(Protocol):
    """What a mirror's file says of a cluster."""

    @property
    def bootstrap_servers(self) -> str:
        """Where its brokers are."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningMirror:
    """Process of a mirror."""

    process: subprocess.Popen[bytes]
    log: Path
    started_at: float
    """Monotonic time in seconds."""

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self.process.pid


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSide:
    """One mirror and its settings."""

    start: Callable[[Path, Path], subprocess.Popen[bytes]]
    """Takes the properties file and where to log."""
    more: str = ""
    """Lines beyond the common ones, with ``{controllers}`` of the target and a free ``{listener}``."""
    creates_topics: bool = True
    """False: the remote topic must be there."""

    @contextlib.contextmanager
    def running(self, source: Cluster, target: Cluster, *, controllers: str = "") -> Iterator[RunningMirror]:
        """Let it mirror the topic; what it logged is told with an error of the block. A replica needs controllers."""
        scratch = Path(tempfile.mkdtemp(prefix="klamm-bench-"))
        properties, log = scratch / "mm2.properties", scratch / "mirror.log"
        more = self.more.format(controllers=controllers, listener=f"127.0.0.1:{free_port()}")
        properties.write_text(_properties(source.bootstrap_servers, target.bootstrap_servers) + more)
        write_spark_archive()  # as after the first start on a machine
        mirror = self.start(properties, log)
        started_at = time.monotonic()  # not earlier: the first one builds the wheel
        try:
            yield RunningMirror(process=mirror, log=log, started_at=started_at)
        except (TimeoutError, ChildProcessError) as error:
            error.add_note(log.read_text(errors="replace")[-4000:])
            raise
        finally:
            mirror.send_signal(signal.SIGTERM)
            stop_process(mirror, grace_s=30.0)
            shutil.rmtree(scratch, ignore_errors=True)


def holds_records(client: WireClient) -> bool:
    """Return whether the remote topic exists and has records."""
    try:
        return any(client.end_offset(REMOTE, partition, by_any_replica=True) for partition in range(PARTITIONS))
    except RejectedError:
        return False


def start_klamm(properties: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start ``klamm mirror`` as the wheel has it."""
    return start_process([sys.executable, "-m", "klamm.cli", "mirror", properties], log=log, env=with_wheel())


def start_klamm_from_source(properties: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start ``klamm mirror`` as a checkout has it: nothing is compiled."""
    return start_process([Path(sys.executable).with_name("klamm"), "mirror", properties], log=log)


def start_bare_loop(properties: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start the copying of klamm without Spark and without control loops, in one process, compiled as klamm's is."""
    return start_process([sys.executable, "-m", "benchmarks.mirror_bare", properties], log=log, env=with_wheel())


def start_mirrormaker(properties: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start MirrorMaker 2 with the JVM options of its start script."""
    command = java_command(
        "org.apache.kafka.connect.mirror.MirrorMaker",
        str(properties),
        heap="2G",
        jvm_options=("-server", "-Xms256M", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    )
    return start_process(command, log=log)


def _properties(source: str, target: str) -> str:
    return f"""clusters=source,target
source.bootstrap.servers={source}
target.bootstrap.servers={target}
source->target.enabled=true
source->target.topics={TOPIC}
target->source.enabled=false
replication.factor=1
checkpoints.topic.replication.factor=1
heartbeats.topic.replication.factor=1
offset-syncs.topic.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
config.storage.replication.factor=1
"""

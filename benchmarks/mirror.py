"""Throughput from Apache Kafka to Apache Kafka: klamm on Spark, a bare loop, MirrorMaker 2 as shipped and tuned."""

from __future__ import annotations

import functools
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.measure import Measurement, PeakMemory, Plan, alternate, cpu_seconds, wait_for
from benchmarks.mirror_sides import (
    EQUAL_OFFSETS,
    EXACTLY_ONCE,
    PARTITIONS,
    REMOTE,
    REPLICA,
    TOPIC,
    TUNED,
    MirrorSide,
    start_bare_loop,
    start_klamm,
    start_klamm_from_source,
    start_mirrormaker,
)
from benchmarks.sides import apache_kafka
from benchmarks.throughput import produce
from tests.support.wire import RejectedError, WireClient

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Mapping

    from tests.support.kafka import KafkaCluster

_RECORD_BYTES: Final = 512
_MEGA: Final = 1_000_000
_TIMEOUT_S: Final = 900.0
_START_TIMEOUT_S: Final = 120.0
_WARM_UP: Final = "warm-up"
_WARM_UP_RECORDS: Final = 400_000
"""200 MB into a target that has just started: its compiler is done with the hot paths before anybody is timed."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the source holds: all sizes are of records before they are compressed."""

    label: str
    producer: tuple[str, ...]
    is_quick: bool = False
    """Measured in a quick run too."""


LOADS: Final = (
    Load("batches of 128 KiB", ("batch.size=131072", "linger.ms=100"), is_quick=True),
    Load("batches of 16 KiB", ("batch.size=16384", "linger.ms=100"), is_quick=True),
    Load("batches of 128 KiB, zstd", ("batch.size=131072", "linger.ms=100", "compression.type=zstd")),
    Load("batches of 16 KiB, zstd", ("batch.size=16384", "linger.ms=100", "compression.type=zstd")),
)
_SIDES: Final = {
    "klamm": MirrorSide(start=start_klamm),
    "klamm, not compiled": MirrorSide(start=start_klamm_from_source),
    "klamm, equal offsets": MirrorSide(start=start_klamm, more=EQUAL_OFFSETS),
    "klamm, equal offsets by a replica": MirrorSide(start=start_klamm, more=REPLICA),
    "klamm, exactly once": MirrorSide(start=start_klamm, more=EXACTLY_ONCE),
    "bare loop": MirrorSide(start=start_bare_loop, creates_topics=False),
    "MirrorMaker 2": MirrorSide(start=start_mirrormaker),
    "MirrorMaker 2, tuned": MirrorSide(start=start_mirrormaker, more=TUNED),
    "MirrorMaker 2, tuned, exactly once": MirrorSide(start=start_mirrormaker, more=TUNED + EXACTLY_ONCE),
}


def run(plan: Plan) -> Iterator[Measurement]:
    """Measure all of them for each kind of batches; each round has a fresh target cluster."""
    megabytes = plan.megabytes or (600 if plan.quick else 4_000)
    for load in LOADS:
        if not plan.takes(load.label, is_quick=load.is_quick):
            continue
        with apache_kafka() as source:
            records = produce_load(source, load, megabytes)
            # Not counted: who copies first from a source pays for its compiler, and for a disk that was just written.
            _mirror(source, _SIDES["bare loop"], records, load.producer)
            sides = {
                name: functools.partial(_mirror, source, side, records, load.producer) for name, side in _SIDES.items()
            }
            yield from alternate(sides, benchmark=f"mirror, {load.label}", plan=plan, rounds=plan.rounds(3))


def produce_load(source: KafkaCluster, load: Load, megabytes: int) -> int:
    """Write the topic that is mirrored and return how many records it holds."""
    records = megabytes * _MEGA // _RECORD_BYTES
    with WireClient(source.bootstrap_servers) as client:
        client.create_topic(TOPIC, partitions=PARTITIONS)
    produce(source.bootstrap_servers, TOPIC, records, load.producer)
    return records


def _mirror(source: KafkaCluster, side: MirrorSide, records: int, producer: tuple[str, ...]) -> Mapping[str, float]:
    with apache_kafka() as target:
        with WireClient(target.bootstrap_servers) as client:
            client.create_topic(_WARM_UP, partitions=PARTITIONS)
            if not side.creates_topics:
                client.create_topic(REMOTE, partitions=PARTITIONS)
        produce(target.bootstrap_servers, _WARM_UP, _WARM_UP_RECORDS, producer)
        os.sync()  # nobody is timed while the disk is busy with what others wrote
        with side.running(source, target, controllers=target.bootstrap_controllers) as mirror:
            return watch(mirror.process, (*source.pids, *target.pids, mirror.pid), target, records, mirror.started_at)


def watch(
    mirror: subprocess.Popen[bytes], pids: tuple[int, ...], target: KafkaCluster, records: int, began: float
) -> Mapping[str, float]:
    """Measure time, CPU and memory between the first and the last record on the target.

    Args:
        mirror: its process; its children count too.
        pids: it, and the clusters.
        target: asked how far it is.
        records: how many are to come.
        began: when the mirror was started, by the monotonic clock.
    """

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
        with PeakMemory(mirror.pid) as memory:
            wait_for(lambda: reached(records), timeout_s=_TIMEOUT_S, what=f"{records} records", interval_s=0.02)
            last = time.monotonic()
            spent, own = cpu_seconds(pids) - spent, cpu_seconds([mirror.pid]) - own
    gigabytes = (records - early) * _RECORD_BYTES / 1e9
    return {
        "MB/s": gigabytes * 1e3 / (last - first),
        "CPU s/GB": own / gigabytes,
        "with both clusters": spent / gigabytes,
        "PSS MiB": memory.peak,
        "PSS growth MiB": memory.growth,
        "first record s": first - began,
    }


def _mirrored(client: WireClient) -> int:
    """Count the offsets of the remote topic; where transactions are written a marker a second is among them."""
    try:
        return sum(client.end_offset(REMOTE, partition, by_any_replica=True) for partition in range(PARTITIONS))
    except RejectedError:
        return 0  # the remote topic is not there yet

"""Produce and consume with Kafka's own perf tools, through klamm's broker and through Apache Kafka."""

from __future__ import annotations

import re
import statistics
from typing import TYPE_CHECKING, Final

from benchmarks.measure import Measurement, Plan, alternate, cpu_seconds, pss_mebibytes
from benchmarks.sides import apache_kafka, klamm_broker
from tests.support.java import java_tool
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.support.probe import Cluster

_RECORD_BYTES: Final = 512
_OTHER_RECORD_BYTES: Final = (100, 1024)
_PARTITIONS: Final = 4
_MEGA: Final = 1_000_000
_TIMEOUT_S: Final = 900.0
_READS: Final = 3
"""Number of times that a topic is read. Reading takes a few seconds in a quick run, and a single one is off by half."""
_BATCHES: Final = {"as shipped": (), "batches of 128 KiB": ("batch.size=131072", "linger.ms=10")}


def run(plan: Plan) -> Iterator[Measurement]:
    """Measure both brokers with the producer as shipped (16 KiB batches) and with larger batches.

    Records have 512 bytes; with the producer as shipped 100 bytes and 1 KiB as well.
    """
    megabytes = 600 if plan.quick else 4_000
    loads = [(label, producer, _RECORD_BYTES) for label, producer in _BATCHES.items()]
    loads += [(f"as shipped, records of {size} B", (), size) for size in _OTHER_RECORD_BYTES]
    for label, producer, size in loads:

        def measured(cluster: Cluster, producer: tuple[str, ...] = producer, size: int = size) -> Mapping[str, float]:
            return _load(cluster, megabytes * _MEGA // size, size, producer)

        def with_klamm(measured: Callable[[Cluster], Mapping[str, float]] = measured) -> Mapping[str, float]:
            with klamm_broker() as broker:
                return measured(broker)

        def with_kafka(measured: Callable[[Cluster], Mapping[str, float]] = measured) -> Mapping[str, float]:
            with apache_kafka() as cluster:
                return measured(cluster)

        sides = {"klamm": with_klamm, "Apache Kafka": with_kafka}
        yield from alternate(sides, benchmark=f"produce and consume, {label}", plan=plan, rounds=plan.rounds(3))


def produce(
    address: str, topic: str, records: int, settings: tuple[str, ...], *, record_bytes: int = _RECORD_BYTES
) -> float:
    """Fill a topic with ProducerPerformance and return MB/s (10^6 bytes of record values)."""
    said = java_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        "--topic", topic, "--num-records", str(records), "--record-size", str(record_bytes), "--throughput", "-1",
        "--producer-props", f"bootstrap.servers={address}", *settings,
        timeout_s=_TIMEOUT_S, heap="512m", jvm_options=("-server",),
    )  # fmt: skip
    rates = re.findall(r"([\d.]+) records/sec", said)
    return float(rates[-1]) * record_bytes / _MEGA


def consume(address: str, topic: str, records: int, *, record_bytes: int = _RECORD_BYTES) -> float:
    """Read a topic with ConsumerPerformance and return MB/s of its fetch time (without joining the group)."""
    said = java_tool(
        "org.apache.kafka.tools.ConsumerPerformance",
        "--bootstrap-server", address, "--topic", topic, "--messages", str(records), "--timeout", "60000",
        timeout_s=_TIMEOUT_S, heap="512m", jvm_options=("-server",),
    )  # fmt: skip
    header, row = (line.split(", ") for line in said.strip().splitlines()[-2:])
    per_second = dict(zip(header, row, strict=True))["fetch.nMsg.sec"]
    return float(per_second) * record_bytes / _MEGA


def _load(cluster: Cluster, records: int, record_bytes: int, producer: tuple[str, ...]) -> Mapping[str, float]:
    topic, megabytes = "load", records * record_bytes / _MEGA
    with WireClient(cluster.bootstrap_servers) as client:
        client.create_topic(topic, partitions=_PARTITIONS)
    before = cpu_seconds(cluster.pids)
    produced = produce(cluster.bootstrap_servers, topic, records, producer, record_bytes=record_bytes)
    between = cpu_seconds(cluster.pids)
    consumed = [consume(cluster.bootstrap_servers, topic, records, record_bytes=record_bytes) for _ in range(_READS)]
    after = cpu_seconds(cluster.pids)
    return {
        "produce MB/s": produced,
        "produce CPU ms/MB": (between - before) * 1e3 / megabytes,
        "consume MB/s": statistics.median(consumed),
        "consume CPU ms/MB": (after - between) * 1e3 / megabytes / _READS,
        "PSS MiB": pss_mebibytes(cluster.pids),
    }

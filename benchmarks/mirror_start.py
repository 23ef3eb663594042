"""How long a mirror takes from the start of its process to the first record on the target, Kafka to Kafka."""

from __future__ import annotations

import functools
import os
import re
import time
from typing import TYPE_CHECKING, Final

from confluent_kafka import Producer

from benchmarks.measure import Measurement, Plan, alternate, cpu_seconds, wait_for
from benchmarks.mirror_sides import PARTITIONS, TOPIC, MirrorSide, holds_records, start_klamm, start_mirrormaker
from benchmarks.sides import apache_kafka
from klamm.mirror.spark.class_archive import OFF, VARIABLE
from tests.support.wire import WireClient

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_RECORDS: Final = 100
_TIMEOUT_S: Final = 300.0
_SPARK_LINE: Final = re.compile(
    r"Spark started in (?P<all>\S+) s: JVM (?P<jvm>\S+) s, session (?P<session>\S+) s, "
    r"query (?P<query>\S+) s, first task (?P<task>\S+) s"
)


def _start_without_archive(properties: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start ``klamm mirror`` as on a machine on which it never ran."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = OFF
    try:
        return start_klamm(properties, log)
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before


_SIDES: Final = {
    "klamm": MirrorSide(start=start_klamm),
    "klamm, no class archive": MirrorSide(start=_start_without_archive),
    "MirrorMaker 2": MirrorSide(start=start_mirrormaker),
}


def run(plan: Plan) -> Iterator[Measurement]:
    """Measure both as shipped; each round has a fresh target. The parts of Spark's start are a table of their own."""
    parts: dict[str, Mapping[str, float]] = {}
    sides = {name: functools.partial(_start, name, side, parts) for name, side in _SIDES.items()}
    for measurement in alternate(sides, benchmark="mirror, first record", plan=plan, rounds=plan.rounds(5)):
        yield measurement
        if (of_spark := parts.pop(measurement.side, None)) is not None:
            yield Measurement(
                benchmark="mirror, start of Spark", side=measurement.side, round=measurement.round, values=of_spark
            )


def _start(name: str, side: MirrorSide, parts: dict[str, Mapping[str, float]]) -> Mapping[str, float]:
    with apache_kafka() as source, apache_kafka() as target:
        with WireClient(source.bootstrap_servers) as client:
            client.create_topic(TOPIC, partitions=PARTITIONS)
        producer = Producer({"bootstrap.servers": source.bootstrap_servers})
        for number in range(_RECORDS):
            producer.produce(TOPIC, value=b"record", partition=number % PARTITIONS)
        producer.flush(10)
        with WireClient(target.bootstrap_servers) as client, side.running(source, target) as mirror:
            wait_for(lambda: holds_records(client), timeout_s=_TIMEOUT_S, what="the first record")
            first_s, spent = time.monotonic() - mirror.started_at, cpu_seconds([mirror.pid])
            if name.startswith("klamm"):
                parts[name] = _parts(mirror.log, first_s)
    return {"first record s": first_s, "CPU s": spent}


def _parts(log: Path, first_s: float) -> Mapping[str, float]:
    """Return the parts of the start as the mirror logs them, soon after the first record."""
    lines: list[re.Match[str]] = []

    def is_logged() -> bool:
        lines.extend(_SPARK_LINE.finditer(log.read_text(errors="replace")))
        return bool(lines)

    wait_for(is_logged, timeout_s=_TIMEOUT_S, what="the line about the start of Spark")
    line = lines[0]
    return {
        "Python and settings s": max(0.0, first_s - float(line["all"])),
        "JVM s": float(line["jvm"]),
        "session s": float(line["session"]),
        "query s": float(line["query"]),
        "first task s": float(line["task"]),
    }

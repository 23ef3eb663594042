"""DataFrames: ``klamm-kafka`` and Spark's own Kafka source and sink, in one Spark session on one broker of klamm.

Each side is measured in a process of its own, with klamm from its wheel and both sources on the class path. The topics
are equal: three million records (quick: 600,000) of 100 bytes with a key of eight, in four partitions, compressed by
lz4. klamm-kafka is measured twice: with Spark's defaults, and with Unix domain sockets between Spark's JVM and its
Python workers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.measure import Measurement, Plan, alternate
from benchmarks.sides import klamm_broker, with_wheel
from klamm.admin import AdminClient, NewTopic
from tests.support.java import class_path_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

_POM: Final = Path(__file__).parent / "java" / "pom.xml"
_KLAMM: Final = "klamm-kafka"
_SPARK: Final = "kafka"
_UNIX_SOCKETS: Final = "--unix-sockets"
_PARTITIONS: Final = 4
_TASKS: Final = 2
_WARM_UP: Final = 100_000
_READINGS: Final = 3
"""Number of times that the topic is read in each way. The JVM compiles what it runs until well into the second time."""
_TIMEOUT_S: Final = 900.0
_FULL: Final = 3_000_000
_QUICK: Final = 600_000


def run(plan: Plan) -> Iterator[Measurement]:
    """Measure writing, counting, and hashing all columns: three rounds, quick: one."""
    records = _QUICK if plan.quick else _FULL
    with klamm_broker() as broker:
        servers = broker.bootstrap_servers
        topics = iter(range(1_000))

        def side(source: str, *options: str) -> Mapping[str, float]:
            topic = f"frames-{next(topics)}"
            with AdminClient(servers) as admin:
                for name in (topic, f"{topic}-warm-up"):
                    admin.create_topics([NewTopic(name=name, num_partitions=_PARTITIONS)]).all().result()
            command = [sys.executable, "-m", "benchmarks.dataframes", source, servers, topic, str(records), *options]
            done = subprocess.run(
                command, env=with_wheel(), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
            if done.returncode != 0:
                raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr[-2_000:]}")
            return dict(json.loads(done.stdout.splitlines()[-1]))

        sides = {
            "klamm-kafka": lambda: side(_KLAMM),
            "klamm-kafka, Unix sockets": lambda: side(_KLAMM, _UNIX_SOCKETS),
            "Spark's own": lambda: side(_SPARK),
        }
        label = f"dataframes, {records:,} records of 100 B, lz4"
        yield from alternate(sides, benchmark=label, plan=plan, rounds=1 if plan.quick else 3)


def _measure(source: str, servers: str, topic: str, records: int, *, unix_sockets: bool) -> dict[str, float]:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only in the process of one side

    from klamm.dataframes.spark.source import register  # noqa: PLC0415

    builder = SparkSession.builder.master(f"local[{_TASKS}]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.python.unix.domain.socket.enabled", unix_sockets)
    jars = ",".join(class_path_of(_POM).split(":"))
    session = builder.config("spark.jars", jars).config("spark.driver.memory", "1g").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    try:
        return _figures(session, source, servers, topic, records)
    finally:
        session.stop()


def _figures(session: SparkSession, source: str, servers: str, topic: str, records: int) -> dict[str, float]:
    cluster = {"kafka.bootstrap.servers": servers}

    def rows(count: int) -> DataFrame:
        numbers = session.range(0, count, 1, _TASKS)
        return numbers.selectExpr(
            "cast(format_string('%08d', id) as binary) as key",
            "cast(rpad(cast(id as string), 100, 'a value of 100 bytes ') as binary) as value",
        )

    def write(count: int, name: str) -> None:
        options = {**cluster, "topic": name, "kafka.compression.type": "lz4", "kafka.acks": "all"}
        rows(count).write.format(source).options(**options).mode("append").save()

    def read(name: str) -> DataFrame:
        options = {**cluster, "subscribe": name, "startingOffsets": "earliest"}
        return session.read.format(source).options(**options).load()

    def hashed(name: str) -> Any:
        columns = "key, value, topic, partition, offset, cast(timestamp as long)"
        return read(name).selectExpr(f"sum(cast(hash({columns}) as long)) as hash", "count(*) as count").first()

    write(_WARM_UP, f"{topic}-warm-up")
    hashed(f"{topic}-warm-up")
    read(f"{topic}-warm-up").count()
    figures: dict[str, list[float]] = {}
    for name, work in (
        ("written rows/s", lambda: write(records, topic)),
        *_READINGS
        * (("counted rows/s", lambda: read(topic).count()), ("hashed rows/s", lambda: hashed(topic)["count"])),
    ):
        began = time.monotonic()
        found = work()
        figures.setdefault(name, []).append(records / (time.monotonic() - began))
        if found not in (None, records):
            raise AssertionError(f"{source}: {found} of {records} records")
    return {name: statistics.median(rates) for name, rates in figures.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for argument in ("source", "servers", "topic"):
        parser.add_argument(argument)
    parser.add_argument("records", type=int)
    parser.add_argument(_UNIX_SOCKETS, action="store_true")
    asked = parser.parse_args()
    sys.stdout.write(json.dumps(_measure(**vars(asked))) + "\n")

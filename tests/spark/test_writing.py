"""``klamm-kafka`` as a sink on Spark: every part of a record is kept, and a stream writes each record once."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import runpy
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]
import pytest
from kafka.partitioner.default import murmur2
from pyspark.errors import PySparkException

from klamm.dataframes.spark import FORMAT, register
from tests.support import spark_processes
from tests.support.klamm import KlammBroker
from tests.support.long_tests import long_only
from tests.support.mirror import Seen, create_topic, produce, read
from tests.support.processes import start_process
from tests.support.record_times import RECENT_MS
from tests.support.shared_cluster import unique

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tests.support.kafka import KafkaCluster

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "masked_stream.py"
FROM, TO, BATCH = (unique(f"written-{name}-") for name in ("from", "to", "batch"))
FOREVER = {"retention.ms": "-1"}
"""The records are old."""
COLUMNS = "key binary, value binary, headers array<struct<key:string,value:binary>>, partition int, timestamp timestamp"


@pytest.fixture(scope="module")
def broker() -> Iterator[KlammBroker]:
    with KlammBroker() as running:
        yield running


@pytest.fixture(params=["klamm", *long_only("kafka")])
def servers(request: pytest.FixtureRequest) -> str:
    """The address of either broker."""
    running: KlammBroker | KafkaCluster = request.getfixturevalue(
        "broker" if request.param == "klamm" else "real_kafka"
    )
    return running.bootstrap_servers


def table(spark: SparkSession) -> DataFrame:
    register(spark)
    noon = datetime.datetime.fromtimestamp(RECENT_MS / 1000, tz=datetime.UTC)
    rows: list[tuple[Any, ...]] = [
        (b"k", b"v", [("h", b"x"), ("n", None)], 1, noon),
        (None, None, None, 0, noon),
        (b"\xff", b"", [], 1, noon),
    ]
    return spark.createDataFrame(rows, COLUMNS)


def save(rows: DataFrame, servers: str, mode: str = "append", **options: Any) -> None:
    all_options = {"kafka.bootstrap.servers": servers, **options}
    rows.write.format(FORMAT).options(**all_options).mode(mode).save()


def test_batch_write_keeps_records_unchanged(spark: SparkSession, servers: str) -> None:
    # given
    create_topic(servers, BATCH, 2, FOREVER)
    # when
    save(table(spark), servers, topic=BATCH, **{"kafka.compression.type": "gzip"})
    # then
    records = read(servers, BATCH, {0: 1, 1: 2})
    assert records[0] == [Seen(None, None, (), RECENT_MS)]
    assert records[1] == [Seen(b"k", b"v", (("h", b"x"), ("n", None)), RECENT_MS), Seen(b"\xff", b"", (), RECENT_MS)]


def test_topic_column_and_default_partitioner(spark: SparkSession, broker: KlammBroker) -> None:
    # given
    servers = broker.bootstrap_servers
    for name in ("left", "right"):
        create_topic(servers, name, 3, FOREVER)
    register(spark)
    rows = [(f"k{at}", f"v{at}", "left" if at % 2 else "right") for at in range(20)]
    # when
    save(spark.createDataFrame(rows, "key string, value string, topic string"), servers)
    # then
    left = [f"v{at}" for at in range(1, 20, 2)]
    expected = {
        number: [value for value in left if _kafkas_partition(f"k{value[1:]}", 3) == number] for number in range(3)
    }
    records = read(servers, "left", {number: len(some) for number, some in expected.items()})
    assert {number: [(record.value or b"").decode() for record in some] for number, some in records.items()} == expected


def _kafkas_partition(key: str, count: int) -> int:
    return int((murmur2(key.encode()) & 0x7FFFFFFF) % count)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda rows: rows.withColumn("offset", rows.partition), {"topic": "t"}, "column offset: not a part of"),
        (lambda rows: rows, {"topic": "nowhere"}, "nowhere: not a topic"),
    ],
)
def test_unwritable_rows_fail_with_reason(
    spark: SparkSession, broker: KlammBroker, change: Any, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        save(change(table(spark)), broker.bootstrap_servers, **options)


def start(spark: SparkSession, servers: str, checkpoint: Path, **options: str) -> StreamingQuery:
    register(spark)
    cluster = {"kafka.bootstrap.servers": servers}
    rows = spark.readStream.format(FORMAT).options(**cluster, subscribe=FROM, startingOffsets="earliest").load()
    writer = rows.select("key", "value", "partition").writeStream.format(FORMAT).options(**cluster, topic=TO, **options)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def test_repeated_batch_id_is_written_once(spark: SparkSession, servers: str, tmp_path: Path) -> None:
    """As after a crash behind the tasks' commits and before Spark's: its note that the round was done is taken away."""
    # given
    for name in (FROM, TO):
        create_topic(servers, name, 2, FOREVER)
    produce(servers, FROM, [(at % 2, Seen(b"k", b"%d" % at, (), RECENT_MS)) for at in range(10)])
    start(spark, servers, tmp_path).awaitTermination()
    for note in (tmp_path / "commits").iterdir():
        if note.name.lstrip(".").startswith("0"):
            note.unlink()
    produce(servers, FROM, [(at % 2, Seen(b"k", b"%d" % at, (), RECENT_MS)) for at in range(10, 14)])
    # when
    start(spark, servers, tmp_path).awaitTermination()
    # then
    records = read(servers, TO, {0: 7, 1: 7})
    assert [[int(record.value or b"") for record in records[at]] for at in (0, 1)] == [
        list(range(at, 14, 2)) for at in (0, 1)
    ]
    # when at least once is enough
    shutil.rmtree(tmp_path / "commits")
    start(spark, servers, tmp_path, exactlyOnce="false").awaitTermination()
    assert sum(map(len, read(servers, TO, {0: 9, 1: 9}).values())) > 14


def test_example_filters_and_masks_batch_and_stream(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the session that is there already: to start another one takes longer than all of this."""
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    shown = sorted(re.findall(r"by-\w+: .*", capsys.readouterr().out))
    assert shown == sorted(
        f'{topic}: {key} {{"state":"paid","card":"****{end}"}}'
        for topic in ("by-batch", "by-stream")
        for key, end in (("1", "1111"), ("3", "3333"))
    )


@pytest.mark.long
def test_killed_stream_writes_each_record_once(spark: SparkSession, broker: KlammBroker, tmp_path: Path) -> None:
    # given
    register(spark)
    servers = broker.bootstrap_servers
    for name in ("orders", "public"):
        create_topic(servers, name, 2, FOREVER)
    value = b'{"state":"paid","number":%d,"card":"4111111111111111"}'
    produce(servers, "orders", [(at % 2, Seen(b"k", value % at, (), RECENT_MS)) for at in range(4000)])
    checkpoint = tmp_path / "checkpoint"
    command: list[str | Path] = [sys.executable, EXAMPLE, servers, "orders", "public", checkpoint]
    # when
    with _killed_at_the_end(command, tmp_path / "log"):
        read(servers, "public", {0: 50, 1: 50}, timeout_s=180)
    before = sum(map(len, read(servers, "public", {0: 50, 1: 50}).values()))
    runpy.run_path(str(EXAMPLE))["stream"](spark, servers, "orders", "public", str(checkpoint), ends=True)
    records = read(servers, "public", {0: 2000, 1: 2000})
    # then
    assert 100 <= before < 4000
    numbers = [int(re.findall(rb'"number":(\d+)', record.value or b"")[0]) for at in (0, 1) for record in records[at]]
    assert sorted(numbers) == list(range(4000))
    assert all(b'"card":"****1111"' in (record.value or b"") for record in records[0])


@contextlib.contextmanager
def _killed_at_the_end(command: list[str | Path], log: Path) -> Iterator[None]:
    running = start_process(command, log=log, env={**os.environ, "MASKED_PER_ROUND": "100"})
    try:
        yield
    finally:
        _kill(running)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the driver's Python and to its JVM: nothing is put in order."""
    children, jvms = psutil.Process(process.pid).children(recursive=True), spark_processes.jvms(process.pid)
    process.send_signal(signal.SIGKILL)
    for jvm in jvms:
        with contextlib.suppress(psutil.NoSuchProcess):
            jvm.kill()
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive

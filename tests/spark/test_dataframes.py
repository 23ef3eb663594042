"""``klamm-kafka`` on Spark: topics as tables and as streams, of klamm and of Apache Kafka."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import kafka
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from klamm.dataframes.spark import FORMAT, register
from klamm.dataframes.spark.source import _PUT_BY_SPARK
from tests.support.klamm import KlammBroker
from tests.support.mirror import create_topic
from tests.support.shared_cluster import unique

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.support.kafka import KafkaCluster


@pytest.fixture(scope="module")
def broker() -> Iterator[KlammBroker]:
    with KlammBroker() as running:
        yield running


def fill(servers: str, topic: str, partitions: int, records: int, *, first: int = 0, **settings: Any) -> None:
    if first == 0:
        create_topic(servers, topic, partitions, {"retention.ms": "-1"})  # the records are old
    producer = kafka.KafkaProducer(bootstrap_servers=servers, **settings)
    for number in range(first, first + records):
        producer.send(
            topic,
            key=f"k{number}".encode() if number % 3 else None,
            value=f"v{number}".encode() if number % 5 or not number % 3 else None,
            partition=number % partitions,
            timestamp_ms=1_700_000_000_000 + number,
            headers=[("h", b"x"), ("n", b"")] if number % 7 == 0 else None,
        )
    producer.flush()
    producer.close()


def expected(number: int, topic: str, partitions: int) -> tuple[Any, ...]:
    return (
        f"k{number}".encode() if number % 3 else None,
        f"v{number}".encode() if number % 5 or not number % 3 else None,
        topic,
        number % partitions,
        number // partitions,
        datetime.datetime.fromtimestamp(1_700_000_000 + number / 1000, tz=datetime.UTC).replace(tzinfo=None),
        0,
        [("h", b"x"), ("n", b"")] if number % 7 == 0 else None,
    )


def rows(table: DataFrame) -> list[tuple[Any, ...]]:
    """Return rows as Python values, ordered by offset and partition."""
    shown = table.orderBy("offset", "partition").collect()
    return [
        (
            *(bytes(value) if isinstance(value, bytearray) else value for value in tuple(row)[:5]),
            row.timestamp,
            row.timestampType,
            row.headers
            and [(header.key, bytes(header.value) if header.value is not None else None) for header in row.headers],
        )
        for row in shown
    ]


def source(spark: SparkSession, servers: str, topic: str, **options: Any) -> Any:
    register(spark)
    return spark.read.format(FORMAT).options(**{"kafka.bootstrap.servers": servers, "subscribe": topic}, **options)


def test_batch_read_returns_records_unchanged(spark: SparkSession, broker: KlammBroker) -> None:
    # given
    fill(broker.bootstrap_servers, "table", 2, 40, compression_type="gzip")
    # when
    table = source(spark, broker.bootstrap_servers, "table", maxRecordsPerPartition="7").load()
    # then
    assert table.rdd.getNumPartitions() == 6
    assert rows(table) == [expected(number, "table", 2) for number in range(40)]


def test_offsets_and_schema_limit_batch_read(spark: SparkSession, broker: KlammBroker) -> None:
    # given
    fill(broker.bootstrap_servers, "bounded", 1, 20)
    # when
    reader = source(
        spark,
        broker.bootstrap_servers,
        "bounded",
        startingOffsets='{"bounded":{"0":5}}',
        endingOffsets='{"bounded":{"0":8}}',
    )
    table = reader.schema("offset long, value binary").load()
    # then
    assert [(row.offset, row.value) for row in table.collect()] == [(5, None), (6, b"v6"), (7, b"v7")]


@pytest.mark.long
def test_apache_kafka_topic_is_read_alike(spark: SparkSession, real_kafka: KafkaCluster) -> None:
    # given
    topic = unique("table-on-spark-")
    fill(real_kafka.bootstrap_servers, topic, 2, 40, compression_type="gzip")
    # when
    table = source(spark, real_kafka.bootstrap_servers, topic, **{"kafka.isolation.level": "read_committed"})
    # then
    assert rows(table.load()) == [expected(number, topic, 2) for number in range(40)]


def test_unreadable_topic_fails_with_reason(spark: SparkSession, broker: KlammBroker) -> None:
    with pytest.raises(PySparkException, match="nowhere: not a topic"):
        source(spark, broker.bootstrap_servers, "nowhere").load().collect()


@pytest.mark.long
@pytest.mark.parametrize(
    ("topic", "options", "start", "count"),
    [
        ("limited", {"subscribe": "limited", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}, 0, 2),
        ("latest", {"subscribe": "latest"}, 30, 1),
        ("matched", {"subscribePattern": "match.+", "startingTimestamp": "1", "minOffsetsPerTrigger": "1000"}, 0, 1),
    ],
)
def test_stream_resumes_after_checkpoint(
    spark: SparkSession,
    broker: KlammBroker,
    tmp_path: Path,
    *,
    topic: str,
    options: dict[str, str],
    start: int,
    count: int,
) -> None:
    # given
    servers = broker.bootstrap_servers
    fill(servers, topic, 2, 30)
    seen: list[list[int]] = []

    def collect(table: DataFrame, _: int) -> None:
        seen.append(
            [row.number for row in table.select((sf.col("offset") * 2 + sf.col("partition")).alias("number")).collect()]
        )

    def go_on() -> None:
        register(spark)
        stream = spark.readStream.format(FORMAT).options(**{"kafka.bootstrap.servers": servers}, **options).load()
        query = stream.writeStream.foreachBatch(collect).option("checkpointLocation", str(tmp_path))
        assert query.trigger(availableNow=True).start().awaitTermination(180)

    # when
    go_on()
    first = sorted(number for batch in seen for number in batch)
    batches = len(seen)
    seen.clear()
    fill(servers, topic, 2, 10, first=30)
    go_on()
    # then
    assert (first, batches) == (list(range(start, 30)), count)
    assert sorted(number for batch in seen for number in batch) == list(range(30, 40))


def test_stream_adds_no_variable_to_the_environment_that_all_streams_share(
    spark: SparkSession, broker: KlammBroker, tmp_path: Path
) -> None:
    """Spark does so without a lock, and two streams that start together damage it for all tasks to come."""
    fill(broker.bootstrap_servers, "shared", 1, 2)
    register(spark)
    source = spark._jsparkSession.sessionState().dataSourceManager().lookupDataSource(FORMAT)
    before = set(source.dataSourceCls().envVars())
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "shared"}
    # when
    stream = spark.readStream.format(FORMAT).options(**options).load().writeStream.format("noop")
    query = stream.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(180)
    # then
    variables = dict(source.dataSourceCls().envVars())
    assert set(variables) == before
    assert all(map(variables.get, _PUT_BY_SPARK)), "Spark has put its own values"

"""Schemas, start and end offsets of the readers of ``klamm-kafka``. No session is started."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import MagicMock

import kafka
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

import klamm
from klamm.admin import AdminClient, NewTopic
from klamm.dataframes import reader as reading
from klamm.dataframes.errors import DataLossError, ReadingError
from klamm.dataframes.positions import EARLIEST, LATEST
from klamm.dataframes.reader import TopicReader
from klamm.dataframes.spark.source import SCHEMA, KafkaSource, RangePartition, register
from klamm.properties import SettingsError
from tests.support.by_thread import replace_for_this_thread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.datasource import InputPartition

    from klamm.protocol.types import PartitionTuple

OPTIONS = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
PARTITION = StructField("partition", IntegerType(), nullable=False)
VALUE = StructField("value", BinaryType())


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        (StructType([StructField("value", IntegerType())]), {"topic": "t"}, "column value int: expected binary"),
        (StructType([PARTITION]), {"topic": "t"}, "column value: missing"),
        (StructType([VALUE]), {}, "topic: expected the option, or a column"),
    ],
)
def test_unwritable_schema_is_rejected(schema: StructType, options: dict[str, str], message: str) -> None:
    source = KafkaSource({"kafka.bootstrap.servers": "127.0.0.1:1", **options})
    with pytest.raises(SettingsError, match=message):
        source.writer(schema, overwrite=False)
    with pytest.raises(SettingsError, match=message):
        source.streamWriter(schema, overwrite=False)


@pytest.mark.parametrize("schema", [SCHEMA, StructType([VALUE]), StructType([PARTITION, VALUE])])
def test_schema_of_some_columns_is_accepted(schema: StructType) -> None:
    source = KafkaSource(OPTIONS)
    source.reader(schema)
    source.streamReader(schema)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (StructType([]), "it has no columns"),
        (StructType([VALUE, VALUE]), "value: expected each column once"),
        (StructType([StructField("value", BinaryType(), nullable=False)]), "value NOT NULL: some records have none"),
        (StructType([StructField("offset", IntegerType())]), "offset int: expected some of"),
        (StructType([VALUE, StructField("topics", StringType())]), "topics string: expected some of"),
        (StructType([StructField("Offset", LongType())]), "Offset bigint: expected some of"),
    ],
)
def test_unsupported_schema_is_rejected(schema: StructType, message: str) -> None:
    source = KafkaSource(OPTIONS)
    with pytest.raises(SettingsError, match=message):
        source.reader(schema)
    with pytest.raises(SettingsError, match=message):
        source.streamReader(schema)


@pytest.mark.parametrize(
    ("master", "environment", "conf", "expected"),
    [
        ("local[2]", {}, {}, sys.executable),
        ("local[2]", {"PYSPARK_PYTHON": "python3"}, {}, "python3"),
        ("local[2]", {}, {"spark.pyspark.python": "/opt/python"}, "python3"),
        ("spark://host:7077", {}, {}, "python3"),
    ],
)
def test_local_workers_use_the_drivers_python_unless_configured(
    monkeypatch: pytest.MonkeyPatch, master: str, environment: dict[str, str], conf: dict[str, str], expected: str
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    spark = MagicMock()
    spark.sparkContext.master, spark.sparkContext.pythonExec = master, "python3"
    spark.sparkContext.getConf.return_value.contains.side_effect = conf.__contains__
    register(spark)
    assert spark.sparkContext.pythonExec == expected
    spark.dataSource.register.assert_called_once_with(KafkaSource)


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """Broker with a partition of 4 records; an open transaction hides all but the first two."""
    with klamm.Broker(control=True) as broker:
        broker.create_topic("t")
        plain = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        transactional = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id="open")
        transactional.init_transactions()
        transactional.begin_transaction()
        for producer in (plain, plain, transactional, plain):
            producer.send("t", b"v").get(timeout=10)
        yield broker.bootstrap_servers
        transactional.abort_transaction()
        for producer in (plain, transactional):
            producer.close()


def source(servers: str, **options: str) -> KafkaSource:
    return KafkaSource({"kafka.bootstrap.servers": servers, "subscribe": "t"} | options)


def ranges(partitions: Sequence[InputPartition]) -> list[tuple[int, int]]:
    wanted = [cast("RangePartition", partition).wanted for partition in partitions]
    return [(partition.start, partition.end) for partition in wanted if partition is not None]


@pytest.mark.process
@pytest.mark.parametrize("lenient", [{}, {"failOnDataLoss": "false"}])
def test_stream_switched_to_read_committed_waits_for_the_open_transaction(
    servers: str, lenient: dict[str, str]
) -> None:
    # given: a checkpoint beyond the last stable offset
    start: dict[str, Any] = source(servers).streamReader(SCHEMA).initialOffset()
    reader = source(servers, **lenient, **{"kafka.isolation.level": "read_committed"}).streamReader(SCHEMA)
    # when
    end = reader.latestOffset(start, ReadAllAvailable())
    # then
    assert end == start == {"t": {"0": 4}}
    assert reader.partitions(start, end) == []
    reader.stop()


@pytest.mark.process
def test_batch_starting_after_the_end_returns_no_earlier_records(servers: str) -> None:
    def planned(start: int, **options: str) -> list[tuple[int, int]]:
        all_options = {
            "startingOffsets": f'{{"t":{{"0":{start}}}}}',
            "kafka.isolation.level": "read_committed",
        } | options
        return ranges(source(servers, **all_options).reader(SCHEMA).partitions())

    assert planned(1) == [(1, 2)]
    assert planned(3) == [], "an open transaction hides them"
    with pytest.raises(ReadingError, match="t-0 ends at 2, before 9"):
        planned(9)
    assert planned(9, failOnDataLoss="false") == []


@pytest.mark.process
@pytest.mark.parametrize("ending", [{}, {"endingTimestamp": "3000"}])
def test_batch_by_timestamp_is_planned_while_records_are_appended(
    servers: str, monkeypatch: pytest.MonkeyPatch, ending: dict[str, str]
) -> None:
    # given: a topic whose first record with the timestamp is appended between the requests for the two positions
    topic = f"timed-{len(ending)}"
    with AdminClient(servers) as admin:
        admin.create_topics([NewTopic(name=topic, num_partitions=1)]).all().result()
    options = {"startingTimestamp": "2000", "startingOffsetsByTimestampStrategy": "latest"}
    reader = source(servers, subscribe=topic, **options, **ending).reader(SCHEMA)
    producer = kafka.KafkaProducer(bootstrap_servers=servers)
    resolve = TopicReader.resolve

    def resolve_and_append(self: TopicReader, *arguments: Any) -> Any:
        offsets = resolve(self, *arguments)
        for timestamp in (1000, 2000):
            producer.send(topic, b"v", timestamp_ms=timestamp).get(timeout=30)
        return offsets

    replace_for_this_thread(monkeypatch, TopicReader, "resolve", resolve_and_append)
    # when
    planned = ranges(reader.partitions())
    producer.close()
    # then
    assert planned == [(0, 2)]


@pytest.mark.process
def test_stream_waits_for_min_offsets_or_the_trigger_delay(servers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    replace_for_this_thread(monkeypatch, time, "monotonic", lambda: now[0])
    reader = source(servers, minOffsetsPerTrigger="3", maxOffsetsPerTrigger="3", maxTriggerDelay="10s").streamReader(
        SCHEMA
    )
    start: dict[str, Any] = {"t": {"0": 2}}
    limit = reader.getDefaultReadLimit()
    assert reader.latestOffset(start, limit) == {"t": {"0": 4}}, "the first micro-batch does not wait"
    now[0] += 9
    assert reader.latestOffset(start, limit) == start
    assert reader.latestOffset({"t": {"0": 1}}, limit) == {"t": {"0": 4}}
    now[0] += 9
    assert reader.latestOffset(start, limit) == start
    now[0] += 1
    assert reader.latestOffset(start, limit) == {"t": {"0": 4}}
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(start, limit) == {"t": {"0": 4}}
    reader.stop()


class GrowingCluster:
    """Topic ``t`` whose partitions grow by 5 records whenever their end is requested. Offsets are timestamps, too."""

    def __init__(self, partitions: int = 1) -> None:
        self.first = dict.fromkeys(range(partitions), 0)
        self.end = dict.fromkeys(range(partitions), 100)
        self.topic_errors: dict[str, int] = {}

    @property
    def topics(self) -> dict[str, SimpleNamespace]:
        return {"t": SimpleNamespace(partitions=tuple(self.end))}

    def refresh(self, topics: Sequence[str]) -> None:
        """Do nothing: ``topics`` is current."""

    def list_offsets(
        self, partitions: Sequence[PartitionTuple], timestamp: int, *, read_committed: bool
    ) -> dict[PartitionTuple, int]:
        assert not read_committed
        return {where: self._offset(where[1], timestamp) for where in partitions}

    def _offset(self, partition: int, timestamp: int) -> int:
        end = self.end[partition]
        if timestamp == EARLIEST:
            return self.first[partition]
        if timestamp == LATEST:
            self.end[partition] += 5
            return end
        return timestamp if timestamp < end else LATEST


class Stream:
    """Stream from its start or a restart on, with the calls of Spark in their order (``MicroBatchExecution``)."""

    def __init__(self, cluster: GrowingCluster, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
        monkeypatch.setattr(reading, "Cluster", lambda *_: cluster)
        self.reader = source("127.0.0.1:1", **options).streamReader(SCHEMA)

    def run_first(self) -> tuple[dict[str, Any], list[tuple[int, int]]]:
        """Return end and ranges of the first micro-batch. The checkpoint has its end, but no start."""
        end = self.reader.latestOffset(self.reader.initialOffset(), self.reader.getDefaultReadLimit())
        return end, self.repeat_first(end)

    def repeat_first(self, end: dict[str, Any]) -> list[tuple[int, int]]:
        """Return the ranges of the first micro-batch."""
        return ranges(self.reader.partitions(self.reader.initialOffset(), end))

    def run(self, start: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[int, int]]]:
        """Return end and ranges of a later micro-batch."""
        end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        return end, ranges(self.reader.partitions(start, end))


LATEST_BY_TIMESTAMP = {"startingTimestamp": "120", "startingOffsetsByTimestampStrategy": "latest"}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"failOnDataLoss": "false"},
        {"maxOffsetsPerTrigger": "1000"},
        {"minOffsetsPerTrigger": "1", "maxTriggerDelay": "0s"},
        LATEST_BY_TIMESTAMP,
    ],
)
def test_stream_from_latest_reads_all_records_appended_since_its_start(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    # given
    stream = Stream(GrowingCluster(), monkeypatch, **options)
    # when
    first_end, first = stream.run_first()
    end, second = stream.run(first_end)
    # then
    assert (first_end, first) == ({"t": {"0": 100}}, [])
    assert second == [(100, end["t"]["0"])]


@pytest.mark.parametrize("appended", [0, 50])
@pytest.mark.parametrize("options", [{}, LATEST_BY_TIMESTAMP])
def test_stream_restarted_in_its_first_micro_batch_reads_all_records_since_its_first_start(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], appended: int
) -> None:
    # given
    cluster = GrowingCluster()
    first_end, _ = Stream(cluster, monkeypatch, **options).run_first()
    cluster.end[0] += appended
    # when
    restarted = Stream(cluster, monkeypatch, **options)
    repeated = restarted.repeat_first(first_end)
    end, second = restarted.run(first_end)
    # then
    assert repeated == []
    assert second == [(100, end["t"]["0"])]


@pytest.mark.parametrize(
    "options", [{}, LATEST_BY_TIMESTAMP, {"startingOffsets": '{"t":{"0":-1}}'}, {"startingOffsets": "earliest"}]
)
def test_available_now_stream_ends_without_data_loss_on_a_growing_topic(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    # given
    stream = Stream(GrowingCluster(), monkeypatch, **options)
    stream.reader.prepareForTriggerAvailableNow()
    # when
    end, first = stream.run_first()
    ends, read = [end], first
    while len(ends) < 2 or ends[-1] != ends[-2]:
        end, batch = stream.run(ends[-1])
        ends.append(end)
        read += batch
    # then
    begin = 0 if "earliest" in options.values() else 105
    assert read == [(begin, end["t"]["0"])]


@pytest.mark.parametrize("appended", [0, 50])
def test_partition_with_a_fixed_start_is_read_in_the_first_micro_batch(
    monkeypatch: pytest.MonkeyPatch, appended: int
) -> None:
    # given
    options = {"startingOffsets": '{"t":{"0":7,"1":-1}}'}
    cluster = GrowingCluster(partitions=2)
    # when
    first_end, first = Stream(cluster, monkeypatch, **options).run_first()
    cluster.end[1] += appended
    restarted = Stream(cluster, monkeypatch, **options)
    repeated = restarted.repeat_first(first_end)
    end, second = restarted.run(first_end)
    # then
    assert first == repeated == [(7, 100)]
    assert first_end["t"]["1"] == 100
    assert second == [(100, end["t"]["0"]), (100, end["t"]["1"])]


def test_start_beyond_the_end_is_reported_in_the_first_micro_batch_and_its_repetition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"startingOffsets": '{"t":{"0":500}}'}
    cluster = GrowingCluster()
    with pytest.raises(DataLossError, match="t-0 ends at 100, before 500"):
        Stream(cluster, monkeypatch, **options).run_first()
    with pytest.raises(DataLossError, match="t-0 ends at 100, before 500"):
        Stream(cluster, monkeypatch, **options).repeat_first({"t": {"0": 100}})


def test_records_deleted_after_the_start_at_earliest_was_resolved_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    cluster = GrowingCluster()
    stream = Stream(cluster, monkeypatch, startingOffsets="earliest")
    end = stream.reader.latestOffset(stream.reader.initialOffset(), stream.reader.getDefaultReadLimit())
    # when
    cluster.first[0] = 50
    # then
    with pytest.raises(DataLossError, match="t-0 begins at 50: the records from 0 on are gone"):
        stream.repeat_first(end)


def test_records_deleted_up_to_beyond_an_unfinished_first_micro_batch_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given
    cluster = GrowingCluster()
    end, _ = Stream(cluster, monkeypatch, startingOffsets="earliest").run_first()
    cluster.first[0], cluster.end[0] = 150, 200
    # when
    restarted = Stream(cluster, monkeypatch, startingOffsets="earliest")
    repeated = restarted.repeat_first(end)
    # then
    assert repeated == []
    with pytest.raises(DataLossError, match="t-0 begins at 150: the records from 100 on are gone"):
        restarted.run(end)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_partition_added_during_the_first_micro_batch_is_read_from_its_beginning(
    monkeypatch: pytest.MonkeyPatch, is_restarted: bool
) -> None:
    # given
    cluster = GrowingCluster()
    stream = Stream(cluster, monkeypatch)
    start = stream.reader.initialOffset()
    cluster.first[1], cluster.end[1] = 0, 8
    # when
    first_end = stream.reader.latestOffset(start, stream.reader.getDefaultReadLimit())
    if is_restarted:
        stream = Stream(cluster, monkeypatch)
    first = stream.repeat_first(first_end)
    end, second = stream.run(first_end)
    # then
    assert (first_end, first) == (start, [])
    assert second == [(100, end["t"]["0"]), (0, end["t"]["1"])]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_topic_created_again_after_the_first_micro_batch_is_reported(
    monkeypatch: pytest.MonkeyPatch, is_restarted: bool
) -> None:
    # given
    cluster = GrowingCluster()
    stream = Stream(cluster, monkeypatch)
    first_end, _ = stream.run_first()
    if is_restarted:
        cluster.end[0] = 100  # a quiet topic, whose end is the start of both micro-batches
        stream = Stream(cluster, monkeypatch)
        stream.repeat_first(first_end)
    # when
    cluster.end[0] = 9
    # then
    with pytest.raises(DataLossError, match="t-0 ends at 9, before 100: was the topic created again"):
        stream.run(first_end)

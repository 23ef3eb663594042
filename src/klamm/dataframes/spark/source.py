"""Python data source ``klamm-kafka``: the driver plans offsets, tasks fetch, Arrow carries columns to the JVM."""

from __future__ import annotations

import gc
import os
import sys
import time
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from klamm.dataframes.columns import columns_of
from klamm.dataframes.options import read_options, write_options
from klamm.dataframes.positions import EARLIEST, LATEST, Timestamps, limited, split
from klamm.dataframes.reader import TopicReader, as_json, from_json
from klamm.properties import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from klamm.dataframes.options import ReadOptions
    from klamm.dataframes.positions import OffsetRange
    from klamm.dataframes.spark.sink import KafkaStreamWriter, KafkaWriter
    from klamm.protocol.types import PartitionTuple

FORMAT: Final = "klamm-kafka"
HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
SCHEMA: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("headers", HEADERS),
    ]
)
"""Columns of Spark's own Kafka source. ``headers`` is null for a record without headers."""
_MAY_BE_NULL: Final = frozenset({"key", "value", "timestamp", "headers"})

_PUT_BY_SPARK: Final = (
    "SPARK_AUTH_SOCKET_TIMEOUT",
    "SPARK_BUFFER_SIZE",
    "SPARK_LOCAL_DIRS",
    "SPARK_PYTHON_RUNTIME",
)
"""Variables that Spark puts into the environment of a stream's Python processes (``PythonStreamingSourceRunner``)."""


def register(spark: SparkSession) -> None:
    """Register the format ``klamm-kafka`` in a session.

    Spark would start ``python3`` of the path for it, which need not be the Python that has klamm and pyarrow. Unless
    another one is set, workers on this machine start the Python of this process.
    """
    context = spark.sparkContext
    is_set = "PYSPARK_PYTHON" in os.environ or context.getConf().contains("spark.pyspark.python")
    if (context.master or "").startswith("local") and not is_set:
        context.pythonExec = sys.executable
    # Spark puts them without a lock into one map of all streams of the format. Two streams that start together would
    # damage it, and no task with it could be read again. To replace the value of a variable that is there is harmless.
    for name in _PUT_BY_SPARK:
        context.environment.setdefault(name, "")
    spark.dataSource.register(KafkaSource)


class KafkaSource(DataSource):
    """Data source for topics. A schema given to the reader selects columns; others are not built."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Return all columns."""
        return SCHEMA

    def reader(self, schema: StructType) -> KafkaReader:
        """Return the reader of a batch query.

        Raises:
            SettingsError: Options or columns are invalid.
        """
        return KafkaReader(read_options(self.options, streaming=False), _checked(schema))

    def streamReader(self, schema: StructType) -> KafkaStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream.

        Raises:
            SettingsError: Options or columns are invalid.
        """
        return KafkaStreamReader(read_options(self.options, streaming=True), _checked(schema))

    def writer(self, schema: StructType, overwrite: bool) -> KafkaWriter:
        """Return the writer of a batch query.

        Raises:
            SettingsError: Options or columns are invalid.
        """
        from klamm.dataframes.spark.sink import KafkaWriter, checked  # noqa: PLC0415 - readers do without it

        options = write_options(self.options, streaming=False, overwrite=overwrite)
        checked(schema, options)
        return KafkaWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> KafkaStreamWriter:  # noqa: N802 - Spark's name
        """Return the writer of a stream.

        Raises:
            SettingsError: Options or columns are invalid.
        """
        from klamm.dataframes.spark.sink import KafkaStreamWriter, checked  # noqa: PLC0415 - see writer

        options = write_options(self.options, streaming=True, overwrite=overwrite)
        checked(schema, options)
        return KafkaStreamWriter(options)


def _checked(schema: StructType) -> StructType:
    types = {field.name: field.dataType for field in SCHEMA}
    columns = ", ".join(f"{name} {kind.simpleString()}" for name, kind in types.items())
    if not schema.fields:  # Spark would count no rows
        raise SettingsError(f"schema: it has no columns: expected some of {columns}")
    for field in schema:
        if types.get(field.name) != field.dataType:
            raise SettingsError(f"schema: {field.name} {field.dataType.simpleString()}: expected some of {columns}")
        if schema.names.count(field.name) > 1:
            raise SettingsError(f"schema: {field.name}: expected each column once")
        if not field.nullable and field.name in _MAY_BE_NULL:  # Spark would find no nulls where there are some
            raise SettingsError(f"schema: {field.name} NOT NULL: some records have none: expected it nullable")
    return schema


class RangePartition(InputPartition):
    """Work of one task: an offset range, or None for no work."""

    def __init__(self, wanted: OffsetRange | None) -> None:
        super().__init__(0)
        self.wanted = wanted


def _tasks(options: ReadOptions, bounds: Mapping[PartitionTuple, tuple[int, int]]) -> list[InputPartition]:
    ranges = split(bounds, records_per_range=options.records_per_range, min_ranges=options.min_ranges)
    return [RangePartition(wanted) for wanted in ranges]


@cache
def _freeze_imports() -> None:
    """Exclude the modules of this worker process from garbage collection, once.

    Spark collects garbage after each task. Most objects belong to imported modules, and going through them takes
    longer than the task needs for 100,000 records.
    """
    gc.freeze()


def _read(options: ReadOptions, schema: StructType, partition: InputPartition) -> Iterator[Any]:
    wanted = cast("RangePartition", partition).wanted
    if wanted is None:
        return
    if TaskContext.get() is not None:
        _freeze_imports()
    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    reader = TopicReader(options)
    try:
        for batches in reader.read(wanted):
            for columns in columns_of(batches, wanted):
                if len(columns):
                    yield columns.to_arrow(arrow_schema)
    finally:
        reader.close()


class KafkaReader(DataSourceReader):
    """Reader of a batch query: the records that exist at planning time."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Return one input partition per offset range."""
        reader = TopicReader(self._options)
        try:
            partitions = reader.partitions()
            if isinstance(self._options.starting, Timestamps):
                # The first record with the timestamp may be appended between the two calls. Then it is before the end.
                start = reader.resolve(self._options.starting, partitions)
                end = reader.resolve(self._options.ending, partitions)
            else:  # retention may remove the first records, so the start is resolved as late as possible
                end = reader.resolve(self._options.ending, partitions)
                start = reader.resolve(self._options.starting, partitions)
            bounds = reader.checked(start, reader.not_before(start, end), begins_again=False)
        finally:
            reader.close()
        return _tasks(self._options, bounds) or [RangePartition(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the records of one range as Arrow batches."""
        return _read(self._options, self._schema, partition)


class KafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a stream. It resumes from Spark's checkpoint and keeps its planning connections.

    The checkpoint has the end of each micro-batch, but not the start of the first one. Spark requests that start when
    it plans the end, again when it plans the tasks, and once more if it repeats the micro-batch after a restart.
    Meanwhile the topic grows, so another start would skip records. Therefore a process resolves the start only once,
    and partitions that start at their end have no records in the first micro-batch: its end, in the checkpoint, is
    their start. When the micro-batch is repeated, a start beyond that end has no records either.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._planning: TopicReader | None = None
        self._last: dict[PartitionTuple, int] | None = None
        self._initial: dict[PartitionTuple, int] | None = None
        """Start of the first micro-batch, until the second one is planned. None: Spark has not requested it."""
        self._from_end: frozenset[PartitionTuple] | None = None
        """Partitions that start at their end, until the end of the first micro-batch is planned."""
        self._given: dict[PartitionTuple, int] = {}
        """Start offsets from the options."""
        self._triggered_at = float("-inf")

    def __getstate__(self) -> dict[str, Any]:
        """Drop the connections when the reader is pickled for a task."""
        return self.__dict__ | {"_planning": None, "_last": None, "_initial": None, "_from_end": None, "_given": {}}

    def _reader(self) -> TopicReader:
        if self._planning is None:
            self._planning = TopicReader(self._options)
        return self._planning

    def _end(self) -> dict[PartitionTuple, int]:
        return self._reader().offsets(self._reader().partitions(), LATEST) if self._last is None else self._last

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the start offsets of a query whose first micro-batch is not committed."""
        if self._initial is None:
            reader, starting = self._reader(), self._options.starting
            partitions = reader.partitions()
            requested = reader.requested(starting, partitions)
            self._from_end = frozenset(where for where, at in requested.items() if at == LATEST)
            if isinstance(starting, dict):
                self._given = {where: at for where, at in requested.items() if at >= 0}
            self._initial = reader.resolve_special(requested)
            if self._last is not None:  # the start may be a later record
                self._last = reader.offsets(partitions, LATEST)
        return as_json(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of ``maxOffsetsPerTrigger`` or ``minOffsetsPerTrigger``. ``latestOffset`` observes both."""
        most, least = self._options.most_per_trigger, self._options.least_per_trigger
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end offsets of the next micro-batch; the start if it would have too few records."""
        begin, end = from_json(start), self._end()
        if self._from_end is None:
            self._initial = None
        else:  # the first micro-batch
            end = {where: begin[where] if where in self._from_end else end[where] for where in begin if where in end}
            self._from_end = None
        fresh = [where for where in end if where not in begin]
        if fresh:  # partitions added since the last micro-batch
            begin |= self._reader().offsets(fresh, EARLIEST)
        end = self._reader().not_before(begin, end)
        if isinstance(limit, ReadAllAvailable):
            return as_json(end)
        if self._is_early(sum(max(0, to - begin[where]) for where, to in end.items())):
            return start
        most = self._options.most_per_trigger
        return as_json(end if most is None else limited(begin, end, most))

    def _is_early(self, records: int) -> bool:
        """Return whether to wait for more records. As in Spark's source, the first micro-batch never waits."""
        least, now = self._options.least_per_trigger, time.monotonic()
        if least is None or self._last is not None:  # an AvailableNow query reads everything
            return False
        if records < least and now - self._triggered_at < self._options.trigger_delay_s:
            return True
        self._triggered_at = now
        return False

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end offsets, so that later records are left to the next query."""
        self._last = self._end()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the current end offsets for the progress of the query."""
        return as_json(self._end())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return one input partition per range. A partition that is new since ``start`` is read from its beginning."""
        begin, to = from_json(start), from_json(end)
        if begin == self._initial:
            begin = {where: min(at, to[where]) for where, at in begin.items() if where in to} | self._given
            self._from_end = None
        if begin == to:
            return []
        self._reader().partitions()
        return _tasks(self._options, self._reader().checked(begin, to))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the records of one range as Arrow batches."""
        return _read(self._options, self._schema, partition)

    def stop(self) -> None:
        """Close the connections."""
        if self._planning is not None:
            self._planning.close()
            self._planning = None

"""Report job: wiring of session, source and aggregation."""

from __future__ import annotations

import contextlib
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from klamm.admin import AdminClient
from klamm.client_configs.registrations import TOPIC
from klamm.dataframes.errors import ReadingError
from klamm.dataframes.spark import FORMAT, register
from klamm.java import require_java
from klamm.mirror.spark.class_archive import quick_start, write_in_background
from klamm.properties import SettingsError
from klamm.protocol.errors import UnknownTopicOrPartitionError
from klamm.protocol.primitives import ZERO_UUID
from klamm.registration_report.restarts import reason_of
from klamm.registration_report.spark import compatibility
from klamm.registration_report.spark.streams import Follower
from klamm.registration_report.spark.summary import summarise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from klamm.registration_report.report import Following, Report, Scope, Sighting

COLUMNS: Final = "key binary, value binary, partition int, offset long, timestamp timestamp"
RECORDS_PER_TASK: Final = 500_000
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_LOG_CONFIG: Final = "-Dlog4j2.configurationFile"
_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.app.name": "klamm-registrations",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "8",
    # Grouping millions of clients needs sorting anyway; this way it happens once, and on disk if memory is short.
    "spark.sql.execution.useObjectHashAggregateExec": "false",
    "spark.sql.inMemoryColumnarStorage.batchSize": "1000",
    "spark.sql.streaming.minBatchesToRetain": "2",
    # State is kept on disk, because registrations may exceed the heap.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_STREAM_DEFAULTS: Final[Mapping[str, str]] = {"spark.sql.shuffle.partitions": "2"}
"""Number of state stores, each of which is opened in every micro-batch."""
_NONE: Final[Mapping[str, str]] = {}
_LOCAL_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    # In a small heap, Spark's own share must leave more room for memory that Spark does not account for.
    "spark.memory.fraction": "0.4",
    _JAVA_OPTIONS: "-XX:+UseParallelGC -Xshare:auto",
}


class Job:
    """Report over the registration topic of one cluster.

    Args:
        bootstrap_servers: ``host:port``, or several separated by commas.
        properties: Properties of a Java client for connections and security.
        spark_properties: ``spark.*`` keys in addition to klamm's own.
        scope: Clients and configs to report.
        parquet: Directory for the tables of each report, replacing older ones; None writes none.
        sightings: Returns the clients that brokers have seen, called for each report. None means no such information.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        properties: Mapping[str, str],
        spark_properties: Mapping[str, str],
        *,
        scope: Scope,
        parquet: Path | None = None,
        sightings: Callable[[], Sequence[Sighting]] | None = None,
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._properties = properties
        self._spark_properties = spark_properties
        self._scope = scope
        self._parquet = parquet
        self._sightings = sightings or tuple

    def read(self) -> Report:
        """Read the topic up to its current end and return the report.

        Raises:
            JavaNotFoundError: There is no Java for Spark.
            SettingsError: The window is invalid.
            ReadingError: Records cannot be read, or Spark failed for another reason.
        """
        with self._session() as spark:
            _check_duration(spark, "window", self._scope.window)
            records = self._options(spark.read).option("maxRecordsPerPartition", RECORDS_PER_TASK).load()
            return report_over(records, scope=self._scope, parquet=self._parquet, sightings=self._sightings())

    def follow(self, publish: Callable[[Report], None], following: Following, *, reports: int | None = None) -> None:
        """Publish a report, and another one after each registration, until interrupted.

        Args:
            publish: Called with each report.
            following: Interval and starting point.
            reports: Number of reports after which to stop; None for no limit.

        Raises:
            JavaNotFoundError: There is no Java for Spark.
            SettingsError: A duration is invalid, or the checkpoint belongs to another report.
            ReadingError: Records cannot be read, or Spark failed for another reason.
        """
        with self._session(_STREAM_DEFAULTS) as spark:
            _check_duration(spark, "window", self._scope.window)
            _check_duration(spark, "late", following.late)
            records = compatibility.parsed(self._options(spark.readStream).load())
            with AdminClient.from_properties(self._bootstrap_servers, self._properties) as admin:
                Follower(
                    records,
                    scope=self._scope,
                    following=following,
                    cluster=self._bootstrap_servers,
                    parquet=self._parquet,
                    sightings=self._sightings,
                    topic_id=partial(_topic_id, admin),
                ).run(publish, reports=reports)

    @contextlib.contextmanager
    def _session(self, defaults: Mapping[str, str] = _NONE) -> Iterator[SparkSession]:
        running = SparkSession.getActiveSession()
        spark = running or _start({**defaults, **self._spark_properties})
        register(spark)
        try:
            yield spark
        except PySparkException as error:
            raise ReadingError(reason_of(str(error))) from error
        finally:
            if running is None:
                spark.stop()
                write_in_background()

    def _options(self, reader: Any) -> Any:
        properties = {f"kafka.{name}": value for name, value in self._properties.items()}
        return (
            reader.format(FORMAT)
            .schema(COLUMNS)
            .options(**properties)
            .option("kafka.bootstrap.servers", self._bootstrap_servers)
            .option("subscribe", TOPIC)
            .option("startingOffsets", "earliest")
            .option("failOnMissingTopic", "false")
        )


def _topic_id(admin: AdminClient) -> str | None:
    """Return the id of the topic. None: the topic does not exist, or the cluster has no topic ids."""
    try:
        topic_id = admin.describe_topics([TOPIC]).all().result()[TOPIC].topic_id
    except UnknownTopicOrPartitionError:
        return None
    return None if topic_id == ZERO_UUID else str(topic_id)


def report_over(
    records: DataFrame, *, scope: Scope, parquet: Path | None = None, sightings: Sequence[Sighting] = ()
) -> Report:
    """Return the report over raw records. Only its few rows are sent to the driver.

    Args:
        records: Records of the registration topic with the columns ``COLUMNS``.
        scope: Clients and configs to report.
        parquet: Directory for the tables; None writes none.
        sightings: Clients that brokers have seen.
    """
    # Partition by client once, so that one exchange serves all following steps.
    by_client = compatibility.parsed(records).repartition(*compatibility.ENTITY)
    rows = compatibility.latest(by_client, scope.window)
    return summarise(rows, scope=scope, parquet=parquet, sightings=sightings)


def _check_duration(spark: SparkSession, flag: str, text: str) -> None:
    try:
        # This makes Spark analyse the query without running it.
        spark.range(1).groupBy(sf.window(sf.timestamp_millis("id"), text)).count()
    except PySparkException as error:
        raise SettingsError(f"{flag} {text!r}: expected a duration as 1 day, 12 hours or 30 minutes") from error


def _start(spark_properties: Mapping[str, str]) -> SparkSession:
    os.environ.setdefault("JAVA_HOME", str(require_java()))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    master = spark_properties.get("spark.master", os.environ.get("MASTER", "local[*,4]"))
    builder = SparkSession.builder
    defaults = dict(_DEFAULTS) | (dict(_LOCAL_DEFAULTS) if master.startswith("local") else {})
    properties = defaults | dict(spark_properties)
    options = properties.get(_JAVA_OPTIONS, "")
    if _LOG_CONFIG not in options:
        own = Path(__file__).with_name("log4j2.properties").resolve().as_uri()
        properties[_JAVA_OPTIONS] = f"{options} {_LOG_CONFIG}={own}".lstrip()
    for key, value in properties.items():
        builder = builder.config(key, value)
    with quick_start():
        return builder.master(master).getOrCreate()

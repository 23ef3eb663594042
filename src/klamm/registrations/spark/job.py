"""The report job: wiring of session, source and aggregation."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from klamm.java import require_java
from klamm.registrations.report import MAX_IGNORING, IgnoringClient, Report, Scope, SupportRow, VersionWindow
from klamm.registrations.spark.compatibility import (
    registrations,
    support_by_software,
    versions_over_time,
    would_ignore,
)
from klamm.registrations.spark.source import FORMAT, RegistrationsDataSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame

_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.app.name": "klamm-registrations",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_LOCAL_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
}


class Job:
    """A report over the registration topic of one cluster.

    Args:
        bootstrap_servers: ``host:port`` or several of them, comma separated.
        settings: kafka-python's names for connections and security.
        spark_properties: ``spark.*`` keys on top of klamm's own.
        scope: Which clients and which configs it is about.
        parquet: Where each report's tables are written, replacing those before; None: nowhere.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        settings: Mapping[str, Any],
        spark_properties: Mapping[str, str],
        *,
        scope: Scope,
        parquet: Path | None = None,
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._settings = settings
        self._spark_properties = spark_properties
        self._scope = scope
        self._parquet = parquet

    def read(self) -> Report:
        """Read the topic as far as it reaches now, and sum it up.

        Raises:
            JavaNotFoundError: There is no Java for Spark.
        """
        running = SparkSession.getActiveSession()
        spark = running or _start(self._spark_properties)
        try:
            return self._summarise(spark)
        finally:
            if running is None:
                spark.stop()

    def follow(self, publish: Callable[[Report], None], *, every_s: float, batches: int | None = None) -> None:
        """Publish a report, and one more whenever something was registered, until it is interrupted.

        A stream tells that there is something new; the report is made of the whole topic, because a tombstone takes
        back what was registered long before.

        Args:
            publish: Takes each report.
            every_s: How often to look.
            batches: After how many reports to end; None: never.

        Raises:
            JavaNotFoundError: There is no Java for Spark.
        """
        running = SparkSession.getActiveSession()
        spark = running or _start(self._spark_properties)
        made = 0

        def on_batch(_: DataFrame, __: int) -> None:
            nonlocal made
            publish(self._summarise(spark))
            made += 1

        try:
            spark.dataSource.register(RegistrationsDataSource)
            stream = self._options(spark.readStream.format(FORMAT)).load()
            query = stream.writeStream.foreachBatch(on_batch).trigger(processingTime=f"{every_s} seconds").start()
            try:
                while batches is None or made < batches:
                    query.awaitTermination(min(every_s, 1.0))
            finally:
                query.stop()
        finally:
            if running is None:
                spark.stop()

    def _options(self, reader: Any) -> Any:
        return reader.option("bootstrap_servers", self._bootstrap_servers).option(
            "settings", json.dumps(dict(self._settings))
        )

    def _summarise(self, spark: SparkSession) -> Report:
        records = read_records(spark, self._bootstrap_servers, self._settings)
        return summarise(records, scope=self._scope, parquet=self._parquet)


def read_records(spark: SparkSession, bootstrap_servers: str, settings: Mapping[str, Any], **options: str) -> DataFrame:
    """Return the raw records of the registration topic, as far as it reaches now."""
    spark.dataSource.register(RegistrationsDataSource)
    reader = spark.read.format(FORMAT).option("bootstrap_servers", bootstrap_servers)
    return reader.options(settings=json.dumps(dict(settings)), **options).load()


def summarise(records: DataFrame, *, scope: Scope | None = None, parquet: Path | None = None) -> Report:
    """Return the report over raw records; only its few rows come to the driver.

    Args:
        records: The raw records.
        scope: Which clients and which configs it is about; None: all.
        parquet: A directory for the tables; None: they are not written.
    """
    chosen = scope or Scope()
    kept = records.cache()
    registered = _in_scope(registrations(kept), chosen).cache()
    try:
        support, ignoring = support_by_software(registered), would_ignore(registered)
        if chosen.config is not None:
            support, ignoring = (table.where(sf.col("config") == chosen.config) for table in (support, ignoring))
        windows = versions_over_time(registered, chosen.window)
        if parquet is not None:
            for name, table in (("support", support), ("ignoring", ignoring), ("windows", windows)):
                table.write.mode("overwrite").parquet(str(parquet / name))
        named = ignoring.orderBy("config", "user", "client_id").limit(MAX_IGNORING).collect()
        return Report(
            rows=tuple(_support(row) for row in support.orderBy("software", "version", "config").collect()),
            clients=registered.agg(sf.count_distinct("user", "client_id").alias("clients")).collect()[0].clients,
            records=kept.count(),
            ignoring=tuple(IgnoringClient(**row.asDict()) for row in named),
            ignoring_total=ignoring.count() if len(named) == MAX_IGNORING else len(named),
            windows=tuple(
                VersionWindow(**row.asDict()) for row in windows.orderBy("start_ms", "software", "version").collect()
            ),
        )
    finally:
        registered.unpersist()
        kept.unpersist()


def _in_scope(registered: DataFrame, scope: Scope) -> DataFrame:
    return registered if scope.user is None else registered.where(sf.col("user") == scope.user)


def _support(row: Any) -> SupportRow:
    return SupportRow(**{**row.asDict(), "users": tuple(row.users)})


def _start(spark_properties: Mapping[str, str]) -> SparkSession:
    os.environ.setdefault("JAVA_HOME", str(require_java()))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    master = spark_properties.get("spark.master", os.environ.get("MASTER", "local[*]"))
    builder = SparkSession.builder
    defaults = dict(_DEFAULTS) | (dict(_LOCAL_DEFAULTS) if master.startswith("local") else {})
    for key, value in (defaults | dict(spark_properties)).items():
        builder = builder.config(key, value)
    return builder.master(master).getOrCreate()

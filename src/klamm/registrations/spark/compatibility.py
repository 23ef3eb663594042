"""From records of the registration topic to who supports what: DataFrame in, DataFrame out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, IntegerType, StringType, StructField, StructType
from pyspark.sql.window import Window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEY_SCHEMA = StructType([StructField("user", StringType()), StructField("client-id", StringType())])
VALUE_SCHEMA = StructType(
    [
        StructField("client_information", StringType()),
        StructField("supported_configs", ArrayType(StringType())),
        StructField("version", IntegerType()),
    ]
)


def registrations(records: DataFrame) -> DataFrame:
    """Return what is registered: ``user, client_id, software, version, supported_configs, timestamp_ms``.

    A tombstone takes back what its entity registered before it. Records that are no registrations are left out.
    """
    parsed = records.select(
        "partition",
        "offset",
        "timestamp_ms",
        sf.col("value").isNull().alias("is_tombstone"),
        sf.from_json(sf.col("key").cast("string"), KEY_SCHEMA).alias("entity"),
        sf.from_json(sf.col("value").cast("string"), VALUE_SCHEMA).alias("registered"),
    ).where(sf.col("entity.user").isNotNull() & sf.col("entity.client-id").isNotNull())
    same_entity = Window.partitionBy("partition", "entity")
    cleared_up_to = sf.max(sf.when(sf.col("is_tombstone"), sf.col("offset"))).over(same_entity)
    information = sf.col("registered.client_information")
    return (
        parsed.withColumn("cleared_up_to", sf.coalesce(cleared_up_to, sf.lit(-1)))
        .where(~sf.col("is_tombstone") & (sf.col("offset") > sf.col("cleared_up_to")))
        .where(information.isNotNull() & sf.col("registered.supported_configs").isNotNull())
        .select(
            sf.col("entity.user").alias("user"),
            sf.col("entity.client-id").alias("client_id"),
            sf.substring_index(information, "/", 1).alias("software"),
            sf.when(information.contains("/"), sf.substring_index(information, "/", -1))
            .otherwise(sf.lit("unknown"))
            .alias("version"),
            sf.col("registered.supported_configs").alias("supported_configs"),
            "timestamp_ms",
        )
    )


def support_by_software(registered: DataFrame) -> DataFrame:
    """Return how far each config reaches, per software version, for every config that anybody supports.

    Columns: ``software, version, config, clients, clients_total, users, last_registered_ms``. A software version that
    does not support a config appears with 0 clients: those would ignore it. When nobody supports anything, the config
    is ``(none)``.
    """
    client = sf.struct("user", "client_id")
    totals = registered.groupBy("software", "version").agg(
        sf.count_distinct(client).alias("clients_total"), sf.max("timestamp_ms").alias("last_registered_ms")
    )
    supported = registered.select(
        "software", "version", "user", "client_id", sf.explode("supported_configs").alias("config")
    )
    reach = supported.groupBy("software", "version", "config").agg(
        sf.count_distinct(client).alias("clients"), sf.sort_array(sf.collect_set("user")).alias("users")
    )
    configs = supported.select("config").distinct()
    return (
        totals.join(configs, how="left", on=sf.lit(True))
        .withColumn("config", sf.coalesce("config", sf.lit("(none)")))
        .join(reach, on=["software", "version", "config"], how="left")
        .select(
            "software",
            "version",
            "config",
            sf.coalesce("clients", sf.lit(0)).alias("clients"),
            "clients_total",
            sf.coalesce("users", sf.array().cast(ArrayType(StringType()))).alias("users"),
            "last_registered_ms",
        )
    )


def would_ignore(registered: DataFrame) -> DataFrame:
    """Return who would ignore which config if it were set, for every config that anybody supports.

    Columns: ``config, user, client_id, software, version``. What counts is the newest software version that a
    ``<user, client-id>`` registered, with all the lists that this version registered.
    """
    of_version = registered.groupBy("user", "client_id", "software", "version").agg(
        sf.array_distinct(sf.flatten(sf.collect_list("supported_configs"))).alias("supported_configs"),
        sf.max("timestamp_ms").alias("timestamp_ms"),
    )
    newest_first = Window.partitionBy("user", "client_id").orderBy(sf.desc("timestamp_ms"), "software", "version")
    newest = of_version.withColumn("age", sf.row_number().over(newest_first)).where(sf.col("age") == 1)
    configs = registered.select(sf.explode("supported_configs").alias("config")).distinct()
    return (
        newest.crossJoin(sf.broadcast(configs))
        .where(~sf.array_contains("supported_configs", sf.col("config")))
        .select("config", "user", "client_id", "software", "version")
    )


def versions_over_time(registered: DataFrame, window: str) -> DataFrame:
    """Count the ``<user, client-id>`` pairs that registered a software version, per window of time.

    Columns: ``start_ms, software, version, clients``.

    Args:
        registered: What is registered.
        window: A duration as Spark writes it, as ``1 day``; windows begin at whole multiples since the epoch, UTC.
    """
    at = sf.timestamp_millis("timestamp_ms")
    return (
        registered.groupBy(sf.window(at, window).alias("window"), "software", "version")
        .agg(sf.size(sf.collect_set(sf.struct("user", "client_id"))).alias("clients"))
        .select(sf.unix_millis("window.start").alias("start_ms"), "software", "version", "clients")
    )

"""From records of the registration topic to who supports what: DataFrame in, DataFrame out.

``parsed`` reads records, ``latest`` keeps one row for each thing that was ever registered, in a batch and as the state
of a stream alike, and ``clients`` is one row per ``<user, client-id>``. ``profiles`` sums those up to the few rows from
which nearly everything else is counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, IntegerType, StringType, StructField, StructType

from klamm.client_configs.kinds import KIND_OF_CONFIG
from klamm.registration_report.report import NOTHING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

KEY_SCHEMA = StructType([StructField("user", StringType()), StructField("client-id", StringType())])
VALUE_SCHEMA = StructType(
    [
        StructField("client_information", StringType()),
        StructField("supported_configs", ArrayType(StringType())),
        StructField("version", IntegerType()),
    ]
)
ENTITY = ("partition", "user", "client_id")
_WHAT = ("client_information", "supported_configs")


def parsed(records: DataFrame) -> DataFrame:
    """Read records: ``partition, offset, timestamp, user, client_id, client_information, supported_configs``.

    A tombstone has no client information. A record that is none of ours has no user and no client id; it is kept to be
    counted. No list of configs means that nothing is known of what its client supports. A time that
    has not come yet is taken for now.
    """
    key = sf.from_json(sf.col("key").cast("string"), KEY_SCHEMA)
    value = sf.from_json(sf.col("value").cast("string"), VALUE_SCHEMA)
    read = records.select("partition", "offset", "timestamp", "value", key.alias("k"), value.alias("v"))
    holes = sf.exists(sf.coalesce(sf.col("v.supported_configs"), sf.array()), lambda name: name.isNull())
    is_ours = (
        sf.col("k.user").isNotNull()
        & sf.col("k.client-id").isNotNull()
        & (sf.col("value").isNull() | (sf.col("v.client_information").isNotNull() & ~holes))
    )
    return read.select(
        "partition",
        "offset",
        # A record of a clock that was ahead would make a stream take all that follows for late.
        sf.least(sf.coalesce("timestamp", sf.timestamp_millis(sf.lit(0))), sf.current_timestamp()).alias("timestamp"),
        sf.when(is_ours, sf.col("k.user")).alias("user"),
        sf.when(is_ours, sf.col("k.client-id")).alias("client_id"),
        sf.when(is_ours, sf.col("v.client_information")).alias("client_information"),
        sf.when(is_ours, sf.col("v.supported_configs")).alias("supported_configs"),
    )


def latest(records: DataFrame, window: str) -> DataFrame:
    """Return one row per thing that was registered, with where it was registered last and how often.

    Columns: those of ``ENTITY``, ``client_information, supported_configs, start, offset, timestamp, records``. Its size
    is bounded by what is registered, not by how often; a tombstone is a row of its entity like others.

    Args:
        records: What ``parsed`` returns.
        window: See ``windows``.
    """
    start = sf.window("timestamp", window).getField("start").alias("start")
    return records.groupBy(*ENTITY, *_WHAT, start).agg(
        sf.max("offset").alias("offset"), sf.max("timestamp").alias("timestamp"), sf.count("*").alias("records")
    )


def of_user(table: DataFrame, user: str | None) -> DataFrame:
    """Keep one user's rows, and those of nobody, which are only counted; None: all rows."""
    return table if user is None else table.where((sf.col("user") == user) | sf.col("user").isNull())


def clients(rows: DataFrame) -> DataFrame:
    """Return one row per ``<user, client-id>``: ``user, client_id, versions, seen, records``.

    ``versions`` are the software versions that stand, as ``offset, timestamp, software, version, supported_configs``,
    so that the newest is the greatest, whatever clocks said: a tombstone takes back what came before it, lists of one
    version are added up. ``seen`` is when which version was registered, also what was taken back since. The row with
    neither user nor client id counts records not ours.
    """
    one = sf.struct("offset", "timestamp", "start", *_WHAT)
    grouped = rows.groupBy(*ENTITY).agg(
        sf.collect_list(one).alias("all"),
        sf.sum("records").alias("records"),
        sf.max(sf.when(sf.col("client_information").isNull(), sf.col("offset"))).alias("cleared_up_to"),
    )
    standing = sf.filter("registered", lambda row: row["offset"] > sf.coalesce("cleared_up_to", sf.lit(-1)))
    return (
        grouped.withColumn("registered", sf.filter("all", lambda row: row["client_information"].isNotNull()))
        .withColumn("standing", standing)
        .select("user", "client_id", "records", _versions().alias("versions"), _seen().alias("seen"))
    )


def _versions() -> Column:
    names = sf.array_distinct(sf.transform("standing", lambda row: row["client_information"]))
    # A new software version does not make a consumer of a producer, so the kinds come from all versions together.
    kinds = _kinds_of(sf.flatten(_lists("standing")))

    def of_version(name: Column) -> Column:
        rows = sf.filter("standing", lambda row: row["client_information"] == name)
        lists = _lists(rows)
        known = sf.when(sf.size(lists) > 0, sf.array_distinct(sf.flatten(lists)))
        return sf.struct(
            sf.array_max(sf.transform(rows, lambda row: row["offset"])).alias("offset"),
            sf.array_max(sf.transform(rows, lambda row: row["timestamp"])).alias("timestamp"),
            software(name).alias("software"),
            version(name).alias("version"),
            known.alias("supported_configs"),
            kinds.alias("kinds"),
        )

    return sf.transform(names, of_version)


def _lists(rows: Column | str) -> Column:
    """Return the lists of configs that were registered, without those that are unknown."""
    return sf.filter(sf.transform(rows, lambda row: row["supported_configs"]), lambda configs: configs.isNotNull())


def _kinds_of(configs: Column) -> Column:
    """Return the kinds of a client that registered these configs, sorted."""
    kind = sf.create_map(*[sf.lit(str(part)) for pair in KIND_OF_CONFIG.items() for part in pair])
    known = sf.filter(sf.transform(configs, lambda name: sf.element_at(kind, name)), lambda one: one.isNotNull())
    return sf.array_sort(sf.array_distinct(known))


def _is_concerned() -> Column:
    """Return whether the column ``config`` concerns a client of ``kinds``; without known kinds every config does."""
    kind_of = sf.lit(None).cast(StringType())
    for name, kind in KIND_OF_CONFIG.items():
        kind_of = sf.when(sf.col("config") == name, sf.lit(str(kind))).otherwise(kind_of)
    is_known = kind_of.isNotNull() & (sf.size("kinds") > 0)
    return ~is_known | sf.array_contains("kinds", kind_of)


def _seen() -> Column:
    return sf.array_distinct(
        sf.transform(
            "registered",
            lambda row: sf.struct(
                row["start"].alias("start"),
                software(row["client_information"]).alias("software"),
                version(row["client_information"]).alias("version"),
            ),
        )
    )


def software(information: Column) -> Column:
    """Return the name out of ``name/version``."""
    return sf.substring_index(information, "/", 1)


def version(information: Column) -> Column:
    """Return the version out of ``name/version``."""
    return sf.when(information.contains("/"), sf.substring_index(information, "/", -1)).otherwise(sf.lit("unknown"))


def with_sightings(of_clients: DataFrame, sightings: DataFrame) -> DataFrame:
    """Add clients that a broker saw and that have no valid registration, with null as the list of their configs.

    Args:
        of_clients: What ``clients`` returns.
        sightings: ``user, client_id, software, version, seen_ms, kinds``; few enough for the memory of a task.
    """
    one = sf.struct(
        sf.lit(-1).cast("long").alias("offset"),
        sf.timestamp_millis("seen_ms").alias("timestamp"),
        "software",
        "version",
        sf.lit(None).cast(ArrayType(StringType())).alias("supported_configs"),
        "kinds",
    )
    by_client = sightings.groupBy("user", "client_id").agg(sf.collect_list(one).alias("versions"))
    # The few are sent to the many, and never the other way round.
    standing = of_clients.where(sf.size("versions") > 0).select("user", "client_id")
    registered = standing.join(sf.broadcast(by_client.select("user", "client_id")), ["user", "client_id"], "left_semi")
    never = by_client.join(sf.broadcast(registered), ["user", "client_id"], "left_anti")
    return of_clients.unionByName(
        never.select("user", "client_id", sf.lit(0).cast("long").alias("records"), "versions", _no_windows(of_clients))
    )


def _no_windows(of_clients: DataFrame) -> Column:
    return sf.array().cast(of_clients.schema["seen"].dataType).alias("seen")


def profiles(of_clients: DataFrame) -> DataFrame:
    """Count clients that are alike.

    Columns: ``user, software, version, supported_configs, kinds, is_newest, clients, timestamp``. There is a row
    for each version that a client has; ``is_newest`` marks the one that counts for it.
    """
    each = of_clients.select("user", sf.array_max("versions").alias("newest"), sf.explode("versions").alias("one"))
    return (
        each.select("user", "one.*", (sf.col("one") == sf.col("newest")).alias("is_newest"))
        .groupBy("user", "software", "version", "supported_configs", "kinds", "is_newest")
        .agg(sf.count("*").alias("clients"), sf.max("timestamp").alias("timestamp"))
    )


def versions(of_profiles: DataFrame) -> DataFrame:
    """Count the clients of each software version: ``software, version, clients_total, last_registered_ms``."""
    return of_profiles.groupBy("software", "version").agg(
        sf.sum("clients").alias("clients_total"), sf.unix_millis(sf.max("timestamp")).alias("last_registered_ms")
    )


def support(of_profiles: DataFrame, of_versions: DataFrame, configs: Sequence[str]) -> DataFrame:
    """Return how far each config reaches in each software version.

    Columns: ``software, version, config, clients, clients_total, users, last_registered_ms, unknown``, the last one for
    clients that never registered. A software version that
    does not support a config appears with 0 clients: those would ignore it. ``clients_total`` counts the clients that
    the config concerns, so it is 0 where a version has only clients of other kinds. Of users, those of the supporting
    clients, 100 at most.

    Args:
        of_profiles: What ``profiles`` returns.
        of_versions: What ``versions`` returns, or some of it.
        configs: Which; none: one row for each version all the same, with ``(none)``.
    """
    names = list(configs) or [NOTHING]
    supported = sf.explode("supported_configs").alias("config")
    by_user = (
        of_profiles.select("software", "version", "user", "clients", supported)
        .where(sf.col("config").isin(names))
        .groupBy("software", "version", "config", "user")
        .agg(sf.sum("clients").alias("clients"))
    )
    reach = by_user.groupBy("software", "version", "config").agg(
        sf.sum("clients").alias("clients"), sf.slice(sf.sort_array(sf.collect_set("user")), 1, 100).alias("users")
    )
    never = sf.sum(sf.when(sf.col("supported_configs").isNull(), sf.col("clients")).otherwise(0))
    by_kind = of_profiles.groupBy("software", "version", "kinds").agg(
        sf.sum("clients").alias("clients"), never.alias("never")
    )
    concerned = (
        by_kind.withColumn("config", _each(names))
        .where(_is_concerned())
        .groupBy("software", "version", "config")
        .agg(sf.sum("clients").alias("clients_concerned"), sf.sum("never").alias("never"))
    )
    return (
        of_versions.withColumn("config", _each(names))
        .join(concerned, on=["software", "version", "config"], how="left")
        .join(reach, on=["software", "version", "config"], how="left")
        .select(
            "software",
            "version",
            "config",
            sf.coalesce("clients", sf.lit(0)).alias("clients"),
            sf.coalesce("clients_concerned", sf.lit(0)).alias("clients_total"),
            sf.coalesce("users", sf.array().cast(ArrayType(StringType()))).alias("users"),
            "last_registered_ms",
            sf.coalesce("never", sf.lit(0)).alias("unknown"),
        )
    )


def _each(configs: Sequence[str]) -> Column:
    """Return a column that multiplies rows by configs."""
    return sf.explode(sf.array(*[sf.lit(name) for name in configs]).cast(ArrayType(StringType())))


def newest(of_clients: DataFrame) -> DataFrame:
    """Return the newest software version of each client.

    Columns: ``user, client_id, software, version, supported_configs, kinds``. Of several that were only seen in the
    same millisecond, the one with the greatest name.
    """
    return (
        of_clients.select("user", "client_id", sf.array_max("versions").alias("one"))
        .where("one is not null")
        .select("user", "client_id", "one.software", "one.version", "one.supported_configs", "one.kinds")
    )


def reach_by_user(of_profiles: DataFrame, configs: Sequence[str]) -> DataFrame:
    """Return how many clients of each user follow when a config is set.

    Columns: ``user, config, following, clients, unknown``, the last one for clients that never registered. Only
    clients that the config concerns are counted.
    """
    follows = sf.coalesce(sf.array_contains("supported_configs", sf.col("config")), sf.lit(False))
    # Lists are few, clients are many: they are counted before configs multiply them.
    lists = of_profiles.where("is_newest").groupBy("user", "supported_configs", "kinds")
    return (
        lists.agg(sf.sum("clients").alias("clients"))
        .withColumn("config", _each(configs))
        .where(_is_concerned())
        .groupBy("user", "config")
        .agg(
            sf.sum(sf.when(follows, sf.col("clients")).otherwise(0)).alias("following"),
            sf.sum("clients").alias("clients"),
            sf.sum(sf.when(sf.col("supported_configs").isNull(), sf.col("clients")).otherwise(0)).alias("unknown"),
        )
    )


def would_ignore(newest_versions: DataFrame, configs: Sequence[str]) -> DataFrame:
    """Return the clients that would ignore a config that concerns them, if it were set.

    Columns: ``config, user, client_id, software, version, supported_configs``. What counts is the newest software
    version of a client, with all the lists that this version registered; no list: unknown.
    """
    known = sf.coalesce("supported_configs", sf.array().cast(ArrayType(StringType())))
    return (
        newest_versions.withColumn("config", _each(configs))
        .where(~sf.array_contains(known, sf.col("config")) & _is_concerned())
        .select("config", "user", "client_id", "software", "version", "supported_configs")
    )


def windows(of_clients: DataFrame) -> DataFrame:
    """Count the clients that registered a software version, per window of time.

    Columns: ``start_ms, software, version, clients``. Windows begin at whole multiples since the epoch, UTC; their
    width was given to ``latest``.
    """
    return (
        of_clients.select(sf.explode("seen").alias("one"))
        .groupBy("one.start", "one.software", "one.version")
        .agg(sf.count("*").alias("clients"))
        .select(sf.unix_millis("start").alias("start_ms"), "software", "version", "clients")
    )


def windows_of_stream(records: DataFrame, window: str, delay: str) -> DataFrame:
    """Count as ``windows`` does, while records come: a window is forgotten when time has passed it by ``delay``.

    Columns: ``start, software, version, clients``.

    Args:
        records: What ``parsed`` returns, of a stream.
        window: A duration as Spark writes it, as ``1 day``.
        delay: How far a record may lie behind the newest one and still count.
    """
    information = sf.col("client_information")
    return (
        records.where(information.isNotNull())
        .withWatermark("timestamp", delay)
        .select(
            sf.window("timestamp", window).alias("window"),
            software(information).alias("software"),
            version(information).alias("version"),
            "user",
            "client_id",
        )
        .dropDuplicates(["window", "software", "version", "user", "client_id"])
        .groupBy("window", "software", "version")
        .agg(sf.count("*").alias("clients"))
        .select(sf.col("window.start").alias("start"), "software", "version", "clients")
    )

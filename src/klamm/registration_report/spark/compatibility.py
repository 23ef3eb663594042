"""Transformations from registration records to supported configs: DataFrame in, DataFrame out.

``parsed`` decodes records. ``latest`` keeps one row per registered entity, in a batch query and as the state of a
stream alike. ``clients`` has one row per ``<user, client-id>``. ``profiles`` reduces those to the few rows from which
nearly everything else is counted.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, IntegerType, StringType, StructField, StructType

from klamm.client_configs.kinds import KIND_OF_CONFIG
from klamm.registration_report.report import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import Column, DataFrame

KEY_SCHEMA = StructType([StructField("user", StringType()), StructField("client-id", StringType())])
VALUE_SCHEMA = StructType(
    [
        StructField("client_information", StringType()),
        StructField("supported_configs", ArrayType(StringType())),
        StructField("version", IntegerType()),
    ]
)
ENTITY = ("user", "client_id")
_WHAT = ("client_information", "supported_configs")
_IS_CONCERNED: Final = "kind IS NULL OR size(kinds) = 0 OR array_contains(kinds, kind)"
"""Whether a config of a ``kind`` concerns a client of ``kinds``. Without known kinds every config does."""


def parsed(records: DataFrame) -> DataFrame:
    """Decode records: ``partition, offset, timestamp, user, client_id, client_information, supported_configs``.

    A tombstone has no client information. A record that is not a registration has no user and no client id and is kept
    only to be counted. A missing list of configs means that the client's support is unknown. A timestamp in the future
    is replaced by the current time.
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
        # A record from a clock that is ahead would make a stream treat all following records as late.
        sf.least(sf.coalesce("timestamp", sf.timestamp_millis(sf.lit(0))), sf.current_timestamp()).alias("timestamp"),
        sf.when(is_ours, sf.col("k.user")).alias("user"),
        sf.when(is_ours, sf.col("k.client-id")).alias("client_id"),
        sf.when(is_ours, sf.col("v.client_information")).alias("client_information"),
        sf.when(is_ours, sf.col("v.supported_configs")).alias("supported_configs"),
    )


def latest(records: DataFrame, window: str) -> DataFrame:
    """Return one row per registered entity, with the position of its last registration and the number of its records.

    Columns: those of ``ENTITY``, ``partition, client_information, supported_configs, start, offset, timestamp,
    records``. The size is bounded by the number of entities, not of registrations. A tombstone is a row of its entity
    like any other.

    Args:
        records: Result of ``parsed``.
        window: See ``windows``.
    """
    start = sf.window("timestamp", window).getField("start").alias("start")
    return records.groupBy(*ENTITY, "partition", *_WHAT, start).agg(
        sf.max("offset").alias("offset"), sf.max("timestamp").alias("timestamp"), sf.count("*").alias("records")
    )


def of_user(table: DataFrame, user: str | None) -> DataFrame:
    """Keep the rows of one user, and those without any user, which are only counted. None keeps all rows."""
    return table if user is None else table.where((sf.col("user") == user) | sf.col("user").isNull())


def clients(rows: DataFrame) -> DataFrame:
    """Return one row per ``<user, client-id>``: ``user, client_id, versions, seen, records``.

    ``versions`` are the registered software versions that were not withdrawn, as ``position, timestamp, software,
    version, supported_configs``. They are ordered by offset, so clocks do not matter: a tombstone withdraws what
    precedes it in its partition, and the lists of one version are merged. ``seen`` has the time of each version's
    registration, including withdrawn ones. The row with neither user nor client id counts the records that are not
    registrations.

    Brokers and gateways use one partition. A client whose registrations are in several ones is one client all the same;
    its versions are then ordered by time, because offsets of different partitions cannot be compared.
    """
    one = sf.struct("partition", "offset", "timestamp", "start", *_WHAT)
    grouped = rows.groupBy(*ENTITY).agg(
        sf.collect_list(one).alias("all"),
        sf.sum("records").alias("records"),
        (sf.min("partition") < sf.max("partition")).alias("is_scattered"),
    )
    return (
        grouped.withColumn("registered", sf.filter("all", lambda row: row["client_information"].isNotNull()))
        .withColumn("cleared", sf.filter("all", lambda row: row["client_information"].isNull()))
        .withColumn("standing", sf.filter("registered", lambda row: ~sf.exists("cleared", _is_behind(row))))
        .select("user", "client_id", "records", _versions().alias("versions"), _seen().alias("seen"))
    )


def _is_behind(row: Column) -> Callable[[Column], Column]:
    """Return the condition that another row of the same client is behind a row in its partition."""
    return lambda other: (other["partition"] == row["partition"]) & (other["offset"] > row["offset"])


def _versions() -> Column:
    names = sf.array_distinct(sf.transform("standing", lambda row: row["client_information"]))
    # The kinds come from all versions together, because a new version does not turn a producer into a consumer.
    kinds = _kinds_of(sf.flatten(_lists("standing")))

    def of_version(name: Column) -> Column:
        rows = sf.filter("standing", lambda row: row["client_information"] == name)
        lists = _lists(rows)
        supported = sf.when(sf.size(lists) > 0, sf.array_distinct(sf.flatten(lists)))
        return sf.struct(
            sf.array_max(sf.transform(rows, _position)).alias("position"),
            sf.array_max(sf.transform(rows, lambda row: row["timestamp"])).alias("timestamp"),
            software(name).alias("software"),
            version(name).alias("version"),
            supported.alias("supported_configs"),
            kinds.alias("kinds"),
        )

    return sf.transform(names, of_version)


def _position(row: Column) -> Column:
    """Return the number by which the registrations of a client are ordered."""
    return sf.when(sf.col("is_scattered"), sf.unix_millis(row["timestamp"])).otherwise(row["offset"])


def _lists(rows: Column | str) -> Column:
    """Return the registered lists of configs, without unknown ones."""
    return sf.filter(sf.transform(rows, lambda row: row["supported_configs"]), lambda configs: configs.isNotNull())


def _kinds_of(configs: Column) -> Column:
    """Return the kinds of a client that registered these configs, sorted."""
    kind = sf.from_json(sf.lit(json.dumps(dict(KIND_OF_CONFIG))), "map<string,string>")
    kinds = sf.filter(sf.transform(configs, lambda name: sf.element_at(kind, name)), lambda one: one.isNotNull())
    return sf.array_sort(sf.array_distinct(kinds))


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
    """Return the name of ``name/version``."""
    return sf.substring_index(information, "/", 1)


def version(information: Column) -> Column:
    """Return the version of ``name/version``."""
    return sf.when(information.contains("/"), sf.substring_index(information, "/", -1)).otherwise(sf.lit("unknown"))


def with_sightings(of_clients: DataFrame, sightings: DataFrame) -> DataFrame:
    """Add clients that a broker has seen and that have no valid registration, with null as the list of their configs.

    Args:
        of_clients: Result of ``clients``.
        sightings: ``user, client_id, software, version, seen_ms, kinds``, few enough for the memory of a task.
    """
    one = sf.struct(
        sf.lit(-1).cast("long").alias("position"),
        sf.timestamp_millis("seen_ms").alias("timestamp"),
        "software",
        "version",
        sf.lit(None).cast(ArrayType(StringType())).alias("supported_configs"),
        "kinds",
    )
    by_client = sightings.groupBy("user", "client_id").agg(sf.collect_list(one).alias("versions"))
    # Broadcast the small side of the join.
    standing = of_clients.where(sf.size("versions") > 0).select("user", "client_id")
    registered = standing.join(sf.broadcast(by_client.select("user", "client_id")), ["user", "client_id"], "left_semi")
    never = by_client.join(sf.broadcast(registered), ["user", "client_id"], "left_anti")
    return of_clients.unionByName(
        never.select("user", "client_id", sf.lit(0).cast("long").alias("records"), "versions", _no_windows(of_clients))
    )


def _no_windows(of_clients: DataFrame) -> Column:
    return sf.array().cast(of_clients.schema["seen"].dataType).alias("seen")


def profiles(of_clients: DataFrame) -> DataFrame:
    """Count clients with equal properties.

    Columns: ``user, software, version, supported_configs, kinds, is_newest, clients, timestamp``. Each version of a
    client counts in one row; ``is_newest`` marks the version that decides about its behaviour.
    """
    each = of_clients.select("user", sf.array_max("versions").alias("newest"), sf.explode("versions").alias("one"))
    return (
        each.select("user", "one.*", (sf.col("one") == sf.col("newest")).alias("is_newest"))
        .groupBy("user", "software", "version", "supported_configs", "kinds", "is_newest")
        .agg(sf.count("*").alias("clients"), sf.max("timestamp").alias("timestamp"))
    )


def versions(of_profiles: DataFrame) -> DataFrame:
    """Count the clients of each software version: ``software, version, clients_total``."""
    return of_profiles.groupBy("software", "version").agg(sf.sum("clients").alias("clients_total"))


def support(of_profiles: DataFrame, configs: Sequence[str]) -> DataFrame:
    """Return the support of each config in each software version.

    Columns: ``software, version, config, clients, clients_total, users, last_registered_ms, unknown``. A version
    without support for a config has 0 clients: its clients would ignore the config. ``clients_total`` counts the
    clients that the config concerns, so it is 0 for a version with clients of other kinds only. ``users`` are at most
    100 users of supporting clients.

    Args:
        of_profiles: Result of ``profiles``, or some of its rows.
        configs: Configs to include. Without any, each version has one row with ``(none)``.
    """
    supports, is_concerned = sf.array_contains("supported_configs", sf.col("config")), sf.expr(_IS_CONCERNED)
    return (
        _with_each(of_profiles, list(configs) or [NOTHING])
        .groupBy("software", "version", "config")
        .agg(
            _clients_if(supports).alias("clients"),
            _clients_if(is_concerned).alias("clients_total"),
            sf.slice(sf.sort_array(sf.collect_set(sf.when(supports, sf.col("user")))), 1, 100).alias("users"),
            sf.unix_millis(sf.max("timestamp")).alias("last_registered_ms"),
            _clients_if(is_concerned & sf.col("supported_configs").isNull()).alias("unknown"),
        )
    )


def _with_each(table: DataFrame, configs: Sequence[str]) -> DataFrame:
    """Multiply rows by configs. Adds the columns ``config`` and ``kind``, the kind of the clients that it concerns."""
    # One literal: each call that builds a column is a message to the JVM.
    pairs = json.dumps([{"config": name, "kind": KIND_OF_CONFIG.get(name)} for name in configs])
    return table.select("*", sf.inline(sf.from_json(sf.lit(pairs), "array<struct<config:string,kind:string>>")))


def _clients_if(condition: Column) -> Column:
    return sf.sum(sf.when(condition, sf.col("clients")).otherwise(0))


def newest(of_clients: DataFrame) -> DataFrame:
    """Return the newest software version of each client.

    Columns: ``user, client_id, software, version, supported_configs, kinds``. Of several versions that were only seen,
    in the same millisecond, the one with the greatest name counts.
    """
    return (
        of_clients.select("user", "client_id", sf.array_max("versions").alias("one"))
        .where("one is not null")
        .select("user", "client_id", "one.software", "one.version", "one.supported_configs", "one.kinds")
    )


def reach_by_user(of_profiles: DataFrame, configs: Sequence[str]) -> DataFrame:
    """Return how many clients of each user follow a config when it is set.

    Columns: ``user, config, following, clients, unknown``. ``unknown`` counts clients that never registered. Only
    clients that the config concerns are counted.
    """
    # Distinct lists are few and clients are many, so clients are counted before the join with configs.
    lists = of_profiles.where("is_newest").groupBy("user", "supported_configs", "kinds")
    return (
        _with_each(lists.agg(sf.sum("clients").alias("clients")), configs)
        .where(_IS_CONCERNED)
        .groupBy("user", "config")
        .agg(
            _clients_if(sf.array_contains("supported_configs", sf.col("config"))).alias("following"),
            sf.sum("clients").alias("clients"),
            _clients_if(sf.col("supported_configs").isNull()).alias("unknown"),
        )
    )


def would_ignore(newest_versions: DataFrame, configs: Sequence[str]) -> DataFrame:
    """Return the clients that would ignore a config that concerns them.

    Columns: ``config, user, client_id, software, version, supported_configs``. The newest software version of a client
    decides, with all lists that this version registered. No list means unknown.
    """
    return (
        _with_each(newest_versions, configs)
        .where(f"NOT coalesce(array_contains(supported_configs, config), false) AND ({_IS_CONCERNED})")
        .select("config", "user", "client_id", "software", "version", "supported_configs")
    )


def with_enforcement(ignoring: DataFrame, enforceable: DataFrame) -> DataFrame:
    """Add the column ``is_enforced``: whether a broker would enforce the config, because the client never registered.

    Args:
        ignoring: Result of ``would_ignore``.
        enforceable: ``user, client_id, config`` without duplicates, few enough for the memory of a task.
    """
    held = sf.broadcast(enforceable.withColumn("is_held", sf.lit(True)))
    is_enforced = sf.col("supported_configs").isNull() & sf.coalesce("is_held", sf.lit(False))
    joined = ignoring.join(held, ["config", *ENTITY], "left")
    return joined.withColumn("is_enforced", is_enforced).drop("is_held")


def first_of_each_config(ignoring: DataFrame, limit: int) -> DataFrame:
    """Keep the first clients of each config, ordered by user and client id."""
    place = sf.row_number().over(Window.partitionBy("config").orderBy(*ENTITY))
    return ignoring.withColumn("place", place).where(sf.col("place") <= limit).drop("place")


def windows(of_clients: DataFrame) -> DataFrame:
    """Count the clients that registered a software version, per time window.

    Columns: ``start_ms, software, version, clients``. Windows start at whole multiples of their width since the epoch,
    in UTC. The width is an argument of ``latest``.
    """
    return (
        of_clients.select(sf.explode("seen").alias("one"))
        .groupBy("one.start", "one.software", "one.version")
        .agg(sf.count("*").alias("clients"))
        .select(sf.unix_millis("start").alias("start_ms"), "software", "version", "clients")
    )


def windows_of_stream(records: DataFrame, window: str, delay: str) -> DataFrame:
    """Count like ``windows`` in a stream. A window is dropped when the watermark has passed it by ``delay``.

    Columns: those of ``windows``.

    Args:
        records: Result of ``parsed`` for a stream.
        window: Duration as Spark writes it, such as ``1 day``.
        delay: Maximum lateness of a record that still counts.
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
        .select(sf.unix_millis("window.start").alias("start_ms"), "software", "version", "clients")
    )

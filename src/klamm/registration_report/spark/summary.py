"""Reduction of registrations to a report: few rows go to the driver, all others to Parquet."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sf
from pyspark.storagelevel import StorageLevel

from klamm.registration_report.report import (
    MAX_CONFIGS,
    MAX_IGNORING,
    MAX_USERS,
    MAX_VERSIONS,
    MAX_WINDOWS,
    MIN_IGNORING,
    IgnoringClient,
    Reach,
    Report,
    Scope,
    SupportRow,
    VersionWindow,
)
from klamm.registration_report.spark import compatibility

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from klamm.registration_report.report import Sighting

_SIGHTINGS: Final = "user string, client_id string, software string, version string, seen_ms long, kinds array<string>"
_ENFORCEABLE: Final = "config string, user string, client_id string"


def summarise(
    rows: DataFrame, *, scope: Scope, parquet: Path | None = None, sightings: Sequence[Sighting] = ()
) -> Report:
    """Return the report.

    Args:
        rows: Result of ``latest``.
        scope: Clients and configs to report.
        parquet: Directory for the tables, replacing older ones; None writes none.
        sightings: Clients that brokers have seen. Those without a registration are reported as well.
    """
    # Millions of clients are persisted on disk, where the page cache serves them, because the heap is limited.
    everybody = compatibility.clients(compatibility.of_user(rows, scope.user)).persist(StorageLevel.DISK_ONLY)
    of_clients = everybody.where(sf.col("user").isNotNull())
    if seen := [one for one in sightings if scope.user in {None, one.user}]:
        of_clients = compatibility.with_sightings(of_clients, _frame(rows.sparkSession, seen))
    # All counts by user, version and list are computed from these few rows in one place.
    of_profiles = compatibility.profiles(of_clients).coalesce(1).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        counted = everybody.agg(
            sf.sum("records").alias("records"), sf.sum(sf.when(sf.col("user").isNull(), sf.col("records"))).alias("odd")
        ).collect()[0]
        configs = [scope.config] if scope.config is not None else _configs(of_profiles)
        tables = _tables(of_clients, of_profiles, configs, seen)
        if parquet is not None:
            for name, table in {"support": compatibility.support(of_profiles, configs), **tables}.items():
                table.write.mode("overwrite").parquet(str(parquet / name))
        return _summary(of_profiles, tables, configs, records=counted.records or 0, unreadable=counted.odd or 0)
    finally:
        of_profiles.unpersist()
        everybody.unpersist()


def _frame(spark: SparkSession, seen: Sequence[Sighting]) -> DataFrame:
    """Return one row per client and software version, however many addresses it was seen from."""
    latest: dict[tuple[str, str, str, str], tuple[int, frozenset[str]]] = {}
    for one in seen:
        key = (one.user, one.client_id, one.software, one.version)
        seen_ms, kinds = latest.get(key, (0, frozenset()))
        latest[key] = (max(one.seen_ms, seen_ms), kinds.union(one.kinds))
    return spark.createDataFrame(
        [(*key, seen_ms, sorted(kinds)) for key, (seen_ms, kinds) in latest.items()], _SIGHTINGS
    )


def _configs(of_profiles: DataFrame) -> list[str]:
    """Return the configs that most clients support. Each software version of a client counts."""
    each = of_profiles.select("clients", sf.explode("supported_configs").alias("config"))
    counted = each.groupBy("config").agg(sf.sum("clients").alias("clients"))
    return [row.config for row in counted.orderBy(sf.desc("clients"), "config").limit(MAX_CONFIGS).collect()]


def _tables(
    of_clients: DataFrame, of_profiles: DataFrame, configs: Sequence[str], seen: Sequence[Sighting]
) -> dict[str, DataFrame]:
    enforceable = {(config, one.user, one.client_id) for one in seen for config in one.enforceable}
    ignoring = compatibility.would_ignore(compatibility.newest(of_clients), configs)
    return {
        "users": compatibility.reach_by_user(of_profiles, configs),
        "ignoring": compatibility.with_enforcement(
            ignoring, of_clients.sparkSession.createDataFrame(list(enforceable), _ENFORCEABLE)
        ),
        "windows": compatibility.windows(of_clients),
    }


def _summary(
    of_profiles: DataFrame, tables: Mapping[str, DataFrame], configs: Sequence[str], *, records: int, unreadable: int
) -> Report:
    counted = (
        of_profiles.where("is_newest")
        .agg(
            sf.sum("clients").alias("clients"),
            sf.sum(sf.when(sf.col("supported_configs").isNull(), sf.col("clients"))).alias("never"),
            sf.count_distinct("user").alias("users"),
        )
        .collect()[0]
    )
    of_versions = compatibility.versions(of_profiles)
    shown = of_versions.orderBy(sf.desc("clients_total"), "software", "version").limit(MAX_VERSIONS)
    of_shown = of_profiles.join(sf.broadcast(shown), ["software", "version"], "left_semi")
    support = compatibility.support(of_shown, configs).orderBy("software", "version", "config").collect()
    versions = len({(row.software, row.version) for row in support})
    enforced = _enforced(tables["ignoring"])
    reach = _reach(tables["users"], enforced)
    limit = max(MIN_IGNORING, MAX_IGNORING // max(1, len(configs)))
    ignoring = compatibility.first_of_each_config(tables["ignoring"], limit).orderBy("config", "user", "client_id")
    return Report(
        rows=tuple(_support(row) for row in support if row.clients_total),
        clients=counted.clients or 0,
        records=records,
        unreadable=unreadable,
        reach=reach,
        users=_users(tables["users"], enforced),
        users_total=counted.users,
        ignoring=tuple(_ignoring(row) for row in ignoring.collect()),
        ignoring_total=sum(one.clients - one.following for one in reach),
        windows=version_windows(tables["windows"]),
        versions_total=versions if versions < MAX_VERSIONS else of_versions.count(),
        never_registered=counted.never or 0,
    )


def _enforced(ignoring: DataFrame) -> Mapping[tuple[str, str], int]:
    """Count the clients for which a broker would enforce a config, by user and config."""
    counted = ignoring.where("is_enforced").groupBy("user", "config").agg(sf.count("*").alias("clients"))
    return {(row.user, row.config): row.clients for row in counted.collect()}


def _reach(users: DataFrame, enforced: Mapping[tuple[str, str], int]) -> tuple[Reach, ...]:
    of_configs: Counter[str] = Counter()
    for (_, config), clients in enforced.items():
        of_configs[config] += clients
    sums = [sf.sum(name).alias(name) for name in ("following", "clients", "unknown")]
    rows = users.groupBy("config").agg(*sums).orderBy(sf.desc("following"), "config").collect()
    return tuple(Reach(**row.asDict(), enforced=of_configs[row.config]) for row in rows)


def _users(users: DataFrame, enforced: Mapping[tuple[str, str], int]) -> tuple[Reach, ...]:
    largest = users.groupBy("user").agg(sf.max("clients").alias("most")).orderBy(sf.desc("most"), "user")
    of_largest = users.join(sf.broadcast(largest.limit(MAX_USERS)), "user", "left_semi")
    rows = of_largest.orderBy(sf.desc("clients"), "user", sf.desc("following"), "config").collect()
    return tuple(Reach(**row.asDict(), enforced=enforced.get((row.user, row.config), 0)) for row in rows)


def _support(row: Any) -> SupportRow:
    return SupportRow(**{**row.asDict(), "users": tuple(row.users)})


def _ignoring(row: Any) -> IgnoringClient:
    supported = row.supported_configs
    return IgnoringClient(**{**row.asDict(), "supported_configs": None if supported is None else tuple(supported)})


def version_windows(table: DataFrame) -> tuple[VersionWindow, ...]:
    """Return the rows of ``windows``, or those with the most clients if there are too many."""
    largest = table.orderBy(sf.desc("clients")).limit(MAX_WINDOWS)
    rows = largest.orderBy("start_ms", "software", "version").collect()
    return tuple(VersionWindow(**row.asDict()) for row in rows)

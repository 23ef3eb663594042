"""From what is registered to a report: few rows come to the driver, the rest goes to Parquet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf
from pyspark.storagelevel import StorageLevel

from klamm.registrations.report import (
    MAX_CONFIGS,
    MAX_IGNORING,
    MAX_USERS,
    MAX_VERSIONS,
    MAX_WINDOWS,
    IgnoringClient,
    Reach,
    Report,
    Scope,
    SupportRow,
    VersionWindow,
)
from klamm.registrations.spark import compatibility

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame


def summarise(rows: DataFrame, *, scope: Scope, parquet: Path | None = None) -> Report:
    """Return the report.

    Args:
        rows: What ``latest`` returns.
        scope: Which clients and which configs it is about.
        parquet: A directory for the tables, which replace those before; None: they are not written.
    """
    everybody = compatibility.clients(compatibility.of_user(rows, scope.user)).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        counted = everybody.agg(
            sf.sum("records").alias("records"), sf.sum(sf.when(sf.col("user").isNull(), sf.col("records"))).alias("odd")
        ).collect()[0]
        of_clients = everybody.where(sf.col("user").isNotNull())
        configs = [scope.config] if scope.config is not None else _configs(of_clients)
        tables = _tables(of_clients, configs)
        if parquet is not None:
            for name, table in tables.items():
                table.write.mode("overwrite").parquet(str(parquet / name))
        return _told(of_clients, tables, configs, records=counted.records or 0, unreadable=counted.odd or 0)
    finally:
        everybody.unpersist()


def _configs(of_clients: DataFrame) -> list[str]:
    """Return the configs that most clients support."""
    each = of_clients.select(sf.explode(sf.array_distinct(sf.flatten(_known_lists()))).alias("config"))
    counted = each.groupBy("config").agg(sf.count("*").alias("clients"))
    return [row.config for row in counted.orderBy(sf.desc("clients"), "config").limit(MAX_CONFIGS).collect()]


def _known_lists() -> Any:
    known = sf.filter("versions", lambda one: one["supported_configs"].isNotNull())
    return sf.transform(known, lambda one: one["supported_configs"])


def _tables(of_clients: DataFrame, configs: Sequence[str]) -> dict[str, DataFrame]:
    newest = compatibility.newest(of_clients)
    return {
        "support": compatibility.support(of_clients, compatibility.versions(of_clients), configs),
        "users": compatibility.reach_by_user(newest, configs),
        "ignoring": compatibility.would_ignore(newest, configs),
        "windows": compatibility.windows(of_clients),
    }


def _told(
    of_clients: DataFrame, tables: Mapping[str, DataFrame], configs: Sequence[str], *, records: int, unreadable: int
) -> Report:
    standing = of_clients.where(sf.size("versions") > 0)
    counted = standing.agg(sf.count("*").alias("clients"), sf.count_distinct("user").alias("users")).collect()[0]
    of_versions = compatibility.versions(of_clients)
    shown = of_versions.orderBy(sf.desc("clients_total"), "software", "version").limit(MAX_VERSIONS)
    support = compatibility.support(of_clients, shown, configs).orderBy("software", "version", "config").collect()
    versions = len({(row.software, row.version) for row in support})
    reach = _reach(tables["users"])
    users = tables["users"].orderBy(sf.desc("clients"), "user", sf.desc("following"), "config").limit(MAX_USERS)
    ignoring = tables["ignoring"].orderBy("config", "user", "client_id").limit(MAX_IGNORING)
    return Report(
        rows=tuple(_support(row) for row in support),
        clients=counted.clients,
        records=records,
        unreadable=unreadable,
        reach=reach,
        users=tuple(Reach(**row.asDict()) for row in users.collect()),
        users_total=counted.users,
        ignoring=tuple(_ignoring(row) for row in ignoring.collect()),
        ignoring_total=sum(one.clients - one.following for one in reach),
        windows=told_windows(tables["windows"]),
        versions_total=versions if versions < MAX_VERSIONS else of_versions.count(),
    )


def _reach(users: DataFrame) -> tuple[Reach, ...]:
    by_config = users.groupBy("config").agg(sf.sum("following").alias("following"), sf.sum("clients").alias("clients"))
    return tuple(Reach(**row.asDict()) for row in by_config.orderBy(sf.desc("following"), "config").collect())


def _support(row: Any) -> SupportRow:
    return SupportRow(**{**row.asDict(), "users": tuple(row.users)})


def _ignoring(row: Any) -> IgnoringClient:
    supported = row.supported_configs
    return IgnoringClient(**{**row.asDict(), "supported_configs": None if supported is None else tuple(supported)})


def told_windows(table: DataFrame) -> tuple[VersionWindow, ...]:
    """Return the rows of ``windows``; of too many, those with the most clients."""
    largest = table.orderBy(sf.desc("clients")).limit(MAX_WINDOWS)
    rows = largest.orderBy("start_ms", "software", "version").collect()
    return tuple(VersionWindow(**row.asDict()) for row in rows)

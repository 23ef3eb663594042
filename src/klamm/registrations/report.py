"""The report over the registration topic: rows in, a table or JSON out."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

from rich.console import Console
from rich.table import Table

from klamm.registrations.page import render

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MAX_IGNORING: Final = 1_000
"""Of the clients that would ignore a config, so many are named; the Parquet files hold all."""
DEFAULT_WINDOW: Final = "1 day"
MAX_NAMED: Final = 10
NOTHING_YET = "No client has registered yet."


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportRow:
    """How far one config reaches among the clients of one software version."""

    software: str
    version: str
    config: str
    clients: int
    """Of this software version: ``<user, client-id>`` pairs that support the config."""
    clients_total: int
    """Of this software version: ``<user, client-id>`` pairs in all."""
    users: tuple[str, ...]
    """Users of the supporting clients, sorted."""
    last_registered_ms: int
    """Milliseconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoringClient:
    """A ``<user, client-id>`` that would ignore a config if it were set."""

    config: str
    user: str
    client_id: str
    software: str
    """Of the newest version that it registered."""
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionWindow:
    """How many clients registered a software version within one window of time."""

    start_ms: int
    """Milliseconds since the epoch."""
    software: str
    version: str
    clients: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The registration topic, summed up."""

    rows: tuple[SupportRow, ...]
    """One per software version and config, also where nobody supports it; ordered by software, version, config."""
    clients: int
    """``<user, client-id>`` pairs that have registered anything."""
    records: int
    """Records that were read."""
    ignoring: tuple[IgnoringClient, ...] = ()
    """Who would ignore what, at most ``MAX_IGNORING``; ordered by config, user, client id."""
    ignoring_total: int = 0
    """How many there are of them in all."""
    windows: tuple[VersionWindow, ...] = ()
    """Versions over time, ordered by time, software, version."""


def run_report(
    bootstrap_servers: str,
    output: TextIO,
    *,
    output_format: Literal["human", "json"] = "human",
    settings: Mapping[str, Any] | None = None,
    spark_properties: Mapping[str, str] | None = None,
    scope: Scope | None = None,
    parquet: Path | None = None,
    html: Path | None = None,
    follow_s: float | None = None,
) -> int:
    """Read the registration topic of a cluster on Spark and print which client versions support which configs.

    Args:
        bootstrap_servers: ``host:port`` or several of them, comma separated.
        output: Where the report is written.
        output_format: A table, or one JSON document.
        settings: kafka-python's names for connections and security.
        spark_properties: ``spark.*`` keys on top of klamm's own.
        scope: Which clients and which configs it is about; None: all.
        parquet: A directory for ``support``, ``ignoring`` and ``windows`` as Parquet; what is there is replaced.
        html: A file for one page with plots that needs nothing else.
        follow_s: Go on, and write all of it anew whenever something was registered, looking so often; None: once.

    Returns:
        0, also when nobody has registered yet.

    Raises:
        JavaNotFoundError: There is no Java for Spark.
    """
    from klamm.registrations.spark.job import Job  # noqa: PLC0415  # the report itself needs no Spark

    chosen = scope or Scope()

    def publish(report: Report) -> None:
        write_report(report, output, output_format=output_format)
        output.flush()
        if html is not None:
            replace_file(html, render(report, title=chosen.title(bootstrap_servers)))

    job = Job(bootstrap_servers, settings or {}, spark_properties or {}, scope=chosen, parquet=parquet)
    if follow_s is None:
        publish(job.read())
    else:
        job.follow(publish, every_s=follow_s)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a report is about."""

    user: str | None = None
    """Only this user's clients; None: everybody's."""
    config: str | None = None
    """Only this config; None: all that anybody supports."""
    window: str = DEFAULT_WINDOW
    """The width of the windows of time, as Spark writes durations."""

    def title(self, cluster: str) -> str:
        """Return the heading."""
        parts = [f"Client configs of {cluster}"]
        if self.user is not None:
            parts.append(f"user {self.user}")
        if self.config is not None:
            parts.append(self.config)
        return ", ".join(parts)


def replace_file(path: Path, text: str) -> None:
    """Write a file so that whoever reads it sees the old one or the new one, never half of it."""
    scratch = path.with_name(f".{path.name}.new")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)


def write_report(report: Report, output: TextIO, *, output_format: Literal["human", "json"]) -> None:
    """Write a report."""
    if output_format == "json":
        json.dump(asdict(report), output, indent=2)
        output.write("\n")
        return
    if not report.rows:
        output.write(f"{NOTHING_YET}\n")
        return
    console = Console(file=output, width=None if output.isatty() else 120)
    table = Table(title="Which clients take which config")
    for name, justify in (
        ("Software", "left"),
        ("Version", "left"),
        ("Config", "left"),
        ("Clients", "right"),
        ("Users", "left"),
        ("Last registered (UTC)", "left"),
    ):
        table.add_column(name, justify="right" if justify == "right" else "left")
    for row in report.rows:
        table.add_row(
            row.software,
            row.version,
            row.config,
            f"{row.clients} of {row.clients_total}",
            _names(row.users),
            _moment(row.last_registered_ms),
        )
    console.print(table)
    for line in summary(report):
        console.print(line, highlight=False)


def summary(report: Report) -> list[str]:
    """Say for each config who follows when it is set, and who would not."""
    lines = [f"{report.clients} clients, {report.records} records."]
    for config in dict.fromkeys(row.config for row in report.rows):
        rows = [row for row in report.rows if row.config == config]
        following = sum(row.clients for row in rows)
        line = f"If {config} is set: {following} of {report.clients} clients follow"
        ignoring = [f"{row.software} {row.version}" for row in rows if row.clients < row.clients_total]
        lines.append(line + (f"; not all of {', '.join(ignoring)}." if ignoring else "."))
        named = [f"{one.user} {one.client_id}" for one in report.ignoring if one.config == config]
        if named:
            lines.append(f"  {_names(named, MAX_NAMED)} would ignore it.")
    return lines


def _names(users: Sequence[str], shown: int = 3) -> str:
    more = len(users) - shown
    return ", ".join(users[:shown]) + (f" and {more} more" if more > 0 else "")


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%S")

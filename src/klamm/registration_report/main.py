"""Entry point of the registration report: read the topic on Spark, then publish the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TextIO

from klamm.atomic_file import replace_file
from klamm.registration_report.page import render
from klamm.registration_report.report import Following, Report, Scope, Sighting
from klamm.registration_report.spark.job import Job
from klamm.registration_report.text import write_report

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


def run_report(
    bootstrap_servers: str,
    output: TextIO,
    *,
    output_format: Literal["human", "json"] = "human",
    properties: Mapping[str, str] | None = None,
    spark_properties: Mapping[str, str] | None = None,
    scope: Scope | None = None,
    parquet: Path | None = None,
    html: Path | None = None,
    following: Following | None = None,
    sightings: Callable[[], Sequence[Sighting]] | None = None,
) -> int:
    """Read the registration topic of a cluster on Spark and print which client versions support which configs.

    Args:
        bootstrap_servers: ``host:port``, or several separated by commas.
        output: Stream that the report is written to.
        output_format: ``human`` for a table, ``json`` for one JSON document.
        properties: Properties of a Java client for connections and security.
        spark_properties: ``spark.*`` keys in addition to klamm's own.
        scope: Clients and configs to report; None means all.
        parquet: Directory for the tables ``support``, ``ignoring``, ``users`` and ``windows``. Existing ones are
            replaced.
        html: File for a self-contained page with plots.
        following: Settings for a report that is repeated after each registration; None reports once.
        sightings: Returns the clients that brokers have seen, called for each report. Clients that never registered are
            not in the topic. None means that no such information exists.

    Returns:
        0, also if no client has registered yet.

    Raises:
        JavaNotFoundError: There is no Java for Spark.
        SettingsError: The window is invalid, or the checkpoint belongs to another report.
        OSError: A file cannot be written.
    """
    chosen = scope or Scope()

    def publish(report: Report) -> None:
        write_report(report, output, output_format=output_format)
        output.flush()
        if html is not None:
            replace_file(html, render(report, title=chosen.title(bootstrap_servers)))

    job = Job(
        bootstrap_servers, properties or {}, spark_properties or {}, scope=chosen, parquet=parquet, sightings=sightings
    )
    if following is None:
        publish(job.read())
    else:
        job.follow(publish, following)
    return 0

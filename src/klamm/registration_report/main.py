"""Entry point of the registration report: read the topic on Spark, then publish the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TextIO

from klamm.registration_report.page import render
from klamm.registration_report.report import Following, Report, Scope, Sighting, replace_file
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
        bootstrap_servers: ``host:port`` or several of them, comma separated.
        output: Where the report is written.
        output_format: A table, or one JSON document.
        properties: A Java client's properties for connections and security.
        spark_properties: ``spark.*`` keys on top of klamm's own.
        scope: Which clients and which configs it is about; None: all.
        parquet: A directory for ``support``, ``ignoring``, ``users`` and ``windows`` as Parquet; what is there is
            replaced.
        html: A file for one page with plots that needs nothing else.
        following: Go on, and write all of it anew whenever something was registered; None: once.
        sightings: Tells whom brokers have seen, whenever a report is made: clients that never registered are in no
            topic. None: nobody knows.

    Returns:
        0, also when nobody has registered yet.

    Raises:
        JavaNotFoundError: There is no Java for Spark.
        SettingsError: A window that is none, or a checkpoint that belongs to another report.
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

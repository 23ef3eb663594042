"""The report as text: a table with sentences, or JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, Literal, TextIO

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from klamm.display import counted, printable
from klamm.timestamps import calendar_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.registration_report.report import IgnoringClient, Report

MAX_NAMED: Final = 10
NO_NAME: Final = "(none)"
"""Placeholder for the empty client id of an application that sends none."""
NOTHING_YET: Final = "No client has registered yet."


def write_report(report: Report, output: TextIO, *, output_format: Literal["human", "json"]) -> None:
    """Write a report."""
    if output_format == "json":
        json.dump(asdict(report), output, indent=2)
        output.write("\n")
        return
    if not report.clients:
        output.write("\n".join([NOTHING_YET, *unreadable(report)]) + "\n")
        return
    console = Console(file=output, width=None if output.isatty() else 120)
    table = Table(title="Which clients take which config")
    for name in ("Software", "Version", "Config", "Clients", "Users", "Last registered (UTC)"):
        table.add_column(name, justify="right" if name == "Clients" else "left")
    for row in report.rows:
        cells = (
            printable(row.software),
            printable(row.version),
            printable(row.config),
            f"{row.clients} of {row.clients_total}",
            _names(row.users),
            moment(row.last_registered_ms),
        )
        table.add_row(*(escape(cell) for cell in cells))
    console.print(table)
    for line in summary(report):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def summary(report: Report) -> list[str]:
    """Return one sentence per config: how many of the clients that it concerns would follow it, and which would not."""
    lines = [
        f"{counted(report.clients, 'client')}, {counted(report.records, 'record')}.",
        *never_registered(report),
        *unreadable(report),
    ]
    for reach in report.reach:
        ignoring = reach.clients - reach.following
        line = (
            f"If {printable(reach.config)} is set: {reach.following} of {counted(reach.clients, 'client')} would follow"
        )
        if not ignoring:
            lines.append(f"{line}.")
            continue
        unknown = f" ({reach.unknown} never registered)" if reach.unknown else ""
        enforced = f"; the broker would enforce it for {reach.enforced} of them" if reach.enforced else ""
        lines.append(f"{line}, {ignoring} would ignore it{unknown}{enforced}:")
        shown = [one for one in report.ignoring if one.config == reach.config][:MAX_NAMED]
        lines += [
            f"  {printable(one.user)} {printable(one.client_id) or NO_NAME}"
            f" ({printable(named(one.software, one.version))}, {supports(one)})"
            for one in shown
        ]
        if ignoring > len(shown):
            lines.append(f"  and {ignoring - len(shown)} more")
    return lines


def supports(client: IgnoringClient) -> str:
    """Return the registered configs of a client as a phrase."""
    if client.supported_configs is None:
        return "unknown, never registered" + (", enforced" if client.is_enforced else "")
    return f"registered [{', '.join(map(printable, client.supported_configs))}]"


def never_registered(report: Report) -> list[str]:
    """Return a phrase with the number of clients that never registered, empty if there are none."""
    if not report.never_registered:
        return []
    never = f"{report.never_registered} of {counted(report.clients, 'client')} never registered"
    return [f"{never}; which configs they support is unknown."]


def named(software: str, version: str) -> str:
    """Return a software version as one name, ``unknown`` for a client that sends neither name nor version."""
    return software if software == version == "unknown" else f"{software} {version}"


def unreadable(report: Report) -> list[str]:
    """Return a phrase with the number of records that are not registrations, empty if there are none."""
    if not report.unreadable:
        return []
    return [f"{report.unreadable} of {report.records} records are not registrations and were left out."]


def _names(users: Sequence[str], shown: int = 3) -> str:
    more = len(users) - shown
    return ", ".join(map(printable, users[:shown])) + (f" and {more} more" if more > 0 else "")


def moment(at_ms: int) -> str:
    """Return a timestamp in UTC, or its number if no calendar can represent it."""
    at = calendar_time(at_ms)
    return f"{at_ms} ms" if at is None else at.strftime("%Y-%m-%d %H:%M:%S")

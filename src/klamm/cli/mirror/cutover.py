"""Command ``klamm mirror cutover GROUP``: move a consumer group to the target of a flow."""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.cli import EXIT_FAILED, EXIT_OK, EXIT_USAGE, is_output_failure
from klamm.cli.arguments import add_timeout, seconds
from klamm.cli.output import table_lines, write_result
from klamm.config_providers import resolve
from klamm.kafka_client.errors import CLUSTER_ERRORS, error_text
from klamm.mirror.groups.both_sides import both_sides
from klamm.mirror.groups.cutover import cut_over
from klamm.mirror.settings.mirror import parse_settings
from klamm.properties import SettingsError, read_properties
from klamm.server.arguments import CommandParser

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from klamm.mirror.groups.cutover import Cutover, CutoverRow
    from klamm.mirror.settings.flow import FlowSettings

_TRY_EVERY_S: Final = 1.0
_COLUMNS: Final = ("GROUP", "TOPIC", "PARTITION", "SOURCE OFFSET", "TARGET OFFSET", "LAG", "AGAIN", "REASON")


def main(arguments: Sequence[str]) -> int:
    """Move a group, or print the plan (``--dry-run``). Return 0 if moved or movable, 1 if not, 2 for wrong usage."""
    options = _parser().parse_args(list(arguments))
    try:
        properties = read_properties(options.properties)
    except SettingsError as error:
        sys.stderr.write(f"klamm mirror cutover: {error}\n")
        return EXIT_USAGE
    try:
        settings = parse_settings(resolve(properties))
        settings.check_clients()
        flow = chosen_flow(settings.require_flows(), options.flow)
        return _run(flow.with_timeout(options.api_timeout_ms), options)
    except CLUSTER_ERRORS as error:  # before OSError, to which ConnectionError and TimeoutError belong
        if is_output_failure(error):
            raise
        sys.stderr.write(f"klamm mirror cutover: {error_text(error)}\n")
        return EXIT_FAILED
    except (SettingsError, OSError) as error:
        if is_output_failure(error):
            raise
        sys.stderr.write(f"klamm mirror cutover: {options.properties}: {error}\n")
        return EXIT_USAGE


def chosen_flow(flows: Sequence[FlowSettings], wanted: str | None) -> FlowSettings:
    """Return the flow of ``--flow``, or the only one.

    Raises:
        SettingsError: There are several, or none has this name.
    """
    names = ", ".join(flow.name for flow in flows)
    selected = [flow for flow in flows if wanted in (None, flow.name)]
    if not selected:
        raise SettingsError(f"--flow {wanted}: expected one of the enabled flows: {names}")
    if len(selected) > 1:
        raise SettingsError(f"several flows are enabled; choose one with --flow: {names}")
    return selected[0]


def _run(flow: FlowSettings, options: argparse.Namespace) -> int:
    deadline = time.monotonic() + options.wait
    with both_sides(flow) as sides:
        while True:
            outcome = cut_over(flow, options.group, sides, dry_run=options.dry_run)
            if outcome.is_ready or time.monotonic() >= deadline:
                return _show(outcome, flow)
            time.sleep(_TRY_EVERY_S)


def _show(outcome: Cutover, flow: FlowSettings) -> int:
    """Print the table of offsets and the result for the group."""
    rows = [_COLUMNS, *(_cells(outcome.group, row) for row in outcome.rows)]
    for line in table_lines(rows) if outcome.rows else ():
        write_result(f"{line}\n")
    for problem in outcome.problems:
        sys.stderr.write(f"group {outcome.group}: {problem}\n")
    alias = flow.target.alias
    if not outcome.is_ready:
        end = "cannot be moved now; nothing more was changed"
    elif outcome.is_done:
        end = f"was moved to cluster {alias}; start its consumers there"
    else:
        end = f"can be moved to cluster {alias}; nothing was changed"
    write_result(f"{outcome.flow}: group {outcome.group} {end}\n")
    return EXIT_OK if outcome.is_ready else EXIT_FAILED


def _cells(group: str, row: CutoverRow) -> tuple[str, ...]:
    again = "-" if row.target_offset is None else f"<={row.again_at_most}" if row.again_at_most else "0"
    return (
        group,
        row.remote_topic if row.reason == "" else row.topic,
        str(row.partition),
        str(row.source_offset),
        "-" if row.target_offset is None else str(row.target_offset),
        "-" if row.lag is None else str(row.lag),
        again,
        row.reason or row.note or "-",
    )


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="klamm mirror cutover",
        description="Move a consumer group to the target of a flow: its offsets are translated one last time and "
        "committed there, only forwards. Its consumers must be stopped on both sides. Nothing is committed "
        "unless all of its offsets can be translated. LAG is the number of records not yet read on the source, AGAIN "
        "the number of records that may be read twice.",
        epilog="Exit codes: 0 nothing prevents the move (--dry-run) or the group was moved, 1 it cannot be moved now, "
        "2 wrong usage.",
        allow_abbrev=False,
    )
    parser.add_argument("group", metavar="GROUP", help="the group's id")
    parser.add_argument(
        "properties", type=Path, nargs="?", default=Path("mm2.properties"), metavar="FILE",
        help="MirrorMaker's properties file (default: mm2.properties)",
    )  # fmt: skip
    parser.add_argument("--flow", metavar="A->B", help="which flow, when several are enabled")
    parser.add_argument("--dry-run", action="store_true", help="show what would happen, and change nothing")
    parser.add_argument(
        "--wait", type=partial(seconds, may_be_zero=True), default=0.0, metavar="SECONDS",
        help="retry for this long, for example until the last consumer has left",
    )  # fmt: skip
    add_timeout(parser, "time limit of each call to a cluster; else admin.timeout.ms and request.timeout.ms of FILE")
    return parser

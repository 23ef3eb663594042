"""Command ``klamm mirror reset FLOW [TOPIC...]``: set where the copying of stopped topics continues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from klamm.cli.arguments import INT64_MAX, TO_HELP, moment_ms, searched_ms
from klamm.cli.connection import RequestError, guarded
from klamm.cli.groups.partitions import duration_ms, parse_topic
from klamm.cli.mirror.commands import new_parser, send
from klamm.cli.output import print_result, table_lines
from klamm.clock import wall_clock_ms
from klamm.display import counted
from klamm.server.arguments import whole_number

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

_PROG: Final = "klamm mirror reset"
_COLUMNS: Final = ("TOPIC", "PARTITION", "CURRENT-OFFSET", "NEW-OFFSET", "EFFECT")


def main(arguments: Sequence[str]) -> int:
    """Show the plan, or reset with ``--yes``. Return 0 on success, else 1; wrong usage exits with 2."""
    parser = new_parser(
        _PROG,
        "Show or set the source offsets at which the copying of stopped topics continues.\n"
        "Stop the topics or the flow first (klamm mirror stop) and resume them afterwards.",
    )
    parser.add_argument(
        "topics",
        nargs="*",
        default=[],
        metavar="TOPIC[:0,1]",
        help="a source topic, or some of its partitions (default: all)",
    )
    number = whole_number(INT64_MAX)
    places = parser.add_mutually_exclusive_group(required=True)
    places.add_argument("--to-earliest", action="store_true", help="the first offset of the source")
    places.add_argument("--to-latest", action="store_true", help="the log end of the source")
    places.add_argument("--to-offset", type=number, metavar="OFFSET", help="an offset of the source")
    places.add_argument("--shift-by", type=number, metavar="N", help="the current offset plus N, which may be negative")
    places.add_argument(
        "--to-datetime", type=moment_ms, metavar="TIME", help=f"the first record from then on, {TO_HELP}"
    )
    places.add_argument(
        "--by-duration", type=duration_ms, metavar="PnDTnHnMnS", help="the first record not older than this"
    )
    parser.add_switch("--yes", help="set the offsets; without it, only the plan is shown")
    options = parser.parse_args(list(arguments))
    try:
        chosen = [parse_topic(text) for text in options.topics]
    except RequestError as error:
        parser.error(str(error))
    to, value = _place(options)

    def run() -> int:
        command = {
            "action": "reset",
            "flow": options.flow,
            "partitions": [{"topic": each.name, "partitions": each.partitions} for each in chosen],
            "to": to,
            "value": value,
            "execute": options.yes,
        }
        answer = send(options, command)
        print_result(options.output, answer, lambda: _lines(answer))
        return 0

    return guarded(_PROG, run)


def _place(options: argparse.Namespace) -> tuple[str, int]:
    """Return kind and value of the new offset."""
    if options.to_offset is not None:
        return "offset", options.to_offset
    if options.shift_by is not None:
        return "shift", options.shift_by
    if options.to_datetime is not None:
        return "timestamp", searched_ms(options.to_datetime)
    if options.by_duration is not None:
        return "timestamp", searched_ms(wall_clock_ms() - options.by_duration)
    return ("earliest" if options.to_earliest else "latest"), 0


def _lines(answer: Mapping[str, Any]) -> list[str]:
    rows = [_COLUMNS, *(_cells(row) for row in answer["partitions"])]
    changed = sum(row["current_offset"] != row["new_offset"] for row in answer["partitions"])
    partitions = counted(changed, "source offset")
    end = f"{partitions} set" if answer["executed"] else f"{partitions} would be set; nothing was changed without --yes"
    absent = [f"{answer['flow']}: {topic} is not on the source and was left out" for topic in answer["absent"]]
    return [*table_lines(rows), *absent, f"{answer['flow']}: {end}"]


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    current = "-" if row["current_offset"] is None else str(row["current_offset"])
    return row["topic"], str(row["partition"]), current, str(row["new_offset"]), row["effect"]

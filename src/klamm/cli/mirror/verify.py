"""Command ``klamm mirror verify mm2.properties``: compare the records of source and target."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from klamm.cli import EXIT_FAILED, EXIT_OK, EXIT_USAGE, is_output_failure
from klamm.cli.arguments import add_timeout
from klamm.config_providers import resolve
from klamm.dataframes.errors import ReadingError
from klamm.display import counted
from klamm.kafka_client.errors import CLUSTER_ERRORS, error_text
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.status.verify import verify_flow
from klamm.patterns import compile_pattern
from klamm.properties import SettingsError, read_properties
from klamm.server.arguments import CommandParser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.mirror.settings.flow import FlowSettings
    from klamm.mirror.status.verify import PartitionVerdict


def main(arguments: Sequence[str]) -> int:
    """Compare. Return 0 if both sides agree up to the mirrored offsets, 1 if not or unreadable, 2 for wrong usage."""
    options = _parser().parse_args(list(arguments))
    try:
        properties = read_properties(options.properties)
    except SettingsError as error:
        sys.stderr.write(f"klamm mirror verify: {error}\n")
        return EXIT_USAGE
    try:
        wanted = compile_pattern(options.topics)
        settings = parse_settings(resolve(properties), target_aliases=options.clusters)
        settings.check_clients()
        flows = [flow.with_timeout(options.api_timeout_ms) for flow in settings.require_flows()]
        read_records = not options.offsets_only
        results = [_flow(flow, wanted, read_records=read_records) for flow in flows]
    except re.error as error:
        sys.stderr.write(f"klamm mirror verify: --topics {options.topics}: expected a regular expression: {error}\n")
        return EXIT_USAGE
    except (SettingsError, OSError) as error:
        if is_output_failure(error):
            raise
        sys.stderr.write(f"klamm mirror verify: {options.properties}: {error}\n")
        return EXIT_USAGE
    if not any(code or count for code, count in results):
        sys.stderr.write(
            "klamm mirror verify: nothing was compared: no topic that matches --topics is selected, exists and may be "
            "described\n"
        )
        return EXIT_FAILED
    return max(code for code, _ in results)


def _flow(flow: FlowSettings, wanted: re.Pattern[str], *, read_records: bool) -> tuple[int, int]:
    """Compare one flow. Print a line per partition, and one for the flow. Return exit code and number of partitions."""
    same = problems = lag = partitions = 0
    try:
        verdicts = verify_flow(
            flow, wanted=lambda topic: wanted.fullmatch(topic) is not None, read_records=read_records
        )
        for verdict in verdicts:
            sys.stdout.write(_line(verdict) + "\n")
            sys.stdout.flush()  # the next partition may take minutes
            partitions += 1
            same += verdict.findings.same if verdict.findings is not None else 0
            problems += bool(verdict.problem)
            lag += verdict.lag
    except (*CLUSTER_ERRORS, ReadingError) as error:
        if is_output_failure(error):
            raise
        sys.stderr.write(f"{flow.name}: could not be compared: {error_text(error)}\n")
        return EXIT_FAILED, partitions
    read = f"{counted(same, 'record')} equal on both sides" if read_records else "no records read"
    differs = "differs" if problems == 1 else "differ"
    verdict_words = f"{counted(problems, 'partition')} {differs}" if problems else "nothing differs"
    compared = f"{counted(partitions, 'partition')}, {read}, {lag:,} not mirrored yet"
    sys.stdout.write(f"{flow.name}: {compared}: {verdict_words}\n")
    return EXIT_FAILED if problems else EXIT_OK, partitions


def _line(verdict: PartitionVerdict) -> str:
    where = f"{verdict.topic}-{verdict.partition} -> {verdict.remote_topic}-{verdict.partition}"
    mirrored = "never mirrored" if verdict.mirrored < 0 else f"mirrored to {verdict.mirrored}, {verdict.lag} behind"
    compared = "" if verdict.findings is None else f", {counted(verdict.findings.same, 'record')} compared"
    return f"{'DIFFERS' if verdict.problem else 'ok':8}{where}: {mirrored}{compared}" + (
        f": {verdict.problem}" if verdict.problem else ""
    )


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="klamm mirror verify",
        description="Compare both sides of every flow, up to the offsets that the mirror has copied: partitions, "
        "offsets, and for each record key, value, headers and timestamp. Read-only; a mirror may be running. Records "
        "that retention has already removed from one side do not count as differences.",
        epilog="Exit codes: 0 nothing differs, 1 something differs, cannot be read, or nothing was compared, 2 wrong "
        "flags.",
        allow_abbrev=False,
    )
    parser.add_argument("properties", type=Path, metavar="FILE", help="MirrorMaker's properties file")
    parser.add_argument("--clusters", nargs="+", default=(), metavar="ALIAS", help="only flows to these clusters")
    parser.add_argument("--topics", default=".*", metavar="REGEX", help="only source topics whose whole name matches")
    parser.add_argument(
        "--offsets-only", action="store_true", help="compare partitions and offsets only, without reading records"
    )
    add_timeout(parser, "time limit of each call to a cluster; else admin.timeout.ms and request.timeout.ms of FILE")
    return parser

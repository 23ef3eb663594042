"""Command ``klamm mirror status``: the progress of a mirror, read from its target.

It starts neither Spark nor Java and writes nothing to either cluster.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from klamm.cli.arguments import ToolParser, add_common
from klamm.cli.connection import read_client_properties
from klamm.cli.mirror.status_text import lines
from klamm.cli.output import complain, write
from klamm.clock import wall_clock_ms
from klamm.config_providers import resolve
from klamm.kafka_client.errors import CLUSTER_ERRORS, error_text
from klamm.mirror.settings.clients import ROLES
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.status.report import as_document
from klamm.mirror.status.target_reader import Wanted, list_topics, look, source_aliases
from klamm.properties import SettingsError, read_properties

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from klamm.mirror.settings.flow import FlowSettings
    from klamm.mirror.settings.mirror import MirrorSettings
    from klamm.mirror.status.report import FlowSight

_PROG: Final = "klamm mirror status"
_OK: Final = 0
_FAILED: Final = 1
_USAGE: Final = 2
_TARGET: Final = "target"
"""Alias of a target whose alias is not known; its heartbeats may contain the real alias."""
_NOWHERE: Final = "localhost:1"
"""Placeholder for the unknown address of a source; never connected to."""


def main(arguments: Sequence[str]) -> int:
    """Print the status.

    Return 0 on success, and 1 if the target does not answer or has no trace of a flow. Wrong usage exits with 2
    (SystemExit).
    """
    parser = _parser()
    options = parser.parse_args(list(arguments))
    if (options.properties is None) == (options.bootstrap_server is None):
        parser.error("expected FILE, or --bootstrap-server with the target's address")
    if options.properties is not None and (options.source or options.source_bootstrap_server or options.command_config):
        parser.error("--source, --source-bootstrap-server and --command-config go with --bootstrap-server, not FILE")
    if options.source_bootstrap_server and not options.source:
        parser.error("--source-bootstrap-server needs --source: its alias")
    try:
        return _show(_wanted(options), options.output)
    except (SettingsError, OSError, *CLUSTER_ERRORS) as error:
        wrong = isinstance(error, SettingsError)
        complain(f"{_PROG}: {' '.join(error_text(error).split())}")
        return _USAGE if wrong else _FAILED


def _wanted(options: argparse.Namespace) -> list[Wanted]:
    if options.properties is not None:
        flows = _flows_of_file(options.properties, options.clusters or ())
        return [Wanted(flow=flow, ask_source=not options.target_only) for flow in flows]
    client = read_client_properties(options.command_config)
    aliases = [options.source] if options.source else _aliases(options, client)
    return [
        Wanted(
            flow=_settings(alias, options, client).flows[0],
            ask_source=options.source_bootstrap_server is not None and not options.target_only,
            knows_selection=False,
            knows_target_alias=False,
        )
        for alias in aliases
    ]


def _flows_of_file(file: Path, clusters: Sequence[str]) -> tuple[FlowSettings, ...]:
    properties = read_properties(file)
    try:
        return parse_settings(resolve(properties), target_aliases=clusters).require_flows()
    except SettingsError as error:
        raise SettingsError(f"{file}: {error}") from error


def _aliases(options: argparse.Namespace, client: Mapping[str, str]) -> list[str]:
    """Return the source aliases found in the names of the mirror topics on the target.

    Raises:
        SettingsError: The target has no such topic.
    """
    found = source_aliases(list_topics(_settings("source", options, client).flows[0]))
    if not found:
        raise SettingsError(
            f"{options.bootstrap_server} has no topic mm2-offsets.<alias>.internal: name the source with --source"
        )
    return found


def _settings(alias: str, options: argparse.Namespace, client: Mapping[str, str]) -> MirrorSettings:
    """Return the settings of a flow that is described only by the command line, without a properties file."""
    target = _TARGET if alias != _TARGET else f"{_TARGET}-cluster"
    return parse_settings(
        {
            **{
                f"{cluster}.{role}.{key}": value
                for cluster in (alias, target)
                for role in ROLES
                for key, value in client.items()
            },
            "clusters": f"{alias},{target}",
            f"{alias}.bootstrap.servers": options.source_bootstrap_server or _NOWHERE,
            f"{target}.bootstrap.servers": options.bootstrap_server,
            f"{alias}->{target}.enabled": "true",
        }
    )


def _show(wanted: Sequence[Wanted], output: str) -> int:
    sights: list[FlowSight] = []
    for one in wanted:
        try:
            sights.append(look(one))
        except CLUSTER_ERRORS as error:
            complain(
                f"{_PROG}: {one.flow.name}: cluster {one.flow.target.alias} cannot be reached: {error_text(error)}"
            )
    now_ms = wall_clock_ms()
    document: dict[str, Any] = {"flows": [as_document(sight, now_ms) for sight in sights]}
    write(output, document, lambda: [line for sight in sights for line in lines(sight, now_ms)])
    for sight in sights:
        if not sight.is_there:
            complain(f"{_PROG}: {sight.name}: the target shows no trace of this flow")
    return _OK if len(sights) == len(wanted) and all(sight.is_there for sight in sights) else _FAILED


def _parser() -> ToolParser:
    parser = ToolParser(
        prog=_PROG,
        description="Show how far a mirror is, from what klamm or MirrorMaker 2 left on its target.\n"
        "Read-only. Neither Spark nor a running mirror is needed.",
        epilog="With FILE every flow of it is shown, and the source is asked for the lag. With --bootstrap-server the\n"
        "target's address is enough.\n"
        "Exit codes: 0 shown, 1 the target does not answer or shows no trace of a flow, 2 wrong usage.",
    )
    parser.add_argument("properties", type=Path, nargs="?", metavar="FILE", help="MirrorMaker's properties file")
    add_common(parser, timeout_ms=None)
    parser.add_value(
        "--source", metavar="ALIAS", help="the source's alias (default: every source with mirror topics on the target)"
    )
    parser.add_value("--source-bootstrap-server", metavar="HOST:PORT", help="the source's servers, for the lag")
    parser.add_argument("--clusters", nargs="+", metavar="ALIAS", help="only flows of FILE to these clusters")
    parser.add_switch("--target-only", help="do not ask the source, even if FILE has its address")
    return parser

"""Command ``klamm mirror status``: the progress of a mirror, read from its target.

It starts neither Spark nor Java and writes nothing to either cluster.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from klamm.cli import EXIT_FAILED, EXIT_OK, EXIT_USAGE, is_output_failure
from klamm.cli.arguments import ToolParser, add_common, add_timeout
from klamm.cli.connection import RequestError, read_client_properties
from klamm.cli.output import print_error, print_result, table_lines
from klamm.clock import wall_clock_ms
from klamm.config_providers import resolve
from klamm.display import counted
from klamm.kafka_client.errors import CLUSTER_ERRORS, error_text
from klamm.mirror.records.requested_states import RequestedStates
from klamm.mirror.settings.clients import ROLES
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.status.report import age_s, as_document
from klamm.mirror.status.target_reader import FlowQuery, list_topics, read_status, source_aliases
from klamm.properties import SettingsError, read_properties

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from klamm.mirror.settings.flow import FlowSettings
    from klamm.mirror.settings.mirror import MirrorSettings
    from klamm.mirror.status.report import FlowStatus, MirroredTopic

_PROG: Final = "klamm mirror status"
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
        return _show(_queries(options), options.output)
    except (SettingsError, RequestError, OSError, *CLUSTER_ERRORS) as error:
        if is_output_failure(error):
            raise
        wrong = isinstance(error, SettingsError)
        print_error(f"{_PROG}: {' '.join(error_text(error).split())}")
        return EXIT_USAGE if wrong else EXIT_FAILED


def _queries(options: argparse.Namespace) -> list[FlowQuery]:
    if options.properties is not None:
        flows = _flows_of_file(options.properties, options.clusters or ())
        return [
            FlowQuery(flow=flow, ask_source=not options.target_only, timeout_ms=options.api_timeout_ms)
            for flow in flows
        ]
    client = read_client_properties(options.command_config)
    aliases = [options.source] if options.source else _aliases(options, client)
    return [
        FlowQuery(
            flow=_settings(alias, options, client).flows[0],
            ask_source=options.source_bootstrap_server is not None and not options.target_only,
            knows_selection=False,
            knows_target_alias=False,
            timeout_ms=options.api_timeout_ms,
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
        RequestError: The target has no such topic.
    """
    flow = _settings("source", options, client).flows[0]
    aliases = source_aliases(list_topics(flow, timeout_ms=options.api_timeout_ms))
    if not aliases:
        raise RequestError(
            f"{options.bootstrap_server} has no topic mm2-offsets.<alias>.internal: name the source with --source"
        )
    return aliases


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


def _show(queries: Sequence[FlowQuery], output: str) -> int:
    statuses: list[FlowStatus] = []
    for query in queries:
        try:
            statuses.append(read_status(query))
        except CLUSTER_ERRORS as error:
            print_error(
                f"{_PROG}: {query.flow.name}: cluster {query.flow.target.alias} cannot be reached: {error_text(error)}"
            )
    now_ms = wall_clock_ms()
    document: dict[str, Any] = {"flows": [as_document(status, now_ms) for status in statuses]}
    print_result(output, document, lambda: [line for status in statuses for line in lines(status, now_ms)])
    for status in statuses:
        if not status.exists:
            print_error(f"{_PROG}: {status.name}: the target shows no trace of this flow")
    return EXIT_OK if len(statuses) == len(queries) and all(status.exists for status in statuses) else EXIT_FAILED


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
    add_common(parser, timeout_ms=None, instead=("properties",))
    add_timeout(parser, "time limit of each call to the target; else the limits of its clients, 5 s to connect")
    parser.add_value(
        "--source", metavar="ALIAS", help="the source's alias (default: every source with mirror topics on the target)"
    )
    parser.add_value("--source-bootstrap-server", metavar="HOST:PORT", help="the source's servers, for the lag")
    parser.add_argument("--clusters", nargs="+", metavar="ALIAS", help="only flows of FILE to these clusters")
    parser.add_switch("--target-only", help="do not ask the source, even if FILE has its address")
    return parser


_TOPICS: Final = ("TOPIC", "REMOTE TOPIC", "PARTITIONS", "MIRRORED TO", "OFFSET WRITTEN", "NEWEST RECORD", "LAG")
_ENDS: Final = ("TOPIC", "PARTITION", "SOURCE END", "TARGET END", "EQUAL")
_GROUPS: Final = ("GROUP", "TOPICS", "PARTITIONS", "NEWEST CHECKPOINT", "TO READ")
_NONE: Final = "-"
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


def lines(status: FlowStatus, now_ms: int) -> list[str]:
    """Return the lines for one flow.

    They are a summary, its topics, the ends of their partitions if it keeps offsets, its groups, and the list of
    unknown facts with reasons.
    """
    out = [status.name]
    for label, text in _summary(status, now_ms):
        out.append(f"  {label:<22}{text}")
    if status.topics:
        out += ["", *_table([_TOPICS, *(_topic(topic, now_ms) for topic in status.topics)])]
        if status.preserves_offsets:
            out += ["", *_table([_ENDS, *(row for topic in status.topics for row in _ends(topic))])]
    if status.groups:
        rows = [
            (
                group.group,
                ",".join(group.topics),
                f"{group.partitions}",
                ago(group.newest_checkpoint_ms, now_ms),
                _number(group.to_read),
            )
            for group in status.groups
        ]
        out += ["", *_table([_GROUPS, *rows])]
    if status.unknown:
        out += ["", "  Not known from here:", *(f"  - {fact}" for fact in status.unknown)]
    return [*out, ""]


def _summary(status: FlowStatus, now_ms: int) -> list[tuple[str, str]]:
    data = [topic for topic in status.topics if not topic.is_heartbeats]
    missing = sum(not topic.exists for topic in data)
    rows = [
        ("topics", f"{len(data)}" + (f", {missing} of them not on the target" if missing else "")),
        ("newest record", ago(status.newest_record_ms, now_ms)),
        ("offset written", ago(status.source_offset_written_ms, now_ms)),
        ("lag", _number(status.lag)),
    ]
    rows += [
        (f"heartbeat {beat.source_alias}->{beat.target_alias}", ago(beat.timestamp, now_ms))
        for beat in status.heartbeats
    ]
    if status.groups is not None:
        rows.append(("groups", f"{len(status.groups)} with checkpoints"))
    if status.syncs is not None:
        of = f"{counted(status.syncs.partitions, 'partition')} in {status.syncs.topic}"
        rows.append(("offset syncs", f"{of}, newest {ago(status.syncs.newest_ms, now_ms)}"))
    if status.requested != RequestedStates():
        rows.append(("requested state", _requested(status.requested)))
    if status.shards is not None:
        before = f", before that {','.join(map(str, status.shards.before))}" if status.shards.before else ""
        rows.append(("exactly once", f"{counted(status.shards.count, 'shard')}{before}"))
    return rows


def _requested(states: RequestedStates) -> str:
    """Return the states that an operator requested, as ``klamm mirror pause`` and ``stop`` do."""
    topics = ", ".join(f"{topic} {state}" for topic, state in sorted(states.topics.items()))
    return f"{states.flow}; {topics}" if topics else f"{states.flow}"


def _topic(topic: MirroredTopic, now_ms: int) -> tuple[str, ...]:
    offsets = [partition.next_offset for partition in topic.partitions if partition.next_offset is not None]
    written = [partition.written_at_ms for partition in topic.partitions if partition.written_at_ms is not None]
    return (
        topic.topic,
        topic.remote_topic if topic.exists else f"{topic.remote_topic} (missing)",
        f"{len(topic.partitions)}",
        f"{sum(offsets):,}" if offsets else _NONE,
        ago(max(written, default=None), now_ms),
        ago(topic.newest_record_ms, now_ms),
        _number(topic.lag),
    )


def _ends(topic: MirroredTopic) -> list[tuple[str, ...]]:
    """Return a row for each partition of a topic whose records keep their offsets."""
    words = {True: "yes", False: "no", None: "not known"}
    return [
        (
            topic.topic,
            f"{partition.partition}",
            _number(partition.source_end),
            _number(partition.target_end),
            words[partition.ends_are_equal],
        )
        for partition in topic.partitions
    ]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"  {line}" for line in table_lines(rows)]


def _number(count: int | None) -> str:
    return "not known" if count is None else f"{count:,}"


def ago(then_ms: int | None, now_ms: int) -> str:
    """Return the time since a timestamp as text for people."""
    age = age_s(then_ms, now_ms)
    if age is None:
        return _NONE
    for seconds, unit in _UNITS:
        if age >= 2 * seconds:
            return f"{age / seconds:.0f} {unit} ago"
    return f"{age:.1f} s ago"

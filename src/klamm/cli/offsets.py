"""Command ``klamm offsets``: the counterpart of kafka-get-offsets.sh, with JSON or YAML output.

Flags, stdout and exit codes are those of Kafka 4.3's GetOffsetShell, with these deliberate differences:

- Conflicting flags exit with 2.
- Words that belong to no flag are rejected.
- Errors have no stack trace.
"""

from __future__ import annotations

import argparse
import math
import re
from typing import TYPE_CHECKING, Final

from klamm.cli.arguments import INT64_MAX, ToolParser, add_common
from klamm.cli.connection import RequestError, connect, guarded
from klamm.cli.output import print_error, print_result
from klamm.cli.topics.names import parse_pattern
from klamm.kafka_client.errors import explain
from klamm.lazy_dataclass import dataclass
from klamm.server.arguments import whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from klamm.admin import AdminClient, TopicPartition

_PROG: Final = "klamm offsets"
_RULE: Final = re.compile(r"([^:,]*)(?::(?:([0-9]*)|(?:([0-9]*)-([0-9]*))))?")
_SPECS: Final = {
    "latest": -1,
    "earliest": -2,
    "max-timestamp": -3,
    "earliest-local": -4,
    "latest-tiered": -5,
    "earliest-pending-upload": -6,
}
_UNKNOWN_OFFSET: Final = -1
_timestamp: Final = whole_number(INT64_MAX)


def parser() -> ToolParser:
    """Return the argument parser of ``klamm offsets``."""
    flags = ToolParser(
        prog=_PROG,
        description="Print offsets of topic partitions, with the flags and the output of kafka-get-offsets.sh.",
        epilog="Exit codes: 0 done, 1 rejected by the cluster or the tool, 2 wrong or missing flags.",
    )
    add_common(flags)
    flags.add_value("--topic", metavar="TOPIC", help="regular expression for the topics (default: all)")
    flags.add_value("--partitions", metavar="0,1", help="partitions, comma separated (default: all)")
    flags.add_value(
        "--topic-partitions",
        metavar="T1:1,T2:0-3,T3:5-,T4:-3",
        help="comma separated regular expressions for topics, each with a partition or a range of partitions whose"
        " upper bound is exclusive",
    )
    flags.add_value(
        "--time",
        metavar="TIME",
        help="latest (default, -1), earliest (-2), max-timestamp (-3), earliest-local (-4), latest-tiered (-5),"
        " earliest-pending-upload (-6), or a timestamp in milliseconds: the offset of the first record with it or a"
        " later one",
    )
    flags.add_switch("--exclude-internal-topics", help="leave out internal topics")
    return flags


def main(arguments: Sequence[str]) -> int:
    """Print the offsets. Return 0 on success and 1 on failure; wrong flags exit with 2 (SystemExit)."""
    flags = parser()
    options = flags.parse_args(list(arguments))
    flags.require_server(options)
    if options.topic_partitions is not None and (options.topic is not None or options.partitions is not None):
        flags.error("--topic-partitions cannot be used with --topic or --partitions")
    return guarded(_PROG, lambda: _run(options), on_failure=lambda line: print_error(f"Error occurred: {line}"))


def _run(options: argparse.Namespace) -> int:
    spec = parse_time("latest" if options.time is None else options.time)
    rules = (
        [parse_topic_and_partitions(options.topic, options.partitions)]
        if options.topic_partitions is None
        else parse_rules(options.topic_partitions)
    )
    with connect(options) as admin:
        offsets = _offsets(admin, spec, rules, exclude_internal=options.exclude_internal_topics)
    document = [
        {"topic": partition.topic, "partition": partition.partition, "offset": offset}
        for partition, offset in offsets.items()
    ]
    print_result(
        options.output,
        document,
        lambda: [f"{partition.topic}:{partition.partition}:{offset}" for partition, offset in offsets.items()],
    )
    return 0


def _offsets(
    admin: AdminClient, spec: int, rules: Sequence[PartitionRule], *, exclude_internal: bool
) -> dict[TopicPartition, int]:
    """Return the offsets of the selected partitions, in the order of Kafka's tool.

    Partitions that have no such offset are left out. A failure of one partition is reported on stderr.
    """
    from klamm.admin import TopicPartition  # noqa: PLC0415  # --help and wrong flags need no network library

    everything = admin.list_topics(include_internal=not exclude_internal).result()
    names = [name for name in sorted(everything) if any(rule.topic.fullmatch(name) for rule in rules)]
    described = admin.describe_topics(names).all().result()
    partitions = sorted(
        (
            TopicPartition(name, each.partition)
            for name, topic in described.items()
            for each in topic.partitions
            if any(rule.selects(name, each.partition) for rule in rules)
        ),
        key=lambda partition: partition.name,
    )
    if not partitions:
        raise RequestError("Could not match any topic-partitions with the specified filters")
    offsets: dict[TopicPartition, int] = {}
    for partition, future in admin.list_offsets(dict.fromkeys(partitions, spec)).values().items():
        if (error := future.exception()) is not None:
            print_error(f"Skip getting offsets for topic-partition {partition.name} due to error: {explain(error)}")
        elif future.result().offset != _UNKNOWN_OFFSET:
            offsets[partition] = future.result().offset
    return offsets


def parse_time(text: str) -> int:
    """Parse a ``--time`` value and return the timestamp of a ListOffsets request.

    Raises:
        RequestError: The value is neither a name nor a number.
    """
    if text in _SPECS:
        return _SPECS[text]
    try:
        return _timestamp(text)
    except argparse.ArgumentTypeError as error:
        raise RequestError(
            f"Malformed time argument {text}. Please use -1 or latest / -2 or earliest / -3 or max-timestamp"
            " / -4 or earliest-local / -5 or latest-tiered / -6 or earliest-pending-upload, or a specified long format"
            " timestamp"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRule:
    """Selection of topic partitions."""

    topic: re.Pattern[str]
    """Regular expression for the whole name of the topic."""
    partitions: Callable[[int], bool]
    """Function that returns whether a partition of such a topic is selected."""

    def selects(self, topic: str, partition: int) -> bool:
        """Return whether the rule selects a partition."""
        return self.topic.fullmatch(topic) is not None and self.partitions(partition)


def parse_topic_and_partitions(topic: str | None, partitions: str | None) -> PartitionRule:
    """Parse ``--topic`` and ``--partitions``; None selects all.

    Raises:
        RequestError: A partition is not a number, or the topic is not a regular expression.
    """
    try:
        wanted = {int(part) for part in partitions.split(",")} if partitions else set()
    except ValueError as error:
        raise RequestError(
            f"--partitions expects a comma separated list of numeric partition ids, but received: {partitions}"
        ) from error
    return PartitionRule(
        topic=parse_pattern(topic or ".*"), partitions=lambda partition: not wanted or partition in wanted
    )


def parse_rules(text: str) -> list[PartitionRule]:
    """Parse ``--topic-partitions``.

    Raises:
        RequestError: A rule is malformed, or its topic is not a regular expression.
    """
    return [_rule(part) for part in text.split(",")]


def _rule(text: str) -> PartitionRule:
    match = _RULE.fullmatch(text)
    if match is None:
        raise RequestError(f"Invalid rule specification: {text}")
    topic, only, lowest, limit = match.groups()
    first, end = (int(only), int(only) + 1) if only else (int(lowest or 0), int(limit) if limit else math.inf)
    return PartitionRule(topic=parse_pattern(topic or ".*"), partitions=lambda partition: first <= partition < end)

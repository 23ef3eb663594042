"""Flags of ``klamm topics``: those of Kafka 4.3's kafka-topics.sh, with its rules for combining them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from klamm.cli.arguments import (
    INT16_MAX,
    INT32_MAX,
    ToolParser,
    add_common,
    check_conflicts,
    flags_of,
)
from klamm.cli.impact import IMPACT_FLAGS, add_impact_flags
from klamm.cli.output import print_error, print_line
from klamm.server.arguments import whole_number

if TYPE_CHECKING:
    from collections.abc import Sequence

ACTIONS: Final = ("alter", "create", "describe", "list", "delete")
PARTITION_REPORTS: Final = (
    "under-replicated-partitions",
    "under-min-isr-partitions",
    "at-min-isr-partitions",
    "unavailable-partitions",
)
_ALLOWED_WITH: Final = {
    "config": ("alter", "create"),
    "partitions": ("alter", "create"),
    "replication-factor": ("create",),
    "replica-assignment": ("alter", "create"),
    **dict.fromkeys(PARTITION_REPORTS, ("describe",)),
    "topics-with-overrides": ("describe",),
    "if-exists": ("alter", "delete", "describe"),
    "if-not-exists": ("create",),
    "exclude-internal": ("list", "describe"),
    **dict.fromkeys(IMPACT_FLAGS, ("alter", "delete")),
}
"""The actions with which each flag may be combined."""


def parser() -> ToolParser:
    """Return the argument parser of ``klamm topics``."""
    flags = ToolParser(
        prog="klamm topics",
        description="Create, delete, describe or change topics, with the flags and the output of kafka-topics.sh.",
        epilog="Exit codes: 0 done, 1 rejected by the cluster or the tool, 2 wrong or missing flags, 4 impact"
        " worse than --max-impact, or unknown.",
    )
    add_common(flags)
    for action, text in (
        ("list", "list all topics"),
        ("describe", "show details of the topics"),
        ("create", "create a topic"),
        ("alter", "change the number of partitions (configs: klamm configs)"),
        ("delete", "delete topics"),
    ):
        flags.add_switch(f"--{action}", help=text)
    flags.add_value("--topic", metavar="TOPIC", help="the topic; except with --create a regular expression, or several")
    flags.add_value("--topic-id", metavar="ID", help="the id of the topic to describe")
    flags.add_argument(
        "--config",
        action="append",
        metavar="NAME=VALUE",
        help="a config of the topic to create, such as retention.ms=7d; may be repeated",
    )
    flags.add_value("--delete-config", help=argparse.SUPPRESS)  # rejected since Kafka 4.0
    number = whole_number(INT32_MAX)
    flags.add_value("--partitions", type=number, metavar="N", help="partitions of the new topic, or to grow to")
    flags.add_value(
        "--replication-factor",
        type=whole_number(INT16_MAX),
        metavar="N",
        help="replicas of each partition of the new topic",
    )
    flags.add_value(
        "--replica-assignment", metavar="1:2,2:1", help="brokers of each partition: its replicas, the leader first"
    )
    flags.add_switch("--if-exists", help="succeed and do nothing when no topic matches")
    flags.add_switch("--if-not-exists", help="succeed and do nothing when the topic exists")
    flags.add_switch("--exclude-internal", help="leave out internal topics")
    flags.add_switch("--topics-with-overrides", help="describe only topics that override a config")
    flags.add_switch("--under-replicated-partitions", help="describe only partitions with replicas out of sync")
    flags.add_switch("--unavailable-partitions", help="describe only partitions without a live leader")
    flags.add_switch("--under-min-isr-partitions", help="describe only partitions below min.insync.replicas")
    flags.add_switch("--at-min-isr-partitions", help="describe only partitions exactly at min.insync.replicas")
    flags.add_value(
        "--partition-size-limit-per-response",
        type=number,
        metavar="N",
        help="maximum number of partitions per response (default 2000)",
    )
    flags.add_switch("--validate-only", help="check with the cluster and change nothing")
    add_impact_flags(flags)
    return flags


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the flags and check that they can be combined.

    Raises:
        SystemExit: The flags conflict (2), or only the help or the version was requested (0).
    """
    flags = parser()
    options = flags.parse_args(list(words))
    used_flags = flags_of(options)
    if sum(action in used_flags for action in ACTIONS) != 1:
        flags.error("Command must include exactly one action: --list, --describe, --create, --alter or --delete")
    if "delete-config" in used_flags:
        print_error("--delete-config is ignored since Kafka 4.0; use klamm configs --alter --delete-config")
    _check_required(flags, options, used_flags)
    _check_conflicts(flags, used_flags)
    return options


def _check_required(flags: ToolParser, options: argparse.Namespace, used_flags: Sequence[str]) -> None:
    flags.require_server(options)
    if options.describe and options.if_exists:
        if options.topic is None and options.topic_id is None:
            flags.error("--topic or --topic-id is required to describe a topic")
        if options.topic is not None and options.topic_id is not None:
            print_line(
                "Only topic id will be used when both --topic and --topic-id are specified "
                "and topicId is not Uuid.ZERO_UUID"
            )
    if not options.list and not options.describe and options.topic is None:
        flags.error('Missing required argument "[topic]"')
    if options.alter:
        if "config" in used_flags:
            flags.error(
                'Option combination "[[bootstrap-server], [config]]" can\'t be used with option "[alter]" '
                "(To alter topic configurations, klamm configs can be used.)"
            )
        if options.partitions is None:
            flags.error('Missing required argument "[partitions]"')


def _check_conflicts(flags: ToolParser, used_flags: Sequence[str]) -> None:
    for used, actions in _ALLOWED_WITH.items():
        check_conflicts(flags, used_flags, used, [action for action in ACTIONS if action not in actions])
    if "create" in used_flags:
        check_conflicts(flags, used_flags, "replica-assignment", ("partitions", "replication-factor"))
    for report in PARTITION_REPORTS:
        others = [other for other in ("topics-with-overrides", *PARTITION_REPORTS) if other != report]
        check_conflicts(flags, used_flags, report, others)
    check_conflicts(flags, used_flags, "validate-only", ("list", "describe"))

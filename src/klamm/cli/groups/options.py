"""Flags of ``klamm groups``: those of Kafka 4.3's kafka-consumer-groups.sh, with its rules for combining them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.cli.arguments import (
    INT64_MAX,
    TO_HELP,
    ToolParser,
    add_common,
    check_conflicts,
    flags_of,
    moment_ms,
)
from klamm.cli.connection import RequestError
from klamm.cli.groups.partitions import duration_ms, parse_topic
from klamm.cli.output import print_error
from klamm.server.arguments import whole_number

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

ACTIONS: Final = ("list", "describe", "delete", "reset-offsets", "delete-offsets", "validate-regex")
SCENARIOS: Final = (
    "to-offset",
    "to-current",
    "to-datetime",
    "from-file",
    "by-duration",
    "to-earliest",
    "to-latest",
    "shift-by",
)
STATES: Final = (
    "Empty",
    "Dead",
    "CompletingRebalance",
    "PreparingRebalance",
    "Stable",
    "Reconciling",
    "Assigning",
)
TYPES: Final = ("Consumer", "Classic")
TIMEOUT_MS: Final = 5000
"""Default of ``--timeout``, as in kafka-consumer-groups.sh."""
_ALL: Final = ""
"""Value of ``--state`` and ``--type`` without a list."""
_ONLY_WITH: Final = {
    "members": ("describe",),
    "offsets": ("describe",),
    "verbose": ("describe",),
    "state": ("describe", "list"),
    "type": ("list",),
}
"""The actions with which these flags may be combined."""
_NO_ACTION: Final = (
    "WARN: No action will be performed as the --execute option is missing. In version 5.0, this command will require"
    " either --dry-run or --execute to be specified. You should add the --dry-run option explicitly if you are"
    " scripting this command and want to keep the current default behavior without prompting."
)


def parser() -> ToolParser:
    """Return the argument parser of ``klamm groups``."""
    flags = ToolParser(
        prog="klamm groups",
        description="List, describe or delete consumer groups and reset their offsets, with the flags and the output of"
        "\nkafka-consumer-groups.sh.",
        epilog="Exit codes: 0 done, 1 rejected by the cluster or the tool, 2 wrong or missing flags.",
    )
    add_common(flags, timeout_ms=TIMEOUT_MS)
    for action, text in (
        ("list", "list the consumer groups"),
        ("describe", "show offsets and lag, members or state of groups"),
        ("delete", "delete groups with their offsets"),
        ("reset-offsets", "show or set new offsets of groups without members"),
        ("delete-offsets", "delete committed offsets of one group"),
    ):
        flags.add_switch(f"--{action}", help=text)
    flags.add_value("--validate-regex", metavar="REGEX", help="check a regular expression for topics (KIP-848)")
    flags.add_argument("--group", action="append", metavar="GROUP", help="a group; may be repeated")
    flags.add_switch("--all-groups", help="all consumer groups")
    flags.add_argument(
        "--topic", action="append", metavar="TOPIC[:0,1]", help="a topic, or some of its partitions; may be repeated"
    )
    flags.add_switch("--all-topics", help="reset all partitions with committed offsets")
    flags.add_switch("--offsets", help="describe: committed offsets and lag, the default")
    flags.add_switch("--members", help="describe: the members")
    flags.add_argument(
        "--state",
        nargs="?",
        const=_ALL,
        metavar="STATES",
        help="describe: the state; list: show the state, or only groups in some states, comma separated",
    )
    flags.add_argument(
        "--type",
        nargs="?",
        const=_ALL,
        metavar="TYPES",
        help="list: show the type, or only groups of some types: classic, consumer",
    )
    flags.add_switch("--verbose", help="describe: more columns")
    flags.add_switch("--dry-run", help="show the new offsets and change nothing, the default")
    flags.add_switch("--execute", help="set the new offsets")
    flags.add_switch("--export", help="show the new offsets as CSV, for --from-file")
    number = whole_number(INT64_MAX)
    flags.add_value("--to-offset", type=number, metavar="OFFSET", help="new offset")
    flags.add_switch("--to-current", help="new offset: the committed one, or the latest if there is none")
    flags.add_value("--to-datetime", type=moment_ms, metavar="TIME", help=f"the first record from then on, {TO_HELP}")
    flags.add_value(
        "--by-duration", type=duration_ms, metavar="PnDTnHnMnS", help="the first record not older than this"
    )
    flags.add_switch("--to-earliest", help="new offset: the earliest")
    flags.add_switch("--to-latest", help="new offset: the latest")
    flags.add_value("--shift-by", type=number, metavar="N", help="move the committed offset; may be negative")
    flags.add_value("--from-file", metavar="FILE", help="lines topic,partition,offset or group,topic,partition,offset")
    return flags


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the flags and check that they can be combined.

    Raises:
        SystemExit: The flags conflict (2), or only the help or the version was requested (0).
    """
    flags = parser()
    options = flags.parse_args(list(words))
    used_flags = (*flags_of(options), *(name for name in ("state", "type") if getattr(options, name) == _ALL))
    if "validate-regex" not in used_flags:
        flags.require_server(options)
    _check_describe(flags, options, used_flags)
    if "delete" in used_flags:
        _check_groups(flags, used_flags, "delete")
        if "topic" in used_flags:
            flags.error("The consumer does not support topic-specific offset deletion from a consumer group.")
    if "delete-offsets" in used_flags and not {"group", "topic"} <= set(used_flags):
        flags.error("Option [delete-offsets] takes the following options: [topic], [group]")
    if "delete-offsets" in used_flags and len(options.group) > 1:
        flags.error("Found multiple arguments for option group, but you asked for only one")
    if "reset-offsets" in used_flags:
        _check_reset(flags, used_flags)
    check_conflicts(flags, used_flags, "group", ("all-groups", "list"))
    check_conflicts(flags, used_flags, "topic", ("list", "describe"))
    for used, actions in _ONLY_WITH.items():
        check_conflicts(flags, used_flags, used, [action for action in ACTIONS if action not in actions])
    if sum(action in used_flags for action in ACTIONS) != 1:
        flags.error(f"Command must include exactly one action: {', '.join(f'--{action}' for action in ACTIONS)}")
    _parse_values(flags, options)
    return options


def _check_groups(flags: ToolParser, used_flags: Sequence[str], action: str) -> None:
    if "group" not in used_flags and "all-groups" not in used_flags:
        flags.error(f"Option [{action}] takes one of these options: [all-groups], [group]")


def _check_describe(flags: ToolParser, options: argparse.Namespace, used_flags: Sequence[str]) -> None:
    if "describe" not in used_flags:
        return
    _check_groups(flags, used_flags, "describe")
    if sum(view in used_flags for view in ("members", "offsets", "state")) > 1:
        flags.error("Option [describe] takes at most one of these options: [members], [offsets], [state]")
    if options.state:
        flags.error("Option [describe] does not take a value for [state]")


def _check_reset(flags: ToolParser, used_flags: Sequence[str]) -> None:
    if "dry-run" in used_flags and "execute" in used_flags:
        flags.error("Option [reset-offsets] only accepts one of [execute] and [dry-run]")
    if "dry-run" not in used_flags and "execute" not in used_flags:
        print_error(_NO_ACTION)
    _check_groups(flags, used_flags, "reset-offsets")
    for used in sorted(SCENARIOS):
        check_conflicts(flags, used_flags, used, [other for other in SCENARIOS if other != used])
    if "topic" not in used_flags and "all-topics" not in used_flags and "from-file" not in used_flags:
        flags.error("One of the reset scopes should be defined: --all-topics, --topic.")
    if not any(scenario in used_flags for scenario in SCENARIOS):
        listed = ", ".join(f"[{scenario}]" for scenario in SCENARIOS)
        flags.error(f"Option '[reset-offsets]' requires one of the following scenarios: [{listed}]")


def _parse_values(flags: ToolParser, options: argparse.Namespace) -> None:
    """Replace the values of flags that are lists by the parsed lists."""
    options.states = _parse_list(flags, options.state, STATES, "state")
    options.types = _parse_list(flags, options.type, TYPES, "types")
    try:
        options.topics = [parse_topic(text) for text in options.topic or ()]
    except RequestError as error:
        flags.error(str(error))


def _parse_list(flags: ToolParser, text: str | None, allowed: Sequence[str], what: str) -> frozenset[str]:
    """Return the chosen names as Kafka spells them. Empty means all."""
    names = {name.lower(): name for name in allowed}
    words = [word.strip().lower() for word in (text or "").split(",") if text]
    if any(word not in names for word in words):
        flags.error(f"Invalid {what} list '{text}'. Valid {what.rstrip('s')}s are: {', '.join(allowed)}")
    return frozenset(names[word] for word in words)

"""Flags of ``klamm acls``: those of Kafka 4.3's kafka-acls.sh, with its rules for combining them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from klamm.cli.acls.rules import RESOURCES, rules_of
from klamm.cli.arguments import ToolParser, add_common, check_conflicts, flags_of
from klamm.cli.connection import RequestError
from klamm.security.acls import AclOperation, PatternType

if TYPE_CHECKING:
    from collections.abc import Sequence

_ACTIONS: Final = ("list", "add", "remove")
_INFERRED: Final = ("operation", "deny-principal", "deny-host")
_ALL: Final = ""
"""Value of ``--principal`` without a name."""


def parser() -> ToolParser:
    """Return the argument parser of ``klamm acls``."""
    flags = ToolParser(
        prog="klamm acls",
        description="List, add or remove ACLs, with the flags and the output of kafka-acls.sh.",
        epilog="Exit codes: 0 done, 1 rejected by the cluster or the tool, 2 wrong or missing flags.",
    )
    add_common(flags, instead=("bootstrap_controller",), has_cluster=False)  # --cluster is a resource here
    flags.add_value("--bootstrap-controller", metavar="HOST:PORT", help=argparse.SUPPRESS)
    for action, text in (("list", "list ACLs"), ("add", "add ACLs"), ("remove", "remove ACLs")):
        flags.add_switch(f"--{action}", help=text)
    for flag, text in (
        ("--topic", "a topic; '*' means all topics"),
        ("--group", "a group; '*' means all groups"),
        ("--transactional-id", "a transactional id; '*' means all of them"),
        ("--delegation-token", "a delegation token; '*' means all of them"),
        ("--user-principal", "a user as a resource, for the operations CreateTokens and DescribeTokens"),
    ):
        flags.add_argument(flag, action="append", metavar="NAME", help=f"{text}; may be repeated")
    flags.add_switch("--cluster", help="the cluster as a resource")
    flags.add_value(
        "--resource-pattern-type",
        type=_pattern_type,
        metavar="TYPE",
        help="literal (default) or prefixed; to list or remove also any or match",
    )
    names = ", ".join(spelled(operation) for operation in AclOperation if operation > AclOperation.ANY)
    flags.add_argument(
        "--operation", action="append", metavar="NAME", help=f"one of {names} (default All); may be repeated"
    )
    for kind in ("allow", "deny"):
        flags.add_argument(
            f"--{kind}-principal", action="append", metavar="TYPE:NAME", help=f"a principal to {kind}; may be repeated"
        )
        flags.add_argument(
            f"--{kind}-host", action="append", metavar="IP", help=f"a host to {kind} (default *); may be repeated"
        )
    flags.add_argument(
        "--principal",
        action="append",
        nargs="?",
        const=_ALL,
        metavar="TYPE:NAME",
        help="list only ACLs of this principal; may be repeated",
    )
    flags.add_switch("--producer", help="the ACLs of a producer: Write, Describe and Create on the topic")
    flags.add_switch("--consumer", help="the ACLs of a consumer: Read and Describe on the topic, Read on the group")
    flags.add_switch("--idempotent", help="with --producer: IdempotentWrite on the cluster")
    flags.add_switch("--force", help="remove without asking for confirmation")
    return flags


def spelled(operation: AclOperation) -> str:
    """Return an operation as Kafka's tools spell it."""
    return "".join(part.capitalize() for part in operation.name.split("_"))


def _pattern_type(text: str) -> PatternType:
    allowed = [each for each in PatternType if each is not PatternType.UNKNOWN]
    pattern_type = next((each for each in allowed if each.name == text.upper()), None)
    if pattern_type is None:
        listed = ", ".join(each.name.lower() for each in allowed)
        raise argparse.ArgumentTypeError(f"Unknown resource-pattern-type: {text}: expected one of {listed}")
    return pattern_type


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the flags, check that they can be combined, and add ``rules``: the resources with their ACLs.

    Raises:
        SystemExit: The flags conflict (2), or only the help or the version was requested (0).
    """
    flags = parser()
    options = flags.parse_args(list(words))
    used_flags = flags_of(options)
    if options.bootstrap_server is not None and options.bootstrap_controller is not None:
        flags.error("Only one of --bootstrap-server or --bootstrap-controller must be specified")
    if options.bootstrap_server is None and options.bootstrap_controller is None:
        flags.error("One of --bootstrap-server or --bootstrap-controller must be specified")
    if sum(action in used_flags for action in _ACTIONS) != 1:
        flags.error("Command must include exactly one action: --list, --add, --remove.")
    _check_conflicts(flags, used_flags)
    if options.resource_pattern_type is None:
        options.resource_pattern_type = PatternType.LITERAL
    if options.add and options.resource_pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        name = options.resource_pattern_type.name
        flags.error(f"A '--resource-pattern-type' value of '{name}' is not valid when adding acls.")
    try:
        options.rules = rules_of(options)
    except RequestError as error:
        flags.error(str(error))
    if options.cluster and not options.rules:
        name = options.resource_pattern_type.name
        flags.error(f"--cluster has no effect with a '--resource-pattern-type' of '{name}'; expected literal.")
    return options


def _check_conflicts(flags: ToolParser, used_flags: Sequence[str]) -> None:
    check_conflicts(
        flags,
        used_flags,
        "list",
        ("producer", "consumer", "allow-host", "allow-principal", "deny-host", "deny-principal"),
    )
    for role in ("producer", "consumer"):
        check_conflicts(flags, used_flags, role, _INFERRED)
    if "principal" in used_flags and "list" not in used_flags:
        flags.error("The --principal option is only available if --list is set")
    if "producer" in used_flags and "topic" not in used_flags:
        flags.error("With --producer you must specify a --topic")
    if "idempotent" in used_flags and "producer" not in used_flags:
        flags.error("The --idempotent option is only available if --producer is set")
    not_for_consumers = set() if "producer" in used_flags else {"cluster", "transactional-id"} & set(used_flags)
    if "consumer" in used_flags and (not {"topic", "group"} <= set(used_flags) or not_for_consumers):
        flags.error(
            "With --consumer you must specify a --topic and a --group and no --cluster or --transactional-id option"
            " should be specified."
        )
    if "list" not in used_flags and not set(RESOURCES) & set(used_flags):
        flags.error(
            "You must provide at least one resource: --topic <topic> or --cluster or --group <group> or"
            " --delegation-token <Delegation Token ID>"
        )

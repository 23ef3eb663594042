"""Commands ``klamm plan PATH`` and ``klamm apply PATH``: resources of clusters declared in files."""

from __future__ import annotations

import copy
import re
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from klamm.cli import EXIT_FAILED, EXIT_IMPACT, EXIT_OK
from klamm.cli.arguments import INT32_MAX, INT64_MAX, ToolParser, add_common
from klamm.cli.connection import RequestError, UsageError, connect, guarded
from klamm.cli.impact import add_max_impact_flag, excess
from klamm.cli.output import print_error, print_result, write_result
from klamm.cli.profiles import fill_in
from klamm.display import escaped
from klamm.impact.facts import NO_NEED
from klamm.impact.findings import Impact
from klamm.kafka_client.errors import CLUSTER_ERRORS, explain
from klamm.resources.diff import Ownership
from klamm.resources.model import Kind
from klamm.security.principals import ANONYMOUS, principal_of
from klamm.server.arguments import whole_number

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from klamm.admin import AdminClient
    from klamm.resources.engine import Plan
    from klamm.resources.files import ClusterFiles
    from klamm.resources.rules import RulesFile

EXIT_DRIFT: Final = 3
MAX_DELETES: Final = 10
OUTPUTS: Final = ("human", "json", "yaml", "markdown")
_EPILOG: Final = (
    "The file:\n  topics:\n    orders:\n      partitions: 6\n      replication_factor: 3\n"
    "      configs:\n        retention.ms: 604800000\n        cleanup.policy: [compact, delete]\n"
    "  users:\n    billing:\n      authorization:\n        acls:\n"
    "          - {resource: {type: topic, name: orders}, operations: [Read, Describe]}\n\n"
    "Further sections: brokers, quotas, acls, groups, client_metrics, client_configs. Strimzi's KafkaTopic and\n"
    "KafkaUser are read as they are. Resources and keys missing from the files are left unchanged; see --prune and\n"
    "--prune-configs.\n\n"
)


def parser(prog: str) -> ToolParser:
    """Return the argument parser of ``plan`` or ``apply``."""
    is_plan = prog.endswith("plan")
    tool = ToolParser(
        prog=prog,
        description="Compare a cluster with files; nothing is changed."
        if is_plan
        else "Create and change resources to match files; only differences are sent.",
        epilog=_EPILOG
        + "Exit codes: 0 done, 1 something was rejected or failed, 2 wrong flags"
        + (", 3 something differs (--check)" if is_plan else "")
        + ", 4 the impact is too bad, or unknown.",
    )
    add_flags(tool)
    add_max_impact_flag(tool)
    if is_plan:
        tool.add_switch("--check", help="exit with 3 when anything differs")
        tool.add_switch("--offline", help="check the files without a cluster, with the configs of Kafka 4.4")
        tool.set_defaults(validate_only=True)
    else:
        tool.add_switch("--validate-only", help="check with the cluster and change nothing, as plan does")
        tool.add_switch("--keep-going", help="change later kinds although a resource of an earlier kind failed")
        tool.add_value(
            "--throttle",
            type=whole_number(INT64_MAX, lowest=1),
            metavar="BYTES",
            help="limit of each broker in bytes per second while replicas move; waits until they have moved",
        )
        tool.set_defaults(check=False, offline=False)
    return tool


def add_flags(tool: ToolParser) -> None:
    """Add the flags of all commands that compare files with clusters."""
    tool.add_argument("path", type=Path, metavar="PATH", help="file or directory that declares the resources")
    add_common(tool, outputs=OUTPUTS)
    tool.connects(("path",))
    tool.add_argument(
        "--prune",
        action="append",
        default=[],
        metavar="KIND[=REGEX]",
        help=f"delete resources of a kind that the files do not declare, but no internal topics: {', '.join(Kind)}",
    )
    tool.add_switch("--prune-configs", help="remove keys that are set on a declared resource but not in the files")
    tool.add_value(
        "--max-deletes",
        type=whole_number(INT32_MAX, lowest=0),
        metavar="N",
        help=f"most resources, ACLs, quotas and credentials to delete in a cluster (default: {MAX_DELETES})",
    )
    tool.add_switch("--send-secrets", help="set declared passwords again; a cluster does not show whether they changed")
    tool.add_value("--rules", metavar="FILE", help="rules file of policies that judges the changes")
    tool.add_value("--principal", metavar="NAME", help="principal that the rules see (default: User:ANONYMOUS)")


def main(arguments: Sequence[str], *, prog: str) -> int:
    """Plan or apply. Return 0 on success, 1 on failure and 3 for drift with ``--check``; wrong flags exit with 2."""
    flags = parser(prog)
    options = flags.parse_args(list(arguments))
    for flag, limit in (("--max-impact", options.max_impact), ("--max-deletes", options.max_deletes)):
        if options.offline and limit is not None:
            flags.error(f"{flag} needs a cluster, not --offline")
    return guarded(prog, lambda: _run(options, flags))


def plan_main(arguments: Sequence[str]) -> int:
    """Run ``klamm plan``."""
    return main(arguments, prog="klamm plan")


def apply_main(arguments: Sequence[str]) -> int:
    """Run ``klamm apply``."""
    return main(arguments, prog="klamm apply")


def _run(options: argparse.Namespace, flags: ToolParser) -> int:
    ownership, rules = ownership_of(options), rules_of(options)
    named: list[tuple[str | None, Plan]] = []
    impacts: dict[str | None, Impact] = {}
    from klamm.resources.engine import check_offline, make_plan  # noqa: PLC0415  # see connected

    with ExitStack() as connections:
        admins = []
        for files in clusters_of(options):  # all clusters are planned before any of them is changed
            if options.offline:
                named.append((files.cluster, check_offline(files.resources, rules)))
                continue
            admin = connections.enter_context(connected(options, flags, files))
            plan = make_plan(admin, files.resources, ownership, rules)
            if options.validate_only or options.max_impact is not None:
                impacts[files.cluster] = _impact(admin, plan)
            named.append((files.cluster, plan))
            admins.append(admin)
            if _deletes_too_much(files, plan, options) and not options.validate_only:
                return EXIT_FAILED
        exceeded = "; ".join(reason for impact in impacts.values() if (reason := excess(impact, options)) is not None)
        if not options.validate_only and exceeded:
            show(named, options, is_done=False, impacts=impacts)
            print_error(f"nothing was changed: {exceeded}")
            return EXIT_IMPACT
        if not options.validate_only:
            named = _apply_all(named, admins, options, impacts)
        else:
            show(named, options, is_done=False, impacts=impacts)
    plans = [plan for _, plan in named]
    if any(plan.failed or plan.removals > _max_deletes(options) for plan in plans):
        return EXIT_FAILED
    if exceeded:
        print_error(exceeded)
        return EXIT_IMPACT
    return EXIT_DRIFT if options.check and not all(plan.is_in_line for plan in plans) else EXIT_OK


def _max_deletes(options: argparse.Namespace) -> int:
    return MAX_DELETES if options.max_deletes is None else int(options.max_deletes)


def _deletes_too_much(files: ClusterFiles, plan: Plan, options: argparse.Namespace) -> bool:
    """Return whether a plan deletes more than ``--max-deletes`` allows, and report it."""
    limit = _max_deletes(options)
    if plan.removals <= limit:
        return False
    hint = "" if options.validate_only else "; klamm plan shows them"
    print_error(
        f"{files.path}: would delete {plan.removals}, more than --max-deletes {limit}; nothing was changed{hint}"
    )
    return True


def _apply_all(
    named: Sequence[tuple[str | None, Plan]],
    admins: Sequence[AdminClient],
    options: argparse.Namespace,
    impacts: Mapping[str | None, Impact],
) -> list[tuple[str | None, Plan]]:
    """Apply the plans, cluster by cluster, and show what was done, also if a cluster fails."""
    done: list[tuple[str | None, Plan]] = []
    try:
        for (cluster, plan), admin in zip(named, admins, strict=True):
            with _applied(admin, plan, options) as applied:
                done.append((cluster, applied))
    finally:
        if done:
            show(done, options, is_done=True, impacts=impacts)
    return done


@contextmanager
def _applied(admin: AdminClient, plan: Plan, options: argparse.Namespace) -> Iterator[Plan]:
    """Apply a plan and yield what was done. At the end, wait until the throttled replicas have moved."""
    from klamm.resources.engine import apply_plan  # noqa: PLC0415  # wrong flags need no network library
    from klamm.resources.throttle import MoveThrottle, moves_in_progress, wait_for_moves  # noqa: PLC0415

    if options.throttle is None:
        yield apply_plan(admin, plan, keep_going=options.keep_going)
        return
    throttle = MoveThrottle(admin, options.throttle)
    topics = [diff.key.name for diff in plan.diffs if diff.key.kind is Kind.TOPIC and diff.exists]
    throttle.take_over(topics)
    interrupted = moves_in_progress(admin, topics)
    try:
        throttle.begin(interrupted)
        done = apply_plan(admin, plan, keep_going=options.keep_going, throttle=throttle)
        yield done
        wait_for_moves(admin, (*interrupted, *done.moves), print_error)
        throttle.end()
    except BaseException:
        rate = options.throttle
        print_error(f"A throttle of {rate} bytes/s may remain; repeat the command with --throttle {rate} to remove it.")
        raise


def _impact(admin: AdminClient, plan: Plan) -> Impact:
    """Return the predicted impact of the accepted changes. If it cannot be predicted, all facts are missing."""
    from klamm.admin.impact import impact_of  # noqa: PLC0415  # wrong flags need no network library
    from klamm.resources.impact import planned_changes  # noqa: PLC0415

    changes = planned_changes(plan)
    try:
        return impact_of(changes, admin) if changes else Impact()
    except CLUSTER_ERRORS as error:
        return Impact(unknown=(f"the cluster's facts cannot be read: {explain(error)}",), missing=~NO_NEED)


def connected(
    options: argparse.Namespace, flags: ToolParser, files: ClusterFiles
) -> AbstractContextManager[AdminClient]:
    """Return a connection to the cluster of some files: of the flags, else of the profile that the files name."""
    return connect(with_server(options, flags, files))


def with_server(options: argparse.Namespace, flags: ToolParser, files: ClusterFiles) -> argparse.Namespace:
    """Return the options with a server: that of the flags, else of the profile that the files name, else the default.

    Raises:
        SettingsError: The profile cannot be read, or there is none of this name.
        SystemExit: No server is named.
    """
    if options.bootstrap_server is None:
        options = copy.copy(options)
        options.profile = files.cluster
        fill_in(options)
    flags.require_server(options)
    return options


def clusters_of(options: argparse.Namespace) -> Iterator[ClusterFiles]:
    """Yield the clusters that the path declares; with ``--cluster`` only that one if the files name clusters.

    Raises:
        RequestError: The flags name one server, and the files several clusters.
        SettingsError: A file cannot be read or is invalid.
    """
    from klamm.resources.files import read_files  # noqa: PLC0415  # wrong flags need no YAML

    clusters = read_files(options.path)
    chosen = [files for files in clusters if options.profile in (None, files.cluster)]
    if not chosen and len(clusters) == 1 and clusters[0].cluster is None:
        chosen = list(clusters)
    if not chosen:
        names = ", ".join(str(files.cluster) for files in clusters)
        raise RequestError(f"--cluster {options.profile}: {options.path} declares {names}")
    if len(chosen) > 1 and options.profile is None and options.bootstrap_server is not None:
        names = ", ".join(str(files.cluster) for files in clusters)
        raise RequestError(f"{options.path} declares several clusters ({names}): name one directory, or no server")
    yield from chosen


def ownership_of(options: argparse.Namespace) -> Ownership:
    """Return what the flags allow to remove.

    Raises:
        UsageError: A kind is unknown or given twice, or a regular expression is invalid.
    """
    prune: dict[Kind, re.Pattern[str] | None] = {}
    for text in options.prune:
        name, equals, pattern = text.partition("=")
        kind = next(
            (kind for kind in Kind if name in (kind.value, f"{kind.value}s", kind.value.removesuffix("s"))), None
        )
        if kind is None:
            raise UsageError(f"--prune {text}: expected KIND or KIND=REGEX, with one of {', '.join(Kind)}")
        if kind in prune:
            raise UsageError(f"--prune {text}: {kind} is given twice; join the regular expressions with |")
        try:
            prune[kind] = re.compile(pattern) if equals else None
        except re.error as error:
            raise UsageError(f"--prune {text}: {pattern!r} is no regular expression: {error}") from error
    return Ownership(prune=prune, prune_keys=options.prune_configs, send_secrets=options.send_secrets)


def rules_of(options: argparse.Namespace) -> RulesFile | None:
    """Return the rules file of ``--rules``; None without it.

    Raises:
        UsageError: ``--principal`` is given without it.
    """
    if options.rules is None:
        if options.principal is not None:
            raise UsageError("--principal needs --rules: only rules see the principal")
        return None
    from klamm.resources.rules import RulesFile  # noqa: PLC0415  # only --rules needs it

    return RulesFile(Path(options.rules), principal_of(options.principal) if options.principal else ANONYMOUS)


def show(
    named: Sequence[tuple[str | None, Plan]],
    options: argparse.Namespace,
    *,
    is_done: bool,
    impacts: Mapping[str | None, Impact] = MappingProxyType({}),
    ends_without_reader: bool = False,
) -> None:
    """Write plans to stdout in the requested form, and the reasons of failures to stderr."""
    from klamm.cli.resources import report  # noqa: PLC0415

    plans = [plan for _, plan in named]
    counts = report.summary(plans, is_done=is_done)
    if options.output == "markdown":
        text = report.markdown(named, is_done=is_done, impacts=impacts)
        write_result(text, ends_without_reader=ends_without_reader)
    else:
        content = {
            "resources": [entry for cluster, plan in named for entry in report.document(plan, cluster)],
            "impact": [{"cluster": cluster, **impact.document()} for cluster, impact in impacts.items()],
            "summary": {name.replace(" ", "_"): count for name, count in counts.items()},
        }

        def human() -> list[str]:
            shown = []
            for cluster, plan in named:
                shown += [] if len(named) == 1 or cluster is None else [f"Cluster {cluster}:"]
                shown += report.lines(plan)
                shown += report.impact_lines(impacts.get(cluster))
            return [*shown, report.summary_line(plans, counts)]

        print_result(options.output, content, human, ends_without_reader=ends_without_reader)
    for plan in plans:
        for key, reason in plan.failed.items():
            print_error(f"klamm {'apply' if is_done else 'plan'}: {escaped(str(key))}: {escaped(reason)}")

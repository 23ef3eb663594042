"""Commands ``klamm configs plan FILE`` and ``klamm configs apply FILE``: topics and configs declared in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from klamm.cli import EXIT_FAILED, EXIT_OK
from klamm.cli.arguments import ToolParser, add_common
from klamm.cli.configs.plan_diff import Mark, plan_topics
from klamm.cli.configs.plan_file import read_document
from klamm.cli.connection import connect, explain, guarded
from klamm.cli.output import complain, write

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from klamm.cli.configs.plan_diff import TopicDiff

EXIT_DRIFT: Final = 3


def parser(action: str) -> ToolParser:
    """Return the argument parser of ``plan`` or ``apply``."""
    found = ToolParser(
        prog=f"klamm configs {action}",
        description="Compare topics with a YAML file; nothing is changed."
        if action == "plan"
        else "Create and change topics to match a YAML file; only differences are sent.",
        epilog="The file:\n  topics:\n    orders:\n      partitions: 6\n      replication_factor: 1\n"
        "      configs:\n        retention.ms: 604800000\n        cleanup.policy: [compact, delete]\n\n"
        "Topics and configs missing from the file are left unchanged; --prune-configs unsets such configs.",
    )
    found.add_argument("file", type=Path, metavar="FILE", help="YAML file that declares the topics")
    add_common(found)
    found.add_switch("--prune-configs", help="unset configs that are set on a topic but missing from the file")
    if action == "plan":
        found.add_switch("--check", help="exit with 3 when anything differs")
    else:
        found.add_switch("--validate-only", help="check with the cluster and change nothing, as plan does")
        found.set_defaults(check=False)
    return found


def main(arguments: Sequence[str]) -> int:
    """Plan or apply. Return 0 on success, 1 on failure and 3 for drift with ``--check``; wrong flags exit with 2."""
    action = arguments[0]
    flags = parser(action)
    options = flags.parse_args(list(arguments[1:]))
    if options.bootstrap_server is None:
        flags.error("--bootstrap-server must be specified")
    return guarded(flags.prog, lambda: _plan(options) if action == "plan" or options.validate_only else _apply(options))


def _plan(options: argparse.Namespace) -> int:
    from klamm.cli.configs import plan_cluster  # noqa: PLC0415  # wrong flags need no network library

    declared = read_document(options.file)
    with connect(options) as admin:
        plans = plan_topics(declared, plan_cluster.current_topics(admin, declared), prune_configs=options.prune_configs)
        refused = plan_cluster.carry_out(admin, plans, validate_only=True)
    failed = _failures(plans, refused)
    _write(options, plans, failed, _plan_summary(plans, failed))
    if failed:
        return EXIT_FAILED
    return EXIT_DRIFT if options.check and not all(plan.is_in_line for plan in plans) else EXIT_OK


def _apply(options: argparse.Namespace) -> int:
    from klamm.cli.configs import plan_cluster  # noqa: PLC0415  # wrong flags need no network library

    declared = read_document(options.file)
    with connect(options) as admin:
        plans = plan_topics(declared, plan_cluster.current_topics(admin, declared), prune_configs=options.prune_configs)
        refused = plan_cluster.carry_out(admin, plans, validate_only=False)
    failed = _failures(plans, refused)
    _write(options, plans, failed, _apply_summary(plans, failed))
    return EXIT_FAILED if failed else EXIT_OK


def _failures(plans: Sequence[TopicDiff], refused: Mapping[str, BaseException]) -> dict[str, str]:
    problems = {plan.topic.name: "; ".join(plan.problems) for plan in plans if plan.problems}
    return problems | {name: f"topics.{name}: {explain(error)}" for name, error in refused.items()}


def _plan_summary(plans: Sequence[TopicDiff], failed: Mapping[str, str]) -> dict[str, int]:
    sound = [plan for plan in plans if plan.topic.name not in failed]
    return {
        "to create": sum(not plan.exists for plan in sound),
        "to change": sum(plan.exists and not plan.is_in_line for plan in sound),
        "in line": sum(plan.is_in_line for plan in sound),
        "refused": len(failed),
    }


def _apply_summary(plans: Sequence[TopicDiff], failed: Mapping[str, str]) -> dict[str, int]:
    counts = _plan_summary(plans, failed)
    return dict(zip(("created", "changed", "in line", "failed"), counts.values(), strict=True))


def _write(
    options: argparse.Namespace, plans: Sequence[TopicDiff], failed: Mapping[str, str], summary: Mapping[str, int]
) -> None:
    document = {
        "topics": [_document(plan, failed.get(plan.topic.name)) for plan in plans],
        "summary": {name.replace(" ", "_"): count for name, count in summary.items()},
    }
    counts = ", ".join(f"{count} {name}" for name, count in summary.items())
    write(options.output, document, lambda: [*(line for plan in plans for line in _lines(plan)), f"Topics: {counts}."])
    for problem in failed.values():
        complain(f"klamm configs: {problem}")


def _mark(plan: TopicDiff) -> str:
    return Mark.CHANGE if plan.exists else Mark.ADD


def _lines(plan: TopicDiff) -> list[str]:
    if plan.exists and not plan.changes:
        return []
    return [f"{_mark(plan)} topic {plan.topic.name}", *(f"    {change}" for change in plan.changes)]


def _document(plan: TopicDiff, error: str | None) -> dict[str, Any]:
    return {
        "topic": plan.topic.name,
        "exists": plan.exists,
        "in_line": plan.is_in_line,
        "changes": [
            {
                "mark": str(change.mark),
                "key": change.key,
                "old": change.old,
                "old_origin": change.old_origin,
                "new": change.new,
                "new_origin": change.new_origin,
            }
            for change in plan.changes
        ],
        "error": error,
    }

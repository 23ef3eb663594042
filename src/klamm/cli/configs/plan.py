"""Commands ``klamm configs plan FILE`` and ``klamm configs apply FILE``: topics and configs declared in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from klamm.cli import EXIT_FAILED, EXIT_OK
from klamm.cli.arguments import ToolParser, add_common
from klamm.cli.configs.plan_diff import Mark, after_override, plan_topics
from klamm.cli.configs.plan_file import read_document
from klamm.cli.connection import connect, explain, guarded
from klamm.cli.output import override_document, override_lines, print_error, print_result
from klamm.configs.definitions import topic_configs
from klamm.policy.answers import PARTITIONS, REPLICATION_FACTOR
from klamm.properties import did_you_mean

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence

    from klamm.cli.configs.plan_cluster import PlanOutcomes
    from klamm.cli.configs.plan_diff import CurrentTopic, TopicDiff

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
    return guarded(flags.prog, lambda: _run(options, validate_only=action == "plan" or options.validate_only))


def _run(options: argparse.Namespace, *, validate_only: bool) -> int:
    """Check all topics with the cluster, and unless ``validate_only`` change those that it accepts as a whole."""
    from klamm.cli.configs import plan_cluster  # noqa: PLC0415  # wrong flags need no network library

    declared = read_document(options.file)
    with connect(options) as admin:
        current = plan_cluster.current_topics(admin, [topic.name for topic in declared])
        plans = plan_topics(declared, current, prune_configs=options.prune_configs)
        outcomes = plan_cluster.carry_out(admin, plans, validate_only=True)
        final = _after_overrides(plans, outcomes, current)
        failed = _failures(plans, outcomes.refused)
        if not validate_only:
            accepted = [
                plan
                for plan, result in zip(plans, final, strict=True)
                if plan.topic.name not in failed and not result.is_in_line
            ]
            done = plan_cluster.carry_out(admin, accepted, validate_only=False)
            final = _after_overrides(final, done, current)
            failed |= _failures(accepted, done.refused)
    _write(options, final, failed, (_plan_summary if validate_only else _apply_summary)(final, failed))
    if failed:
        return EXIT_FAILED
    return EXIT_DRIFT if options.check and not all(plan.is_in_line for plan in final) else EXIT_OK


def _after_overrides(
    plans: Sequence[TopicDiff], outcomes: PlanOutcomes, current: Mapping[str, CurrentTopic]
) -> list[TopicDiff]:
    return [
        after_override(plan, outcomes.overrides[name], current.get(name)) if name in outcomes.overrides else plan
        for plan in plans
        for name in [plan.topic.name]
    ]


def _failures(plans: Sequence[TopicDiff], refused: Mapping[str, BaseException]) -> dict[str, str]:
    problems = {plan.topic.name: "; ".join(plan.problems) for plan in plans if plan.problems}
    declared = {plan.topic.name: plan.topic.configs for plan in plans}
    return problems | {
        name: f"topics.{name}: {explain(error)}{_hint(declared[name])}" for name, error in refused.items()
    }


def _hint(configs: Iterable[str]) -> str:
    """Return a suggestion for the first config that klamm's table lacks, which is probably misspelt."""
    table = topic_configs()
    return next((did_you_mean(name, table) for name in configs if name not in table), "")


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
    lines = [line for plan in plans for line in _lines(plan, failed.get(plan.topic.name))]
    print_result(options.output, document, lambda: [*lines, f"Topics: {counts}."])
    for problem in failed.values():
        print_error(f"klamm configs: {problem}")


def _lines(plan: TopicDiff, error: str | None) -> list[str]:
    name = plan.topic.name
    if error is not None:
        head = f"{Mark.REFUSE} topic {name}: {error.removeprefix(f'topics.{name}: ')}"
    elif plan.is_in_line and plan.override is None:
        return []
    else:
        head = f"{Mark.SAME if plan.is_in_line else Mark.CHANGE if plan.exists else Mark.ADD} topic {name}"
    numbers = {PARTITIONS: plan.topic.partitions, REPLICATION_FACTOR: plan.topic.replication_factor}
    requested = {**plan.topic.configs, **{key: str(number) for key, number in numbers.items() if number is not None}}
    overrides = override_lines(plan.override, requested)
    return [head, *(f"    {change}" for change in plan.changes), *(f"  {line}" for line in overrides)]


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
        "override": override_document(plan.override),
        "error": error,
    }

"""Plans as text, as Markdown for a pull request, and as a document for JSON and YAML."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from klamm.cli.output import override_document, override_lines
from klamm.display import escaped
from klamm.impact.findings import ImpactLevel
from klamm.resources.model import Kind, Mark

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from klamm.impact.findings import Impact
    from klamm.resources.engine import Plan
    from klamm.resources.model import ResourceDiff

_PLANNED: Final = ("to create", "to change", "to delete", "in line", "rejected")
_DONE: Final = ("created", "changed", "deleted", "in line", "failed")
_NOT_ATTEMPTED: Final = "not attempted"
_OFTEN_ZERO: Final = frozenset({"to delete", "deleted", _NOT_ATTEMPTED})
_FOLD_FROM: Final = 25
"""Number of resources from which Markdown folds the details."""


def summary(plans: Iterable[Plan], *, is_done: bool) -> dict[str, int]:
    """Return the number of resources by what happens to them or, if ``is_done``, has happened.

    Deletions and resources that were not attempted are named only if there are any.
    """
    names = _DONE if is_done else _PLANNED
    counts = dict.fromkeys((*names, _NOT_ATTEMPTED), 0)
    for plan in plans:
        counts[names[4]] += len(plan.failed)
        for diff in plan.diffs:
            if diff.key in plan.failed:
                continue
            if diff.key in plan.skipped:
                counts[_NOT_ATTEMPTED] += 1
            elif diff.is_in_line:
                counts[names[3]] += 1
            elif diff.is_deletion:
                counts[names[2]] += 1
            else:
                counts[names[1 if diff.exists else 0]] += 1
    return {name: count for name, count in counts.items() if count or name not in _OFTEN_ZERO}


def lines(plan: Plan) -> list[str]:
    """Return the lines of a plan for people, without the summary."""
    shown = [line for diff in plan.diffs for line in _diff_lines(diff, plan)]
    keys = {diff.key for diff in plan.diffs}
    return [*shown, *(f"{Mark.REJECT} {key}: {reason}" for key, reason in plan.failed.items() if key not in keys)]


def summary_line(plans: Sequence[Plan], counts: Mapping[str, int]) -> str:
    """Return the last line of a plan: the number of resources by what happens to them."""
    are_topics = all(diff.key.kind is Kind.TOPIC for plan in plans for diff in plan.diffs)
    return (
        f"{'Topics' if are_topics else 'Resources'}: {', '.join(f'{count} {name}' for name, count in counts.items())}."
    )


def impact_lines(impact: Impact | None) -> list[str]:
    """Return the lines of an impact that is worth knowing; none otherwise."""
    is_known = impact is None or (impact.level is ImpactLevel.NONE and not impact.unknown)
    return [] if impact is None or is_known else impact.lines()


def markdown(named: Sequence[tuple[str | None, Plan]], *, is_done: bool, impacts: Mapping[str | None, Impact]) -> str:
    """Return plans in Markdown, for a comment on a pull request.

    Args:
        named: Plans with the name of each cluster.
        is_done: Whether the changes were made.
        impacts: Predicted impact by cluster.
    """
    plans = [plan for _, plan in named]
    counts = summary(plans, is_done=is_done)
    parts = [f"### klamm {'apply' if is_done else 'plan'}", "", summary_line(plans, counts)]
    for cluster, plan in named:
        shown = lines(plan)
        if cluster is not None:
            parts += ["", f"#### {escaped(cluster)}"]
        if not shown:
            parts += ["", "Nothing differs."]
            continue
        is_long = len(shown) > _FOLD_FROM
        parts += ["", "<details><summary>Changes</summary>", ""] if is_long else [""]
        fence = "`" * max(3, 1 + max(map(_longest_ticks, [*shown, *impact_lines(impacts.get(cluster))])))
        parts += [f"{fence}diff", *(_diff_line(escaped(line)) for line in shown), fence]
        parts += ["", "</details>"] if is_long else []
        impact = [escaped(line) for line in impact_lines(impacts.get(cluster))]
        parts += ["", fence, *impact, fence] if impact else []
    return "\n".join([*parts, ""])


def document(plan: Plan, cluster: str | None) -> list[dict[str, Any]]:
    """Return the resources of a plan for JSON and YAML."""
    return [_document(diff, plan, cluster) for diff in plan.diffs]


def _diff_lines(diff: ResourceDiff, plan: Plan) -> list[str]:
    reason = plan.failed.get(diff.key)
    if reason is not None:
        head = f"{Mark.REJECT} {diff.key}: {reason}"
    elif diff.is_in_line and diff.override is None:
        return []
    else:
        head = f"{_mark(diff)} {diff.key}"
        if diff.key in plan.skipped:
            head += f": {_NOT_ATTEMPTED}, because {_before(diff)} failed"
    overrides = override_lines(diff.override, diff.declared.values)
    return [head, *(f"    {change}" for change in diff.changes), *(f"  {line}" for line in overrides)]


def _before(diff: ResourceDiff) -> str:
    """Return what is changed before a resource that was not attempted."""
    if diff.key.kind is Kind.BROKER:
        return "a resource that inherits one of these values" + (
            ", or one of another kind," if diff.is_deletion else ""
        )
    return "a resource of an earlier kind (see --keep-going)"


def _mark(diff: ResourceDiff) -> Mark:
    if diff.is_deletion:
        return Mark.REMOVE
    if diff.is_in_line:
        return Mark.SAME
    return Mark.CHANGE if diff.exists else Mark.ADD


def _document(diff: ResourceDiff, plan: Plan, cluster: str | None) -> dict[str, Any]:
    return {
        "cluster": cluster,
        "kind": str(diff.key.kind),
        "name": diff.key.name,
        "exists": diff.exists,
        "in_line": diff.is_in_line,
        "deletion": diff.is_deletion,
        "attempted": diff.key not in plan.skipped,
        "changes": [
            {
                "mark": str(change.mark),
                "key": change.key,
                "old": change.old,
                "old_origin": change.old_origin,
                "new": change.shown_new,
                "new_origin": change.new_origin,
            }
            for change in diff.changes
        ],
        "override": override_document(diff.override),
        "error": plan.failed.get(diff.key),
    }


def _longest_ticks(line: str) -> int:
    longest = run = 0
    for character in line:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    return longest


def _diff_line(line: str) -> str:
    """Return a line that Markdown's ``diff`` colours: a changed value as an added one, its mark first."""
    stripped = line.lstrip(" ")
    indent = " " * (len(line) - len(stripped))
    colours = {Mark.ADD: "+", Mark.CHANGE: "!", Mark.REMOVE: "-", Mark.REJECT: "-", Mark.SAME: " "}
    colour = colours.get(Mark(stripped[0])) if stripped[:1] in set(Mark) else None
    return line if colour is None else f"{colour}{indent} {stripped}"

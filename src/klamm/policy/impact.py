"""Rules about the predicted impact of a change: what would be lost, and by whom."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from klamm.impact.changes import ConfigAltered, PartitionsAdded, TopicDeleted
from klamm.impact.facts import NO_NEED, Need
from klamm.impact.findings import Impact, ImpactLevel, counted, size
from klamm.impact.prediction import may_delete_records, may_have_impact
from klamm.policy.details import AlterConfigDetails, CreatePartitionsDetails, DeleteTopicDetails
from klamm.policy.errors import ImpactNeeded, ImpactUnknownError
from klamm.protocol.types import ResourceType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from klamm.impact.changes import Change
    from klamm.impact.findings import Finding
    from klamm.policy.rule import Rule

Answer = TypeVar("Answer")
ImpactDetails: TypeAlias = AlterConfigDetails | CreatePartitionsDetails | DeleteTopicDetails
NO_CLUSTER: Final = "it depends on the records and clients of a cluster: use --bootstrap-server"
"""Message if the impact of a change is read without a cluster."""
_ANY_NEED: Final = ~NO_NEED
_INHERITING: Final = (ResourceType.TOPIC.name, ResourceType.BROKER.name)


def changes_of(details: ImpactDetails) -> tuple[Change, ...]:
    """Return the changes whose impact is predicted. Reassignments and configs of groups have none."""
    if isinstance(details, DeleteTopicDetails):
        return (TopicDeleted(topic=details.topic),)
    if isinstance(details, CreatePartitionsDetails):
        count = details.new_num_partitions
        return (PartitionsAdded(topic=details.topic, total_count=count),) if count != details.num_partitions else ()
    if details.resource_type not in _INHERITING:
        return ()
    return tuple(
        ConfigAltered(
            resource_type=ResourceType[details.resource_type],
            resource_name=details.resource_name,
            name=name,
            value=details.result.get(name),
        )
        for name in dict.fromkeys([*details.configs, *sorted(details.removed)])
        if details.result.get(name) != details.before.get(name)
    )


def ask_with_impact(
    ask: Callable[[Any], Answer], details: Any, predict: Callable[[Sequence[Change]], Impact] | None
) -> Answer:
    """Ask a policy outside a server, and once more with the impact of the change if it reads that.

    Args:
        ask: Method of the policy. Its errors propagate.
        details: Details of the request.
        predict: Function that predicts the impact of changes. None without a cluster: the policy gets
            ImpactUnknownError.
    """
    try:
        return ask(details)
    except ImpactNeeded:
        changes = changes_of(details)
    if not changes:
        return ask(replace(details, prediction=Impact()))
    return ask(replace(details, prediction=ImpactUnknownError(NO_CLUSTER) if predict is None else predict(changes)))


def impact_violation(rule: Rule, subject: str, details: ImpactDetails) -> tuple[str, str] | None:
    """Return how a change violates the conditions of a rule on its impact, and the advice; None if it does not.

    The impact is read only if a change of this kind may violate the rule. A condition that cannot be decided is
    violated.

    Args:
        rule: The rule.
        subject: The change, for the message.
        details: The change. With ``topics`` in the rule, only findings about these topics count.
    """
    wanted, changes = rule.impact, changes_of(details)
    if not (may_have_impact if wanted.max_impact is not None else may_delete_records)(changes):
        return None
    try:
        impact = details.impact
    except ImpactUnknownError as error:
        return f"the impact of {subject} cannot be determined: {error.error_message}", "try again later"
    findings = [each for each in impact.findings if _is_concerned(rule, each)]
    violation = _violation(rule, subject, findings)
    if violation is None and (lacking := impact.missing & _needed(rule)):
        kinds = ", ".join(sorted(str(need.name).lower().replace("_", " ") for need in lacking))
        text = "; ".join(impact.unknown)
        is_visible = Need.REMOTE_SIZES not in impact.missing
        return f"the impact of {subject} cannot be determined, because facts about {kinds} are missing: {text}", (
            "try again, or let the server's principal read them"
            if is_visible
            else "let a principal make the change whom the rule excepts"
        )
    return violation


def _is_concerned(rule: Rule, finding: Finding) -> bool:
    return rule.topics is None or (finding.topic is not None and rule.topics.matches(finding.topic))


def _needed(rule: Rule) -> Need:
    """Return the facts without which the conditions of a rule cannot be decided."""
    wanted = rule.impact
    if wanted.max_impact is not None:
        return _ANY_NEED
    groups = Need.GROUPS if wanted.forbids_stranded_groups else Need.OFFSETS
    batches = Need.BATCHES if wanted.forbids_data_loss else Need.OFFSETS
    sizes = Need.REMOTE_SIZES if wanted.max_deleted is not None else Need.OFFSETS
    return Need.OFFSETS | groups | batches | sizes


def _violation(rule: Rule, subject: str, findings: Sequence[Finding]) -> tuple[str, str] | None:
    wanted = rule.impact
    losses = [each for each in findings if each.level is ImpactLevel.LOSS]
    if wanted.forbids_data_loss and losses:
        return f"{subject} would lose data: {_listed(losses)}", "choose a change that deletes no records"
    deletions = [each for each in findings if "deleted_bytes" in each.figures]
    deleted = int(sum(each.figures["deleted_bytes"] for each in deletions))
    if wanted.max_deleted is not None and deleted > wanted.max_deleted:
        limit = size(wanted.max_deleted)
        return (
            f"{subject} would delete up to {size(deleted)}, above the maximum {limit}: {_listed(deletions)}",
            f"delete at most {limit} at a time",
        )
    stranding = [each for each in findings if "unread_records" in each.figures]
    if wanted.forbids_stranded_groups and stranding:
        return f"{subject} would strand groups: {_listed(stranding)}", "wait until the groups have read these records"
    if wanted.max_impact is not None and (worse := [each for each in findings if each.level > wanted.max_impact]):
        level, limit = worse[0].level.name.lower(), wanted.max_impact.name.lower()
        return f"{subject} has the impact {level}, above the maximum {limit}: {_listed(worse)}", (
            "choose a change with less impact"
        )
    return None


def _listed(findings: Iterable[Finding]) -> str:
    """Return the worst finding as text, and the number of the others."""
    first, *others = findings
    more = f" ({counted(len(others), 'more finding')})" if others else ""
    return f"{first.resource}: {first.message.rstrip('.')}{more}"

"""One plan of one cluster: reading, comparing, asking the policies, and carrying out."""

from __future__ import annotations

from dataclasses import field, replace
from functools import cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from klamm.admin.impact import impact_of
from klamm.client_configs.definitions import usable_configs
from klamm.configs.definitions import topic_configs
from klamm.configs.names import check_topic_name
from klamm.kafka_client.errors import explain
from klamm.lazy_dataclass import dataclass
from klamm.policy.answers import PolicyOverride
from klamm.properties import did_you_mean
from klamm.protocol.errors import InvalidConfigError, InvalidTopicError, KafkaApiError
from klamm.resources.cluster import Observation, as_created, broker_layers, observe, with_hidden
from klamm.resources.diff import Ownership, after_override, plan_resources
from klamm.resources.execute import ChangeOutcomes, carry_out
from klamm.resources.kinds import definition_of
from klamm.resources.model import HIDDEN, NUMBERS, Declared, Kind, ResourceDiff, ResourceKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from klamm.admin import AdminClient, TopicPartition
    from klamm.resources.model import Existing
    from klamm.resources.rules import RulesFile
    from klamm.resources.throttle import MoveThrottle


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Differences of one cluster, with what the cluster and the policies said about them."""

    diffs: tuple[ResourceDiff, ...]
    failed: Mapping[ResourceKey, str]
    """Reason of each resource that cannot be changed."""
    observation: Observation
    skipped: frozenset[ResourceKey] = frozenset()
    """Resources that were not attempted, because one of an earlier kind failed, or one that inherits from them."""
    moves: tuple[TopicPartition, ...] = ()
    """Partitions whose replicas are being moved."""
    corrected: Mapping[ResourceKey, PolicyOverride] = field(default_factory=lambda: MappingProxyType({}))
    """Values that the rules of ``--rules`` put in place of declared ones. They are sent: the cluster may not have these
    rules."""

    @property
    def is_in_line(self) -> bool:
        """Return whether nothing differs."""
        return not self.failed and all(diff.is_in_line for diff in self.diffs)

    @property
    def removals(self) -> int:
        """Return the number of deletions that ``--max-deletes`` limits."""
        return sum(diff.removals for diff in self.diffs if diff.key not in self.failed)


def make_plan(
    admin: AdminClient, declared: Sequence[Declared], ownership: Ownership, rules: RulesFile | None = None
) -> Plan:
    """Compare a cluster with declared resources, and ask the cluster and the rules whether they accept the changes.

    Nothing is changed. A live policy is asked by ``validate_only``; Kafka has no such request for ACLs, credentials and
    deletions.
    """
    wanted = {
        resource.key: None  # rules also judge the configs that a resource sets and the files do not declare
        if rules is not None or _needs_all_keys(resource, ownership)
        else [*resource.values, *resource.secrets]
        for resource in declared
        if resource.is_managed
    }
    names = {key: keys and [name for name in keys if name not in NUMBERS] for key, keys in wanted.items()}
    observation = observe(admin, names, ownership.prune)
    diffs = plan_resources(declared, observation.resources, ownership)
    failed = _unlisted(observation, diffs, ownership)
    # What cannot be described may exist, and may inherit from what the plan changes.
    diffs = tuple(
        replace(diff, exists=True) if diff.key.kind in observation.failures else diff
        for diff in diffs
        if diff.key.kind not in observation.failures or diff.key in failed
    )
    plan = Plan(diffs=diffs, failed=failed, observation=observation)
    if rules is not None:
        facts, errors = _facts(admin, plan)
        plan = _after(admin, plan, ChangeOutcomes(errors=errors))
        sound = [diff for diff in plan.diffs if diff.key not in plan.failed]
        judged = rules.judge(sound, facts, partial(impact_of, admin=admin, sums_up=False))
        plan = replace(_after(admin, plan, judged), corrected=judged.overrides)
    validated = carry_out(admin, plan.diffs, plan.observation.resources, validate_only=True, failed_before=plan.failed)
    return _after(admin, plan, validated)


def _facts(
    admin: AdminClient, plan: Plan
) -> tuple[Mapping[ResourceKey, Existing], Mapping[ResourceKey, BaseException]]:
    """Return the resources on which rules decide, with new topics as the cluster would create them.

    As in a gateway, the cluster validates a new topic first. Its errors are returned, too.
    """
    new = [
        diff
        for diff in plan.diffs
        if diff.key.kind is Kind.TOPIC and not (diff.exists or diff.problems or diff.declared.is_absent)
    ]
    tried = carry_out(admin, new, {}, validate_only=True, failed_before=plan.failed)
    errors = dict(tried.errors)
    facts = dict(plan.observation.resources)
    declared = {diff.key: diff.declared for diff in new}
    read_layers = cache(partial(broker_layers, admin))
    for key, topic in tried.created.items():
        if (layers := read_layers()) is None:
            errors[key] = KafkaApiError(
                "The configs that the topic would inherit from a broker cannot be read, so no rule can decide. Grant"
                " DESCRIBE_CONFIGS on the cluster."
            )
        elif topic.configs:
            facts[key] = as_created(topic, declared[key], layers)
        else:
            errors[key] = KafkaApiError(
                "The cluster does not report the configs that the topic would have, so no rule can decide. Grant"
                " DESCRIBE_CONFIGS on the topic."
            )
    changed = {diff.key for diff in plan.diffs if diff.key.kind is Kind.TOPIC and diff.changes}
    existing = {key: facts[key] for key in changed & plan.observation.resources.keys()}
    return facts | with_hidden(existing, read_layers), errors


def apply_plan(
    admin: AdminClient, plan: Plan, *, keep_going: bool = False, throttle: MoveThrottle | None = None
) -> Plan:
    """Send the changes of a plan that were accepted; the result has what was stored, and new failures.

    Without ``keep_going`` kinds after one with a failure are not attempted.
    """
    outcomes = carry_out(
        admin,
        [_as_requested(diff, plan.corrected.get(diff.key)) for diff in plan.diffs],
        plan.observation.resources,
        validate_only=False,
        keep_going=keep_going,
        failed_before=plan.failed,
        throttle=throttle,
    )
    done = _after(admin, plan, outcomes)
    return replace(done, skipped=outcomes.skipped, moves=outcomes.moves)


def check_offline(declared: Iterable[Declared], rules: RulesFile | None) -> Plan:
    """Check declared resources without a cluster, as if they were to be created: values of configs, and the rules.

    The rules assume Kafka's defaults for what a topic does not declare: one partition, one replica, and the configs.
    """
    diffs = plan_resources(declared, {})
    failed = {diff.key: problem for diff in diffs for problem in diff.problems or _invalid_values(diff)}
    observation = Observation(resources={})
    judged = (
        rules.judge([diff for diff in diffs if diff.key not in failed], {}) if rules is not None else ChangeOutcomes()
    )
    diffs = tuple(
        after_override(diff, judged.overrides[diff.key], None) if diff.key in judged.overrides else diff
        for diff in diffs
    )
    places = {diff.key: diff.declared.place for diff in diffs}
    failed |= {key: f"{places[key]}: {explain(error)}" for key, error in judged.errors.items()}
    return Plan(diffs=diffs, failed=failed, observation=observation)


def _needs_all_keys(resource: Declared, ownership: Ownership) -> bool:
    return resource.is_absent or ownership.owns_keys_of(resource)


def _as_requested(diff: ResourceDiff, corrected: PolicyOverride | None) -> ResourceDiff:
    """Return a diff with the values that were validated: a policy that overrode them once overrides them again."""
    if diff.override is None:
        return diff
    values = {**diff.declared.values, **({} if corrected is None else corrected.values)}
    changes = tuple(
        replace(change, new=values[change.key]) if change.key in values else change for change in diff.changes
    )
    return replace(diff, changes=changes)


def _unlisted(observation: Observation, diffs: Iterable[ResourceDiff], ownership: Ownership) -> dict[ResourceKey, str]:
    """Return the problems of the files, and why resources of kinds that the cluster does not show are not compared."""
    failed = {diff.key: "; ".join(diff.problems) for diff in diffs if diff.problems}
    for kind, error in observation.failures.items():
        reason = f"cannot be described: {explain(error)}"
        keys = [diff.key for diff in diffs if diff.key.kind is kind]
        failed |= {diff.key: f"{diff.declared.place}: {reason}" for diff in diffs if diff.key.kind is kind}
        if not keys and kind in ownership.prune:
            failed[ResourceKey(kind, "*")] = reason
    return failed


def _after(admin: AdminClient, plan: Plan, outcomes: ChangeOutcomes) -> Plan:
    """Return a plan with the errors and the overrides of its resources."""
    resources = dict(plan.observation.resources)
    partly = {key for key in outcomes.overrides if key in resources and not resources[key].is_complete}
    resources |= observe(admin, dict.fromkeys(partly)).resources if partly else {}
    diffs = tuple(
        after_override(
            diff, _joined(plan.corrected.get(diff.key), outcomes.overrides[diff.key]), resources.get(diff.key)
        )
        if diff.key in outcomes.overrides
        else diff
        for diff in plan.diffs
    )
    declared = {diff.key: diff.declared for diff in diffs}
    errors = {
        key: f"{declared[key].place}: {explain(error)}{_hint(declared[key])}" for key, error in outcomes.errors.items()
    }
    observation = replace(plan.observation, resources=resources)
    return replace(plan, diffs=diffs, failed={**plan.failed, **errors}, observation=observation)


def _joined(first: PolicyOverride | None, then: PolicyOverride) -> PolicyOverride:
    """Return what two policies have overridden, one after the other."""
    if first is None:
        return then
    return PolicyOverride(reason=f"{first.reason}; {then.reason}", values={**first.values, **then.values})


def _hint(resource: Declared) -> str:
    """Return a suggestion for the first topic config that klamm's table lacks, which is probably misspelt."""
    table = topic_configs()
    names = resource.values if resource.kind is Kind.TOPIC else ()
    return next((did_you_mean(name, table) for name in names if name not in table and name not in NUMBERS), "")


def _invalid_values(diff: ResourceDiff) -> list[str]:
    """Return the first declared config that Kafka 4.4 does not have, or whose value it rejects."""
    if diff.key.kind is Kind.CLIENT_CONFIGS:
        return [f"{diff.declared.place}.configs: {reason}" for reason in usable_configs(diff.declared.values)[1][:1]]
    if diff.key.kind is Kind.TOPIC and not diff.declared.is_absent:
        try:
            check_topic_name(diff.key.name)
        except InvalidTopicError as error:
            return [f"{diff.declared.place}: {error.error_message}"]
    for change in diff.config_changes:
        definition = definition_of(diff.key.kind, change.key)
        place = f"{diff.declared.place}.configs.{change.key}"
        if definition is None and diff.key.kind in (Kind.TOPIC, Kind.GROUP, Kind.CLIENT_METRICS):
            return [f"{place}: Kafka 4.4 has no such config{did_you_mean(change.key, topic_configs())}"]
        if definition is not None and change.new not in (None, HIDDEN):
            try:
                definition.parse(str(change.new))
            except InvalidConfigError as error:
                return [f"{place}: {error}"]
    return []

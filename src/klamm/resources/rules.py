"""Decisions of a rules file about a plan, without a cluster that enforces it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from klamm.configs.definitions import (
    POLICY_RULES_FILE,
    UPSTREAM,
    topic_configs,
    topic_synonyms,
)
from klamm.policy.answers import PARTITIONS, REPLICATION_FACTOR, Override, PolicyOverride
from klamm.policy.details import (
    AlterConfigDetails,
    CreatePartitionsDetails,
    DeleteTopicDetails,
    TopicDetails,
    overridden,
)
from klamm.policy.errors import PolicyFailedError
from klamm.policy.impact import ask_with_impact
from klamm.policy.rule import RuleFileError
from klamm.policy.rules import RulesPolicy
from klamm.policy_runtime.decision import TWICE
from klamm.properties import SettingsError
from klamm.protocol.errors import PolicyViolationError
from klamm.resources.cluster import config_resource
from klamm.resources.execute import ChangeOutcomes
from klamm.resources.kinds import CONFIG_KINDS
from klamm.resources.model import HIDDEN, NUMBERS, Existing, Kind, Mark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from klamm.impact.changes import Change
    from klamm.impact.findings import Impact
    from klamm.policy.details import Details
    from klamm.resources.model import ResourceDiff, ResourceKey


_ANY_BROKER: Final = -1
"""Broker id in planned replicas: only their number is known."""


class RulesFile:
    """Rules that judge planned changes as the broker or gateway with this file would.

    Args:
        path: File of the rules.
        principal: Principal on whose behalf the plan is carried out.

    Raises:
        SettingsError: The file cannot be read or is invalid.
    """

    def __init__(self, path: Path, principal: str) -> None:
        self._policy = RulesPolicy()
        self._principal = principal
        try:  # as in a gateway, whose upstream decides which configs exist
            self._policy.configure({POLICY_RULES_FILE: str(path), UPSTREAM: "any"})
        except RuleFileError as error:
            raise SettingsError(str(error)) from error

    def judge(
        self,
        diffs: Iterable[ResourceDiff],
        existing: Mapping[ResourceKey, Existing],
        predict: Callable[[Sequence[Change]], Impact] | None = None,
    ) -> ChangeOutcomes:
        """Return the violations, and what rules with ``effect: override`` change.

        Args:
            diffs: Differences.
            existing: What the differences were computed from, and new topics as the cluster would create them. A new
                topic that is missing here gets Kafka's defaults.
            predict: Function that returns the impact of changes, for rules that limit it. Without it, such a rule
                denies the change.
        """
        errors: dict[ResourceKey, BaseException] = {}
        overrides: dict[ResourceKey, PolicyOverride] = {}
        for diff in diffs:
            if diff.problems or (diff.exists and not diff.changes and not diff.is_deletion):
                continue
            try:
                stored: Mapping[str, str | None] = {}
                now = existing.get(diff.key) or Existing(values={})
                _check_inherited((each.key for each in diff.config_changes if each.mark is Mark.REMOVE), diff, now)
                for details in self._details(diff, now):
                    answer = self._decide(_with_configs(details, stored), predict)
                    if isinstance(answer, Override):
                        stored = answer.configs
                        _check_inherited((key for key, value in stored.items() if value is None), diff, now)
                        overrides[diff.key] = PolicyOverride.of(answer.note) or PolicyOverride(
                            reason=answer.reason, values=answer.configs
                        )
            except (PolicyViolationError, PolicyFailedError) as error:
                errors[diff.key] = error
        return ChangeOutcomes(errors=errors, overrides=overrides)

    def _decide(self, details: Details, predict: Callable[[Sequence[Change]], Impact] | None) -> Any:
        """Return the answer of the rules. As in a broker, those that deny decide on the result of an override.

        Raises:
            PolicyViolationError: A rule denies the request, or its result.
            PolicyFailedError: The rules override what they have themselves set.
        """
        answer = ask_with_impact(self._ask, details, predict)
        if isinstance(answer, Override) and ask_with_impact(self._ask, overridden(details, answer), predict):
            raise PolicyFailedError(TWICE)
        return answer

    def _ask(self, details: Details) -> Any:
        match details:
            case TopicDetails():
                return self._policy.validate_create_topic(details)
            case AlterConfigDetails():
                return self._policy.validate_alter_config(details)
            case CreatePartitionsDetails():
                return self._policy.validate_create_partitions(details)
            case DeleteTopicDetails():
                return self._policy.validate_delete_topic(details)
        return None

    def _details(self, diff: ResourceDiff, now: Existing) -> Iterable[Details]:
        """Yield the requests of one resource, as a policy sees them."""
        kind, name = diff.key
        if kind not in CONFIG_KINDS:
            return
        defaults = _defaults(diff, now)
        new = {change.key: change.new for change in diff.config_changes if change.mark is not Mark.REMOVE}
        removed = [change.key for change in diff.config_changes if change.mark is Mark.REMOVE]
        before = {key: HIDDEN if value.value is None else value.value for key, value in now.own.items()}
        result = {key: value for key, value in {**before, **new}.items() if value is not None and key not in removed}
        factor = min(map(len, now.replicas), default=1)
        who: dict[str, Any] = {"principal": self._principal}
        if diff.is_deletion and kind is Kind.TOPIC:
            count = len(now.replicas)
            yield DeleteTopicDetails(topic=name, num_partitions=count, replication_factor=factor, **who)
        elif kind is Kind.TOPIC and not diff.exists:
            described = {key: value.value for key, value in now.values.items() if value.value is not None}
            numbers = {key: int({**diff.declared.values, **described}.get(key, 1)) for key in NUMBERS}
            yield TopicDetails(
                name, numbers[PARTITIONS], numbers[REPLICATION_FACTOR], None, result, defaults=defaults, **who
            )
        else:
            if (growth := diff.change_of(PARTITIONS)) is not None:
                yield CreatePartitionsDetails(
                    topic=name,
                    num_partitions=len(now.replicas),
                    new_num_partitions=int(growth.new or 0),
                    replication_factor=factor,
                    **who,
                )
            if new or removed:
                resource = config_resource(diff.key)
                yield AlterConfigDetails(
                    resource.type.name,
                    resource.name,
                    {**new, **dict.fromkeys(removed)},
                    result,
                    removed=frozenset(removed),
                    defaults=defaults,
                    before=before,
                    replication_factor=factor if kind is Kind.TOPIC else None,
                    **who,
                )
            if (resized := diff.change_of(REPLICATION_FACTOR)) is not None:  # as a gateway sees the reassignment
                count = len(now.replicas) if growth is None else int(growth.new or 0)
                yield CreatePartitionsDetails(
                    topic=name,
                    num_partitions=count,
                    new_num_partitions=count,
                    replication_factor=factor,
                    new_assignments=[[_ANY_BROKER] * int(resized.new or 0)],
                    configs=result,
                    defaults=defaults,
                    **who,
                )


def _defaults(diff: ResourceDiff, now: Existing) -> Mapping[str, str]:
    """Return the values of configs that are in force where a topic or a broker does not set them."""
    kind = diff.key.kind
    inherited = {key: value.inherited if value.is_own else value.value for key, value in now.values.items()}
    if kind is Kind.BROKER:
        return {key: value for key, value in inherited.items() if value is not None}
    if kind is not Kind.TOPIC:
        return {}
    shipped = {name: definition.default for name, definition in topic_configs().items()}
    return {key: value for values in (shipped, inherited) for key, value in values.items() if value is not None}


def _check_inherited(removed: Iterable[str], diff: ResourceDiff, now: Existing) -> None:
    """Check that the values are known that a topic inherits when configs are removed from it.

    Raises:
        PolicyFailedError: The cluster hides one of them.
    """
    own = now.own if diff.key.kind is Kind.TOPIC else {}
    for key in removed:
        if key in own and key in topic_synonyms() and own[key].inherited is None:
            raise PolicyFailedError(
                f"The value of {key} that the topic inherits cannot be read, so no rule can decide. Grant"
                " DESCRIBE_CONFIGS on the cluster."
            )


def _with_configs(details: Details, stored: Mapping[str, str | None]) -> Details:
    """Return the details of a reassignment with the configs that an override of the change before it has stored."""
    if not isinstance(details, CreatePartitionsDetails) or not stored:
        return details
    configs = {key: value for key, value in {**details.configs, **stored}.items() if value is not None}
    return replace(details, configs=configs)

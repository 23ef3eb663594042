"""A policy that a small file configures, so that the usual rules need no code.

Name it in any of the policy properties, and its file in ``policy.rules.file``::

    rules:
      - name: team names
        naming: "(orders|billing)[.][a-z0-9.-]+"
        except_principals: ["User:admin"]
      - name: sizes
        topics: "orders[.].*"
        partitions: {min: 3, max: 48}
        replication_factor: {min: 2}
        configs:
          retention.ms: {required: true, max: 604800000}
          cleanup.policy: {one_of: [delete]}
          unclean.leader.election.enable: {forbidden: true}
        remedy: ask in the platform's channel for more
      - name: keep the books
        topics: "billing[.].*"
        deletion: forbidden

Every rule that concerns the request must be kept. A change of configs is judged by the configs it touches, and by what
is required afterwards; what was there before the rule came does not keep a topic from being changed otherwise.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from klamm.configs.definitions import POLICY_RULES_FILE
from klamm.policy.base import Policy
from klamm.policy.rule_file import Bounds, ConfigRule, Rule, RuleFileError, parse_rules
from klamm.protocol.errors import PolicyViolationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from klamm.policy.details import AlterConfigDetails, CreatePartitionsDetails, DeleteTopicDetails, TopicDetails

_UNLIMITED: Final = frozenset({"retention.ms", "retention.bytes", "local.retention.ms", "local.retention.bytes"})
"""Configs in which -1 is more than any number."""


class RulesPolicy(Policy):
    """Decides by a file of rules.

    It only computes; but a file with a pattern that ``re`` alone can match takes as long as that takes, on its thread.
    """

    def __init__(self) -> None:
        self._rules: tuple[Rule, ...] = ()
        self.watched_files: tuple[Path, ...] = ()

    def configure(self, configs: Mapping[str, Any]) -> None:
        """Read the file that ``policy.rules.file`` names.

        Raises:
            RuleFileError: It is not named, cannot be read, or is wrong.
        """
        name = str(configs.get(POLICY_RULES_FILE, "")).strip()
        if not name:
            raise RuleFileError(f"{POLICY_RULES_FILE} is not set")
        path = Path(name)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RuleFileError(f"{POLICY_RULES_FILE}={name} cannot be read: {error}") from error
        self._rules = parse_rules(text, source=name)
        self.watched_files = (path,)
        self.only_computes = all(rule.is_linear for rule in self._rules)

    def validate_create_topic(self, details: TopicDetails) -> None:
        """Raise PolicyViolationError for the first rule that the new topic breaks."""
        assigned = details.replicas_assignments
        partitions = len(assigned) if assigned is not None else details.num_partitions or 1
        factors = dict.fromkeys(map(len, assigned.values())) if assigned else (details.replication_factor or 1,)
        topic = details.topic
        for rule in self._concerned("create", topic, details.principal):
            if rule.naming is not None and not rule.naming.matches(topic):
                pattern = rule.naming.pattern
                _refuse(rule, topic, "name", topic, f"does not match {pattern}", "choose a name that matches")
            _check_bounds(rule, topic, "partitions", partitions, rule.partitions)
            for factor in factors:
                _check_bounds(rule, topic, "replication factor", factor, rule.replication_factor)
            for key, wanted in rule.configs.items():
                _check_config(rule, topic, key, wanted, altered=details.configs, result=details.configs)

    def validate_alter_config(self, details: AlterConfigDetails) -> None:
        """Raise PolicyViolationError for the first rule that the change of a topic breaks; others are let be."""
        if details.resource_type != "TOPIC":
            return
        topic = details.resource_name
        for rule in self._concerned("alter", topic, details.principal):
            for key, wanted in rule.configs.items():
                _check_config(rule, topic, key, wanted, altered=details.configs, result=details.result)

    def validate_create_partitions(self, details: CreatePartitionsDetails) -> None:
        """Raise PolicyViolationError for the first rule that the new number of partitions breaks."""
        topic = details.topic
        factors = dict.fromkeys(map(len, details.new_assignments or ()))
        for rule in self._concerned("partitions", topic, details.principal):
            _check_bounds(rule, topic, "partitions", details.new_num_partitions, rule.partitions)
            for factor in factors:
                _check_bounds(rule, topic, "replication factor", factor, rule.replication_factor)

    def validate_delete_topic(self, details: DeleteTopicDetails) -> None:
        """Raise PolicyViolationError when a rule forbids the deletion."""
        topic = details.topic
        for rule in self._concerned("delete", topic, details.principal):
            if rule.forbids_deletion:
                _refuse(rule, topic, "deletion", "requested", "is forbidden", "keep the topic")

    def _concerned(self, action: str, topic: str, principal: str | None) -> Iterator[Rule]:
        return (rule for rule in self._rules if rule.concerns(action, topic, principal))


def _check_bounds(rule: Rule, topic: str, key: str, value: int, bounds: Bounds, *, is_unlimited: bool = False) -> None:
    low, high = bounds.minimum, bounds.maximum
    if high is not None and (is_unlimited or value > high):
        _refuse(rule, topic, key, value, f"is above the maximum {high}", f"use {high} or less")
    if low is not None and value < low and not is_unlimited:
        _refuse(rule, topic, key, value, f"is below the minimum {low}", f"use {low} or more")


def _check_config(
    rule: Rule,
    topic: str,
    key: str,
    wanted: ConfigRule,
    *,
    altered: Mapping[str, str | None],
    result: Mapping[str, str],
) -> None:
    if wanted.is_required and key not in result:
        _refuse(rule, topic, key, "(not set)", "is required", f"set {key}{_hint(wanted)}")
    value = altered.get(key)
    if value is None:
        return
    if wanted.is_forbidden:
        _refuse(rule, topic, key, value, "must not be set", f"leave {key} out")
    if wanted.one_of:
        for element in (part.strip() for part in value.split(",")):
            if element not in wanted.one_of:
                allowed = ", ".join(wanted.one_of)
                _refuse(rule, topic, key, value, f"is not one of {allowed}", f"choose from {allowed}")
    if wanted.bounds != Bounds():
        try:
            number = int(value)
        except ValueError:
            _refuse(rule, topic, key, value, "is no whole number", f"set a number{_hint(wanted)}")
        else:
            is_unlimited = number == -1 and key in _UNLIMITED
            _check_bounds(rule, topic, key, number, wanted.bounds, is_unlimited=is_unlimited)


def _hint(wanted: ConfigRule) -> str:
    low, high = wanted.bounds.minimum, wanted.bounds.maximum
    if wanted.one_of:
        return f" to one of {', '.join(wanted.one_of)}"
    parts = [f"at least {low}" if low is not None else "", f"at most {high}" if high is not None else ""]
    stated = " and ".join(part for part in parts if part)
    return f" to {stated}" if stated else ""


def _refuse(rule: Rule, topic: str, key: str, value: object, fault: str, remedy: str) -> NoReturn:  # noqa: PLR0917 -- in the order of the sentence
    raise PolicyViolationError(f"Rule '{rule.name}': {key}={value} of topic {topic} {fault}; {rule.remedy or remedy}.")

"""Policy configured by a rule file, so that common rules need no code.

Name it in any of the policy properties, and its file in ``policy.rules.file``::

    rules:
      - name: team names
        naming: "(orders|billing)[.][a-z0-9.-]+"
        except_principals: ["User:admin"]
      - name: sizes
        topics: "orders[.].*"
        principals: ["User:orders-.*"]
        only_configs: [retention.ms, cleanup.policy]
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

A request must satisfy every rule that applies to it. Rules check the value that will be in force: the broker's default
if a topic does not set a config. For a change of configs, only the configs that it sets or removes are checked, plus
``required``. A value from before the rule existed therefore does not block changes of other configs.

Patterns for topics, names and principals are regular expressions that must match the whole text.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from klamm.configs.definitions import MIN_INSYNC_REPLICAS, POLICY_RULES_FILE, UPSTREAM, base_name, is_secret
from klamm.configs.durations import with_duration
from klamm.history.change import HIDDEN
from klamm.policy.answers import Answer, Override, Throttle
from klamm.policy.base import Policy
from klamm.policy.details import GroupDetails, ProduceDetails
from klamm.policy.rule import (
    REFERENCES,
    SPECIAL_NUMBERS,
    UNLIMITED,
    Bounds,
    ConfigRule,
    Rule,
    RuleFileError,
    number_of,
    special_value,
)
from klamm.policy.rule_checks import check_configs, check_kinds, unknown_configs
from klamm.policy.rule_file import parse_rules
from klamm.properties import file_error
from klamm.protocol.errors import PolicyViolationError
from klamm.small_file import read_small_file

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from klamm.policy.details import (
        AlterConfigDetails,
        ApiDetails,
        ClientDetails,
        CreatePartitionsDetails,
        DeleteTopicDetails,
        TopicDetails,
    )
    from klamm.policy.impact import ImpactDetails
    from klamm.policy.kinds import PolicyKind

ALL_ACKS: Final = -1
"""Wire value of ``acks=all``."""


class RulesPolicy(Policy):
    """Policy that decides by a rule file.

    It sets ``only_computes`` unless the file has a pattern that only ``re`` supports. Such a pattern may take long, so
    the policy then runs on its own thread.
    """

    def __init__(self, rules: tuple[Rule, ...] = ()) -> None:
        self._rules = rules
        self.watched_files: tuple[Path, ...] = ()

    def configure(self, configs: Mapping[str, Any]) -> None:
        """Read the file that ``policy.rules.file`` names.

        Raises:
            RuleFileError: The property is not set, or the file cannot be read or is invalid.
        """
        name = str(configs.get(POLICY_RULES_FILE, "")).strip()
        if not name:
            raise RuleFileError(f"{POLICY_RULES_FILE} is not set")
        path = Path(name)
        try:
            text = read_small_file(name).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise RuleFileError(f"{POLICY_RULES_FILE}={name} cannot be read: {file_error(error)}") from error
        self._rules = parse_rules(text, source=name, is_gateway=UPSTREAM in configs)
        self.watched_files = (path,)
        self.only_computes = all(rule.is_linear for rule in self._rules)
        if not all(rule.impact.is_empty for rule in self._rules):
            import klamm.policy.impact  # noqa: PLC0415, F401 -- here, in the policy's thread, not on the event loop

    def single_rules(self) -> Iterator[tuple[Rule, RulesPolicy]]:
        """Yield each rule that denies, with a policy that has only it and the rules with ``effect: override``.

        Together they find all rules that a request violates, where this policy stops at the first one.
        """
        overriding = tuple(rule for rule in self._rules if rule.overrides)
        for rule in self._rules:
            if not rule.overrides:
                yield rule, RulesPolicy((*overriding, rule))

    @property
    def unknown_configs(self) -> frozenset[str]:
        """Topic configs that the rules name and Kafka 4.4 does not have, so that only the upstream can have them."""
        return unknown_configs(self._rules)

    def check_upstream(self, types: Mapping[str, int]) -> None:
        """Raise RuleFileError for a topic config that the upstream does not have, or for a value of another type.

        Args:
            types: Wire values of ``ConfigType`` by name of the upstream's topic configs.
        """
        try:
            check_configs(self._rules, is_gateway=True, upstream=types)
        except RuleFileError as error:
            raise RuleFileError(f"{self.watched_files[0]}: {error}") from error

    def check_kinds(self, kinds: Collection[PolicyKind]) -> None:
        """Raise RuleFileError for a rule about requests of other kinds, which would never match."""
        try:
            check_kinds(self._rules, kinds)
        except RuleFileError as error:
            raise RuleFileError(f"{self.watched_files[0]}: {error}") from error

    def validate_create_topic(self, details: TopicDetails) -> Override | None:
        """Raise PolicyViolationError for the first rule that the new topic violates.

        Rules with ``effect: override`` come first. If one of them is violated, only their changes are returned, and the
        other rules decide on the changed topic.
        """
        rules = list(self._concerned("create", details.topic, details.principal))
        corrections = _Corrections()
        for rule in rules:
            if rule.overrides:
                corrections.correct_numbers(rule, details)
                for key, wanted in rule.configs.items():
                    value = _Value.in_force(key, details.configs, details.defaults)
                    corrections.correct(
                        rule, f"topic {details.topic}", key, wanted, value, is_set=key in details.configs
                    )
        if corrections:
            return corrections.override()
        for rule in rules:
            _check_new_topic(rule, details)
        return None

    def validate_alter_config(self, details: AlterConfigDetails) -> Override | None:
        """Raise PolicyViolationError for the first rule that a config change of a topic or a broker violates.

        Rules with ``effect: override`` come first, as for new topics. Other resources are allowed.
        """
        is_topic = details.resource_type == "TOPIC"
        if not is_topic and details.resource_type != "BROKER":
            return None
        name = details.resource_name
        subject = f"topic {name}" if is_topic else f"broker {name}" if name else "all brokers"
        corrections = _Corrections()
        rules = list(self._concerned("alter", name if is_topic else None, details.principal))
        for rule in sorted(rules, key=lambda rule: not rule.overrides):
            if corrections and not rule.overrides:
                break
            if is_topic:
                _check_keys(rule, subject, details.configs)
                _check_omissions(rule, details)
                if _is_touched((MIN_INSYNC_REPLICAS,), details):
                    _check_spare_replicas(rule, subject, details.replication_factor, details.result, details.defaults)
            check = corrections.correct if rule.overrides else _check_config
            limits = rule.configs if is_topic else {**rule.broker_configs, **_limits_of_listeners(rule, details)}
            for key, wanted in limits.items():
                value = _Value.in_force(key, details.result, details.defaults, is_of_broker=not is_topic)
                if value is None and not is_topic and key in details.removed and wanted.has_limits:
                    wanted = replace(wanted, is_required=True)  # noqa: PLW2901 -- no limit holds for an unknown value
                is_touched = _is_touched((key,) if value is None else value.keys, details)
                check(rule, subject, key, wanted, value if is_touched else None, is_set=key in details.result)
        if corrections:
            return corrections.override()
        # The change of a default concerns the topics that inherit it: the rule selects their findings.
        concerned = rules if is_topic else self._of_requester(details.principal)
        _check_impact(concerned, f"the change of {subject}", details)
        return None

    def validate_create_partitions(self, details: CreatePartitionsDetails) -> None:
        """Raise PolicyViolationError for the first rule that the new number of partitions violates."""
        topic = details.topic
        factors = dict.fromkeys(map(len, details.new_assignments or ()))
        rules = list(self._concerned("partitions", topic, details.principal))
        is_reassignment = details.new_num_partitions == details.num_partitions  # of partitions that get another factor
        for rule in rules:
            if not is_reassignment:
                _check_bounds(rule, f"topic {topic}", "partitions", details.new_num_partitions, rule.partitions)
            for factor in factors:
                _check_bounds(rule, f"topic {topic}", "replication factor", factor, rule.replication_factor)
                if is_reassignment or factor != details.replication_factor:
                    _check_spare_replicas(rule, f"topic {topic}", factor, details.configs, details.defaults)
        _check_impact(rules, f"adding partitions to topic {topic}", details)

    def validate_delete_topic(self, details: DeleteTopicDetails) -> None:
        """Raise PolicyViolationError if a rule forbids the deletion."""
        topic = details.topic
        rules = list(self._concerned("delete", topic, details.principal))
        for rule in rules:
            if rule.forbids_deletion:
                remedy = f"; {rule.remedy}" if rule.remedy else ""
                raise PolicyViolationError(f"Rule '{rule.name}': topic {topic} must not be deleted{remedy}.")
        _check_impact(rules, f"the deletion of topic {topic}", details)

    def validate_flow(self, details: ProduceDetails | GroupDetails) -> Answer | None:
        """Raise PolicyViolationError for the first rule that a Produce request, or the name of a group, violates.

        A rule with ``effect: override`` changes ``acks``. One with ``effect: throttle`` makes the client pause. If the
        request violates rules of both effects, it is overridden.
        """
        topic = details.topic if isinstance(details, ProduceDetails) else None
        override: Override | None = None
        throttle: Throttle | None = None
        for rule in self._concerned("group" if topic is None else "produce", topic, details.principal):
            violation = _flow_violation(rule, details)
            if violation is None:
                continue
            if rule.overrides:
                override = Override(acks=ALL_ACKS, reason=f"{violation.fault}; set to all.")
            elif rule.delay_ms is None:
                raise violation
            elif throttle is None or rule.delay_ms > throttle.delay_ms:
                throttle = Throttle(delay_ms=rule.delay_ms, reason=f"{violation.fault}; delayed by {rule.delay_ms} ms.")
        return override or throttle

    def validate_client(self, details: ClientDetails) -> None:
        """Raise PolicyViolationError for the first rule that denies a client id. Rules that throttle are skipped."""
        for rule in self._concerned("client", None, details.principal):
            violation = _client_id_violation(rule, details.client_id)
            if violation is not None and not rule.overrides and rule.delay_ms is None:
                raise violation

    def validate_api(self, details: ApiDetails) -> None:
        """Raise PolicyViolationError for the first rule that forbids an API to the client."""
        for rule in self._concerned("api", None, details.principal):
            if details.api in rule.forbidden_apis:
                remedy = f"; {rule.remedy}" if rule.remedy else ""
                raise PolicyViolationError(
                    f"Rule '{rule.name}': {details.principal} must not use {details.api}{remedy}."
                )

    def _concerned(self, action: str, topic: str | None, principal: str | None) -> Iterator[Rule]:
        return (rule for rule in self._rules if rule.concerns(action, topic, principal))

    def _of_requester(self, principal: str | None) -> Iterable[Rule]:
        return (rule for rule in self._rules if rule.concerns_requester("alter", principal))


def _check_impact(rules: Iterable[Rule], subject: str, details: ImpactDetails) -> None:
    """Raise the violation of the first rule that forbids the impact of a change. Called after all other checks."""
    limiting = [rule for rule in rules if not rule.impact.is_empty]
    if not limiting:
        return
    from klamm.policy.impact import impact_violation  # noqa: PLC0415 -- only some rules need it

    for rule in limiting:
        violation = impact_violation(rule, subject, details)
        if violation is not None:
            fault, remedy = violation
            raise _RuleViolationError(f"Rule '{rule.name}': {fault}", rule.remedy or remedy)


def _flow_violation(rule: Rule, details: ProduceDetails | GroupDetails) -> _RuleViolationError | None:
    """Return the denial of a Produce request, or of the name of a group; None if it satisfies the rule."""
    violation = _client_id_violation(rule, details.client_id)
    if violation is not None:
        return violation
    if isinstance(details, ProduceDetails):
        return _produce_violation(rule, details)
    naming = rule.flow.group_naming
    if naming is None or naming.matches(details.group_id):
        return None
    fault = f"group.id={details.group_id} does not match {naming.pattern}"
    return _flow_fault(rule, fault, "set a group.id that matches")


def _client_id_violation(rule: Rule, client_id: str | None) -> _RuleViolationError | None:
    naming = rule.flow.client_id_naming
    if naming is None or naming.matches(client_id or ""):
        return None
    fault = f"client.id={client_id or ''} does not match {naming.pattern}"
    return _flow_fault(rule, fault, "set a client.id that matches")


def _produce_violation(rule: Rule, details: ProduceDetails) -> _RuleViolationError | None:
    flow, topic = rule.flow, details.topic
    if flow.forbids_writes:
        return _flow_fault(rule, f"topic {topic} is read-only", "write to another topic")
    if flow.needs_all_acks and details.acks != ALL_ACKS:
        return _flow_fault(rule, f"acks={details.acks} for topic {topic} is not all", "set acks=all")
    if flow.needs_idempotence and not details.is_idempotent:
        return _flow_fault(rule, f"the producer for topic {topic} is not idempotent", "set enable.idempotence=true")
    return None


def _flow_fault(rule: Rule, fault: str, remedy: str) -> _RuleViolationError:
    return _RuleViolationError(f"Rule '{rule.name}': {fault}", rule.remedy or remedy)


def _check_new_topic(rule: Rule, details: TopicDetails) -> None:
    assigned = details.replicas_assignments
    partitions = len(assigned) if assigned is not None else details.num_partitions or 1
    factors = dict.fromkeys(map(len, assigned.values())) if assigned else (details.replication_factor or 1,)
    subject = f"topic {details.topic}"
    if rule.naming is not None and not rule.naming.matches(details.topic):
        pattern = rule.naming.pattern
        _deny(rule, subject, "name", details.topic, f"does not match {pattern}", "choose a name that matches")
    _check_bounds(rule, subject, "partitions", partitions, rule.partitions)
    for factor in factors:
        _check_bounds(rule, subject, "replication factor", factor, rule.replication_factor)
        _check_spare_replicas(rule, subject, factor, details.configs, details.defaults)
    _check_keys(rule, subject, details.configs)
    for key, wanted in rule.configs.items():
        value = _Value.in_force(key, details.configs, details.defaults)
        _check_config(rule, subject, key, wanted, value, is_set=key in details.configs)


class _Corrections:
    """Changes of a request by rules with ``effect: override``. A value that one rule set stays."""

    def __init__(self) -> None:
        self._configs: dict[str, str | None] = {}
        self._numbers: dict[str, int] = {}
        self._reasons: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._reasons)

    def override(self) -> Override:
        """Return all changes."""
        return Override(
            reason=" ".join(self._reasons),
            configs=self._configs,
            num_partitions=self._numbers.get("partitions"),
            replication_factor=self._numbers.get("replication factor"),
        )

    def correct_numbers(self, rule: Rule, details: TopicDetails) -> None:
        """Set the numbers of a new topic right. Assigned replicas cannot be set right and are checked afterwards."""
        if details.replicas_assignments is not None:
            return
        for key, number, bounds in (
            ("partitions", details.num_partitions or 1, rule.partitions),
            ("replication factor", details.replication_factor or 1, rule.replication_factor),
        ):
            try:
                _check_bounds(rule, f"topic {details.topic}", key, number, bounds)
            except _RuleViolationError as violation:
                self._numbers.setdefault(key, int(_nearest(bounds, number)))
                self._reasons.append(f"{violation.fault}; set to {self._numbers[key]}.")

    def correct(
        self, rule: Rule, subject: str, key: str, wanted: ConfigRule, value: _Value | None, *, is_set: bool
    ) -> None:
        """Set a config right. The arguments are those of ``_check_config``."""
        try:
            _check_config(rule, subject, key, wanted, value, is_set=is_set)
        except _RuleViolationError as violation:
            new = self._configs.setdefault(key, _corrected(wanted, value))
            self._reasons.append(f"{violation.fault}; {'left out' if new is None else f'set to {new}'}.")


def _corrected(wanted: ConfigRule, value: _Value | None) -> str | None:
    """Return the value that an override sets; None to leave the config out."""
    if wanted.is_forbidden:
        return None
    if wanted.value is not None or wanted.one_of:
        return wanted.value if wanted.value is not None else wanted.one_of[0]
    number = None if value is None else value.number
    is_unlimited = value is not None and value.is_unlimited and wanted.bounds.maximum is not None
    return str(wanted.bounds.maximum if is_unlimited else _nearest(wanted.bounds, number))


def _nearest(bounds: Bounds, number: float | None) -> float:
    """Return the bound that a number violates; without a violation the lower bound, if there is one."""
    low, high = bounds.minimum, bounds.maximum
    if high is not None and (low is None or (number is not None and number > high)):
        return high
    return low if low is not None else 0


class _Value(NamedTuple):
    """Config value checked by a rule."""

    text: str
    is_default: bool
    """Whether it is the broker's default because the topic does not set the config."""
    keys: tuple[str, ...]
    """The config, and those to which special values refer, such as -2 in ``local.retention.ms``."""
    limited: str
    """Value of the last of them, which limits apply to."""
    is_secret: bool
    """Whether the messages, which are logged and shown on the page, must not have the value."""

    @classmethod
    def in_force(
        cls, key: str, configs: Mapping[str, str], defaults: Mapping[str, str], *, is_of_broker: bool = False
    ) -> _Value | None:
        """Return the value in force for a resource with these configs; None if it is unknown."""
        text = configs.get(key, defaults.get(key))
        if text is None:
            return None
        keys, limited = [key], text
        while (other := REFERENCES.get((keys[-1], special_value(limited)))) is not None:
            keys.append(other)
            limited = configs.get(other, defaults.get(other, ""))
        return cls(text, key not in configs, tuple(keys), limited, is_of_broker and is_secret(key))

    @property
    def number(self) -> float | None:
        """Return the number that limits apply to; None if it is not a number."""
        return SPECIAL_NUMBERS.get((self.keys[-1], special_value(self.limited)), number_of(self.limited))

    @property
    def is_unlimited(self) -> bool:
        """Return whether the value exceeds any number."""
        number = number_of(self.limited)
        return self.keys[-1] in UNLIMITED and number is not None and number < 0

    def __str__(self) -> str:
        """Return the value as shown in a denial message."""
        if self.is_secret:
            return HIDDEN
        referred = f" ({self.keys[-1]}={self.limited})" if len(self.keys) > 1 else ""
        inherited = " (the broker's default)" if self.is_default else ""
        return f"{self.text}{referred}{inherited}"


def _is_touched(keys: Collection[str], details: AlterConfigDetails) -> bool:
    """Return whether a change sets or removes one of some configs."""
    return any(details.configs.get(key) is not None or key in details.removed for key in keys)


def _limits_of_listeners(rule: Rule, details: AlterConfigDetails) -> dict[str, ConfigRule]:
    """Return the requirements for configs that a change sets for one listener, where they outrank those of the broker.

    They are those of the config without the prefix, unless the rule names the config with it. The prefixed config is
    never required: without it, the other one is in force.
    """
    return {
        key: replace(rule.broker_configs[base], is_required=False)
        for key, value in details.configs.items()
        if value is not None and key not in rule.broker_configs and (base := base_name(key)) in rule.broker_configs
    }


def _check_omissions(rule: Rule, details: AlterConfigDetails) -> None:
    """Deny a replacing AlterConfigs that removes configs by not naming them."""
    omitted = sorted(details.removed.difference(details.configs))
    if rule.forbids_omission and omitted:
        keys = ", ".join(omitted)
        remedy = rule.remedy or "use IncrementalAlterConfigs, or name all configs to keep"
        fault = f"Rule '{rule.name}': the request would remove {keys} of topic {details.resource_name} by omission"
        raise _RuleViolationError(fault, remedy)


def _check_keys(rule: Rule, subject: str, altered: Mapping[str, str | None]) -> None:
    """Deny configs outside the rule's ``only_configs``. Removing a config is always allowed."""
    if rule.only_configs is None:
        return
    for key, value in altered.items():
        if value is not None and key not in rule.only_configs:
            allowed = ", ".join(rule.only_configs) or "none"
            _deny(
                rule, subject, key, value, f"is not one of the configs that may be set: {allowed}", f"leave {key} out"
            )


def _check_bounds(
    rule: Rule,
    subject: str,
    key: str,
    value: object,
    bounds: Bounds,
    *,
    number: float | None = None,
    is_unlimited: bool = False,
    verb: str = "use",
) -> None:
    low, high = bounds.minimum, bounds.maximum
    size = float(str(value)) if number is None else number
    if high is not None and (is_unlimited or size > high):
        limit = with_duration(key, str(high))
        _deny(rule, subject, key, value, f"is above the maximum {limit}", f"{verb} {high} or less")
    if low is not None and size < low and not is_unlimited:
        limit = with_duration(key, str(low))
        _deny(rule, subject, key, value, f"is below the minimum {limit}", f"{verb} {low} or more")


def _check_spare_replicas(
    rule: Rule, subject: str, factor: int | None, configs: Mapping[str, str], defaults: Mapping[str, str]
) -> None:
    """Check how many replicas may fail while ``acks=all`` works. What is unknown is denied."""
    if rule.spare_replicas == Bounds():
        return
    value = _Value.in_force(MIN_INSYNC_REPLICAS, configs, defaults)
    if factor is None or value is None or value.number is None:
        _deny(rule, subject, "spare replicas", "unknown", "cannot be checked", f"set {MIN_INSYNC_REPLICAS}")
    spare = factor - int(value.number)
    shown = f"{spare} (replication factor {factor}, {MIN_INSYNC_REPLICAS} {value})"
    _check_bounds(rule, subject, "spare replicas", shown, rule.spare_replicas, number=spare)


def _check_config(
    rule: Rule, subject: str, key: str, wanted: ConfigRule, value: _Value | None, *, is_set: bool
) -> None:
    """Check the value that will be in force, whether the resource sets it or inherits it.

    Args:
        rule: The rule.
        subject: The resource, for the message.
        key: Name of the config.
        wanted: The rule's requirements for the config.
        value: The value in force; None if the request does not change it or it is unknown.
        is_set: Whether the resource itself sets the config after the change.
    """
    if wanted.is_required and not is_set:
        _deny(rule, subject, key, "(not set)", "is required", f"set {key}{_hint(wanted)}")
    if value is None:
        return
    if wanted.is_forbidden and not value.is_default:
        _deny(rule, subject, key, value, "must not be set", f"leave {key} out")
    verb = f"set {key} to" if value.is_default else "use"
    if not all(map(wanted.allows_element, value.text.split(","))):
        allowed = ", ".join(wanted.one_of)
        remedy = f"set {key}{_hint(wanted)}" if value.is_default else f"choose from {allowed}"
        _deny(rule, subject, key, value, f"is not one of {allowed}", remedy)
    if wanted.bounds != Bounds():
        number = value.number
        if number is None:
            _deny(rule, subject, key, value, "is not a number", f"set a number{_hint(wanted)}")
        _check_bounds(
            rule, subject, key, value, wanted.bounds, number=number, is_unlimited=value.is_unlimited, verb=verb
        )


def _hint(wanted: ConfigRule) -> str:
    low, high = wanted.bounds.minimum, wanted.bounds.maximum
    if wanted.one_of:
        return f" to one of {', '.join(wanted.one_of)}"
    parts = [f"at least {low}" if low is not None else "", f"at most {high}" if high is not None else ""]
    stated = " and ".join(part for part in parts if part)
    return f" to {stated}" if stated else ""


class _RuleViolationError(PolicyViolationError):
    """Denial by a rule. ``fault`` is its text without the remedy."""

    def __init__(self, fault: str, remedy: str) -> None:
        super().__init__(f"{fault}; {remedy}.")
        self.fault = fault


def _deny(rule: Rule, subject: str, key: str, value: object, fault: str, remedy: str) -> NoReturn:  # noqa: PLR0917 -- in the order of the sentence
    raise _RuleViolationError(f"Rule '{rule.name}': {key}={value} of {subject} {fault}", rule.remedy or remedy)

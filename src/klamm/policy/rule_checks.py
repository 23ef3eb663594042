"""Checks that every rule of a file can match, and that its values are values of the configs that it names."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from klamm.configs.definitions import ConfigDefinition, broker_configs, find_broker_config, topic_configs
from klamm.policy.kinds import ALTER_CONFIG, API, CLIENT, CREATE_PARTITIONS, CREATE_TOPIC, DELETE_TOPIC, FLOW, KINDS
from klamm.policy.rule import (
    ACTIONS,
    REFERENCES,
    SPECIAL_NUMBERS,
    UNLIMITED,
    Bounds,
    RuleFileError,
    number_of,
)
from klamm.protocol.errors import InvalidConfigError
from klamm.protocol.types import ConfigType

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from klamm.policy.kinds import PolicyKind
    from klamm.policy.rule import ConfigRule, Rule

_ACTIONS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "naming": ("create",),
    "partitions": ("create", "partitions"),
    "replication_factor": ("create", "partitions"),
    "spare_replicas": ("create", "alter", "partitions"),
    "configs": ("create", "alter"),
    "broker_configs": ("alter",),
    "only_configs": ("create", "alter"),
    "omission": ("alter",),
    "deletion": ("delete",),
    "acks": ("produce",),
    "idempotence": ("produce",),
    "writes": ("produce",),
    "group_naming": ("group",),
    "client_id_naming": ("produce", "group", "client"),
    "forbidden_apis": ("api",),
    "data_loss": ("alter", "delete"),
    "max_deleted": ("alter", "delete"),
    "strands_groups": ("alter", "delete"),
    "max_impact": ("alter", "partitions", "delete"),
}
"""Actions that each condition of a rule concerns."""
CONDITIONS: Final = tuple(_ACTIONS_OF)
FLOWS: Final = ("acks", "idempotence", "writes", "group_naming", "client_id_naming")
"""Conditions on requests that flow through a gateway."""
OVERRIDABLE: Final = ("partitions", "replication_factor", "configs", "broker_configs", "acks")
"""Conditions that ``effect: override`` can satisfy."""
_WITHOUT_TOPIC: Final = ("group", "client", "api")
"""Actions that a rule with ``topics`` does not concern."""
_KINDS: Final[Mapping[str, PolicyKind]] = {
    "create": CREATE_TOPIC,
    "alter": ALTER_CONFIG,
    "partitions": CREATE_PARTITIONS,
    "delete": DELETE_TOPIC,
    "produce": FLOW,
    "group": FLOW,
    "client": CLIENT,
    "api": API,
}
"""Policy that is asked about each action."""
_SAMPLES: Final = ("User:Any-1", "User:any other,name")
"""Principals that stand for all."""
_NUMBERS: Final = (ConfigType.SHORT, ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE)


def check_actions(rule: Rule, place: str) -> None:
    """Reject a rule that checks nothing, an action or a condition without effect, and a rule for no principal.

    Raises:
        RuleFileError: The message begins with the place of the rule.
    """
    if not rule.conditions:
        raise RuleFileError(f"{place}: the rule checks nothing; add one of {', '.join(CONDITIONS)}")
    for condition in rule.conditions:
        concerned = _ACTIONS_OF[condition]
        if not _checked(rule, condition):
            if rule.topics is not None and (condition == "broker_configs" or set(concerned) <= set(_WITHOUT_TOPIC)):
                raise RuleFileError(f"{place}.topics: {condition} concerns no topics; use a rule of its own")
            if rule.delay_ms is not None:
                raise RuleFileError(f"{place}.actions: effect: throttle does not concern {', '.join(rule.actions)}")
            raise RuleFileError(f"{place}.{condition}: is checked for the actions {', '.join(concerned)} only")
    if rule.actions != ACTIONS:
        for action in rule.actions:
            if not any(action in _checked(rule, condition) for condition in rule.conditions):
                raise RuleFileError(f"{place}.actions: nothing in the rule is checked for the action {action}")
    samples = [pattern.pattern for pattern in rule.principals] or _SAMPLES
    if all(any(pattern.matches(sample) for pattern in rule.except_principals) for sample in samples):
        raise RuleFileError(f"{place}.except_principals: the rule excepts all principals that it applies to")


def check_kinds(rules: Sequence[Rule], kinds: Collection[PolicyKind]) -> None:
    """Reject rules about requests that no policy is asked about.

    Args:
        rules: All rules of the file.
        kinds: Kinds of requests for which the properties name the policy.

    Raises:
        RuleFileError: The message names the property to set.
    """
    for index, rule in enumerate(rules):
        for condition in rule.conditions:
            checked = _checked(rule, condition)
            missing = [action for action in checked if _KINDS[action] not in kinds]
            if missing and (rule.actions != ACTIONS or len(missing) == len(checked)):
                kind = _KINDS[missing[0]]
                where = "" if kind in KINDS else ", in a gateway,"
                raise RuleFileError(
                    f"rules[{index}].{condition}: no policy is asked about the action {missing[0]}; set"
                    f" {kind.class_key}{where} to the class that reads this file"
                )


def check_configs(rules: Sequence[Rule], *, is_gateway: bool, upstream: Mapping[str, int] | None = None) -> None:
    """Reject configs that do not exist, and values that they cannot have.

    Args:
        rules: All rules of the file.
        is_gateway: Whether the upstream decides which topic configs exist and which values are in range.
        upstream: Wire values of ``ConfigType`` of the upstream's topic configs; None if they have not been read.
    """
    for index, rule in enumerate(rules):
        place = f"rules[{index}]"
        for position, name in enumerate(rule.only_configs or ()):
            _topic_config(name, f"{place}.only_configs[{position}]", is_gateway=is_gateway, upstream=upstream)
        for name, wanted in rule.configs.items():
            where = f"{place}.configs.{name}"
            definition = _topic_config(name, where, is_gateway=is_gateway, upstream=upstream)
            _check_config(name, wanted, definition, where, overrides=rule.overrides)
            if wanted.is_required and name not in (rule.only_configs or (name,)):
                raise RuleFileError(f"{where}.required: only_configs does not allow it")
        for name, wanted in rule.broker_configs.items():
            where = f"{place}.broker_configs.{name}"
            definition = find_broker_config(name)
            if definition is None and not is_gateway:
                raise RuleFileError(f"{where}: not a broker config{_similar(name, broker_configs())}")
            _check_config(name, wanted, _range_of(definition, is_gateway=is_gateway), where, overrides=rule.overrides)


def unknown_configs(rules: Sequence[Rule]) -> frozenset[str]:
    """Return the topic configs of rules that Kafka 4.4 does not have."""
    names = {name for rule in rules for name in (*rule.configs, *(rule.only_configs or ()))}
    return frozenset(names.difference(topic_configs()))


def _checked(rule: Rule, condition: str) -> tuple[str, ...]:
    """Return the actions for which a condition of the rule is checked."""
    if rule.topics is not None and condition == "broker_configs":
        return ()
    left_out = (_WITHOUT_TOPIC if rule.topics is not None else ()) + (
        ("client", "api") if rule.delay_ms is not None else ()
    )
    return tuple(action for action in _ACTIONS_OF[condition] if action in rule.actions and action not in left_out)


def _topic_config(
    name: str, place: str, *, is_gateway: bool, upstream: Mapping[str, int] | None
) -> ConfigDefinition | None:
    """Return the definition of a topic config; None if its type is unknown."""
    definition = topic_configs().get_definition(name)
    if definition is not None or (is_gateway and upstream is None):
        return _range_of(definition, is_gateway=is_gateway)
    if upstream is not None and name in upstream:
        return _definition(name, upstream[name])
    of_whom = "" if upstream is None else " of the upstream"
    raise RuleFileError(f"{place}: not a topic config{of_whom}{_similar(name, {*topic_configs(), *(upstream or ())})}")


def _definition(name: str, config_type: int) -> ConfigDefinition | None:
    """Return the definition of a config that only the upstream has; None if it does not report the type."""
    if config_type == ConfigType.UNKNOWN or config_type not in ConfigType.__members__.values():
        return None
    return ConfigDefinition(
        name=name,
        config_type=ConfigType(config_type),
        default=None,
        default_value=None,
        check=None,
    )


def _similar(name: str, names: Collection[str]) -> str:
    close = get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _range_of(definition: ConfigDefinition | None, *, is_gateway: bool) -> ConfigDefinition | None:
    """Return a definition without limits for a gateway: those of other releases differ."""
    return definition if definition is None or not is_gateway else replace(definition, check=None)


def _check_config(
    name: str, wanted: ConfigRule, definition: ConfigDefinition | None, place: str, *, overrides: bool
) -> None:
    """Reject a rule on a config that checks nothing, contradicts itself or has a value that the config cannot have.

    ``definition`` None means that the type is unknown.
    """
    if wanted.is_empty:
        raise RuleFileError(f"{place}: checks nothing; give it required, forbidden, min, max or one_of")
    if wanted.is_required and wanted.is_forbidden:
        raise RuleFileError(f"{place}: is both required and forbidden; leave one out")
    if wanted.value is not None and (not overrides or wanted.is_forbidden):
        raise RuleFileError(f"{place}.value: needs effect: override and a config that is not forbidden")
    if overrides and wanted.is_required and wanted.value is None and not wanted.has_limits:
        raise RuleFileError(f"{place}: effect: override needs the value to set")
    is_list = definition is not None and definition.config_type is ConfigType.LIST
    _check_bounds(name, wanted.bounds, definition, place)
    for text in wanted.one_of:
        _parse(name, text, definition, f"{place}.one_of")
        if is_list and "," in text:
            raise RuleFileError(f"{place}.one_of: {text!r} is several elements; list each element of its own")
        if not allows_number(name, wanted.bounds, text):
            raise RuleFileError(f"{place}.one_of: {text} is outside min and max of the same rule")
    if wanted.value is not None:
        _parse(name, wanted.value, definition, f"{place}.value")
        elements = wanted.value.split(",") if is_list else [wanted.value]
        if not all(map(wanted.allows_element, elements)) or not allows_number(name, wanted.bounds, wanted.value):
            raise RuleFileError(f"{place}.value: {wanted.value} breaks one_of, min or max of the same rule")


def _check_bounds(name: str, bounds: Bounds, definition: ConfigDefinition | None, place: str) -> None:
    for key, limit in (("min", bounds.minimum), ("max", bounds.maximum)):
        if limit is None:
            continue
        if definition is not None and definition.config_type not in _NUMBERS:
            raise RuleFileError(f"{place}.{key}: the config is no number but a {definition.config_type.name}")
        if name in UNLIMITED and limit < 0:
            raise RuleFileError(
                f"{place}.{key}: {limit} stands for another value; list it in one_of, or leave {key} out"
            )
        _parse(name, str(limit), definition, f"{place}.{key}")


def allows_number(name: str, bounds: Bounds, text: str) -> bool:
    """Return whether a value is within bounds. Special values of a config stand for others and are not judged here."""
    if bounds == Bounds():
        return True
    number = number_of(text)
    if number is None or (name, text) in REFERENCES:
        return number is not None
    if number < 0 and name in UNLIMITED:
        return bounds.maximum is None
    return bounds.contains(SPECIAL_NUMBERS.get((name, text), number))


def _parse(name: str, text: str, definition: ConfigDefinition | None, place: str) -> None:
    """Raise RuleFileError if the config cannot have the value."""
    if definition is None:
        return
    try:
        definition.parse(text)
    except InvalidConfigError as error:
        raise RuleFileError(f"{place}: {error.error_message}") from error

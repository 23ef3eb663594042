"""Parser for the file of ``RulesPolicy``, with errors that name the invalid place."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from klamm.configs.definitions import topic_configs
from klamm.policy.patterns import NamePattern

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# A "*" at the start or after a literal character. A "*" in a character class or after an escape such as \d is not
# matched.
_GLOB: Final = re.compile(r"(?P<skip>\\[A-Za-z]\*?|\[\^?\]?[^\]]*\]\*?)|(?P<literal>\\[^A-Za-z]|[A-Za-z0-9_:-]|^)\*")
ACTIONS: Final = ("create", "alter", "partitions", "delete", "produce", "group", "client")
_FLOWS: Final = ("acks", "idempotence", "writes", "group_naming", "client_id_naming")
"""Keys of a rule about requests that flow through a gateway."""
_CHANGES: Final = ("naming", "partitions", "replication_factor", "configs", "only_configs", "omission", "deletion")
"""Keys of a rule about topics and their configs."""


MAX_DELAY_MS: Final = 60_000


class RuleFileError(ValueError):
    """The rule file is invalid. The message names the place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Range of integers, both ends included."""

    minimum: int | None = None
    """Lower bound. None means no lower bound."""
    maximum: int | None = None
    """Upper bound. None means no upper bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRule:
    """Rule for the value of one config."""

    is_required: bool = False
    """Whether the topic itself must set the config."""
    is_forbidden: bool = False
    """Whether the config must not be set."""
    bounds: Bounds = Bounds()
    one_of: tuple[str, ...] = ()
    """Allowed values, or allowed elements of a list config. Empty means that all are allowed."""
    value: str | None = None
    """Value that an override sets. None selects the nearest bound or the first allowed value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRule:
    """Part of a rule about requests that flow through a gateway."""

    needs_all_acks: bool = False
    needs_idempotence: bool = False
    forbids_writes: bool = False
    group_naming: NamePattern | None = None
    """Pattern for the ids of groups. None allows all."""
    client_id_naming: NamePattern | None = None
    """Pattern for client ids. None allows all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One entry under ``rules``."""

    name: str
    topics: NamePattern | None = None
    """Pattern for the whole topic name. None means every topic."""
    principals: tuple[NamePattern, ...] = ()
    """Patterns for the whole principal, ``Type:name``. Empty means every principal."""
    except_principals: tuple[NamePattern, ...] = ()
    """Patterns for principals that are exempt from the rule."""
    actions: tuple[str, ...] = ACTIONS
    naming: NamePattern | None = None
    partitions: Bounds = Bounds()
    replication_factor: Bounds = Bounds()
    configs: Mapping[str, ConfigRule] = field(default_factory=dict)
    only_configs: tuple[str, ...] | None = None
    """Configs that may be set. None allows all, an empty list none."""
    forbids_deletion: bool = False
    forbids_omission: bool = False
    """Whether AlterConfigs must name every config that the topic sets, because it removes the others."""
    overrides: bool = False
    """Whether wrong values are set right in place of rejecting the request."""
    flow: FlowRule = FlowRule()
    delay_ms: int | None = None
    """Pause in milliseconds for a client that violates the rule, whose request is allowed. None rejects the request."""
    remedy: str | None = None
    """Advice at the end of every rejection message. None means a default text for the violated part of the rule."""

    def concerns(self, action: str, topic: str | None, principal: str | None) -> bool:
        """Return whether the rule applies. An unknown principal is never exempt.

        ``topic`` is None for a client id or a request about a group, which a rule with ``topics`` does not concern.
        """
        if action not in self.actions:
            return False
        if self.topics is not None and (topic is None or not self.topics.matches(topic)):
            return False
        known = principal or ""
        if any(pattern.matches(known) for pattern in self.except_principals):
            return False
        return not self.principals or any(pattern.matches(known) for pattern in self.principals)

    @property
    def is_linear(self) -> bool:
        """Return whether all patterns of the rule match in linear time."""
        flow = self.flow
        own = (self.topics, self.naming, flow.group_naming, flow.client_id_naming)
        patterns = (*own, *self.principals, *self.except_principals)
        return all(pattern is None or pattern.is_linear for pattern in patterns)


def parse_rules(text: str, *, source: str) -> tuple[Rule, ...]:
    """Parse a rule file.

    Args:
        text: YAML text.
        source: File name for error messages.

    Raises:
        RuleFileError: The text is not valid YAML, or an entry is invalid.
    """
    from klamm.strict_yaml import StrictYamlError, load_yaml  # noqa: PLC0415  # costs start-up time; only rules need it

    try:
        document = load_yaml(text)
    except StrictYamlError as error:
        raise RuleFileError(f"{source}: {error}") from error
    try:
        entries = _Table(document, "").only("rules").sequence("rules")
        rules = tuple(_rule(_Table(entry, f"rules[{index}]")) for index, entry in enumerate(entries))
        _check_names([rule.name for rule in rules])
    except RuleFileError as error:
        raise RuleFileError(f"{source}: {error}") from error
    return rules


def _check_names(names: Sequence[str]) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            raise RuleFileError(f"rules[{index}].name: {name!r} is already the name of another rule")


class _Table:
    """Mapping of the document, with its place for error messages."""

    def __init__(self, value: Any, place: str) -> None:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise RuleFileError(f"{place or 'the document'}: expected a mapping with string keys, got {_shown(value)}")
        self._value: dict[str, Any] = value
        self._place = place

    def only(self, *names: str) -> _Table:
        for name in self._value:
            if name not in names:
                raise RuleFileError(f"{self.at(name)}: unknown key, expected one of {', '.join(names)}")
        return self

    def at(self, name: str) -> str:
        return f"{self._place}.{name}" if self._place else name

    def has(self, name: str) -> bool:
        return self._value.get(name) is not None

    def sequence(self, name: str) -> Sequence[Any]:
        value = self._value.get(name)
        if not isinstance(value, list):
            raise RuleFileError(f"{self.at(name)}: expected a list, got {_shown(value)}")
        return value

    def table(self, name: str) -> _Table:
        return _Table(self._value.get(name, {}), self.at(name))

    def items(self) -> list[tuple[str, _Table]]:
        return [(name, self.table(name)) for name in self._value]

    def text(self, name: str) -> str:
        value = self._value.get(name)
        if not isinstance(value, str) or not value:
            raise RuleFileError(f"{self.at(name)}: expected a string, got {_shown(value)}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._value.get(name)
        if value is None:
            return ()
        values = value if isinstance(value, list) else [value]
        for index, entry in enumerate(values):
            if not isinstance(entry, (str, int, float)):  # bool is a subclass of int
                raise RuleFileError(f"{self.at(name)}[{index}]: expected a string, got {_shown(entry)}")
        return tuple(str(entry).lower() if isinstance(entry, bool) else str(entry) for entry in values)

    def flag(self, name: str) -> bool:
        value = self._value.get(name, False)
        if not isinstance(value, bool):
            raise RuleFileError(f"{self.at(name)}: expected true or false, got {_shown(value)}")
        return value

    def number(self, name: str) -> int | None:
        value = self._value.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise RuleFileError(f"{self.at(name)}: expected an integer, got {_shown(value)}")
        return value

    def pattern(self, name: str) -> NamePattern | None:
        return _pattern(self.text(name), self.at(name)) if self.has(name) else None

    def principals(self, name: str) -> tuple[NamePattern, ...]:
        found = []
        for index, text in enumerate(self.texts(name)):
            place = f"{self.at(name)}[{index}]"
            pattern = _pattern(text, place)
            if ":" not in text and not text.startswith(".*"):  # it would never match a principal
                raise RuleFileError(f"{place}: expected Type:name as in User:{text}, got {text!r}")
            found.append(pattern)
        return tuple(found)

    def bounds(self) -> Bounds:
        found = Bounds(minimum=self.number("min"), maximum=self.number("max"))
        if found.minimum is not None and found.maximum is not None and found.minimum > found.maximum:
            raise RuleFileError(f"{self._place}: min {found.minimum} is above max {found.maximum}")
        return found


def _rule(table: _Table) -> Rule:
    table.only(
        "name", "topics", "principals", "except_principals", "actions", *_CHANGES, *_FLOWS,
        "effect", "delay_ms", "remedy",
    )  # fmt: skip
    actions = table.texts("actions") or ACTIONS
    for action in actions:
        if action not in ACTIONS:
            raise RuleFileError(f"{table.at('actions')}: {action!r} is not one of {', '.join(ACTIONS)}")
    rule = Rule(
        name=table.text("name"),
        topics=table.pattern("topics"),
        principals=table.principals("principals"),
        except_principals=table.principals("except_principals"),
        actions=actions,
        naming=table.pattern("naming"),
        partitions=_bounds(table, "partitions"),
        replication_factor=_bounds(table, "replication_factor"),
        configs=MappingProxyType(_config_rules(table.table("configs"))),
        only_configs=_only_configs(table),
        forbids_deletion=_choice(table, "deletion", "allowed", "forbidden") == "forbidden",
        forbids_omission=_choice(table, "omission", "allowed", "forbidden") == "forbidden",
        overrides=_choice(table, "effect", "refuse", "override", "throttle") == "override",
        flow=FlowRule(
            needs_all_acks=_choice(table, "acks", "any", "all") == "all",
            needs_idempotence=_choice(table, "idempotence", "allowed", "required") == "required",
            forbids_writes=_choice(table, "writes", "allowed", "forbidden") == "forbidden",
            group_naming=table.pattern("group_naming"),
            client_id_naming=table.pattern("client_id_naming"),
        ),
        delay_ms=_delay_ms(table),
        remedy=table.text("remedy") if table.has("remedy") else None,
    )
    _check_effect(rule, table)
    return rule


def _choice(table: _Table, name: str, *choices: str) -> str:
    """Return the value of a key with these choices, the first of which is the default."""
    value = table.text(name) if table.has(name) else choices[0]
    if value not in choices:
        raise RuleFileError(f"{table.at(name)}: expected {' or '.join(sorted(choices, reverse=True))}, got {value!r}")
    return value


def _delay_ms(table: _Table) -> int | None:
    """Return the pause of a rule with ``effect: throttle``, None for other rules."""
    is_throttle = table.has("effect") and table.text("effect") == "throttle"
    delay_ms = table.number("delay_ms")
    if is_throttle != (delay_ms is not None) or (delay_ms is not None and not 0 < delay_ms <= MAX_DELAY_MS):
        raise RuleFileError(
            f"{table.at('delay_ms')}: effect: throttle, and no other, needs a number from 1 to {MAX_DELAY_MS}"
        )
    return delay_ms


def _check_effect(rule: Rule, table: _Table) -> None:
    """Reject a rule that cannot set right what it forbids, and values that no override would use."""
    if rule.delay_ms is not None:
        for name in _CHANGES:
            if table.has(name):
                raise RuleFileError(f"{table.at(name)}: effect: throttle is for {', '.join(_FLOWS)}")
    if rule.overrides:
        for name in ("naming", "only_configs", "omission", "deletion", *_FLOWS[1:]):
            if table.has(name):
                raise RuleFileError(f"{table.at(name)}: effect: override cannot set this right; use a rule of its own")
    for name, wanted in rule.configs.items():
        place = f"{table.at('configs')}.{name}"
        if wanted.value is not None and (not rule.overrides or wanted.is_forbidden):
            raise RuleFileError(f"{place}.value: needs effect: override and a config that is not forbidden")
        is_open = wanted.value is None and not wanted.one_of and wanted.bounds == Bounds()
        if rule.overrides and wanted.is_required and is_open:
            raise RuleFileError(f"{place}: effect: override needs the value to set")


def _bounds(table: _Table, name: str) -> Bounds:
    return table.table(name).only("min", "max").bounds()


def _pattern(text: str, place: str) -> NamePattern:
    """Parse a regular expression and reject a likely shell wildcard, which would match something else.

    Raises:
        RuleFileError: The text is not a regular expression, or ``*`` repeats a single character as in ``prod-*``.
    """
    suggestion = _GLOB.sub(lambda found: found["skip"] or f"{found['literal']}.*", text)
    if suggestion != text:
        raise RuleFileError(
            f"{place}: {text!r} is a regular expression, in which * repeats the character before it; did you mean"
            f" {suggestion!r}?"
        )
    try:
        return NamePattern(text)
    except re.error as error:
        raise RuleFileError(f"{place}: {text!r} is not a valid regular expression: {error}") from error


def _config_rules(table: _Table) -> dict[str, ConfigRule]:
    found = {}
    for name, entry in table.items():
        found[name] = _config_rule(entry)
        _check_config_name(name, table.at(name))
    return found


def _only_configs(table: _Table) -> tuple[str, ...] | None:
    if not table.has("only_configs"):
        return None
    names = table.texts("only_configs")
    for index, name in enumerate(names):
        _check_config_name(name, f"{table.at('only_configs')}[{index}]")
    return names


def _check_config_name(name: str, place: str) -> None:
    if name not in topic_configs():  # a misspelled config would protect nothing, and could never be set
        close = get_close_matches(name, topic_configs(), n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise RuleFileError(f"{place}: not a topic config{hint}")


def _config_rule(table: _Table) -> ConfigRule:
    table.only("required", "forbidden", "min", "max", "one_of", "value")
    return ConfigRule(
        is_required=table.flag("required"),
        is_forbidden=table.flag("forbidden"),
        bounds=table.bounds(),
        one_of=table.texts("one_of"),
        value=next(iter(table.texts("value")), None),
    )


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value)

"""Parser for the file of ``RulesPolicy``, with errors that name the invalid place."""

from __future__ import annotations

import re
from math import isfinite
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from klamm.configs.durations import parse_amount, units_of, without_unit
from klamm.policy.rule import ACTIONS, Bounds, ConfigRule, FlowRule, ImpactRule, NamePattern, Rule, RuleFileError
from klamm.policy.rule_checks import CONDITIONS, FLOWS, OVERRIDABLE, check_actions, check_configs
from klamm.properties import did_you_mean
from klamm.protocol.api import ApiKey, api_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.impact.findings import ImpactLevel

# A "*" at the start or after a literal character. A "*" in a character class or after an escape such as \d is not
# matched.
_GLOB: Final = re.compile(r"(?P<skip>\\[A-Za-z]\*?|\[\^?\]?[^\]]*\]\*?)|(?P<literal>\\[^A-Za-z]|[A-Za-z0-9_:-]|^)\*")
MAX_DELAY_MS: Final = 60_000
_MAX_DIGITS: Final = 6
_NEEDED_APIS: Final = frozenset({ApiKey.METADATA, ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
"""APIs without which a client cannot report an error."""
_IMPACT_LEVELS: Final = ("loss", "disruption", "notice", "none")
"""Values of ``max_impact``, beginning with the one that allows everything."""
_DEFAULTS: Final = ("any", "allowed", "loss")
"""Values of conditions that restrict nothing."""
_MAY_BE_EMPTY: Final = ("only_configs", "except_principals")
"""Lists of a rule for which an empty list means none."""
_HAS_RULES: Final = re.compile(r"""^[{"' ]*rules["']?[ ]*:""", re.MULTILINE)
"""Key ``rules`` at the beginning of a line, as in YAML, or after a brace, as in JSON."""


def parse_rules(text: str, *, source: str, is_gateway: bool = False) -> tuple[Rule, ...]:
    """Parse a rule file.

    The path may be set over the wire, so an error about a file of another kind contains none of its content.

    Args:
        text: YAML text.
        source: File name for error messages.
        is_gateway: Whether the rules are for a gateway, whose upstream may have configs that Kafka 4.4 does not have.

    Raises:
        RuleFileError: The text is not valid YAML or has no rules, or entries are invalid. The message names each of
            them.
    """
    from klamm.strict_yaml import StrictYamlError, entry_lines, load_yaml  # noqa: PLC0415  # start-up time; only rules need it

    try:
        document = load_yaml(text)
    except StrictYamlError as error:
        if _HAS_RULES.search(text):
            raise RuleFileError(f"{source}: {error}") from error
        place = str(error).partition(": ")[0]
        raise RuleFileError(f"{source}: {place}: not a rule file: no YAML with the key rules") from error
    try:
        table = _Table(document, "")
        if "rules" not in document:  # other keys may be the secrets of another file
            table = _Table({name: value for name, value in document.items() if did_you_mean(name, ["rules"])}, "")
        entries = table.only("rules").sequence("rules")
        rules = _rules(entries, entry_lines(text, "rules"))
        _check_names([rule.name for rule in rules])
        check_configs(rules, is_gateway=is_gateway)
    except RuleFileError as error:
        raise RuleFileError(f"{source}: {error}") from error
    return rules


def _rules(entries: Sequence[Any], lines: Sequence[int]) -> tuple[Rule, ...]:
    """Return the rules.

    Raises:
        RuleFileError: Entries are invalid. The message names each of them, and if there are several, their lines.
    """
    rules, faults = [], []
    for index, (entry, line) in enumerate(zip(entries, lines, strict=True)):
        try:
            rules.append(_rule(_Table(entry, f"rules[{index}]"), line))
        except RuleFileError as error:
            faults.append(f"{error} (line {line})")
    if faults:
        raise RuleFileError("; ".join(faults))
    return tuple(rules)


def _check_names(names: Sequence[str]) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            raise RuleFileError(f"rules[{index}].name: {name!r} is already the name of another rule")


_MAX_SHOWN: Final = 200
"""Characters of a wrong value in a message."""


class _Table:
    """Mapping of the document, with its place for error messages."""

    def __init__(self, value: Any, place: str) -> None:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise RuleFileError(f"{place or 'the document'}: expected a mapping with string keys, got {_kind(value)}")
        self._value: dict[str, Any] = value
        self.place = place

    def only(self, *names: str) -> _Table:
        for name, value in self._value.items():
            if name not in names:
                raise RuleFileError(
                    f"{self.at(name)}: unknown key, expected one of {', '.join(names)}{did_you_mean(name, names)}"
                )
            if value is None and name not in ("rules", "name"):
                raise RuleFileError(f"{self.at(name)}: has no value; set one, or leave the key out")
        return self

    def at(self, name: str) -> str:
        return f"{self.place}.{name}" if self.place else name

    def has(self, name: str) -> bool:
        return self._value.get(name) is not None

    def text_of(self, name: str) -> str | None:
        """Return the value of a key if it is a string."""
        value = self._value.get(name)
        return value if isinstance(value, str) else None

    def sequence(self, name: str) -> Sequence[Any]:
        value = self._value.get(name)
        if not isinstance(value, list):
            raise RuleFileError(f"{self.at(name)}: expected a list, got {_kind(value)}")
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
        if not values and name not in _MAY_BE_EMPTY:
            raise RuleFileError(f"{self.at(name)}: the list is empty; list a value, or leave the key out")
        for index, entry in enumerate(values):
            if not isinstance(entry, (str, int, float)):  # bool is a subclass of int
                raise RuleFileError(f"{self.at(name)}[{index}]: expected a string, got {_shown(entry)}")
        return tuple(str(entry).lower() if isinstance(entry, bool) else str(entry) for entry in values)

    def flag(self, name: str) -> bool:
        value = self._value.get(name, False)
        if not isinstance(value, bool):
            raise RuleFileError(f"{self.at(name)}: expected true or false, got {_shown(value)}")
        return value

    def number(self, name: str, config: str = "") -> float | None:
        """Return a number; None without the key. ``config`` is the config that it limits: its unit is allowed."""
        value = self._value.get(name)
        amount = parse_amount(config, value) if isinstance(value, str) else None
        if amount is not None:
            return amount
        is_number = isinstance(value, int) or (config and isinstance(value, float) and isfinite(value))
        if value is not None and (isinstance(value, bool) or not is_number):
            expected = "a number" if config else "an integer"
            units = f", or one with a unit: {', '.join(units_of(config))}" if units_of(config) else ""
            raise RuleFileError(f"{self.at(name)}: expected {expected}{units}, got {_shown(value)}")
        return value

    def pattern(self, name: str) -> NamePattern | None:
        return _pattern(self.text(name), self.at(name)) if self.has(name) else None

    def principals(self, name: str) -> tuple[NamePattern, ...]:
        patterns = []
        for index, text in enumerate(self.texts(name)):
            place = f"{self.at(name)}[{index}]"
            pattern = _pattern(text, place)
            if ":" not in text and not text.startswith(".*"):  # it would never match a principal
                raise RuleFileError(f"{place}: expected Type:name as in User:{text}, got {text!r}")
            patterns.append(pattern)
        return tuple(patterns)

    def bounds(self, config: str = "", *, least: int | None = None) -> Bounds:
        """Return a range of the values of a config, or of numbers that are at least ``least``."""
        bounds = Bounds(minimum=self.number("min", config), maximum=self.number("max", config))
        for name, number in (("min", bounds.minimum), ("max", bounds.maximum)):
            if least is not None and number is not None and number < least:
                raise RuleFileError(f"{self.at(name)}: {number} is below {least}, the smallest possible number")
        if bounds.minimum is not None and bounds.maximum is not None and bounds.minimum > bounds.maximum:
            raise RuleFileError(f"{self.place}: min {bounds.minimum} is above max {bounds.maximum}")
        return bounds


def _rule(table: _Table, line: int) -> Rule:
    table.only(
        "name", "topics", "principals", "except_principals", "actions", *CONDITIONS, "effect", "delay_ms", "remedy",
    )  # fmt: skip
    actions = table.texts("actions") or ACTIONS
    for action in actions:
        if action not in ACTIONS:
            raise RuleFileError(f"{table.at('actions')}: {action!r} is not one of {', '.join(ACTIONS)}")
    rule = Rule(
        name=table.text("name"),
        line=line,
        topics=table.pattern("topics"),
        principals=table.principals("principals"),
        except_principals=table.principals("except_principals"),
        actions=actions,
        conditions=tuple(name for name in CONDITIONS if table.has(name) and table.text_of(name) not in _DEFAULTS),
        naming=table.pattern("naming"),
        partitions=_bounds(table, "partitions"),
        replication_factor=_bounds(table, "replication_factor"),
        spare_replicas=_bounds(table, "spare_replicas", least=0),
        configs=_config_rules(table, "configs"),
        broker_configs=_config_rules(table, "broker_configs"),
        only_configs=table.texts("only_configs") if table.has("only_configs") else None,
        forbids_deletion=_choice(table, "deletion", "allowed", "forbidden") == "forbidden",
        forbids_omission=_choice(table, "omission", "allowed", "forbidden") == "forbidden",
        overrides=_choice(table, "effect", "deny", "override", "throttle") == "override",
        flow=FlowRule(
            needs_all_acks=_choice(table, "acks", "any", "all") == "all",
            needs_idempotence=_choice(table, "idempotence", "allowed", "required") == "required",
            forbids_writes=_choice(table, "writes", "allowed", "forbidden") == "forbidden",
            group_naming=table.pattern("group_naming"),
            client_id_naming=table.pattern("client_id_naming"),
        ),
        impact=_impact_rule(table),
        forbidden_apis=_apis(table),
        delay_ms=_delay_ms(table),
        remedy=table.text("remedy") if table.has("remedy") else None,
    )
    _check_effect(rule, table)
    check_actions(rule, table.place)
    return rule


def _choice(table: _Table, name: str, *choices: str) -> str:
    """Return the value of a key with these choices, the first of which is the default."""
    value = table.text(name) if table.has(name) else choices[0]
    if value not in choices:
        raise RuleFileError(f"{table.at(name)}: expected {' or '.join(sorted(choices, reverse=True))}, got {value!r}")
    return value


def _apis(table: _Table) -> frozenset[str]:
    """Return the names of APIs under ``forbidden_apis``; either as in Kafka's ``ApiKeys`` or as in its messages."""
    by_name = {key.name.replace("_", "").lower(): key for key in ApiKey}
    names = set[str]()
    for position, name in enumerate(table.texts("forbidden_apis")):
        key = int(name) if name.isdecimal() and len(name) < _MAX_DIGITS else by_name.get(name.replace("_", "").lower())
        if key is None or key in _NEEDED_APIS:
            needed = ", ".join(sorted(each.name for each in _NEEDED_APIS))
            raise RuleFileError(
                f"{table.at('forbidden_apis')}[{position}]: {name!r} cannot be forbidden; expected a name such as"
                f" DELETE_RECORDS, or an API key; not {needed}"
            )
        names.add(api_name(key))
    return frozenset(names)


def _impact_rule(table: _Table) -> ImpactRule:
    max_deleted = table.number("max_deleted", ".bytes")
    if max_deleted is not None and (max_deleted < 0 or max_deleted != int(max_deleted)):
        raise RuleFileError(f"{table.at('max_deleted')}: expected a number of bytes from 0 on, got {max_deleted}")
    level = _choice(table, "max_impact", *_IMPACT_LEVELS)
    return ImpactRule(
        forbids_data_loss=_choice(table, "data_loss", "allowed", "forbidden") == "forbidden",
        forbids_stranded_groups=_choice(table, "strands_groups", "allowed", "forbidden") == "forbidden",
        max_deleted=None if max_deleted is None else int(max_deleted),
        max_impact=None if level == _IMPACT_LEVELS[0] else _impact_level(level),
    )


def _impact_level(name: str) -> ImpactLevel:
    from klamm.impact.findings import ImpactLevel  # noqa: PLC0415 -- only some rules need it

    return ImpactLevel[name.upper()]


def _delay_ms(table: _Table) -> int | None:
    """Return the pause of a rule with ``effect: throttle``, None for other rules."""
    is_throttle = table.has("effect") and table.text("effect") == "throttle"
    delay_ms = table.number("delay_ms", "delay_ms")
    if is_throttle != (delay_ms is not None) or (delay_ms is not None and delay_ms not in range(1, MAX_DELAY_MS + 1)):
        raise RuleFileError(
            f"{table.at('delay_ms')}: effect: throttle, and no other, needs a number from 1 to {MAX_DELAY_MS}"
        )
    return None if delay_ms is None else int(delay_ms)


def _check_effect(rule: Rule, table: _Table) -> None:
    """Reject a rule that cannot set right what it forbids, and values that no override would use."""
    for name in CONDITIONS:
        if rule.delay_ms is not None and table.has(name) and name not in FLOWS:
            raise RuleFileError(f"{table.at(name)}: effect: throttle is for {', '.join(FLOWS)}")
        if rule.overrides and table.has(name) and name not in OVERRIDABLE:
            raise RuleFileError(f"{table.at(name)}: effect: override cannot set this right; use a rule of its own")


def _bounds(table: _Table, name: str, *, least: int = 1) -> Bounds:
    if not table.has(name):
        return Bounds()
    bounds = table.table(name).only("min", "max").bounds(least=least)
    if bounds == Bounds():
        raise RuleFileError(f"{table.at(name)}: checks nothing; give it min or max")
    return bounds


def _pattern(text: str, place: str) -> NamePattern:
    """Parse a regular expression and reject a likely shell wildcard, which would match something else.

    Raises:
        RuleFileError: The text is not a regular expression, or ``*`` repeats a single character as in ``prod-*``.
    """
    suggestion = _GLOB.sub(lambda match: match["skip"] or f"{match['literal']}.*", text)
    if suggestion != text:
        raise RuleFileError(
            f"{place}: {text!r} is a regular expression, in which * repeats the character before it; did you mean"
            f" {suggestion!r}?"
        )
    try:
        return NamePattern(text)
    except re.error as error:
        raise RuleFileError(f"{place}: {text!r} is not a valid regular expression: {error}") from error


def _config_rules(table: _Table, key: str) -> Mapping[str, ConfigRule]:
    if not table.has(key):
        return MappingProxyType({})
    entries = table.table(key).items()
    if not entries:
        raise RuleFileError(f"{table.at(key)}: checks nothing; name a config")
    return MappingProxyType({name: _config_rule(entry, name) for name, entry in entries})


def _config_rule(table: _Table, name: str) -> ConfigRule:
    table.only("required", "forbidden", "min", "max", "one_of", "value")
    values = table.texts("value")
    return ConfigRule(
        is_required=table.flag("required"),
        is_forbidden=table.flag("forbidden"),
        bounds=table.bounds(name),
        one_of=tuple(without_unit(name, text) for text in table.texts("one_of")),
        value=without_unit(name, ",".join(values)) if values else None,
    )


def _kind(value: Any) -> str:
    """Return the type of a value that may be no part of a rule."""
    return "nothing" if value is None else type(value).__name__


def _shown(value: Any) -> str:
    """Return a wrong value of a rule, shortened."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."

"""The file of ``RulesPolicy``: what may stand in it, and where it is wrong."""

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

# A "*" at the beginning or behind one literal character; that in a class, or behind one such as \d, is left alone.
_GLOB: Final = re.compile(r"(?P<skip>\\[A-Za-z]\*?|\[\^?\]?[^\]]*\]\*?)|(?P<literal>\\[^A-Za-z]|[A-Za-z0-9_:-]|^)\*")
ACTIONS: Final = ("create", "alter", "partitions", "delete")


class RuleFileError(ValueError):
    """The file cannot be used; the message names the place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """A range of whole numbers, both ends included."""

    minimum: int | None = None
    """None: no lower end."""
    maximum: int | None = None
    """None: no upper end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRule:
    """What one config may be."""

    is_required: bool = False
    """Whether the topic must set it itself."""
    is_forbidden: bool = False
    """Whether nobody may set it."""
    bounds: Bounds = Bounds()
    one_of: tuple[str, ...] = ()
    """The values allowed, of a list: the elements allowed; empty when any is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One entry under ``rules``."""

    name: str
    topics: NamePattern | None = None
    """Matches the whole name; None matches every topic."""
    principals: tuple[NamePattern, ...] = ()
    """Match the whole ``Type:name``; empty: everybody."""
    except_principals: tuple[NamePattern, ...] = ()
    """Whom the rule does not concern, even so."""
    actions: tuple[str, ...] = ACTIONS
    naming: NamePattern | None = None
    partitions: Bounds = Bounds()
    replication_factor: Bounds = Bounds()
    configs: Mapping[str, ConfigRule] = field(default_factory=dict)
    only_configs: tuple[str, ...] | None = None
    """The configs that may be set; None allows all, an empty list none."""
    forbids_deletion: bool = False
    remedy: str | None = None
    """What every refusal says in the end; None: a remedy of the rule's kind."""

    def concerns(self, action: str, topic: str, principal: str | None) -> bool:
        """Tell whether the rule has a say; a principal that is not known is nobody's exception."""
        if action not in self.actions or (self.topics is not None and not self.topics.matches(topic)):
            return False
        known = principal or ""
        if any(pattern.matches(known) for pattern in self.except_principals):
            return False
        return not self.principals or any(pattern.matches(known) for pattern in self.principals)

    @property
    def is_linear(self) -> bool:
        """Whether the rule decides in a time that grows with the names alone."""
        patterns = (self.topics, self.naming, *self.principals, *self.except_principals)
        return all(pattern is None or pattern.is_linear for pattern in patterns)


def parse_rules(text: str, *, source: str) -> tuple[Rule, ...]:
    """Read a file of rules.

    Args:
        text: YAML.
        source: The file's name, for messages.

    Raises:
        RuleFileError: It is no YAML, or something in it is wrong.
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
            raise RuleFileError(f"rules[{index}].name: {name!r} is the name of another rule already")


class _Table:
    """A mapping of the document that knows where it stands."""

    def __init__(self, value: Any, place: str) -> None:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise RuleFileError(f"{place or 'the document'}: expected a mapping with names, got {_shown(value)}")
        self._value: dict[str, Any] = value
        self._place = place

    def only(self, *names: str) -> _Table:
        for name in self._value:
            if name not in names:
                raise RuleFileError(f"{self.at(name)}: unknown, expected one of {', '.join(names)}")
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
            raise RuleFileError(f"{self.at(name)}: expected a text, got {_shown(value)}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._value.get(name)
        if value is None:
            return ()
        values = value if isinstance(value, list) else [value]
        for index, entry in enumerate(values):
            if not isinstance(entry, (str, int, float)):  # a bool is an int
                raise RuleFileError(f"{self.at(name)}[{index}]: expected a text, got {_shown(entry)}")
        return tuple(str(entry).lower() if isinstance(entry, bool) else str(entry) for entry in values)

    def flag(self, name: str) -> bool:
        value = self._value.get(name, False)
        if not isinstance(value, bool):
            raise RuleFileError(f"{self.at(name)}: expected true or false, got {_shown(value)}")
        return value

    def number(self, name: str) -> int | None:
        value = self._value.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise RuleFileError(f"{self.at(name)}: expected a whole number, got {_shown(value)}")
        return value

    def pattern(self, name: str) -> NamePattern | None:
        return _pattern(self.text(name), self.at(name)) if self.has(name) else None

    def principals(self, name: str) -> tuple[NamePattern, ...]:
        found = []
        for index, text in enumerate(self.texts(name)):
            place = f"{self.at(name)}[{index}]"
            pattern = _pattern(text, place)
            if ":" not in text and not text.startswith(".*"):  # it would match nobody
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
        "name", "topics", "principals", "except_principals", "actions", "naming",
        "partitions", "replication_factor", "configs", "only_configs", "deletion", "remedy",
    )  # fmt: skip
    actions = table.texts("actions") or ACTIONS
    for action in actions:
        if action not in ACTIONS:
            raise RuleFileError(f"{table.at('actions')}: {action!r} is not one of {', '.join(ACTIONS)}")
    if table.has("deletion") and table.text("deletion") not in ("forbidden", "allowed"):
        raise RuleFileError(f"{table.at('deletion')}: expected forbidden or allowed, got {table.text('deletion')!r}")
    return Rule(
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
        forbids_deletion=table.has("deletion") and table.text("deletion") == "forbidden",
        remedy=table.text("remedy") if table.has("remedy") else None,
    )


def _bounds(table: _Table, name: str) -> Bounds:
    return table.table(name).only("min", "max").bounds()


def _pattern(text: str, place: str) -> NamePattern:
    """Read a regular expression; refuse a wildcard of shells, which would match something else.

    Raises:
        RuleFileError: It is no regular expression, or ``*`` repeats a single character as in ``prod-*``.
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
        raise RuleFileError(f"{place}: {text!r} is no regular expression: {error}") from error


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
    if name not in topic_configs():  # a misspelt one would guard nothing, and could never be set
        close = get_close_matches(name, topic_configs(), n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise RuleFileError(f"{place}: no topic has such a config{hint}")


def _config_rule(table: _Table) -> ConfigRule:
    table.only("required", "forbidden", "min", "max", "one_of")
    return ConfigRule(
        is_required=table.flag("required"),
        is_forbidden=table.flag("forbidden"),
        bounds=table.bounds(),
        one_of=table.texts("one_of"),
    )


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value)

"""Rules of ``RulesPolicy``, as the rule file declares them."""

from __future__ import annotations

import contextlib
import re
from dataclasses import field
from math import isfinite
from typing import TYPE_CHECKING, Final

from klamm.configs.durations import RETENTION
from klamm.lazy_dataclass import dataclass
from klamm.patterns import PatternError, compile_pattern, full_matcher

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from klamm.impact.findings import ImpactLevel


class NamePattern:
    """Regular expression that matches a whole name. Names are ASCII, like topic names.

    RE2 matches in linear time; Python's ``re`` handles patterns that RE2 does not support.

    Args:
        pattern: Pattern in the syntax of ``re``.

    Raises:
        re.error: The pattern is invalid.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern: Final = pattern
        self._compiled = compile_pattern(pattern, re.ASCII)
        self._matches: Callable[[str], bool] | None = None
        with contextlib.suppress(PatternError):  # look-around and the like, which only re supports
            self._matches = full_matcher(pattern)

    @property
    def is_linear(self) -> bool:
        """Return whether matching takes linear time in the length of the name. With ``re`` there is no such bound."""
        return self._matches is not None

    def matches(self, name: str) -> bool:
        """Return whether the whole name matches."""
        return self._compiled.fullmatch(name) is not None if self._matches is None else self._matches(name)


ACTIONS: Final = ("create", "alter", "partitions", "delete", "produce", "group", "client", "api")
UNLIMITED: Final = frozenset(RETENTION) | {name.replace("retention", "local.retention") for name in RETENTION}
"""Configs for which a negative number means unlimited, and thus exceeds any number."""
REFERENCES: Final[Mapping[tuple[str, str], str]] = {
    **{(name.replace("retention", "local.retention"), "-2"): name for name in RETENTION},
    **{
        (name.replace("retention", "remote.copy.lag"), "-1"): name.replace("retention", "local.retention")
        for name in RETENTION
    },
}
"""Configs whose value is that of another config, by name and special value."""
SPECIAL_NUMBERS: Final[Mapping[tuple[str, str], int]] = {("compression.gzip.level", "-1"): 6}
"""Numbers for which a special value stands, by name of the config and value."""


class RuleFileError(ValueError):
    """The rule file is invalid. The message names the place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Range of numbers, both ends included."""

    minimum: float | None = None
    """Lower bound. None means no lower bound. An int unless a config of type DOUBLE is limited."""
    maximum: float | None = None
    """Upper bound. None means no upper bound."""

    def contains(self, number: float) -> bool:
        """Return whether a number is within the range."""
        low, high = self.minimum, self.maximum
        return (low is None or low <= number) and (high is None or number <= high)


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

    def allows_element(self, text: str) -> bool:
        """Return whether ``one_of`` allows a value, or an element of a list."""
        return not self.one_of or comparable(text) in map(comparable, self.one_of)

    @property
    def has_limits(self) -> bool:
        """Return whether only some values are allowed."""
        return bool(self.one_of) or self.bounds != Bounds()

    @property
    def is_empty(self) -> bool:
        """Return whether the rule allows everything."""
        return self == ConfigRule()


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
class ImpactRule:
    """Part of a rule about the predicted impact of a change."""

    forbids_data_loss: bool = False
    forbids_stranded_groups: bool = False
    """Whether no group may lose records that it has not read."""
    max_deleted: int | None = None
    """Largest number of bytes that may be deleted. None means no limit."""
    max_impact: ImpactLevel | None = None
    """Worst level of a finding that is allowed. None allows all."""

    @property
    def is_empty(self) -> bool:
        """Return whether the rule allows every impact."""
        return self == ImpactRule()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One entry under ``rules``."""

    name: str
    line: int = field(default=0, compare=False)
    """Line of the file in which the entry begins, from 1. 0: it is not from a file."""
    topics: NamePattern | None = None
    """Pattern for the whole topic name. None means every topic."""
    principals: tuple[NamePattern, ...] = ()
    """Patterns for the whole principal, ``Type:name``. Empty means every principal."""
    except_principals: tuple[NamePattern, ...] = ()
    """Patterns for principals that are exempt from the rule."""
    actions: tuple[str, ...] = ACTIONS
    conditions: tuple[str, ...] = ()
    """Keys of the file that restrict something."""
    naming: NamePattern | None = None
    partitions: Bounds = Bounds()
    replication_factor: Bounds = Bounds()
    spare_replicas: Bounds = Bounds()
    """Range of the replication factor minus ``min.insync.replicas``: the replicas that may fail."""
    configs: Mapping[str, ConfigRule] = field(default_factory=dict)
    broker_configs: Mapping[str, ConfigRule] = field(default_factory=dict)
    only_configs: tuple[str, ...] | None = None
    """Configs that may be set. None allows all, an empty list none."""
    forbids_deletion: bool = False
    forbids_omission: bool = False
    """Whether AlterConfigs must name every config that the topic sets, because it removes the others."""
    overrides: bool = False
    """Whether wrong values are set right in place of denying the request."""
    flow: FlowRule = FlowRule()
    impact: ImpactRule = ImpactRule()
    forbidden_apis: frozenset[str] = frozenset()
    """Names of APIs that must not be used, as in Kafka's ``ApiKeys``."""
    delay_ms: int | None = None
    """Pause in milliseconds for a client that violates the rule, whose request is allowed. None denies the request."""
    remedy: str | None = None
    """Advice at the end of every denial message. None means a default text for the violated part of the rule."""

    def concerns(self, action: str, topic: str | None, principal: str | None) -> bool:
        """Return whether the rule applies. An unknown principal is never exempt.

        ``topic`` is None for a client id, a group or a broker, which a rule with ``topics`` does not concern.
        """
        if self.topics is not None and (topic is None or not self.topics.matches(topic)):
            return False
        return self.concerns_requester(action, principal)

    def concerns_requester(self, action: str, principal: str | None) -> bool:
        """Return whether the rule applies to requests of a principal, if it applies to their topics."""
        if action not in self.actions:
            return False
        name = principal or ""
        if any(pattern.matches(name) for pattern in self.except_principals):
            return False
        return not self.principals or any(pattern.matches(name) for pattern in self.principals)

    @property
    def is_linear(self) -> bool:
        """Return whether all patterns of the rule match in linear time."""
        flow = self.flow
        own = (self.topics, self.naming, flow.group_naming, flow.client_id_naming)
        patterns = (*own, *self.principals, *self.except_principals)
        return all(pattern is None or pattern.is_linear for pattern in patterns)


def comparable(text: str) -> float | str:
    """Return a config value in a form in which equal values are equal: a number, or text without outer blanks."""
    trimmed = text.strip()
    number = number_of(trimmed)
    if number is not None:
        return number
    return trimmed.lower() if trimmed.lower() in {"true", "false"} else trimmed


def special_value(text: str) -> str:
    """Return a config value in the form of the keys of ``REFERENCES`` and ``SPECIAL_NUMBERS``.

    To Kafka, ``-02`` and ``-2`` are the same value.
    """
    number = number_of(text)
    return str(number) if isinstance(number, int) else text


def number_of(text: str) -> float | None:
    """Return a config value as a number; None if it is not a finite one."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) else None

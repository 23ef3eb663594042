"""Guards: conditions that hold while a roll-out goes on. Parser, and the decision about a figure. No I/O.

=====================================================  ================================================================
Guard                                                  Figure
=====================================================  ================================================================
``lag: GROUP < 1000``                                  records that the group has not read, over all partitions. The
                                                       guard also fails if an offset of the group falls behind the log
                                                       start, because these records are lost for the group. It does
                                                       not pass if records of partitions without an offset of the group
                                                       might violate the limit
``under-replicated < 1``                               partitions with fewer in-sync replicas than replicas
``clients: METRIC [STAT] < 1.2x before``               metric that clients push (KIP-714). STAT is ``p99`` (default) or
                                                       any other percentile, ``avg``, ``max``, ``min`` or ``sum``, over
                                                       the changed clients
``metrics: NAME{label="value"} < 5``                   sum of the samples of a metric of klamm
``metrics: increase NAME{label="value"} < 5``          the same, as the increase since the start of the roll-out; a
                                                       counter without a sample is 0
``prometheus: URL EXPRESSION < 0.01``                  each sample of the result of a Prometheus query
``command: COMMAND``                                   exit code of a shell command, which must be 0
=====================================================  ================================================================

Every number but that of an increase or a query may be relative to the figure before the roll-out: ``< 1.2x before``. A
limit of ``clients`` may also be relative to the clients that are not changed yet: ``< 1.2x unchanged``.
"""

from __future__ import annotations

import math
import operator
import re
from dataclasses import field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from klamm.lazy_dataclass import dataclass
from klamm.properties import SettingsError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_OPERATORS: Final[Mapping[str, Callable[[float, float], bool]]] = MappingProxyType(
    {
        "<": operator.lt,
        "<=": operator.le,
        ">": operator.gt,
        ">=": operator.ge,
        "==": operator.eq,
        "!=": operator.ne,
    }
)
_LIMIT: Final = re.compile(
    r"(?P<subject>.*?)\s*(?P<operator><=|>=|==|!=|<|>)\s*(?P<number>[0-9.]+)(?P<factor>x)?(?:\s+(?P<base>[a-z]+))?",
    re.DOTALL,
)
_SELECTOR: Final = re.compile(r"(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?", re.DOTALL)
LABEL: Final = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_STAT: Final = re.compile(r"p([0-9]{1,2}(?:\.[0-9]+)?)|avg|max|min|sum")
_INCREASE: Final = "increase "
_DEFAULT_STAT: Final = "p99"


class GuardKind(StrEnum):
    """Kind of a guard, as written before its colon."""

    LAG = "lag"
    UNDER_REPLICATED = "under-replicated"
    CLIENTS = "clients"
    METRICS = "metrics"
    PROMETHEUS = "prometheus"
    COMMAND = "command"


class LimitBase(StrEnum):
    """Figure that the limit of a guard is a multiple of."""

    BEFORE = "before"
    UNCHANGED = "unchanged"


_FORMS: Final = MappingProxyType(
    {
        GuardKind.LAG: "lag: GROUP < NUMBER",
        GuardKind.UNDER_REPLICATED: "under-replicated < NUMBER",
        GuardKind.CLIENTS: "clients: METRIC [p99|avg|max|min|sum] < NUMBER, or < FACTORx before|unchanged",
        GuardKind.METRICS: 'metrics: [increase] NAME{label="value"} < NUMBER',
        GuardKind.PROMETHEUS: "prometheus: URL EXPRESSION < NUMBER",
        GuardKind.COMMAND: "command: COMMAND",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardLimit:
    """Comparison that a figure has to satisfy."""

    operator: str
    number: float
    """Number to compare with, or the factor of ``base``."""
    base: LimitBase | None
    """None: the number is absolute."""

    def allows(self, figure: float, bound: float | None = None) -> bool:
        """Return whether a figure satisfies the comparison with a number. None: the limit's own number."""
        return _OPERATORS[self.operator](figure, self.number if bound is None else bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """One guard."""

    text: str
    """The guard as the operator wrote it, which also names it in the record and in messages."""
    kind: GuardKind
    subject: str
    """Group, name of the metric, Prometheus query, or command."""
    limit: GuardLimit
    url: str = ""
    """Prometheus server."""
    stat: str = _DEFAULT_STAT
    """Statistic over the clients."""
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Labels that samples of the metric must have."""
    is_increase: bool = False
    """Whether the figure is the increase since the start of the roll-out."""

    @property
    def needs_baseline(self) -> bool:
        """Return whether the decision needs the figure before the roll-out."""
        return self.is_increase or self.limit.base is not None


class GuardOutcome(StrEnum):
    """Outcome of one evaluation."""

    PASSED = "passed"
    FAILED = "failed"
    NO_DATA = "no data"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardResult:
    """Outcome of one guard with its reason."""

    guard: str
    outcome: GuardOutcome
    reason: str

    def __str__(self) -> str:
        """Return the result as a sentence for people."""
        return f"guard '{self.guard}': {self.outcome.value}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of one guard. None: no data."""

    now: float | None
    before: float | None = None
    counters: tuple[float | None, ...] = ()
    """Sum of the samples of each page of metrics, for an increase. None: the page lacks the metric."""
    counters_before: tuple[float | None, ...] = ()
    unchanged: float | None = None
    """The same figure of the clients that are not changed yet."""
    trouble: str = ""
    """Reason why there is no data, or too little for the guard to pass."""
    failure: str = ""
    """Reason why the guard fails whatever its figure is; empty if there is none."""


def parse_guard(text: str) -> Guard:
    """Parse one ``--guard``.

    Raises:
        SettingsError: The text is no guard. The message names the guard and the allowed forms.
    """
    kind_text, colon, rest = text.partition(":")
    if not colon:
        kind_text, rest = (re.split(r"[\s<>=!]", text.strip(), maxsplit=1)[0], text.strip())
        rest = rest[len(kind_text) :]
    try:
        kind = GuardKind(kind_text.strip())
    except ValueError as error:
        kinds = [each.value for each in GuardKind]
        raise SettingsError(
            f"--guard {text!r}: unknown guard {kind_text.strip()!r}: expected one of {'; '.join(_FORMS.values())}"
            f"{did_you_mean(kind_text.strip(), kinds)}"
        ) from error
    if kind is GuardKind.COMMAND:
        if not rest.strip():
            raise _wrong(text, kind, "the command is missing")
        return Guard(text=text, kind=kind, subject=rest.strip(), limit=GuardLimit(operator="==", number=0, base=None))
    match = _LIMIT.fullmatch(rest.strip())
    if match is None:
        raise _wrong(text, kind, "it must end with a comparison and a number")
    return _guard(text, kind, match["subject"].strip(), _limit(text, kind, match))


def _limit(text: str, kind: GuardKind, match: re.Match[str]) -> GuardLimit:
    try:
        number = float(match["number"])
    except ValueError as error:
        raise _wrong(text, kind, f"{match['number']!r} is not a number") from error
    base = match["base"] or (LimitBase.BEFORE if match["factor"] else None)
    if (base is not None) != bool(match["factor"]):
        raise _wrong(text, kind, f"{match['number']} {base}: a relative limit is written {match['number']}x {base}")
    allowed = [LimitBase.BEFORE, *([LimitBase.UNCHANGED] if kind is GuardKind.CLIENTS else [])]
    if base is not None and base not in allowed:
        raise _wrong(text, kind, f"{base!r}: expected one of {', '.join(allowed)}")
    return GuardLimit(operator=match["operator"], number=number, base=None if base is None else LimitBase(base))


def _guard(text: str, kind: GuardKind, subject: str, limit: GuardLimit) -> Guard:
    if kind is GuardKind.UNDER_REPLICATED:
        if subject:
            raise _wrong(text, kind, f"unexpected {subject!r}")
        return Guard(text=text, kind=kind, subject="", limit=limit)
    if not subject:
        raise _wrong(text, kind, "its subject is missing")
    if kind is GuardKind.LAG:
        return Guard(text=text, kind=kind, subject=subject, limit=limit)
    if kind is GuardKind.PROMETHEUS:
        return _prometheus_guard(text, subject, limit)
    if kind is GuardKind.CLIENTS:
        metric, _, stat = subject.partition(" ")
        if stat and _STAT.fullmatch(stat.strip()) is None:
            raise _wrong(text, kind, f"unknown statistic {stat.strip()!r}")
        return Guard(text=text, kind=kind, subject=metric, stat=stat.strip() or _DEFAULT_STAT, limit=limit)
    return _metrics_guard(text, subject, limit)


def _prometheus_guard(text: str, subject: str, limit: GuardLimit) -> Guard:
    kind = GuardKind.PROMETHEUS
    url, _, expression = subject.partition(" ")
    if not re.match(r"https?://[^/\s]", url) or not expression.strip():
        raise _wrong(text, kind, "expected the http:// or https:// address of the server, a blank and a query")
    if limit.base is not None:
        raise _wrong(text, kind, "a query with several results has no figure before; compare within the query")
    return Guard(text=text, kind=kind, subject=expression.strip(), url=url.rstrip("/"), limit=limit)


def _metrics_guard(text: str, subject: str, limit: GuardLimit) -> Guard:
    kind = GuardKind.METRICS
    is_increase = subject.startswith(_INCREASE)
    match = _SELECTOR.fullmatch(subject.removeprefix(_INCREASE).strip())
    labels = {} if match is None else dict(LABEL.findall(match["labels"] or ""))
    if match is None or LABEL.sub("", match["labels"] or "").strip(", "):
        raise _wrong(text, kind, f'{subject!r} is not NAME or NAME{{label="value",...}}')
    if is_increase and limit.base is not None:
        raise _wrong(text, kind, "an increase has no figure before; it begins with the roll-out")
    return Guard(text=text, kind=kind, subject=match["name"], labels=labels, is_increase=is_increase, limit=limit)


def _wrong(text: str, kind: GuardKind, reason: str) -> SettingsError:
    return SettingsError(f"--guard {text!r}: {reason}; expected {_FORMS[kind]}, with <, <=, >, >=, == or !=")


def judge(guard: Guard, figures: Figures) -> GuardResult:
    """Return the outcome of a guard for its figures."""
    if figures.failure:
        return GuardResult(guard=guard.text, outcome=GuardOutcome.FAILED, reason=figures.failure)
    now, limit, reference = figures.now, guard.limit, ""
    bound = limit.number
    if now is None:
        return _no_data(guard, figures.trouble or "there is no figure")
    if guard.is_increase:
        if not figures.counters_before:
            return _no_data(guard, "there was no figure before the roll-out")
        now = _increase(figures.counters, figures.counters_before)
    elif limit.base is not None:
        # Once every client is changed, only the figure before the roll-out is left to compare with.
        is_beside = limit.base is LimitBase.UNCHANGED and figures.unchanged is not None
        base = figures.unchanged if is_beside else figures.before
        if base is None:
            return _no_data(guard, f"there is no figure of {limit.base.value}")
        bound = limit.number * base
        reference = f" ({limit.number:g} x {base:g} {'unchanged' if is_beside else 'before'})"
    is_met = _OPERATORS[limit.operator](now, bound)
    if is_met and figures.trouble:
        return _no_data(guard, figures.trouble)
    outcome = GuardOutcome.PASSED if is_met else GuardOutcome.FAILED
    return GuardResult(
        guard=guard.text, outcome=outcome, reason=f"{now:g}, wanted {limit.operator} {bound:g}{reference}"
    )


def _increase(counters: Sequence[float | None], before: Sequence[float | None]) -> float:
    """Return the sum of the increases of counters, each of another process.

    A counter that is smaller than before, or was missing, belongs to a process that was restarted.
    """
    pairs = [(now or 0.0, earlier or 0.0) for now, earlier in zip(counters, before, strict=True)]
    return sum(now - earlier if now >= earlier else now for now, earlier in pairs)


def _no_data(guard: Guard, reason: str) -> GuardResult:
    return GuardResult(guard=guard.text, outcome=GuardOutcome.NO_DATA, reason=reason)


def statistic(stat: str, values: Sequence[float]) -> float | None:
    """Return ``avg``, ``max``, ``min``, ``sum`` or a percentile (nearest rank) of values; None without values."""
    numbers = sorted(value for value in values if not math.isnan(value))
    if not numbers:
        return None
    if stat.startswith("p"):
        return numbers[max(math.ceil(float(stat[1:]) / 100 * len(numbers)), 1) - 1]
    if stat == "avg":
        return sum(numbers) / len(numbers)
    return sum(numbers) if stat == "sum" else numbers[0 if stat == "min" else -1]

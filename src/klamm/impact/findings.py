"""Predicted effects of a change: kind, severity, the names concerned, and figures with their words."""

from __future__ import annotations

from dataclasses import field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from klamm.impact.facts import NO_NEED, Need
from klamm.lazy_dataclass import dataclass
from klamm.timestamps import calendar_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SIZE_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")
_STEP: Final = 1024
_DURATIONS: Final = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second"))


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, such as ``1 partition`` or ``2,000 partitions``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def size(count: float) -> str:
    """Return a number of bytes, such as ``1.5 GiB``."""
    unit = 0
    while count >= _STEP and unit < len(_SIZE_UNITS) - 1:
        count, unit = count / _STEP, unit + 1
    return counted(int(count), "byte") if unit == 0 else f"{count:,.1f} {_SIZE_UNITS[unit]}"


def duration(milliseconds: int) -> str:
    """Return a duration rounded down to its largest unit, such as ``7 days``."""
    for unit, name in _DURATIONS:
        if milliseconds >= unit:
            return counted(milliseconds // unit, name)
    return f"{milliseconds} ms"


def moment(milliseconds: int) -> str:
    """Return a time in UTC to the second, or its number if no calendar can represent it."""
    at = calendar_time(milliseconds)
    return f"{milliseconds} ms" if at is None else at.strftime("%Y-%m-%d %H:%M:%S UTC")


def percent(part: float, whole: float) -> float:
    """Return a share in percent, to one decimal place; 0 if there is no whole."""
    return round(100 * part / whole, 1) if whole else 0.0


MAX_NAMES: Final = 10
"""Maximum number of names that a finding lists. Further names are only counted."""


class ImpactLevel(IntEnum):
    """Severity of a finding, or of a whole change. A higher value is worse."""

    NONE = 0
    """Nothing that anybody would notice."""
    NOTICE = 1
    """An effect worth knowing that harms nobody, for example a log that will be compacted."""
    DISRUPTION = 2
    """Clients are rejected, throttled, rebalanced or read in another order. No record is lost."""
    LOSS = 3
    """Records are deleted, or may be lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Names concerned by a finding: the first ones, and the total."""

    first: tuple[str, ...] = ()
    """At most ``MAX_NAMES`` names, sorted."""
    count: int = 0
    """Number of all names."""

    @classmethod
    def of(cls, names: Iterable[str]) -> Names:
        """Return the names without duplicates."""
        everything = sorted(set(names))
        return cls(first=tuple(everything[:MAX_NAMES]), count=len(everything))

    @classmethod
    def merged(cls, several: Iterable[Names]) -> Names:
        """Return the names of several findings. The count is an upper bound: left-out names may be the same."""
        parts = list(several)
        first = sorted({name for names in parts for name in names.first})
        listed = sum(len(names.first) for names in parts)
        return cls(first=tuple(first[:MAX_NAMES]), count=sum(n.count for n in parts) - listed + len(first))

    def __str__(self) -> str:
        """Return the names as a list for people, with the number of those left out."""
        left_out = self.count - len(self.first)
        return ", ".join(self.first) + (f" and {left_out:,} more" if left_out else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One predicted effect of a change."""

    kind: str
    """Stable identifier, for example ``records_deleted``. The kinds are listed in docs/change-safely.md."""
    level: ImpactLevel
    resource: str
    """The changed resource, for example ``topic orders`` or ``cluster default``."""
    message: str
    """The effect as a sentence."""
    figures: Mapping[str, int | float] = field(default_factory=dict)
    """Numbers by name. Each name ends in its unit: ``bytes``, ``records``, ``ms``, ``percent`` and the like."""
    names: Mapping[str, Names] = field(default_factory=dict)
    """Names by kind: ``topics``, ``groups``, ``producers``, ``clients``, ``partitions``, ``mirrors``, ``acls``,
    ``mechanisms``."""

    @property
    def topic(self) -> str | None:
        """Topic that the finding is about. None for another resource, and for many topics summed up."""
        kind, _, name = self.resource.partition(" ")
        return name if kind == "topic" else None

    def document(self) -> dict[str, Any]:
        """Return the finding for JSON or YAML output."""
        return {
            "kind": self.kind,
            "level": self.level.name.lower(),
            "resource": self.resource,
            "message": self.message,
            "figures": dict(self.figures),
            "names": {kind: {"first": list(names.first), "count": names.count} for kind, names in self.names.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Impact:
    """Everything predicted for a set of changes."""

    findings: tuple[Finding, ...] = ()
    """Findings, the worst first."""
    unknown: tuple[str, ...] = ()
    """Sentences about what could not be determined, and why."""
    missing: Need = NO_NEED
    """Kinds of facts that were not collected, or not for every partition."""

    @property
    def level(self) -> ImpactLevel:
        """Severity of the worst finding."""
        return max((finding.level for finding in self.findings), default=ImpactLevel.NONE)

    @property
    def deleted_bytes(self) -> int:
        """Upper bound of the bytes that the changes delete, one replica of each partition counted."""
        return int(sum(finding.figures.get("deleted_bytes", 0) for finding in self.findings))

    @property
    def stranded_groups(self) -> frozenset[str]:
        """Groups that would lose records they have not read, at most ``MAX_NAMES`` per finding."""
        return frozenset(
            name for f in self.findings if "unread_records" in f.figures for name in f.names["groups"].first
        )

    def document(self) -> dict[str, Any]:
        """Return the impact for JSON or YAML output."""
        return {
            "level": self.level.name.lower(),
            "findings": [finding.document() for finding in self.findings],
            "unknown": list(self.unknown),
        }

    def lines(self) -> list[str]:
        """Return the impact as lines for people."""
        shown = [f"  {finding.level.name}: {finding.resource}: {finding.message}" for finding in self.findings]
        return [f"Impact: {self.level.name.lower()}", *shown, *(f"  Unknown: {text}" for text in self.unknown)]

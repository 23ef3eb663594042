"""Prometheus' text format, version 0.0.4, and totals of the pages of processes that do the same work."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
LATENCY_BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Histogram:
    """Histogram of durations by upper bound."""

    __slots__ = ("buckets", "count", "total_s")

    def __init__(self) -> None:
        self.buckets = [0] * len(LATENCY_BUCKETS_S)
        self.count = 0
        self.total_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.count += 1
        self.total_s += seconds
        index = bisect_left(LATENCY_BUCKETS_S, seconds)
        if index < len(self.buckets):
            self.buckets[index] += 1


class Page:
    """One page of metrics, built family by family."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(
        self, name: str, kind: str, description: str, samples: Iterable[tuple[Mapping[str, str], float]]
    ) -> None:
        """Add a counter or a gauge with its samples by labels."""
        self.written_family(name, kind, description, ((label_text(labels), value) for labels, value in samples))

    def written_family(self, name: str, kind: str, description: str, samples: Iterable[tuple[str, float]]) -> None:
        """Add a counter or gauge with labels from ``label_text``, so that several families can share them."""
        self._head(name, kind, description)
        self._lines += [f"{name}{labels} {_number(value)}" for labels, value in samples]

    def histogram(self, name: str, description: str, samples: Iterable[tuple[Mapping[str, str], Histogram]]) -> None:
        """Add a histogram with its samples by labels."""
        self._head(name, "histogram", description)
        for labels, histogram in samples:
            reached = 0
            for bound, count in zip(LATENCY_BUCKETS_S, histogram.buckets, strict=True):
                reached += count
                self._lines.append(f"{name}_bucket{label_text({**labels, 'le': _number(bound)})} {reached}")
            self._lines.append(f"{name}_bucket{label_text({**labels, 'le': '+Inf'})} {histogram.count}")
            self._lines.append(f"{name}_sum{label_text(labels)} {_number(histogram.total_s)}")
            self._lines.append(f"{name}_count{label_text(labels)} {histogram.count}")

    def text(self) -> str:
        """Return the page."""
        return "\n".join([*self._lines, ""])

    def _head(self, name: str, kind: str, description: str) -> None:
        self._lines.append(f"# HELP {name} {description}")
        self._lines.append(f"# TYPE {name} {kind}")


def label_text(labels: Mapping[str, str]) -> str:
    """Return labels in braces, as they follow a metric's name. Empty without labels."""
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def merged(pages: Sequence[str], *, summed_gauges: Collection[str] = (), lowest_gauges: Collection[str] = ()) -> str:
    """Return a page with each sample once: the sum of counters, the largest value of gauges.

    Args:
        pages: Pages in Prometheus' text format, as ``exposition.Page`` writes them.
        summed_gauges: Names of gauges that count something in each process, and are added, too.
        lowest_gauges: Names of gauges of which the smallest value counts.
    """
    heads: dict[str, list[str]] = {}
    samples: dict[str, dict[str, float]] = {}
    kinds: dict[str, str] = {}
    for page in pages:
        family = ""
        for line in page.split("\n"):  # a client id may contain other separators of lines
            if line.startswith("# HELP "):
                family = line.split(" ", 3)[2]
                heads.setdefault(family, [line])
                samples.setdefault(family, {})
            elif line.startswith("# TYPE "):
                kinds[family] = line.rsplit(" ", 1)[1]
            elif line:
                name, _, text = line.rpartition(" ")
                value, total = float(text), samples[family].get(name)
                is_gauge = kinds[family] == "gauge" and family not in summed_gauges
                choose = min if family in lowest_gauges else max
                samples[family][name] = value if total is None else choose(total, value) if is_gauge else total + value
    lines = []
    for family, head in heads.items():
        lines += [*head, f"# TYPE {family} {kinds[family]}"]
        lines += [f"{name} {_number(value)}" for name, value in samples[family].items()]
    return "\n".join([*lines, ""])


def counters(page: str) -> str:
    """Return a page without its gauges, which say nothing about a process that has ended."""
    begin = "\n# HELP "
    families = f"\n{page}".split(begin)[1:]
    kept = [family for family in families if not family.split("\n")[1].endswith(" gauge")]
    return "".join(f"{begin}{family}" for family in kept).lstrip("\n")

"""Totals of several pages of Prometheus metrics, those of processes that do the same work."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


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
                value, known = float(text), samples[family].get(name)
                is_gauge = kinds[family] == "gauge" and family not in summed_gauges
                choose = min if family in lowest_gauges else max
                samples[family][name] = value if known is None else choose(known, value) if is_gauge else known + value
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


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)

"""Tables for people, JSON for later."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from benchmarks.measure import Measurement, Spread

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

_BASE = "klamm"
_WHOLE_FROM = 100


def print_tables(console: Console, measurements: Sequence[Measurement]) -> None:
    """Print one table per benchmark: medians, spreads, and how klamm compares with each peer."""
    for benchmark in dict.fromkeys(measurement.benchmark for measurement in measurements):
        console.print(_table(benchmark, [one for one in measurements if one.benchmark == benchmark]))


def _table(benchmark: str, measurements: Sequence[Measurement]) -> Table:
    table = Table(title=benchmark, title_justify="left", caption_justify="left")
    table.caption = Text("median [least .. greatest]; xN: klamm's median over this one's")
    table.add_column("side")
    spreads = _spreads(measurements)
    metrics = list(next(iter(spreads.values())))
    for metric in metrics:
        table.add_column(metric, justify="right")
    for side, by_metric in spreads.items():
        ratios = {
            metric: _ratio(spreads.get(_BASE, {}).get(metric), spread) if side != _BASE else ""
            for metric, spread in by_metric.items()
        }
        table.add_row(side, *(f"{_show(by_metric[metric])}{ratios[metric]}" for metric in metrics))
    return table


def _spreads(measurements: Sequence[Measurement]) -> dict[str, dict[str, Spread]]:
    sides = dict.fromkeys(measurement.side for measurement in sorted(measurements, key=lambda one: one.side != _BASE))
    return {
        side: {
            metric: Spread.over([one.values[metric] for one in measurements if one.side == side])
            for metric in next(one for one in measurements if one.side == side).values
        }
        for side in sides
    }


def _show(spread: Spread) -> str:
    if spread.least == spread.greatest:
        return _number(spread.median)
    return f"{_number(spread.median)} [{_number(spread.least)} .. {_number(spread.greatest)}]"


def _number(value: float) -> str:
    """Show three digits, and never fewer than the whole number has."""
    return f"{value:,.0f}" if value >= _WHOLE_FROM else f"{value:.3g}"


def _ratio(ours: Spread | None, theirs: Spread) -> str:
    return f"\nx{ours.median / theirs.median:.2f}" if ours and theirs.median else ""


def write_json(path: Path, *, machine: dict[str, Any], mode: str, measurements: Sequence[Measurement]) -> None:
    """Write everything that was measured, and on what."""
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {"mode": mode, "machine": machine, "measurements": [one.to_json() for one in measurements]}
    path.write_text(json.dumps(found, indent=2) + "\n")

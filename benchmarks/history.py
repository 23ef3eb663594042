"""History of the benchmarks: one line of JSON per run that was kept, in ``results/history.jsonl``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.measure import Measurement, Spread, spreads_of

if TYPE_CHECKING:
    import datetime
    from collections.abc import Iterator, Mapping, Sequence

HISTORY: Final = Path(__file__).parent / "results" / "history.jsonl"
_WORTH_A_LINE: Final = 0.1
"""Smallest relative change of a median that is reported."""


def append_to_history(
    path: Path, *, started: datetime.datetime, machine: Mapping[str, Any], measurements: Sequence[Measurement]
) -> None:
    """Append one line: date, commit, machine, and median, least and greatest value of each metric."""
    line = {
        "date": f"{started:%Y-%m-%d}",
        "commit": machine["commit"],
        "cpu": machine["cpu"],
        "cores": machine["cores"],
        "python": machine["python"],
        "load_before": round(machine["load_before"], 1),
        "figures": [
            [*what, *(float(f"{value:.4g}") for value in (spread.median, spread.least, spread.greatest))]
            for what, spread in spreads_of(measurements).items()
        ],
    }
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def latest_figures(path: Path) -> dict[tuple[str, str, str], tuple[str, Spread]]:
    """Return the date and the spread of each metric in the latest run that measured it."""
    found: dict[tuple[str, str, str], tuple[str, Spread]] = {}
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        line = json.loads(text)
        for benchmark, side, metric, median, least, greatest in line["figures"]:
            found[benchmark, side, metric] = line["date"], Spread(median=median, least=least, greatest=greatest)
    return found


def changes_since(path: Path, measurements: Sequence[Measurement]) -> Iterator[str]:
    """Yield a line for each metric whose median moved by a tenth or more since the latest kept run."""
    kept = latest_figures(path)
    for what, spread in spreads_of(measurements).items():
        if what in kept:
            date, before = kept[what]
            if before.median and abs(spread.median / before.median - 1) >= _WORTH_A_LINE:
                benchmark, side, metric = what
                yield f"{benchmark}, {side}: {metric} {spread.median:.3g}, was {before.median:.3g} on {date}"

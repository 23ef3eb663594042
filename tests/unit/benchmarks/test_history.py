"""The history of the benchmarks: one line per kept run, compared with the next run."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from benchmarks.history import HISTORY, append_to_history, changes_since, latest_figures
from benchmarks.measure import Measurement, Spread

if TYPE_CHECKING:
    from pathlib import Path

MACHINE = {"commit": "abc", "cpu": "a CPU", "cores": 2, "python": "3.11.7", "load_before": 0.25}
STARTED = datetime.datetime(2026, 11, 23, tzinfo=datetime.UTC)


def start_of(seconds: float, round_number: int = 1) -> Measurement:
    return Measurement(benchmark="cold start", side="klamm", round=round_number, values={"s": seconds})


def test_kept_run_is_read_back_with_its_spread(tmp_path: Path) -> None:
    # given
    path = tmp_path / "history.jsonl"
    # when
    append_to_history(path, started=STARTED, machine=MACHINE, measurements=[start_of(0.2), start_of(0.4), start_of(9)])
    # then
    assert latest_figures(path) == {
        ("cold start", "klamm", "s"): ("2026-11-23", Spread(median=0.4, least=0.2, greatest=9.0))
    }


def test_changed_median_is_reported_against_the_latest_run(tmp_path: Path) -> None:
    # given
    path = tmp_path / "history.jsonl"
    for seconds in (5.0, 0.2):
        append_to_history(path, started=STARTED, machine=MACHINE, measurements=[start_of(seconds)])
    # then
    assert list(changes_since(path, [start_of(0.21)])) == []
    assert list(changes_since(path, [start_of(0.3)])) == ["cold start, klamm: s 0.3, was 0.2 on 2026-11-23"]
    assert list(changes_since(tmp_path / "none.jsonl", [start_of(0.3)])) == []


def test_project_history_contains_cold_start() -> None:
    metrics = {metric for benchmark, _, metric in latest_figures(HISTORY) if benchmark == "cold start"}
    assert metrics == {
        "import klamm ms",
        "klamm --help ms",
        "broker's first answer s",
        "first answer CPU s",
        "installed MiB",
    }

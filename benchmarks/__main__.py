"""Run the benchmarks: ``python -m benchmarks [--quick] [--only NAME ...]``."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from benchmarks import (
    authorizer,
    brokers_for_tests,
    client_configs,
    cold_start,
    configs,
    dataframes,
    describe,
    fault_control,
    fetching,
    gateway,
    group_members,
    hostile,
    impact,
    mirror,
    mirror_far,
    mirror_latency,
    mirror_many,
    mirror_offsets,
    mirror_start,
    registrations,
    startup,
    throughput,
)
from benchmarks import (
    plan as large_plan,
)
from benchmarks.goals import verdicts
from benchmarks.history import HISTORY, append_to_history, changes_since
from benchmarks.machine import describe_machine
from benchmarks.measure import Plan
from benchmarks.report import print_tables, write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.measure import Measurement

BENCHMARKS: Mapping[str, Callable[[Plan], Iterator[Measurement]]] = {
    "startup": startup.run,
    "cold-start": cold_start.run,
    "brokers-for-tests": brokers_for_tests.run,
    "fault-control": fault_control.run,
    "configs": configs.run,
    "describe": describe.run,
    "plan": large_plan.run,
    "authorizer": authorizer.run,
    "client-configs": client_configs.run,
    "throughput": throughput.run,
    "fetching": fetching.run,
    "mirror": mirror.run,
    "mirror-far": mirror_far.run,
    "mirror-latency": mirror_latency.run,
    "mirror-many": mirror_many.run,
    "mirror-offsets": mirror_offsets.run,
    "mirror-start": mirror_start.run,
    "registrations": registrations.run,
    "dataframes": dataframes.run,
    "gateway": gateway.run,
    "group-members": group_members.run,
    "impact": impact.run,
    "hostile": hostile.run,
}
_RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Measure, print the tables, write the JSON."""
    options = _options()
    console = Console()
    machine = describe_machine()
    started = datetime.datetime.now(tz=datetime.UTC)
    plan = Plan(
        quick=options.quick,
        sides=tuple(options.sides or ()),
        megabytes=options.megabytes,
        loads=tuple(options.loads or ()),
    )
    mode = "quick" if options.quick else "full"
    where = f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB; {machine['java']}"
    console.print(where, style="bold")
    measurements: list[Measurement] = []
    path = options.out or _RESULTS / f"{started:%Y-%m-%d-%H%M%S}-{mode}.json"
    for name in options.only or BENCHMARKS:
        found: list[Measurement] = []
        for measurement in BENCHMARKS[name](plan):
            values = ", ".join(f"{metric} {value:.4g}" for metric, value in measurement.values.items())
            console.print(
                f"{measurement.benchmark} - {measurement.side} - round {measurement.round}: {values}", soft_wrap=True
            )
            found.append(measurement)
            measurements.append(measurement)
            # After every measurement: a run that is broken off has still told what it found.
            write_json(path, machine=machine, mode=mode, measurements=measurements)
        print_tables(console, found)
    for line in (*verdicts(measurements), *changes_since(HISTORY, measurements)):
        console.print(line, markup=False, soft_wrap=True)
    if options.history:
        append_to_history(HISTORY, started=started, machine=machine, measurements=measurements)
    console.print(f"Written to {path}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few minutes instead of an hour: less data, one round")
    parser.add_argument("--only", nargs="+", choices=list(BENCHMARKS), help="run these alone")
    parser.add_argument("--sides", nargs="+", help="measure these sides alone, by the names in the tables")
    parser.add_argument("--megabytes", type=int, default=0, help="how much mirrors copy: 20000 shows whether they grow")
    labels = [load.label for load in mirror.LOADS]
    parser.add_argument("--loads", nargs="+", choices=labels, help="let mirrors copy these alone")
    parser.add_argument("--history", action="store_true", help="append the medians to results/history.jsonl")
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Cold start without extras: ``import klamm``, ``klamm --help``, the first answer of the broker, the installed size.

klamm is installed from its wheel into an environment of its own, with its required dependencies alone and compiled to
bytecode as pip does. Files are in the page cache; every process is new.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.measure import Measurement, Plan, cpu_seconds, wait_for
from tests.support.base_install import BaseInstall
from tests.support.probe import broker_count_of
from tests.support.processes import free_port, stop_process

if TYPE_CHECKING:
    from collections.abc import Iterator

_BENCHMARK: Final = "cold start"
_MEBI: Final = 1024 * 1024
_TIMEOUT_S: Final = 60.0
_IMPORT: Final = "import time; began = time.perf_counter(); import klamm; print(time.perf_counter() - began)"


def run(plan: Plan) -> Iterator[Measurement]:
    """Measure klamm alone. Nothing of Apache Kafka corresponds to it."""
    with tempfile.TemporaryDirectory(prefix="klamm-cold-") as folder:
        installed = BaseInstall(Path(folder))
        installed.compile()
        for number in range(plan.rounds(15, quick=5)):
            answer_s, answer_cpu_s = _first_answer(installed, Path(folder, f"data-{number}"))
            values = {
                "import klamm ms": 1000 * float(installed.run("-c", _IMPORT).stdout),
                "klamm --help ms": 1000 * _seconds_of_help(installed),
                "broker's first answer s": answer_s,
                "first answer CPU s": answer_cpu_s,
                "installed MiB": installed.size_bytes() / _MEBI,
            }
            yield Measurement(benchmark=_BENCHMARK, side="klamm", round=number + 1, values=values)


def _seconds_of_help(installed: BaseInstall) -> float:
    """Return the time of the whole process, the start of Python included."""
    began = time.perf_counter()
    subprocess.run([*installed.command, "--help"], env=installed.environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def _first_answer(installed: BaseInstall, data_dir: Path) -> tuple[float, float]:
    """Start a broker on a new data directory.

    Returns:
        Seconds from the start of the process until a Metadata response has arrived, and its CPU seconds by then.
    """
    port = free_port()
    began = time.perf_counter()
    broker = subprocess.Popen(
        [*installed.command, "broker", "--listen", f"127.0.0.1:{port}", "--data-dir", data_dir],
        env=installed.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(
            lambda: broker_count_of("127.0.0.1", port) > 0,
            timeout_s=_TIMEOUT_S,
            what="the broker's first answer",
            interval_s=0.002,
        )
        answered = time.perf_counter()
        return answered - began, cpu_seconds([broker.pid])
    finally:
        stop_process(broker)

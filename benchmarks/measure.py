"""What is measured and how: CPU and memory of whole process trees, medians and spreads over alternating rounds."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import psutil  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_MEBI: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One side in one round."""

    benchmark: str
    side: str
    round: int
    values: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A median with the least and greatest of its rounds."""

    median: float
    least: float
    greatest: float

    @classmethod
    def over(cls, values: Sequence[float]) -> Spread:
        """Summarise at least one value."""
        return cls(median=statistics.median(values), least=min(values), greatest=max(values))


def spreads_of(measurements: Iterable[Measurement]) -> dict[tuple[str, str, str], Spread]:
    """Return the spread of each metric over its rounds, by benchmark, side and metric."""
    gathered: dict[tuple[str, str, str], list[float]] = {}
    for measurement in measurements:
        for metric, value in measurement.values.items():
            gathered.setdefault((measurement.benchmark, measurement.side, metric), []).append(value)
    return {what: Spread.over(values) for what, values in gathered.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was asked for on the command line."""

    quick: bool
    sides: tuple[str, ...]
    """Empty: all."""
    megabytes: int = 0
    """How much a mirror copies; 0: what the benchmark says."""
    loads: tuple[str, ...] = ()
    """What a mirror copies, by the labels in the tables; empty: all, and those of a quick run in a quick one."""

    def takes(self, load: str, *, is_quick: bool) -> bool:
        """Tell whether a load is to be measured."""
        return load in self.loads if self.loads else is_quick or not self.quick

    def rounds(self, full: int, quick: int = 1) -> int:
        """Return how often each side has its turn."""
        return quick if self.quick else full


def alternate(
    sides: Mapping[str, Callable[[], Mapping[str, float]]], *, benchmark: str, plan: Plan, rounds: int
) -> Iterator[Measurement]:
    """Run every side once per round; each round begins with another side, so that no one always runs on a warm disk.

    Raises:
        SystemExit: none of the sides asked for is one of this benchmark's.
    """
    names = [name for name in sides if not plan.sides or name in plan.sides]
    if not names:
        raise SystemExit(f"--sides {' '.join(map(repr, plan.sides))}: {benchmark} has {', '.join(map(repr, sides))}")
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            yield Measurement(benchmark=benchmark, side=name, round=number + 1, values=sides[name]())


def process_tree(pids: Iterable[int]) -> list[psutil.Process]:
    """Return the processes and all that descend from them, as far as they live."""
    tree: dict[int, psutil.Process] = {}
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            tree[pid] = process
            tree.update({child.pid: child for child in process.children(recursive=True)})
    return list(tree.values())


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU time of process trees so far, with that of children which have ended and been waited for."""
    total = 0.0
    for process in process_tree(pids):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])  # user, system, and both of reaped children
    return total


def pss_mebibytes(pids: Iterable[int]) -> float:
    """Return the proportional set size of process trees: shared pages are counted once among those who share them."""
    total = 0
    for process in process_tree(pids):
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            total += process.memory_full_info().pss
    return total / _MEBI


def wait_for(condition: Callable[[], bool], *, timeout_s: float, what: str, interval_s: float = 0.01) -> None:
    """Wait for something that another process does.

    Raises:
        TimeoutError: It did not happen.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"Waited {timeout_s:.0f} s in vain for {what}")
        time.sleep(interval_s)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` (0 to 1) of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class PeakMemory:
    """Looks once a second at the memory of a process tree while the block runs."""

    def __init__(self, pid: int) -> None:
        self.samples: list[float] = []
        """PSS in MiB."""
        self._pid = pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, name="memory", daemon=True)

    def _look(self) -> None:
        while True:
            self.samples.append(pss_mebibytes([self._pid]))
            if self._done.wait(1.0):
                return

    @property
    def peak(self) -> float:
        """The most there was, in MiB."""
        return max(self.samples)

    @property
    def growth(self) -> float:
        """MiB between the second and the last quarter of the run: what is made ready at the start is no growth."""
        quarter = max(1, len(self.samples) // 4)
        early = self.samples[quarter : 2 * quarter] or self.samples[:1]
        return statistics.fmean(self.samples[-quarter:]) - statistics.fmean(early)

    def __enter__(self) -> PeakMemory:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._done.set()
        self._thread.join()

"""What the numbers are meant to reach: told after a run, never asserted in a test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.measure import Measurement, spreads_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A bound on klamm's median, or on its ratio to a peer's."""

    benchmark: str
    metric: str
    side: str = "klamm"
    peer: str | None = None
    """None: the bound is on the number itself."""
    at_least: float | None = None
    at_most: float | None = None

    def judge(self, medians: Mapping[tuple[str, str, str], float]) -> str | None:
        """Return a line about the goal, or None when what it is about was not measured."""
        ours = medians.get((self.benchmark, self.side, self.metric))
        theirs = medians.get((self.benchmark, self.peer, self.metric)) if self.peer else 1.0
        if ours is None or not theirs:
            return None
        value = ours / theirs
        reached = value >= self.at_least if self.at_least is not None else value <= (self.at_most or 0.0)
        bound = f">= {self.at_least:g}" if self.at_least is not None else f"<= {self.at_most:g}"
        against = f" of {self.peer}" if self.peer else ""
        times = "x" if self.peer else ""
        verdict = "reached" if reached else "MISSED"
        return f"{verdict:8} {self.benchmark}: {self.metric} {value:.3g}{times} (goal {bound}{times}{against})"


_MM2: Final = "MirrorMaker 2"
_TUNED: Final = "MirrorMaker 2, tuned"
_KAFKA: Final = "Apache Kafka"

GOALS: Final = (
    *(
        Goal(benchmark="waiting behind hostile clients", side=side, metric=f"{load}: added ms", at_most=50)
        for side in ("broker", "gateway")
        for load in ("pipelined", "unread", "long commits", "long produces", "unfinished")
    ),
    *(
        goal
        for batches in ("128 KiB", "16 KiB", "128 KiB, zstd", "16 KiB, zstd")
        for goal in (
            Goal(benchmark=f"mirror, batches of {batches}", metric="MB/s", peer=_MM2, at_least=6),
            Goal(benchmark=f"mirror, batches of {batches}", metric="MB/s", peer=_TUNED, at_least=2),
            Goal(benchmark=f"mirror, batches of {batches}", metric="MB/s", peer="bare loop", at_least=0.8),
            Goal(benchmark=f"mirror, batches of {batches}", metric="CPU s/GB", peer=_TUNED, at_most=0.25),
            Goal(benchmark=f"mirror, batches of {batches}", metric="PSS MiB", peer=_TUNED, at_most=1),
        )
    ),
    *(
        Goal(
            benchmark=f"mirror, batches of {batches}",
            side=side,
            metric="MB/s",
            peer="klamm",
            at_least=0.9,
        )
        for batches in ("128 KiB", "16 KiB")
        for side in ("klamm, equal offsets", "klamm, equal offsets by a replica")
    ),
    *(
        Goal(
            benchmark=f"mirror, batches of {batches}",
            side="klamm, equal offsets by a replica",
            metric="CPU s/GB",
            peer=_TUNED,
            at_most=1,
        )
        for batches in ("128 KiB", "16 KiB")
    ),
    Goal(benchmark="mirror, purged beginning of 100,000,000", metric="s", at_most=12),
    Goal(benchmark="mirror, purged beginning of 1,000,000,000", metric="s", at_most=120),
    Goal(benchmark="mirror, gap of 1,000,000", metric="offsets/s", at_least=100_000),
    Goal(benchmark="mirror, 1,000 records/s", metric="p50 ms", peer=_MM2, at_most=1),
    Goal(benchmark="mirror, 1,000 records/s", metric="p99 ms", peer=_MM2, at_most=2),
    Goal(
        benchmark="mirror, 1,000 records/s",
        side="klamm, exactly once",
        metric="p99 ms",
        peer=f"{_MM2}, exactly once",
        at_most=1,
    ),
    Goal(benchmark="impact of a default on 2,000 topics", metric="max s", at_most=5),
    Goal(benchmark="impact of a default on 2,000 topics", side=_KAFKA, metric="max s", at_most=5),
    Goal(benchmark="mirror, 10,000 partitions", metric="first round s", at_most=10),
    Goal(benchmark="mirror, 10,000 partitions", metric="next rounds s", at_most=10),
    *(
        goal
        for load in (
            "as shipped",
            "batches of 128 KiB",
            "as shipped, records of 100 B",
            "as shipped, records of 1024 B",
        )
        for goal in (
            Goal(benchmark=f"produce and consume, {load}", metric="produce MB/s", peer=_KAFKA, at_least=1),
            Goal(benchmark=f"produce and consume, {load}", metric="produce CPU ms/MB", peer=_KAFKA, at_most=1),
            Goal(benchmark=f"produce and consume, {load}", metric="consume MB/s", peer=_KAFKA, at_least=1.1),
            Goal(benchmark=f"produce and consume, {load}", metric="consume CPU ms/MB", peer=_KAFKA, at_most=0.5),
        )
    ),
    *(
        goal
        for load in (
            "fetch, 4 partitions, 1 connection",
            "fetch, 1,000 partitions, 50 connections",
            "consume, 1,000 partitions, 50 connections",
            "consume with TLS, 1,000 partitions, 50 connections",
        )
        for goal in (
            Goal(benchmark=load, metric="GB/s", peer=_KAFKA, at_least=1.1),
            Goal(benchmark=load, metric="CPU s/GB", peer=_KAFKA, at_most=0.5),
        )
    ),
    Goal(benchmark="config changes, 16 connections", metric="changes/s", at_least=8_000),
    Goal(benchmark="config changes, 16 connections", metric="p99 ms", at_most=8),
    *(
        Goal(
            benchmark="dataframes, 3,000,000 records of 100 B, lz4",
            side="klamm-kafka",
            metric=f"{what} rows/s",
            peer="Spark's own",
            at_least=at_least,
        )
        for what, at_least in (("written", 1), ("counted", 3))
    ),
    Goal(benchmark="1,000 group members", metric="settled s", peer=_KAFKA, at_most=1),
    Goal(benchmark="1,000 group members, assigned at once", metric="settled s", peer=_KAFKA, at_most=1),
    Goal(benchmark="describe 1,000 topics", metric="p50 ms", peer=_KAFKA, at_most=1),
    Goal(benchmark="2,000 clients ask every 30 s", metric="CPU % of a core", at_most=5),
    Goal(benchmark="2,000 clients ask every 30 s", metric="resolve p50 ms", at_most=0.3),
    Goal(benchmark="cold start", metric="import klamm ms", at_most=30),
    Goal(benchmark="cold start", metric="klamm --help ms", at_most=120),
    Goal(benchmark="cold start", metric="broker's first answer s", at_most=0.3),
    Goal(benchmark="cold start", metric="installed MiB", at_most=23.8),  # 25 MB
    Goal(benchmark="start and rest", metric="start s", at_most=0.5),
    Goal(benchmark="start and rest", metric="PSS MiB", at_most=60),
)


def verdicts(measurements: Sequence[Measurement]) -> list[str]:
    """Return a line for each goal that was measured."""
    medians = {what: spread.median for what, spread in spreads_of(measurements).items()}
    return [line for goal in GOALS if (line := goal.judge(medians)) is not None]

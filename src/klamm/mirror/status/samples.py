"""Samples of the progress of flows, for the plots of the status page. Taken only while metrics are served."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from klamm.page.plot import WINDOW_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from klamm.mirror.progress.flow_progress import FlowProgress

SAMPLE_EVERY_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Progress of a flow at one moment."""

    at_s: float
    """Seconds since the epoch."""
    records_per_s: float
    lag: int | None
    """Number of source offsets that are not on the target. None: not known yet."""
    latency_ms: float | None
    """Mean of the replication latencies of partitions that copy records. None: no partition does."""


class Samples:
    """Samples of the last 15 minutes by flow. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_flow: dict[str, deque[Sample]] = {}

    def add(self, at_s: float, flows: Iterable[FlowProgress]) -> None:
        """Add one sample per flow, and drop the oldest one of a full ring."""
        for flow in flows:
            sample = _sample(at_s, flow)
            with self._lock:
                self._by_flow.setdefault(flow.flow, deque(maxlen=int(WINDOW_S / SAMPLE_EVERY_S) + 1)).append(sample)

    def by_flow(self) -> Mapping[str, Sequence[Sample]]:
        """Return the samples of each flow, the oldest one first."""
        with self._lock:
            return {flow: tuple(samples) for flow, samples in self._by_flow.items()}


def _sample(at_s: float, flow: FlowProgress) -> Sample:
    latencies = [
        partition.replication_latency.mean
        for partition in flow.partitions
        if partition.records_per_s and partition.replication_latency is not None
    ]
    latency_ms = sum(latencies) / len(latencies) if latencies else None
    return Sample(at_s=at_s, records_per_s=flow.records_per_s, lag=flow.lag, latency_ms=latency_ms)

"""Values of a flow that the status page plots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.page.plot import count_text

if TYPE_CHECKING:
    from klamm.mirror.progress.flow_progress import FlowProgress

FIGURES: Final = (("Records/s", count_text), ("Lag", count_text), ("Latency", lambda value: f"{value:,.0f} ms"))
"""Names of the values, and their texts."""


def flow_values(flow: FlowProgress) -> tuple[float | None, ...]:
    """Return records per second, lag, and the mean replication latency of partitions that copy records.

    The lag is the number of source offsets that are not on the target.
    """
    latencies = [
        partition.replication_latency.mean
        for partition in flow.partitions
        if partition.records_per_s and partition.replication_latency is not None
    ]
    return flow.records_per_s, flow.lag, sum(latencies) / len(latencies) if latencies else None

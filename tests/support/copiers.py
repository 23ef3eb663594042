"""The mirror's data path without Spark: a copier in this process, for tests that need exact control or speed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.fetch import FetchLimits
from klamm.mirror.copy.settings import CopySettings
from klamm.mirror.copy.transactions import ShardSettings
from klamm.mirror.naming import CONNECTOR
from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.spark.worker import new_copier

if TYPE_CHECKING:
    from collections.abc import Callable

    from klamm.mirror.copy.copier import Copier
    from klamm.mirror.copy.partition import PartitionId
    from klamm.mirror.progress.partition_progress import PartitionProgress

_MIB = 1024 * 1024


def copy_settings(
    source: str,
    target: str,
    *,
    alias: str,
    shards: int = 0,
    shard: int = 0,
    continue_after_loss: bool = False,
    interval_s: float = 0.05,
) -> CopySettings:
    """Return the settings of a flow from cluster ``alias``. With ``shards``, one of them writes exactly once."""
    transactions = None
    if shards:
        transactions = ShardSettings(
            id_prefix=f"{alias}-mm2-klamm-{alias}",
            shards=shards,
            shard=shard,
            interval_s=interval_s,
            shortest_s=min(interval_s, 0.02),
            timeout_ms=60_000,
        )
    return CopySettings(
        flow=f"{alias}->B",
        source_alias=alias,
        connector=CONNECTOR,
        source=ConnectionSettings(bootstrap_servers=tuple(source.split(",")), client_id="copier"),
        target=ConnectionSettings(bootstrap_servers=tuple(target.split(",")), client_id="copier"),
        source_offsets_topic=f"mm2-offsets.{alias}.internal",
        source_offsets_interval_s=0.05,
        read_committed=True,
        fetch_limits=FetchLimits(max_bytes=8 * _MIB, partition_max_bytes=_MIB, min_bytes=1, max_wait_ms=50),
        buffer_bytes=16 * _MIB,
        join_up_to=_MIB // 8,
        transactions=transactions,
        continue_after_loss=continue_after_loss,
    )


def run_until(copier: Copier, condition: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    """Run a copier in this thread until a condition holds, then end its transaction.

    Raises:
        TimeoutError: The condition did not hold in time.
    """
    deadline = time.monotonic() + timeout_s
    copier.run(lambda: condition() or time.monotonic() > deadline)
    if not condition():
        raise TimeoutError(f"Not within {timeout_s:g} s: {copier.progress()}")


def copy_all(settings: CopySettings, *partitions: PartitionId, timeout_s: float = 60.0) -> list[PartitionProgress]:
    """Copy partitions with one copier until each is complete or stopped, and return their progress."""
    copier = new_copier(settings, partitions)
    try:
        run_until(copier, lambda: all(map(is_done, copier.progress())), timeout_s=timeout_s)
        return list(copier.progress())
    finally:
        copier.close()


def is_done(row: PartitionProgress) -> bool:
    """Return whether a partition has all records of its source, or has stopped."""
    return row.state is CopyState.STOPPED or 0 <= row.end_offset <= row.next_offset

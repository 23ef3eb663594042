"""What the copiers of a flow have to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from klamm.client.fetch import FetchLimits
    from klamm.client.transport import ConnectionSettings
    from klamm.mirror.copy.transactions import ShardSettings
    from klamm.mirror.groups.offset_sync_writer import SyncSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySettings:
    """What a copier has to know of its flow. Travels to Spark's tasks."""

    flow: str
    """``A->B``."""
    source_alias: str
    source: ConnectionSettings
    target: ConnectionSettings
    positions_topic: str
    positions_interval_s: float
    read_committed: bool
    start_at_latest: bool
    """Where a partition starts that was never mirrored (``auto.offset.reset``)."""
    fetch_limits: FetchLimits
    buffer_bytes: int
    """Fetched and not yet acknowledged, over all partitions of the copier."""
    join_up_to: int = 0
    """Bytes of the largest batch that small ones are joined to (``producer.batch.size``); 0: none are joined."""
    syncs: SyncSettings | None = None
    """None: no offset syncs are written."""
    transactions: ShardSettings | None = None
    """None: at least once."""
    continue_after_loss: bool = False
    """Whether to go on where records of the source are gone for good (``klamm.on.source.loss``)."""

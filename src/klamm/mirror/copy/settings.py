"""Settings of the copiers of a flow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from klamm.kafka_client.connection.transport import ConnectionSettings
    from klamm.kafka_client.data.fetch import FetchLimits
    from klamm.mirror.copy.offset_sync_writer import SyncSettings
    from klamm.mirror.copy.transactions import ShardSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySettings:
    """Settings of the copiers of one flow. Serialized to Spark's tasks."""

    flow: str
    """Name of the flow, ``A->B``."""
    source_alias: str
    source: ConnectionSettings
    target: ConnectionSettings
    source_offsets_topic: str
    positions_interval_s: float
    read_committed: bool
    fetch_limits: FetchLimits
    buffer_bytes: int
    """Most bytes fetched and not yet acknowledged, over all partitions of the copier."""
    auto_offset_reset: str = "earliest"
    """Start of a partition that was never mirrored: ``earliest``, ``latest``, ``by_duration`` or ``none``."""
    reset_duration_ms: int = 0
    """Age of the first record that counts with ``by_duration``."""
    join_up_to: int = 0
    """Largest size in bytes of a joined batch (``producer.batch.size``). 0: no batches are joined."""
    syncs: SyncSettings | None = None
    """Settings of the offset syncs. None: no offset syncs are written."""
    transactions: ShardSettings | None = None
    """Settings of the shard transactions (exactly once). None: at least once."""
    continue_after_loss: bool = False
    """Whether to continue where source records are lost for good (``klamm.on.source.loss``)."""

"""Partition logs in Kafka's segment format.

Batches are stored and served as producers send them, unless ``compression.type`` names another codec.
"""

from __future__ import annotations

from klamm.storage.log.config import HousekeepingSettings, LogConfig
from klamm.storage.log.directories import segment_bytes
from klamm.storage.log.files import LogRange
from klamm.storage.log.housekeeping import delete_records
from klamm.storage.log.manager import LogManager
from klamm.storage.log.partition import (
    WAITING_ENDS,
    AppendResult,
    AppendWaiter,
    PartitionLog,
    aborted_in,
    append_marker,
    find_committed,
)
from klamm.storage.log.segment import AbortedTxn
from klamm.storage.log.timestamps import TimestampOffset, offset_for_timestamp
from klamm.storage.log.validation import (
    DECOMPRESSED_AT_ONCE,
    InvalidRecordsError,
    InvalidTimestampsError,
    LongBatchError,
    RecordError,
    in_records_thread,
)

__all__ = [
    "DECOMPRESSED_AT_ONCE",
    "WAITING_ENDS",
    "AbortedTxn",
    "AppendResult",
    "AppendWaiter",
    "HousekeepingSettings",
    "InvalidRecordsError",
    "InvalidTimestampsError",
    "LogConfig",
    "LogManager",
    "LogRange",
    "LongBatchError",
    "PartitionLog",
    "RecordError",
    "TimestampOffset",
    "aborted_in",
    "append_marker",
    "delete_records",
    "find_committed",
    "in_records_thread",
    "offset_for_timestamp",
    "segment_bytes",
]

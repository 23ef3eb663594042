"""Which offset belongs to a timestamp (ListOffsets, KIP-79, KIP-734, KIP-405, KIP-1005)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.protocol.errors import CorruptBatchError, StorageError
from klamm.protocol.records import decode_records, verify_crc

if TYPE_CHECKING:
    from klamm.storage.log.partition import PartitionLog
    from klamm.storage.log.segment import LogSegment

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5


class TimestampOffset(NamedTuple):
    """An offset with its record's timestamp (-1 where none was asked for) and leader epoch (-1 unknown)."""

    timestamp: int
    offset: int
    leader_epoch: int


UNKNOWN: Final = TimestampOffset(-1, -1, -1)


def offset_for_timestamp(log: PartitionLog, timestamp: int, *, is_committed: bool = False) -> TimestampOffset:
    """Return the first offset whose record is not older than ``timestamp``, or what a negative one asks for.

    There is no tiered storage: EARLIEST_LOCAL is EARLIEST and LATEST_TIERED is unknown. For a reader of committed
    records (``is_committed``) the log ends at the last stable offset.

    Raises:
        CorruptBatchError: The batch that holds the record is damaged.
        StorageError: The disk refuses.
    """
    end_offset = log.last_stable_offset if is_committed else log.end_offset
    if timestamp == LATEST:
        return TimestampOffset(-1, end_offset, log.latest_epoch)
    if timestamp in {EARLIEST, EARLIEST_LOCAL}:
        epoch = log.epochs.epoch_of(log.log_start_offset) if log.segments else log.latest_epoch
        return TimestampOffset(-1, log.log_start_offset, epoch if epoch >= 0 else log.latest_epoch)
    if timestamp == LATEST_TIERED:
        return UNKNOWN
    found = _search(log, timestamp)
    return found if found.offset < end_offset else UNKNOWN


def _search(log: PartitionLog, timestamp: int) -> TimestampOffset:
    try:
        if timestamp == MAX_TIMESTAMP:
            return _of_max_timestamp(log)
        for segment in log.segments:
            if segment.max_timestamp >= timestamp:
                found = _in_segment(log, segment, timestamp)
                if found is not None:
                    return found
    except OSError as error:
        raise StorageError(f"Cannot read {log.name}: {error}") from error
    return UNKNOWN


def _of_max_timestamp(log: PartitionLog) -> TimestampOffset:
    newest = max(log.segments, key=lambda segment: segment.max_timestamp, default=None)
    if newest is None or newest.max_timestamp < 0:
        return UNKNOWN
    found = _in_segment(log, newest, newest.max_timestamp)
    return found if found is not None else UNKNOWN


def _in_segment(log: PartitionLog, segment: LogSegment, timestamp: int) -> TimestampOffset | None:
    """Go through the headers from where the indexes point to, and decode the one batch that holds the record."""
    before = segment.time_index.floor(timestamp)
    start = segment.position_of(segment.base_offset + before.value) if before is not None else 0
    newest = segment.head_at(start) if before is not None and start is not None else None
    if before is not None and (newest is None or newest.max_timestamp != before.key):
        start = 0  # a damaged entry: without the index nothing is skipped
    for head in segment.walk(start or 0):
        if head.max_timestamp < timestamp or head.last_offset < log.log_start_offset:
            continue
        batch = segment.batch_at(head.position)
        if batch is None or not verify_crc(batch):
            raise CorruptBatchError(f"The batch at offset {head.base_offset} of {log.name} is damaged")
        for record in decode_records(batch):
            if record.timestamp >= timestamp and record.offset >= log.log_start_offset:
                return TimestampOffset(record.timestamp, record.offset, head.partition_leader_epoch)
    return None

"""Offsets by timestamp (ListOffsets, KIP-79, KIP-734, KIP-405, KIP-1005, KIP-1023)."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.protocol.errors import CorruptBatchError, DecompressedTooLargeError, InvalidRecordError, StorageError
from klamm.protocol.records import BATCH_OVERHEAD, TimestampType, decompress_view, iter_fields, verify_crc
from klamm.protocol.records.codecs import MAX_DECOMPRESSED_BYTES
from klamm.storage.log.validation import DECOMPRESSED_AT_ONCE, AbandonedError, in_records_thread

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from klamm.protocol.records import RecordBatch
    from klamm.storage.log.partition import PartitionLog
    from klamm.storage.log.segment import LogSegment

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
_RECORDS_AT_ONCE: Final = 1000
"""Largest batch that is searched on the event loop, in records. Takes about two milliseconds."""
_BYTES_AT_ONCE: Final = 4 * 1024 * 1024
_HEADS_AT_ONCE: Final = 2000
"""Number of batch headers that are searched without a pause. Takes about three milliseconds."""


class TimestampOffset(NamedTuple):
    """An offset with the timestamp of its record (-1 if not requested) and its leader epoch (-1 if unknown)."""

    timestamp: int
    offset: int
    leader_epoch: int


UNKNOWN: Final = TimestampOffset(-1, -1, -1)


async def offset_for_timestamp(log: PartitionLog, timestamp: int, *, is_committed: bool = False) -> TimestampOffset:
    """Return the first offset whose record is not older than ``timestamp``. A negative one stands for a special offset.

    MAX_TIMESTAMP covers the remaining segments as a whole, as in Kafka, so its offset may be below the log start offset
    after DeleteRecords. There is no tiered storage: EARLIEST_LOCAL equals EARLIEST, LATEST_TIERED and
    EARLIEST_PENDING_UPLOAD are unknown. With ``is_committed`` (``read_committed``), the log ends at the last stable
    offset.

    Raises:
        CorruptBatchError: The batch that contains the record is damaged.
        StorageError: The read failed.
    """
    end_offset = log.last_stable_offset if is_committed else log.end_offset
    if timestamp == LATEST:
        return TimestampOffset(-1, end_offset, log.latest_epoch)
    if timestamp in {EARLIEST, EARLIEST_LOCAL}:
        epoch = log.epochs.epoch_of(log.log_start_offset) if log.segments else log.latest_epoch
        return TimestampOffset(-1, log.log_start_offset, epoch if epoch >= 0 else log.latest_epoch)
    if timestamp in {LATEST_TIERED, EARLIEST_PENDING_UPLOAD}:
        return UNKNOWN
    while True:
        segments, failure = tuple(log.segments), None
        try:
            first = await _search(log, segments, timestamp)
        except OSError as error:
            first, failure = UNKNOWN, error
        # Retention or compaction may have removed a segment during a pause of the search.
        if first != UNKNOWN or segments == tuple(log.segments):
            break
    if failure is not None:
        raise StorageError(f"Cannot read {log.name}: {failure}") from failure
    return first if first.offset < end_offset else UNKNOWN


async def _search(log: PartitionLog, segments: Sequence[LogSegment], timestamp: int) -> TimestampOffset:
    if timestamp == MAX_TIMESTAMP:
        return await _of_max_timestamp(log)
    for segment in segments:
        if segment.max_timestamp >= timestamp:
            first = await _in_segment(log, segment, timestamp, start_offset=log.log_start_offset)
            if first is not None:
                return first
    return UNKNOWN


async def _of_max_timestamp(log: PartitionLog) -> TimestampOffset:
    """Return the first record with the largest timestamp in the remaining segments.

    As in Kafka (``UnifiedLog.fetchOffsetByTimestamp``), a segment counts as a whole: the record may be one that
    DeleteRecords has deleted, below the log start offset, until its segment is removed.
    """
    newest = max(log.segments, key=lambda segment: segment.max_timestamp, default=None)
    if newest is None:
        return UNKNOWN
    first = await _in_segment(log, newest, newest.max_timestamp, start_offset=0)
    return first if first is not None else UNKNOWN


async def _in_segment(
    log: PartitionLog, segment: LogSegment, timestamp: int, *, start_offset: int
) -> TimestampOffset | None:
    """Search the batch headers from the indexed position, and decode only the batch that contains the record.

    The time index has no entries where timestamps do not rise, so this may be all headers of the segment.
    """
    before = segment.time_index.floor(timestamp)
    start = segment.position_of(segment.base_offset + before.value) if before is not None else 0
    newest = segment.head_at(start) if before is not None and start is not None else None
    if before is not None and (newest is None or newest.max_timestamp != before.key):
        start = 0  # a damaged index entry: search from the start of the segment
    for number, head in enumerate(segment.walk(start or 0), 1):
        if number % _HEADS_AT_ONCE == 0:
            await asyncio.sleep(0)
        if head.max_timestamp < timestamp or head.last_offset < start_offset:
            continue
        batch = segment.batch_at(head.position)
        if batch is None or not verify_crc(batch):
            raise CorruptBatchError(f"The batch at offset {head.base_offset} of {log.name} is damaged")
        first = await _in_batch(batch, timestamp, start_offset)
        if first is not None:
            return first
    return None


async def _in_batch(batch: RecordBatch, timestamp: int, start_offset: int) -> TimestampOffset | None:
    search = partial(_first_record, batch, timestamp, start_offset)
    if batch.record_count <= _RECORDS_AT_ONCE and batch.size <= _BYTES_AT_ONCE:
        try:
            return search(decompress_up_to=DECOMPRESSED_AT_ONCE)
        except DecompressedTooLargeError:
            pass
    return await in_records_thread(lambda abandoned: search(abandoned=abandoned))


def _first_record(
    batch: RecordBatch,
    timestamp: int,
    start_offset: int,
    *,
    decompress_up_to: int = MAX_DECOMPRESSED_BYTES,
    abandoned: threading.Event | None = None,
) -> TimestampOffset | None:
    """Return the first record from ``start_offset`` that is not older than ``timestamp``; None if there is none.

    Raises:
        CorruptBatchError: The batch cannot be decoded.
        DecompressedTooLargeError: Its records have more than ``decompress_up_to`` bytes.
        AbandonedError: ``abandoned`` was set.
    """
    is_append_time = batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    data = bytes(decompress_view(batch.codec, batch.buffer[BATCH_OVERHEAD:], limit=decompress_up_to))
    try:
        for index, fields in enumerate(iter_fields(data, batch.record_count)):
            record_timestamp = batch.max_timestamp if is_append_time else batch.base_timestamp + fields.timestamp_delta
            offset = batch.base_offset + fields.offset_delta
            if record_timestamp >= timestamp and offset >= start_offset:
                return TimestampOffset(record_timestamp, offset, batch.partition_leader_epoch)
            if index % _RECORDS_AT_ONCE == 0 and abandoned is not None and abandoned.is_set():
                raise AbandonedError
    except InvalidRecordError as error:
        raise CorruptBatchError(f"{batch!r}: {error.error_message}") from error
    return None

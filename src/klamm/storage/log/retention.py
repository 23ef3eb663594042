"""Removal of old segments, by age, by size of the log, or after DeleteRecords.

The order makes a power cut harmless, also on a disk that reorders renames:

1. The log start offset advances in memory, and the segments below it leave the log (``PartitionLog.doomed``).
2. ``LogManager.checkpoint`` writes the log start offset durably.
3. Only then are the files renamed. A start removes whatever is left of them, because it is below the log start offset.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from klamm.protocol.errors import OffsetOutOfRangeError, StorageError

if TYPE_CHECKING:
    from klamm.storage.log.partition import PartitionLog
    from klamm.storage.log.segment import LogSegment

logger = logging.getLogger(__name__)

HIGH_WATERMARK = -1
"""Offset in DeleteRecords that stands for the high watermark, which deletes all records."""


def apply_retention(log: PartitionLog, now_ms: int, *, max_segments: int = 2**31) -> int:
    """Remove whole segments from the start of the log, at most ``max_segments``, and return their number.

    The files keep their names until the next checkpoint.

    ``retention.ms`` compares the largest timestamp of a segment, or the creation time of its file if it has none.
    ``retention.bytes`` keeps at least that many bytes. Both apply only with ``cleanup.policy`` "delete". Segments below
    the log start offset are always removed.

    Raises:
        OSError: The new segment of a log that loses all of its segments cannot be created.
    """
    doomed = 0
    size = log.size
    for index, segment in enumerate(log.segments):
        if doomed == max_segments:
            break
        end = log.segments[index + 1].base_offset if index + 1 < len(log.segments) else log.end_offset
        if segment.size == 0 and index + 1 == len(log.segments):
            break
        if end > log.log_start_offset and not (
            log.config.is_deleted and (_is_old(log, segment, now_ms) or _is_surplus(log, segment, size))
        ):
            break
        size -= segment.size
        doomed += 1
    if doomed:
        _remove_first(log, doomed)
    return doomed


def _is_old(log: PartitionLog, segment: LogSegment, now_ms: int) -> bool:
    if log.config.retention_ms < 0:
        return False
    written_ms = segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
    if segment.is_damaged:  # the unreadable part may contain newer records
        written_ms = max(written_ms, segment.created_ms)
    return now_ms - written_ms > log.config.retention_ms


def _is_surplus(log: PartitionLog, segment: LogSegment, size: int) -> bool:
    return log.config.retention_bytes >= 0 and size - segment.size >= log.config.retention_bytes


def _remove_first(log: PartitionLog, count: int) -> None:
    if count == len(log.segments):
        log.roll()  # the name of the new, empty segment keeps the end offset
    log.doomed += log.segments[:count]
    del log.segments[:count]
    log.forget_positions()
    log.log_start_offset = max(log.log_start_offset, log.segments[0].base_offset)
    log.recovery_point = max(log.recovery_point, log.log_start_offset)
    logger.info("%s: removed %d segments, the log starts at offset %d", log.name, count, log.log_start_offset)


def delete_records(log: PartitionLog, before_offset: int) -> int:
    """Advance the log start offset (DeleteRecords) and return it. Whole segments below it leave the log at once.

    The caller must write the checkpoint before it sends the response. The checkpoint also renames the files.

    Args:
        log: Log of the partition.
        before_offset: First offset to keep; ``HIGH_WATERMARK`` deletes all records.

    Raises:
        OffsetOutOfRangeError: The offset is below -1 or above the high watermark.
        StorageError: The new segment of a log that loses all of its segments cannot be created.
    """
    offset = log.high_watermark if before_offset == HIGH_WATERMARK else before_offset
    if not 0 <= offset <= log.high_watermark:
        raise OffsetOutOfRangeError(
            f"The specified offset {before_offset} is out of range (0 to {log.high_watermark}) for {log.name}"
        )
    if offset > log.log_start_offset:
        log.log_start_offset = offset
        below = max(log.segment_index(offset), 0)
        if below:
            try:
                _remove_first(log, below)
            except OSError as error:
                raise StorageError(f"Cannot delete records of {log.name}: {error}") from error
    return log.log_start_offset

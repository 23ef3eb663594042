"""Transactions as a partition log sees them: markers that end them, and what a reader of committed records is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.protocol.errors import StorageError
from klamm.protocol.records import LOG_OVERHEAD, ControlType, RecordBatch, encode_marker
from klamm.protocol.records.layout import INT32, LAST_OFFSET_DELTA_AT, OFFSET_AND_LENGTH
from klamm.storage.log.aborted import AbortedTransaction, entry_for, overlapping
from klamm.storage.log.appending import WAITING_ENDS
from klamm.storage.log.producers import NO_OFFSET

if TYPE_CHECKING:
    from klamm.storage.log.partition import PartitionLog


def append_marker(
    log: PartitionLog,
    control_type: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    now_ms: int,
) -> int:
    """End a producer's transaction in a partition; returns the marker's offset.

    Raises:
        InvalidProducerEpochError: A newer epoch of the producer was seen here.
        TransactionCoordinatorFencedError: A newer epoch of the coordinator was seen here.
        StorageError: The disk refuses; the transaction is open as before.
    """
    log.producers.check_marker(producer_id, producer_epoch, coordinator_epoch)
    data = encode_marker(
        control_type,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp=now_ms,
    )
    offset = log.end_offset
    log.write(RecordBatch(memoryview(data)), now_ms)
    first = log.producers.ended(
        producer_id, producer_epoch, coordinator_epoch=coordinator_epoch, timestamp=now_ms, now_ms=now_ms
    )
    if first != NO_OFFSET and control_type is ControlType.ABORT:
        log.segments[-1].aborted.append(entry_for(producer_id, first, offset, log.producers.first_open_offset))
    if log.waiters:
        log.wake(WAITING_ENDS if first != NO_OFFSET else len(data))
    return offset


def read_committed(log: PartitionLog, offset: int, max_bytes: int, *, min_one_batch: bool = True) -> bytes:
    """Read like ``PartitionLog.read``, but nothing from the last stable offset on.

    Raises:
        OffsetOutOfRangeError: ``offset`` is not in the log.
        StorageError: The disk refuses.
    """
    stable = log.last_stable_offset
    if stable <= offset <= log.end_offset:
        return b""
    data = log.read(offset, max_bytes, min_one_batch=min_one_batch)
    return data if stable == log.end_offset else _below(data, stable)


def aborted_in(log: PartitionLog, offset: int, data: bytes) -> list[AbortedTransaction]:
    """Return the aborted transactions that a reader has to leave out of ``data``, which was read from ``offset`` on.

    Raises:
        StorageError: The disk refuses.
    """
    if not data:
        return []
    try:
        segments = log.segments[max(log.segment_index(offset), 0) :]
        if not any(segment.aborted.entries for segment in segments):
            return []
        return overlapping(segments, offset, _end_of(data))
    except OSError as error:
        raise StorageError(f"Cannot read the index of aborted transactions of {log.name}: {error}") from error


def _below(data: bytes, end_offset: int) -> bytes:
    """Cut batches that begin at or behind an offset."""
    position = 0
    while position < len(data):
        base_offset, length = OFFSET_AND_LENGTH.unpack_from(data, position)
        if base_offset >= end_offset:
            return data[:position]
        position += LOG_OVERHEAD + length
    return data


def _end_of(data: bytes) -> int:
    """Return the offset behind the last batch."""
    position = last = 0
    while position < len(data):
        last = position
        position += LOG_OVERHEAD + OFFSET_AND_LENGTH.unpack_from(data, position)[1]
    base_offset: int = OFFSET_AND_LENGTH.unpack_from(data, last)[0]
    delta: int = INT32.unpack_from(data, last + LAST_OFFSET_DELTA_AT)[0]
    return base_offset + delta + 1

"""Transactions in a partition log: appending markers, and reads of ``read_committed`` consumers."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from klamm.protocol.errors import StorageError
from klamm.protocol.records import ControlType, RecordBatch, encode_marker
from klamm.storage.log.indexes import AbortedTxn
from klamm.storage.log.partition import WAITING_ENDS
from klamm.storage.log.producers import NO_OFFSET

if TYPE_CHECKING:
    from collections.abc import Iterable

    from klamm.storage.log.files import LogRange
    from klamm.storage.log.partition import PartitionLog
    from klamm.storage.log.segment import LogSegment


def append_marker(
    log: PartitionLog,
    control_type: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    now_ms: int,
) -> int:
    """Append the marker that ends a producer's transaction, and return its offset.

    Raises:
        InvalidProducerEpochError: A newer epoch of the producer has written to this partition.
        TransactionCoordinatorFencedError: A newer epoch of the coordinator has written to this partition.
        StorageError: The write failed. The transaction is still open.
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


def find_committed(log: PartitionLog, offset: int, max_bytes: int, *, min_one_batch: bool = True) -> LogRange | None:
    """Return the range of ``PartitionLog.find``, limited to offsets below the last stable offset.

    Raises:
        OffsetOutOfRangeError: ``offset`` is not in the log.
        StorageError: The read failed.
    """
    stable = log.last_stable_offset
    if stable <= offset <= log.end_offset:
        return None
    found = log.find(offset, max_bytes, min_one_batch=min_one_batch)
    if found is None or found.end_offset <= stable:
        return found
    try:
        position = log.segments[max(log.segment_index(stable), 0)].position_of(stable)
    except OSError as error:
        raise StorageError(f"Cannot read {log.name}: {error}") from error
    return found if position is None else found.cut(position, stable) or None


def aborted_in(log: PartitionLog, offset: int, found: LogRange | None) -> list[AbortedTxn]:
    """Return the aborted transactions that a consumer must filter out of ``found``, which starts at ``offset``.

    Raises:
        StorageError: The read failed.
    """
    if found is None:
        return []
    try:
        segments = log.segments[max(log.segment_index(offset), 0) :]
        if not any(segment.aborted.entries for segment in segments):
            return []
        return overlapping(segments, offset, found.end_offset)
    except OSError as error:
        raise StorageError(f"Cannot read the index of aborted transactions of {log.name}: {error}") from error


def overlapping(segments: Iterable[LogSegment], start: int, end: int) -> list[AbortedTxn]:
    """Return the aborted transactions with records in ``start`` to ``end``, in the order of their markers.

    Args:
        segments: Segments from the one that contains ``start``.
        start: First offset.
        end: Offset after the last one.

    Raises:
        OSError: An index cannot be read.
    """
    found = []
    for segment in segments:
        entries = segment.aborted.entries
        for entry in entries[bisect_left(entries, start, key=lambda entry: entry.last_offset) :]:
            if entry.first_offset < end:
                found.append(entry)
            if entry.last_stable_offset >= end:
                return found
    return found


def entry_for(producer_id: int, first_offset: int, marker_offset: int, first_open: int) -> AbortedTxn:
    """Return the entry of a transaction that a marker has ended.

    Args:
        producer_id: Producer of the transaction.
        first_offset: First offset of the transaction.
        marker_offset: Offset of the marker.
        first_open: First offset of the oldest transaction that is still open, ``NO_OFFSET`` if there is none.
    """
    stable = marker_offset + 1 if first_open == NO_OFFSET else first_open
    return AbortedTxn(producer_id, first_offset, marker_offset, stable)

"""Transactions in a partition log: appending markers, and reads of ``read_committed`` consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.protocol.errors import StorageError
from klamm.protocol.records import ControlType, RecordBatch, encode_marker
from klamm.storage.log.aborted import AbortedTxn, entry_for, overlapping
from klamm.storage.log.append_result import WAITING_ENDS
from klamm.storage.log.producers import NO_OFFSET

if TYPE_CHECKING:
    from klamm.storage.log.partition import PartitionLog
    from klamm.storage.log.ranges import LogRange


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

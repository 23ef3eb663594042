"""Transactions in a partition log, from the view of producers, coordinator and consumers."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from klamm.protocol.records import ControlType, Record, decode_marker, decode_records, iter_batches
from klamm.storage.log import aborted_in, append_marker, find_committed
from tests.support.logs import NOON_MS, batch

if TYPE_CHECKING:
    from klamm.storage.log import PartitionLog

COMMIT, ABORT = ControlType.COMMIT, ControlType.ABORT


def write(log: PartitionLog, producer_id: int, *values: str, sequence: int, epoch: int = 0, key: bytes = b"k") -> int:
    """Append a transactional batch and return its offset."""
    data = batch(
        *values, key=key, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, is_transactional=True
    )
    return log.append(data, is_verified=True).base_offset


def end(log: PartitionLog, producer_id: int, how: ControlType, *, epoch: int = 0) -> int:
    """Append a marker and return its offset."""
    return append_marker(log, how, producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=0, now_ms=NOON_MS)


def committed_records(log: PartitionLog, max_bytes: int = 1 << 20) -> list[Record]:
    """Return the records that a consumer with isolation.level=read_committed gets, by the rules of Kafka's Fetcher."""
    offset, records = log.log_start_offset, []
    while chunk := find_committed(log, offset, max_bytes):
        coming = deque(sorted(aborted_in(log, offset, chunk), key=lambda entry: entry.first_offset))
        aborted: set[int] = set()
        for item in iter_batches(chunk.read()):
            while coming and coming[0].first_offset <= item.last_offset:
                aborted.add(coming.popleft().producer_id)
            if item.is_control:
                marker = decode_marker(item)
                if marker is not None and marker.control_type is ABORT:
                    aborted.discard(item.producer_id)
            elif not (item.is_transactional and item.producer_id in aborted):
                records += [record for record in decode_records(item) if record.offset >= offset]
            assert item.last_offset < log.last_stable_offset
            next_offset = item.last_offset + 1
        offset = next_offset
    return records


def committed_values(log: PartitionLog, max_bytes: int = 1 << 20) -> list[str]:
    """Return the values of ``committed_records``."""
    return [(record.value or b"").decode() for record in committed_records(log, max_bytes)]

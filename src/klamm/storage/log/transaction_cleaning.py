"""Transactions during a compaction (Kafka's CleanedTransactionMetadata).

Records of aborted transactions are removed at once. A marker is removed when no batch of its transaction is left. An
ABORT marker's entry in the index of aborted transactions stays as long as the marker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.protocol.records import ControlType, decode_marker

if TYPE_CHECKING:
    from collections.abc import Iterable

    from klamm.protocol.records import RecordBatch
    from klamm.storage.log.aborted import AbortedTxn


class TransactionSweep:
    """State of the transactions at one position of a log, advanced batch by batch in the order of the log."""

    def __init__(self, aborted: Iterable[AbortedTxn] = ()) -> None:
        self._coming = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self._open: dict[int, AbortedTxn] = {}
        self._has_batches: set[int] = set()
        """Producers with at least one batch in their current transaction, committed or aborted."""

    def is_aborted(self, batch: RecordBatch) -> bool:
        """Advance over a batch of records, and return whether its transaction was aborted."""
        self._begin_up_to(batch.last_offset)
        if not batch.is_transactional:
            return False
        self._has_batches.add(batch.producer_id)
        return batch.producer_id in self._open

    def end(self, batch: RecordBatch) -> tuple[bool, AbortedTxn | None]:
        """Advance over a marker, and return whether no batch of its transaction is left, with the index entry to keep.

        Raises:
            CorruptBatchError: The batch is not a marker.
        """
        self._begin_up_to(batch.last_offset)
        marker = decode_marker(batch)
        if marker is None:
            return batch.record_count == 0, None
        is_empty = batch.producer_id not in self._has_batches
        self._has_batches.discard(batch.producer_id)
        if marker.control_type is ControlType.ABORT:
            entry = self._open.pop(batch.producer_id, None)
            return is_empty or entry is None, None if is_empty else entry
        return is_empty, None

    def _begin_up_to(self, offset: int) -> None:
        while self._coming and self._coming[-1].first_offset <= offset:
            entry = self._coming.pop()
            self._open[entry.producer_id] = entry

"""The work of a compaction: finding the last record of each key, and rewriting segments without the others.

All of this runs in a thread, on closed segments, to which nothing is appended. ``Pace`` pauses the thread, so that
requests get their share of the interpreter.

Transactions (Kafka's CleanedTransactionMetadata): records of aborted transactions are removed at once. A marker is
removed when no batch of its transaction is left. An ABORT marker's entry in the index of aborted transactions stays as
long as the marker.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import field
from typing import TYPE_CHECKING, Final

from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import CorruptBatchError
from klamm.protocol.records import (
    BATCH_OVERHEAD,
    LOG_OVERHEAD,
    Codec,
    ControlType,
    decode_marker,
    decode_records,
    encode_batch,
    iter_batches,
    iter_records,
    patch_header,
    verify_crc,
)
from klamm.storage.log.files import FilePool
from klamm.storage.log.segment import MAX_INDEX_INTERVAL, MAX_RELATIVE_OFFSET, LogSegment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from klamm.protocol.records import Record, RecordBatch
    from klamm.storage.log.files import Buffer
    from klamm.storage.log.segment import AbortedTxn


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
        """Advance over a marker.

        Returns:
            Whether the marker may be removed, and its entry in the index of aborted transactions if that must stay.

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


_WORK_S: Final = 0.002
_PAUSE_S: Final = 0.0005
_RECORDS_BETWEEN_RESTS: Final = 1000
_MAX_SLEEP_S: Final = 0.2
_LATEST_HORIZON: Final = 2**62 - 1
"""Latest delete horizon: the timestamps of a batch with it are stored as differences to it, which fit into 63 bits."""
_CHUNK_BYTES: Final = 1024 * 1024
"""Size of the read buffer of a segment."""
_ENTRY_BYTES: Final = 160
"""Approximate memory per key in the map, besides the bytes of the key."""


class StoppedError(Exception):
    """The broker is stopping, so the work was abandoned."""


class Pace:
    """Pauses between batches, which limit the thread to ``log.cleaner.io.max.bytes.per.second``.

    They also release the interpreter for requests. Used by one thread; any thread may set ``bytes_per_s`` and ``stop``.
    """

    def __init__(self, bytes_per_s: float = float("inf"), stop: threading.Event | None = None) -> None:
        self.bytes_per_s = bytes_per_s
        """Limit. A change ends the current pause, and bytes from before it no longer count. 0 means pause."""
        self._measured = bytes_per_s
        self._stop = stop if stop is not None else threading.Event()
        self._began = self._resumed = time.perf_counter()
        self._bytes = 0

    def did(self, size: int) -> None:
        """Count ``size`` bytes as read or written, and pause if necessary.

        Raises:
            StoppedError: The broker is stopping.
        """
        self._bytes += size
        now = time.perf_counter()
        while (ahead_s := self._ahead_s(now)) > 0 and not self._stop.is_set():
            time.sleep(min(ahead_s, _MAX_SLEEP_S))
            now = self._resumed = time.perf_counter()
        if now - self._resumed >= _WORK_S:
            time.sleep(_PAUSE_S)
            self._resumed = time.perf_counter()
        if self._stop.is_set():
            raise StoppedError

    def _ahead_s(self, now: float) -> float:
        """Return the time to pause until the work is within the limit."""
        if self._measured != self.bytes_per_s:
            self._measured, self._began, self._bytes = self.bytes_per_s, now, 0
        return self._bytes / self._measured - (now - self._began) if self._measured else _MAX_SLEEP_S

    def over(self, records: Iterable[Record]) -> Iterator[Record]:
        """Iterate over the records of a batch, possibly millions, with pauses.

        Raises:
            StoppedError: The broker is stopping.
        """
        for index, record in enumerate(records, 1):
            yield record
            if index % _RECORDS_BETWEEN_RESTS == 0:
                self.did(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastOffsets:
    """The last offset of each key in the part of a log that is new since the last pass."""

    offsets: Mapping[bytes, int]
    """Offset of the last record, by key."""
    end_offset: int
    """Offset up to which the log was read. Less than requested if there are too many keys for the memory limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentShape:
    """Limits of a segment, from the topic's configs."""

    max_bytes: int
    max_index_bytes: int
    index_interval: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSegment:
    """A segment to be read."""

    path: Path
    base_offset: int
    end_offset: int
    """Base offset of the next segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """A rewritten segment."""

    size: int
    count: int
    """Number of source segments that it replaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Everything that decides whether a record is kept."""

    last_offsets: LastOffsets
    producers_last_offsets: frozenset[int] = field(default_factory=frozenset)
    marker_epochs: Mapping[int, int] = field(default_factory=dict)
    """Epochs by producer id, of the producers of which only a marker is known."""
    sweep: TransactionSweep = field(default_factory=TransactionSweep)
    """Transactions of the log from its start. It must see every batch in order, so it advances with the rewriting."""
    now_ms: int
    delete_retention_ms: int

    @property
    def new_horizon(self) -> int:
        """Delete horizon of tombstones and markers that are met now."""
        return min(self.now_ms + self.delete_retention_ms, _LATEST_HORIZON)

    def fences(self, batch: RecordBatch) -> bool:
        """Return whether a marker is needed to fence older epochs of its producer."""
        return self.marker_epochs.get(batch.producer_id) == batch.producer_epoch

    def keeps(self, record: Record, horizon: int | None) -> bool:
        """Return whether a record is kept. ``horizon`` is the delete horizon of its batch, None if it has none.

        A record behind the part that was read is kept for a later pass (as in Kafka's ``Cleaner.shouldRetainRecord``).
        A tombstone that was dropped before an older record of its key would let that record come back.
        """
        if record.offset >= self.last_offsets.end_offset:
            return True
        if record.key is None or self.last_offsets.offsets.get(record.key, -1) > record.offset:
            return False
        return record.value is not None or horizon is None or self.now_ms < horizon


def find_last_offsets(
    paths: Sequence[Path], *, start: int, end: int, max_bytes: int, pace: Pace, sweep: TransactionSweep | None = None
) -> LastOffsets:
    """Read the batches from ``start`` to ``end``, and return the last offset of each key.

    Args:
        paths: Log files, in order.
        start: First offset to consider.
        end: Offset after the last file.
        max_bytes: Memory limit of the map; reading stops after the batch that exceeds it.
        pace: Pauses of the thread.
        sweep: Aborted transactions from ``start``; None if there are none.

    Raises:
        KafkaApiError: A batch is damaged.
        OSError: A file cannot be read.
        StoppedError: The broker is stopping.
    """
    sweep = sweep if sweep is not None else TransactionSweep()
    offsets: dict[bytes, int] = {}
    key_bytes = 0
    for path in paths:
        for batch in _batches(path):
            if batch.last_offset < start:
                continue
            if batch.is_control:
                sweep.end(batch)
            elif not sweep.is_aborted(batch):
                for record in pace.over(iter_records(batch)):
                    key = record.key
                    if key is not None:
                        if key not in offsets:
                            key_bytes += len(key)
                        offsets[key] = record.offset
            pace.did(batch.size)
            if key_bytes + len(offsets) * _ENTRY_BYTES > max_bytes:
                return LastOffsets(offsets=offsets, end_offset=batch.last_offset + 1)
    return LastOffsets(offsets=offsets, end_offset=end)


def rewrite(
    sources: Sequence[SourceSegment], directory: Path, *, rules: Rules, shape: SegmentShape, pace: Pace
) -> Rewritten:
    """Write one new segment with its indexes, from the first source and as many following ones as are sure to fit.

    Args:
        sources: Neighbouring segments, in order.
        directory: Directory for the new files, created here.
        rules: Rules that decide which records are kept.
        shape: Limits of the segment.
        pace: Pauses of the thread.

    Raises:
        KafkaApiError: A batch is damaged.
        OSError: A file cannot be read or written.
        StoppedError: The broker is stopping.
    """
    directory.mkdir(mode=0o700, exist_ok=True)
    pool = FilePool()
    base_offset, changed_s, count = sources[0].base_offset, 0.0, 0
    built = LogSegment(pool=pool, directory=directory, base_offset=base_offset, created_ms=0)
    try:
        built.create()
        for source in sources:
            status = source.path.stat()
            if count and not _fits(built, source, status.st_size, shape):
                break
            _copy(source.path, built, rules, shape, pace)
            changed_s = max(changed_s, status.st_mtime)
            count += 1
        built.seal()
    finally:
        pool.close()
    os.utime(built.file.path, (changed_s, changed_s))
    return Rewritten(size=built.size, count=count)


def _fits(built: LogSegment, source: SourceSegment, size: int, shape: SegmentShape) -> bool:
    """Return whether a whole source segment fits into the new one, even if all its records are kept."""
    # With an interval of 0 each batch has an entry.
    interval = min(max(shape.index_interval, BATCH_OVERHEAD), MAX_INDEX_INTERVAL)
    entries = len(built.offset_index) + size // interval + 1
    return (
        built.size + size <= shape.max_bytes
        and entries * 8 <= shape.max_index_bytes
        and source.end_offset - 1 - built.base_offset <= MAX_RELATIVE_OFFSET
    )


def _copy(path: Path, built: LogSegment, rules: Rules, shape: SegmentShape, pace: Pace) -> None:
    """Append the kept batches of a file."""
    for batch in _batches(path):
        data = _marker(batch, built, rules) if batch.is_control else _compacted(batch, rules, pace)
        if data is not None:
            (kept,) = iter_batches(data)
            built.append(
                [data],
                size=len(data),
                last_offset=kept.last_offset,
                max_timestamp=kept.max_timestamp,
                index_interval=shape.index_interval,
            )
        pace.did(batch.size + (len(data) if data is not None else 0))


def _batches(path: Path) -> Iterator[RecordBatch]:
    """Iterate over the batches of a file, and check their checksums.

    The file is not mapped into memory, because an unreadable disk sector or a truncation by another program would then
    end the process with SIGBUS.
    """
    with path.open("rb", buffering=_CHUNK_BYTES) as file:
        file_size = os.fstat(file.fileno()).st_size
        while head := file.read(LOG_OVERHEAD):
            length = int.from_bytes(head[8:], "big", signed=True)
            data = head + file.read(min(max(length, 0), file_size))  # a damaged length must not allocate 2 GiB
            (batch,) = iter_batches(data)
            if not verify_crc(batch):  # otherwise its new checksum would hide the damage
                raise CorruptBatchError(f"The batch at offset {batch.base_offset} of {path} has a wrong checksum")
            yield batch


def _marker(batch: RecordBatch, built: LogSegment, rules: Rules) -> Buffer | None:
    """Return a marker as it is kept, None if it is removed.

    A marker that is no longer needed gets a delete horizon when that is first seen, and is removed after the horizon.
    """
    is_empty, entry = rules.sweep.end(batch)
    if entry is not None:
        built.aborted.append(entry)
    if not is_empty:
        return batch.buffer
    if batch.has_delete_horizon and rules.now_ms >= batch.base_timestamp and not rules.fences(batch):
        return None
    if batch.has_delete_horizon or not batch.record_count:
        return batch.buffer
    return _rebuilt(batch, decode_records(batch), rules.new_horizon)


def _compacted(batch: RecordBatch, rules: Rules, pace: Pace) -> Buffer | None:
    """Return a batch with its kept records; None if it is removed."""
    horizon = batch.base_timestamp if batch.has_delete_horizon else None
    is_aborted = rules.sweep.is_aborted(batch)
    kept, count = [], 0
    for record in pace.over(iter_records(batch)):
        count += 1
        if not is_aborted and rules.keeps(record, horizon):
            kept.append(record)
    new_horizon = horizon
    if horizon is None and any(record.value is None for record in kept):
        new_horizon = rules.new_horizon
    if len(kept) == count and new_horizon == horizon:
        return batch.buffer
    if not kept and batch.last_offset not in rules.producers_last_offsets:
        return None
    return _rebuilt(batch, kept, new_horizon)


def _rebuilt(batch: RecordBatch, records: Sequence[Record], horizon: int | None) -> bytearray:
    built = encode_batch(
        records,
        codec=Codec(batch.codec) if records else Codec.NONE,
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        partition_leader_epoch=batch.partition_leader_epoch,
        timestamp_type=batch.timestamp_type,
        log_append_time=batch.max_timestamp,
        delete_horizon=horizon,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        is_transactional=batch.is_transactional,
        is_control=batch.is_control,
    )
    if not records:
        patch_header(built, max_timestamp=batch.max_timestamp)  # as in Kafka: the last time of the producer
    return built

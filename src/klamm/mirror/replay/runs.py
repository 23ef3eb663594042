"""Plan of the writes that put each source record at its source offset: dense batches, and holes between them.

A broker gives the records of a produced batch consecutive offsets. So a source batch with gaps becomes one batch per
run of consecutive offsets. Offsets without a record on the source are holes: control batches, records of aborted
transactions, and records that compaction or DeleteRecords removed.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from klamm.mirror.copy.batch import Outgoing, SkippedOffsets
from klamm.protocol.records import Codec, RecordBatch, decode_records, encode_batch, encode_section, layout, varint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_NO_BYTES: Final = memoryview(b"")
FILLERS_PER_BATCH: Final = 100_000
"""Number of records in a batch of fillers. With more, the broker takes longer per record."""
_FILLER_HEAD: Final = b"\0" + varint(0)
"""Attributes and timestamp delta of a filler."""
_FILLER_TAIL: Final = varint(1) + b"\0" + varint(0) + varint(0)
"""Key of one byte, empty value and no headers. A compacted topic rejects records without a key."""
_FILLER_LENGTHS: Final = [varint(len(_FILLER_HEAD) + size + len(_FILLER_TAIL)) for size in range(6)]
"""Encoded length of a filler, by the length of its offset delta."""
_FILLER_BYTES: Final = 1 + len(_FILLER_HEAD) + 1 + len(_FILLER_TAIL)
"""Size in bytes of a filler with an offset delta of one byte, with its length."""
_LONGER_DELTAS_FROM: Final = (1 << 6, 1 << 13)
"""First offset deltas whose varint is one byte longer than those before. The third is beyond the largest batch."""


def hole(next_offset: int) -> Outgoing:
    """Return a hole. It begins where the write before it ends.

    Args:
        next_offset: Offset after the hole.
    """
    return Outgoing(_NO_BYTES, 0, next_offset, -1, None)


def is_hole(outgoing: Outgoing) -> bool:
    """Return whether a write has no records."""
    return outgoing.record_count == 0


def first_offset(outgoing: Outgoing) -> int:
    """Return the offset of the first record of a dense batch."""
    return outgoing.next_offset - outgoing.record_count


def writes_of(item: Outgoing | SkippedOffsets, position: int, *, max_bytes: int) -> Iterator[Outgoing]:
    """Yield the writes that bring a partition from ``position`` to the end of a source batch.

    Args:
        item: Source batch, or several joined ones.
        position: Offset after the writes before.
        max_bytes: Size in bytes above which a batch of several records is split.
    """
    if isinstance(item, Outgoing):
        for run in _runs(item):
            if (start := first_offset(run)) > position:
                yield hole(start)
            position = run.next_offset
            yield from _split(run, max_bytes)
    if item.next_offset > position:
        yield hole(item.next_offset)


def _runs(outgoing: Outgoing) -> Iterator[Outgoing]:
    """Yield a batch for each run of consecutive source offsets."""
    if outgoing.is_dense:
        yield replace(outgoing, next_offset=outgoing.last_offset + 1, offsets=())
        return
    batch = RecordBatch(outgoing.view)
    records = decode_records(batch)
    for start, end in _bounds(outgoing.offsets):
        run = [record._replace(offset=at) for at, record in enumerate(records[start:end])]
        next_offset = outgoing.offsets[end - 1] + 1
        yield Outgoing(
            memoryview(encode_batch(run, codec=Codec(batch.codec))),
            len(run),
            next_offset,
            max(record.timestamp for record in run),
            None,
            last_offset=next_offset - 1,
            is_dense=True,
            first_timestamp=run[0].timestamp,
            leader_epoch=outgoing.leader_epoch,
        )


def _bounds(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the index ranges of runs of consecutive offsets."""
    start = 0
    for at in range(1, len(offsets) + 1):
        if at == len(offsets) or offsets[at] != offsets[at - 1] + 1:
            yield start, at
            start = at


def _split(outgoing: Outgoing, max_bytes: int) -> Iterator[Outgoing]:
    halves = outgoing.halves() if len(outgoing.view) > max_bytes else None
    if halves is None:
        yield outgoing
        return
    outgoing.release()
    for half in halves:
        yield from _split(half, max_bytes)


def filler_batch(position: int, count: int, timestamp: int) -> Outgoing:
    """Return a batch of empty records for offsets that were purged on the source before the mirror began.

    Args:
        position: Offset of the first filler.
        count: Number of fillers, at most ``FILLERS_PER_BATCH``.
        timestamp: Timestamp of the fillers in milliseconds since the epoch.
    """
    view = memoryview(bytearray(_fillers(count)))
    layout.TIMESTAMPS.pack_into(view, layout.BASE_TIMESTAMP_AT, timestamp, timestamp)
    return Outgoing(view, count, position + count, timestamp, None, last_offset=position + count - 1, is_dense=True)


@functools.lru_cache(maxsize=4)
def _fillers(count: int) -> bytes:
    """Return an encoded batch of fillers. Only its header differs from batch to batch, so it is encoded once."""
    size = _FILLER_BYTES * count + sum(max(0, count - first) for first in _LONGER_DELTAS_FROM)
    section = memoryview(_largest_section())[:size]
    return bytes(encode_section(section, record_count=count, base_timestamp=0, max_timestamp=0, codec=Codec.ZSTD))


@functools.cache
def _largest_section() -> bytes:
    """Return the records of the largest batch of fillers. Smaller batches begin with the same bytes."""
    deltas = map(varint, range(FILLERS_PER_BATCH))
    return b"".join([_FILLER_LENGTHS[len(delta)] + _FILLER_HEAD + delta + _FILLER_TAIL for delta in deltas])

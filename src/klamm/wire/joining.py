"""Small batches become one: a broker's work is by batch, and a Produce request takes one batch of each partition.

Only batches without compression are joined: of each record two numbers change, and the rest is copied.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from klamm.protocol.errors import CorruptBatchError
from klamm.protocol.records import BATCH_OVERHEAD, LOG_OVERHEAD, Codec, layout, read_varint, varint
from klamm.wire.batches import FetchedBatch, Treatment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from klamm.protocol.records import RecordBatch

_MOST_RECORDS: Final = 128
"""Of a batch that is joined: going through more of them costs as much as the batch does by itself."""
_SHORT: Final = 8192
"""Numbers below it are looked up."""
_MORE: Final = 0x80
"""The bit of a varint's byte that says that more follow."""


def in_groups(fetched: Iterable[FetchedBatch], *, join_up_to: int) -> Iterator[Sequence[FetchedBatch]]:
    """Yield runs of batches that are worth joining, and all others one by one.

    Args:
        fetched: in the order of their offsets.
        join_up_to: bytes of the largest batch that is made of several.

    Raises:
        CorruptBatchError: from ``fetched``; what came before was yielded.
    """
    group: list[FetchedBatch] = []
    size = 0
    try:
        for each in fetched:
            added = len(each.batch.buffer)
            is_joinable = _is_joinable(each)
            if group and not (is_joinable and size + added <= join_up_to and _follows(each, group[-1])):
                yield group
                group, size = [], 0
            if is_joinable:
                group.append(each)
                size += added
            else:
                yield [each]
    except CorruptBatchError:
        if group:
            yield group
        raise
    if group:
        yield group


def _is_joinable(fetched: FetchedBatch) -> bool:
    return (
        fetched.treatment is Treatment.COPY
        and fetched.batch.record_count <= _MOST_RECORDS
        and fetched.batch.codec == Codec.NONE
    )


def _follows(fetched: FetchedBatch, before: FetchedBatch) -> bool:
    return fetched.batch.base_offset == before.next_offset


def join(batches: Sequence[RecordBatch]) -> memoryview:
    """Return one batch of the records of several. Its checksum is wrong until it is stamped.

    Args:
        batches: of magic 2, without compression, without gaps in and between them, and with their producers' times.

    Raises:
        CorruptBatchError: the bytes of one are not the records that its header announces.
    """
    first = batches[0]
    header = bytearray(first.buffer[:BATCH_OVERHEAD])
    pieces: list[bytes | bytearray | memoryview] = [header, first.buffer[BATCH_OVERHEAD:]]
    count = first.record_count
    for batch in batches[1:]:
        try:
            pieces += _renumbered(batch, count, batch.base_timestamp - first.base_timestamp)
        except IndexError as error:
            raise CorruptBatchError(f"{batch!r} ends within a record") from error
        count += batch.record_count
    joined = bytearray().join(pieces)
    layout.INT32.pack_into(joined, layout.BATCH_LENGTH_AT, len(joined) - LOG_OVERHEAD)
    layout.INT32.pack_into(joined, layout.LAST_OFFSET_DELTA_AT, count - 1)
    layout.INT64.pack_into(joined, layout.MAX_TIMESTAMP_AT, max(batch.max_timestamp for batch in batches))
    layout.INT32.pack_into(joined, layout.RECORD_COUNT_AT, count)
    return memoryview(joined)


def _renumbered(batch: RecordBatch, first_delta: int, later_ms: int) -> list[bytes]:
    """Return the records of a batch, in pieces, counted from another offset and another time.

    A record is its length, one byte of attributes, its timestamp and its offset less the batch's, and what stays as
    it is. This runs for each record: numbers of one or two bytes are read without a call, and written from tables.
    """
    data = bytes(batch.buffer)
    short, stamps = _short_varints(), _stamps(later_ms)
    pieces: list[bytes] = []
    add = pieces.append
    end = BATCH_OVERHEAD
    for delta in range(first_delta, first_delta + batch.record_count):
        length = data[end]
        if length < _MORE:
            at = end + 1
            length >>= 1
        elif (more := data[end + 1]) < _MORE:
            at = end + 2
            length = (length & 0x7F | more << 7) >> 1
        else:
            length, at = read_varint(data, end)
        end = at + length
        stamp = data[at + 1]
        if stamp < _MORE:
            at += 2
            head = stamps[stamp]
        else:
            timestamp_delta, at = read_varint(data, at + 1, max_bits=63)
            head = b"\0" + varint(timestamp_delta + later_ms)
        while data[at] >= _MORE:
            at += 1
        if at >= end:
            raise CorruptBatchError(f"{batch!r} has a record that is shorter than its numbers")
        head += short[delta] if delta < _SHORT else varint(delta)
        length = end - at - 1 + len(head)
        add((short[length] if length < _SHORT else varint(length)) + head)
        add(data[at + 1 : end])
    if end != len(data):
        raise CorruptBatchError(f"{batch!r} does not end with its last record")
    return pieces


@functools.cache
def _short_varints() -> Sequence[bytes]:
    return [varint(number) for number in range(_SHORT)]


@functools.lru_cache(maxsize=64)
def _stamps(later_ms: int) -> _Stamps:
    return _Stamps(later_ms)


class _Stamps(dict[int, bytes]):
    """Attributes and timestamp of records that come later than their batch says, by the byte that tells their time."""

    def __init__(self, later_ms: int) -> None:
        super().__init__()
        self._later_ms = later_ms

    def __missing__(self, zigzag: int) -> bytes:
        """Make one that was not asked for before; there are 128."""
        self[zigzag] = head = b"\0" + varint(((zigzag >> 1) ^ -(zigzag & 1)) + self._later_ms)
        return head

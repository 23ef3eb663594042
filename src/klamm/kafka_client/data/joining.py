"""Joining of small record batches. A broker's work is per batch, and a Produce request carries one batch per partition.

In each record only the timestamp delta and the offset delta change; the rest is copied. Compressed batches are joined
only if they would otherwise have to wait, because joining decompresses and recompresses them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from klamm.kafka_client.data.batches import FetchedBatch, Treatment
from klamm.protocol.errors import CorruptBatchError
from klamm.protocol.records import (
    BATCH_OVERHEAD,
    LOG_OVERHEAD,
    Codec,
    compress,
    decompress,
    is_compiled,
    layout,
    read_varint,
    varint,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from klamm.protocol.records import RecordBatch

_MAX_RECORDS: Final = 512 if is_compiled() else 128
"""Maximum number of records in a batch to join. Scanning more of them costs as much as sending the batch by itself."""
_LEVELS: Final = {Codec.SNAPPY: None, Codec.LZ4: None, Codec.ZSTD: 1}
"""Codecs fast enough for joining, with the compression level for the joined batch.

zstd compresses 128 KiB at level 1 to fewer bytes than eight batches of 16 KiB at its default, level 3.
"""
_SHORT: Final = 8192
"""Varints below this number are looked up in a table."""
_MORE: Final = 0x80
"""Continuation bit of a varint byte: another byte follows."""


def in_groups(fetched: Iterable[FetchedBatch], *, join_up_to: int) -> Iterator[Sequence[FetchedBatch]]:
    """Yield runs of batches that are worth joining, and every other batch alone.

    Args:
        fetched: Batches in offset order.
        join_up_to: Maximum size in bytes of a joined batch.

    Raises:
        CorruptBatchError: Iterating over ``fetched`` raised it. All batches before the corrupt one have been yielded.
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
        and fetched.batch.record_count <= _MAX_RECORDS
        and (fetched.batch.codec == Codec.NONE or fetched.batch.codec in _LEVELS)
    )


def _follows(fetched: FetchedBatch, before: FetchedBatch) -> bool:
    """Return whether a batch can be joined to the one before it: no offset gap, same codec and same leader epoch."""
    return (
        fetched.batch.base_offset == before.next_offset
        and fetched.batch.codec == before.batch.codec
        and fetched.batch.partition_leader_epoch == before.batch.partition_leader_epoch
    )


def joined(
    group: Sequence[FetchedBatch], *, join_up_to: int, at_once: int
) -> Iterator[tuple[Sequence[FetchedBatch], memoryview | None]]:
    """Yield a run in parts, each with its joined batch, or None if a single batch is sent unchanged.

    Args:
        group: A run from ``in_groups``.
        join_up_to: Maximum size in bytes of a joined batch before compression.
        at_once: Number of batches that can be in flight together. Compressed batches are joined only if there are more.

    Raises:
        CorruptBatchError: The bytes of an uncompressed batch are not the records that its header declares.
    """
    if group[0].batch.codec == Codec.NONE:
        yield group, join([each.batch for each in group]) if len(group) > 1 else None
    elif len(group) <= at_once:
        for each in group:
            yield [each], None
    else:
        yield from _joined_again(group, join_up_to)


def _joined_again(
    group: Sequence[FetchedBatch], join_up_to: int
) -> Iterator[tuple[Sequence[FetchedBatch], memoryview | None]]:
    """Join compressed batches that are small and can be decompressed.

    The others are sent as they are; the target judges them.
    """
    part: list[FetchedBatch] = []
    contents: list[memoryview] = []
    size = 0
    for each in group:
        try:
            content = decompress(each.batch.codec, each.batch.buffer[BATCH_OVERHEAD:], limit=join_up_to)
        except CorruptBatchError:
            content = None
        if part and (content is None or size + len(content) > join_up_to):
            yield from _joined_part(part, contents)
            part, contents, size = [], [], 0
        if content is None:
            yield [each], None
        else:
            part.append(each)
            contents.append(content)
            size += len(content)
    if part:
        yield from _joined_part(part, contents)


def _joined_part(
    part: Sequence[FetchedBatch], contents: Sequence[memoryview]
) -> Iterator[tuple[Sequence[FetchedBatch], memoryview | None]]:
    if len(part) > 1:
        try:
            yield part, join([each.batch for each in part], contents)
        except CorruptBatchError:
            pass
        else:
            return
    for each in part:
        yield [each], None


def join(batches: Sequence[RecordBatch], contents: Sequence[memoryview] = ()) -> memoryview:
    """Return one batch with the records of several. Its checksum is invalid until the batch is stamped.

    Args:
        batches: Batches of magic 2 and the same codec, without offset gaps in and between them, with CreateTime
            timestamps.
        contents: Their decompressed records. Empty for uncompressed batches.

    Raises:
        CorruptBatchError: The bytes of a batch are not the records that its header declares.
    """
    first = batches[0]
    contents = contents or [batch.buffer[BATCH_OVERHEAD:] for batch in batches]
    pieces: list[bytes | bytearray | memoryview] = [contents[0]]
    count = first.record_count
    for batch, content in zip(batches[1:], contents[1:], strict=True):
        try:
            pieces += _renumbered(batch, bytes(content), count, batch.base_timestamp - first.base_timestamp)
        except IndexError as error:
            raise CorruptBatchError(f"{batch!r} ends within a record") from error
        count += batch.record_count
    codec = Codec(first.codec)
    if codec is not Codec.NONE:
        pieces = [compress(codec, bytearray().join(pieces), level=_LEVELS[codec])]
    whole = bytearray().join((first.buffer[:BATCH_OVERHEAD], *pieces))
    layout.INT32.pack_into(whole, layout.BATCH_LENGTH_AT, len(whole) - LOG_OVERHEAD)
    layout.INT32.pack_into(whole, layout.LAST_OFFSET_DELTA_AT, count - 1)
    layout.INT64.pack_into(whole, layout.MAX_TIMESTAMP_AT, max(batch.max_timestamp for batch in batches))
    layout.INT32.pack_into(whole, layout.RECORD_COUNT_AT, count)
    return memoryview(whole)


def _renumbered(batch: RecordBatch, data: bytes, first_delta: int, later_ms: int) -> list[bytes]:
    """Return the records of a batch in pieces, relative to another base offset and base timestamp.

    A record consists of its length, one byte of attributes, its timestamp delta, its offset delta, and a rest that does
    not change. This loop runs per record: varints of one or two bytes are read inline and written from tables.
    """
    short: list[bytes] = _short_varints()
    stamps: list[bytes] = _stamps(later_ms)
    pieces: list[bytes] = []
    end = 0
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
            if not head:
                stamps[stamp] = head = _stamp(stamp, later_ms)
        else:
            timestamp_delta, at = read_varint(data, at + 1, max_bits=63)
            head = b"\0" + varint(timestamp_delta + later_ms)
        while data[at] >= _MORE:
            at += 1
        if at >= end:
            raise CorruptBatchError(f"{batch!r} has a record shorter than its own fields")
        head += short[delta] if delta < _SHORT else varint(delta)
        length = end - at - 1 + len(head)
        pieces.append((short[length] if length < _SHORT else varint(length)) + head)
        pieces.append(data[at + 1 : end])
    if end != len(data):
        raise CorruptBatchError(f"{batch!r} has bytes after its last record")
    return pieces


@functools.cache
def _short_varints() -> list[bytes]:
    return [varint(number) for number in range(_SHORT)]


@functools.lru_cache(maxsize=64)
def _stamps(later_ms: int) -> list[bytes]:
    """Return the cache of ``_stamp`` results for a timestamp shift, indexed by the delta byte.

    Empty entries are not yet known.
    """
    return [b""] * _MORE


def _stamp(zigzag: int, later_ms: int) -> bytes:
    """Return a record's attributes and shifted timestamp delta, for a one-byte delta of a batch ``later_ms`` later."""
    return b"\0" + varint(((zigzag >> 1) ^ -(zigzag & 1)) + later_ms)

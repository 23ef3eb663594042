"""Conversion of record batches to Arrow columns, thousands of records at a time.

The length of a record must be read before the next record can be found, so this is a loop over records, which is
compiled in a wheel. Everything else is read by numpy from all records of a fetch at once. Arrow copies keys and values
exactly once.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import CorruptBatchError
from klamm.protocol.records import (
    BATCH_OVERHEAD,
    TimestampType,
    decode_records,
    decompress_view,
    read_headers,
    record_ends,
)
from klamm.protocol.records.layout import MAGIC

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from klamm.dataframes.positions import OffsetRange
    from klamm.protocol.records import RecordBatch
    from klamm.protocol.records.record import RecordHeaders

    Buffer = bytes | memoryview
    Numbers = NDArray[np.int64]

NAMES: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
"""Names of the columns, in the order of Spark's own Kafka source."""

_NO_TYPE: Final = -1
"""Kafka's ``TimestampType.NO_TIMESTAMP_TYPE``: messages of magic 0 have no timestamps."""
_MIN_RECORD: Final = 7
_GROUP_BYTES: Final = 1024 * 1024
"""Approximate number of decompressed bytes that are converted at a time: the numbers of so few records stay in the
processor's cache.
"""
_LARGE_BYTES: Final = _GROUP_BYTES // 2
"""Size of a batch that forms a group of its own, so that it is copied once and not twice."""
_PADDING: Final = bytes(16)
"""Bytes behind the last record, so that a truncated number can be read before it is detected."""
_MAX_SHIFT: Final = 63
_LAST_BYTE: Final = 0x7F
"""Largest value of the last byte of a varint. Larger values mean that another byte follows."""
_MICROSECONDS: Final = 1000
_LARGEST_TIMESTAMP: Final = (1 << 63) // _MICROSECONDS - 1


@dataclass(frozen=True, slots=True)
class ByteFields:
    """Keys or values of records, as parts of one buffer."""

    data: bytes
    begins: Numbers
    lengths: Numbers
    """A negative length means null."""

    def to_arrow(self) -> Any:
        """Return a BinaryArray."""
        count = len(self.lengths)
        size = int(self.lengths[0]) if count else 0
        if size > 0 and (self.lengths == size).all():
            # numpy copies elements of one size several times as fast as Arrow copies elements of any size.
            elements = np.ndarray((len(self.data) - size + 1,), f"V{size}", self.data, strides=(1,))[self.begins]
            borders = np.arange(0, (count + 1) * size, size, dtype=np.int32)
            return _binary_array(borders, elements.view(np.uint8))
        borders = np.empty(2 * count + 1, np.int32)
        borders[0:-1:2], borders[1:-1:2] = self.begins, self.begins + np.maximum(self.lengths, 0)
        borders[-1] = len(self.data)
        return _binary_array(borders, self.data).take(
            array_of(np.arange(count) * 2, pa.int64(), nulls=self.lengths < 0)
        )


def _binary_array(borders: NDArray[np.int32], data: Any) -> Any:
    buffers = [None, pa.py_buffer(borders), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(borders) - 1, buffers, null_count=0)


def _constant(value: str | int, kind: Any, count: int) -> Any:
    """Return an array of equal values."""
    return _repeated(value, kind, 1 << count.bit_length())[:count]


@lru_cache(maxsize=4)
def _repeated(value: str | int, kind: Any, count: int) -> Any:
    if isinstance(value, int):
        return array_of(np.full(count, value, np.int32), kind)
    data = value.encode()
    return _binary_array(np.arange(count + 1, dtype=np.int32) * np.int32(len(data)), data * count).cast(kind)


def array_of(numbers: NDArray[Any], kind: Any, *, nulls: NDArray[np.bool_] | None = None) -> Any:
    """Return an Arrow array over the memory of a numpy array.

    ``pyarrow.array`` would import pandas, if it is installed: half a second in each of Spark's Python processes.

    Args:
        numbers: Contiguous numbers of the width that ``kind`` has.
        kind: Type of the Arrow array.
        nulls: Which elements are null. None: none of them.
    """
    is_valid = None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    return pa.Array.from_buffers(kind, len(numbers), [is_valid, pa.py_buffer(np.ascontiguousarray(numbers))])


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Records of one partition as columns. Each column is built on first use."""

    topic: str
    partition: int
    offsets: Numbers
    timestamps: Numbers
    """Milliseconds since the epoch; -1 means no timestamp."""
    timestamp_types: NDArray[np.int32]
    keys: ByteFields
    values: ByteFields
    headers: Sequence[RecordHeaders] | None
    """None means that no record has headers."""

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.offsets)

    def to_arrow(self, schema: Any) -> Any:
        """Return the columns of a schema as a RecordBatch.

        Args:
            schema: A ``pyarrow.Schema`` with field names from ``NAMES``.
        """
        arrays = [getattr(self, f"_{field.name.lower()}") for field in schema]
        # A cast costs as much as reading a hundred records, also to the type that an array has.
        cast = [
            one if one.type == field.type else one.cast(field.type) for one, field in zip(arrays, schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(cast, schema=schema)

    @cached_property
    def _key(self) -> Any:
        return self.keys.to_arrow()

    @cached_property
    def _value(self) -> Any:
        return self.values.to_arrow()

    @cached_property
    def _topic(self) -> Any:
        return _constant(self.topic, pa.string(), len(self))

    @cached_property
    def _partition(self) -> Any:
        return _constant(self.partition, pa.int32(), len(self))

    @cached_property
    def _offset(self) -> Any:
        return array_of(self.offsets, pa.int64())

    @cached_property
    def _timestamp(self) -> Any:
        # A timestamp that no calendar can represent becomes null.
        beyond = (self.timestamps > _LARGEST_TIMESTAMP) | (self.timestamps < -_LARGEST_TIMESTAMP)
        microseconds = self.timestamps * _MICROSECONDS
        return array_of(microseconds, pa.timestamp("us", tz="UTC"), nulls=beyond if beyond.any() else None)

    @cached_property
    def _timestamptype(self) -> Any:
        return array_of(self.timestamp_types, pa.int32())

    @cached_property
    def _headers(self) -> Any:
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        if self.headers is None:
            return pa.nulls(len(self), kind)
        return pa.array(
            [[{"key": _text(name), "value": value} for name, value in some] or None for some in self.headers], kind
        )


def _text(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def columns_of(batches: Sequence[RecordBatch], wanted: OffsetRange) -> Iterator[Columns]:
    """Yield the records of a range, in groups of some megabytes.

    Raises:
        CorruptBatchError: The bytes do not match the batch header.
        UnsupportedCompressionTypeError: The codec is unknown.
    """
    group: list[RecordBatch] = []
    bodies: list[bytes] = []
    size = 0
    for batch in batches:
        is_legacy = batch.magic != MAGIC
        body = memoryview(b"") if is_legacy else decompress_view(batch.codec, batch.buffer[BATCH_OVERHEAD:])
        is_large = len(body) >= _LARGE_BYTES
        ready: list[Columns] = []
        if group and (is_legacy or is_large or size >= _GROUP_BYTES):
            ready.append(_columns(group, bodies, wanted))
            group, bodies, size = [], [], 0
        if is_legacy:
            ready.append(_legacy(batch, wanted))
        elif is_large:
            ready.append(_columns([batch], [body], wanted))
        else:
            group.append(batch)
            bodies.append(bytes(body))
            size += len(body)
        # The body is not needed any more: the caller, too, may decompress a batch, which overwrites it.
        yield from ready
    if group:
        yield _columns(group, bodies, wanted)


def _columns(batches: Sequence[RecordBatch], bodies: Sequence[Buffer], wanted: OffsetRange) -> Columns:
    data = b"".join([*bodies, _PADDING])
    view = np.frombuffer(data, np.uint8)
    ends = _ends(batches, bodies, data)
    _, begins = _numbers(view, np.concatenate(([0], ends[:-1])), ends)
    counts = [batch.record_count for batch in batches]

    def spread(values: Sequence[int]) -> Numbers:
        return np.repeat(np.array(values, np.int64), counts)

    timestamp_deltas, at = _numbers(view, begins + 1, ends)  # skip the record's attributes, which Kafka does not use
    offset_deltas, at = _numbers(view, at, ends)
    key_lengths, key_at, at = _field(view, at, ends)
    value_lengths, value_at, at = _field(view, at, ends)
    headers = _headers(data, view[at], at, ends)
    is_append_time = spread([batch.timestamp_type is TimestampType.LOG_APPEND_TIME for batch in batches])
    offsets = spread([batch.base_offset for batch in batches]) + offset_deltas
    timestamps = np.where(
        is_append_time,
        spread([batch.max_timestamp for batch in batches]),
        spread([batch.base_timestamp for batch in batches]) + timestamp_deltas,
    )
    kept: slice | NDArray[np.bool_] = slice(None)
    if offsets.size and (offsets.min() < wanted.start or offsets.max() >= wanted.end):
        kept = (offsets >= wanted.start) & (offsets < wanted.end)
    return Columns(
        topic=wanted.topic,
        partition=wanted.partition,
        offsets=offsets[kept],
        timestamps=timestamps[kept],
        timestamp_types=is_append_time[kept].astype(np.int32),
        keys=ByteFields(data, key_at[kept], key_lengths[kept]),
        values=ByteFields(data, value_at[kept], value_lengths[kept]),
        headers=None if headers is None else [headers[number] for number in np.arange(len(offsets))[kept]],
    )


def _ends(batches: Sequence[RecordBatch], bodies: Sequence[Buffer], data: bytes) -> Numbers:
    """Return the end of each record. The records of all batches follow each other without gaps."""
    ends: list[int] = []
    runs: dict[int, int] = {}
    position = 0
    for batch, body in zip(batches, bodies, strict=True):
        stop = position + len(body)
        if not 0 <= batch.record_count <= len(body) // _MIN_RECORD:
            raise CorruptBatchError(f"{batch!r} claims {batch.record_count} records in {len(body)} bytes")
        try:
            batch_ends, repeated = record_ends(data, position, stop, batch.record_count)
        except CorruptBatchError as error:
            raise CorruptBatchError(f"{batch!r}: {error}") from None
        runs |= {len(ends) + index: count for index, count in repeated.items()}
        ends += batch_ends
        position = stop
    listed = np.array(ends, np.int64)
    if not runs:
        return listed
    counts = np.ones(len(ends), np.int64)
    counts[list(runs)] = list(runs.values())
    return np.cumsum(np.repeat(np.diff(listed, prepend=0) // counts, counts))


def _numbers(view: NDArray[np.uint8], at: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
    """Read a zigzag varint at each position. Return the values and the positions behind them.

    Raises:
        CorruptBatchError: A varint begins or ends outside its record.
    """
    byte = view[at]
    values = (byte & _LAST_BYTE).astype(np.uint64)
    following = at + 1
    is_continued = byte >> 7
    shift = 7
    while is_continued.any():
        if shift > _MAX_SHIFT:
            raise CorruptBatchError("Varint is too long")
        # Numbers that have ended get no further bits: it is faster to read a byte in vain than to leave them out.
        byte = view[following] * is_continued
        values |= (byte & _LAST_BYTE).astype(np.uint64) << np.uint64(shift)
        following += is_continued
        is_continued = byte >> 7
        shift += 7
    if np.any(following > ends):
        raise CorruptBatchError("A record ends within a number")
    one = np.uint64(1)
    return ((values >> one) ^ (np.uint64(0) - (values & one))).view(np.int64), following


def _field(view: NDArray[np.uint8], at: Numbers, ends: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return the length of the key or value of each record (negative means null), its start and its end."""
    lengths, begins = _numbers(view, at, ends)
    if np.any(lengths >= ends - begins):
        raise CorruptBatchError("A record ends within its key or value")
    return lengths, begins, begins + np.maximum(lengths, 0)


def _headers(data: bytes, counts: NDArray[np.uint8], at: Numbers, ends: Numbers) -> list[RecordHeaders] | None:
    """Return the headers of all records, None if there are none. Check that each record ends where announced."""
    bare = counts == 0
    if np.any(at[bare] + 1 != ends[bare]):
        raise CorruptBatchError("Record length does not match its fields")
    if bare.all():
        return None
    headers: list[RecordHeaders] = [()] * len(at)
    for number in np.flatnonzero(~bare):
        headers[number], behind = read_headers(data, int(at[number]), int(ends[number]))
        if behind != ends[number]:
            raise CorruptBatchError("Record length does not match its fields")
    return headers


def _legacy(batch: RecordBatch, wanted: OffsetRange) -> Columns:
    """Return the records of a message set of magic 0 or 1."""
    records = [record for record in decode_records(batch) if wanted.start <= record.offset < wanted.end]
    return Columns(
        topic=wanted.topic,
        partition=wanted.partition,
        offsets=np.array([record.offset for record in records], np.int64),
        timestamps=np.array([record.timestamp for record in records], np.int64),
        timestamp_types=np.full(len(records), int(batch.timestamp_type) if batch.magic else _NO_TYPE, np.int32),
        keys=_joined([record.key for record in records]),
        values=_joined([record.value for record in records]),
        headers=None,
    )


def _joined(parts: Sequence[bytes | None]) -> ByteFields:
    lengths = np.array([-1 if part is None else len(part) for part in parts], np.int64)
    sizes = np.maximum(lengths, 0)
    return ByteFields(b"".join(part or b"" for part in parts), np.cumsum(sizes) - sizes, lengths)

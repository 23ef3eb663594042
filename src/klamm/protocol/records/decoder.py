"""Decoder for the records of a batch (magic 2) or of a message set (magic 0 and 1).

This is the slow path. The broker needs it for compaction, for the exact offset of a timestamp and for recompression.
The mirror needs it where a batch cannot be copied unchanged.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from klamm.protocol.errors import CorruptBatchError
from klamm.protocol.records.batch import NO_TIMESTAMP, RecordBatch, iter_batches
from klamm.protocol.records.codecs import Codec, decompress, decompress_view
from klamm.protocol.records.layout import BATCH_OVERHEAD, MAGIC, MIN_RECORD_BYTES
from klamm.protocol.records.record import Record, RecordHeaders, TimestampType

if TYPE_CHECKING:
    from collections.abc import Iterator

_INT32: Final = struct.Struct(">i")
_LEGACY_FIELDS_AT: Final = 18
_MAX_VARINT_BITS: Final = 28
_MAX_VARLONG_BITS: Final = 63


def decode_records(batch: RecordBatch) -> list[Record]:
    """Decode all records, with absolute offsets and timestamps.

    Raises:
        CorruptBatchError: The bytes are not the records that the header declares.
        UnsupportedCompressionTypeError: The compression type is unknown.
    """
    try:
        if batch.magic == MAGIC:
            return _decode_batch(batch)
        return _decode_message_set(batch)
    except (IndexError, struct.error) as error:
        raise CorruptBatchError(f"{batch!r} ends within a record") from error


def iter_records(batch: RecordBatch) -> Iterator[Record]:
    """Iterate over decoded records, for batches that may hold millions; see ``decode_records``."""
    if batch.magic != MAGIC:
        yield from decode_records(batch)
        return
    data, append_time = _open_batch(batch)
    position = 0
    try:
        for _ in range(batch.record_count):
            record, position = _read_record(data, position, batch.base_offset, batch.base_timestamp, append_time)
            yield record
    except IndexError as error:
        raise CorruptBatchError(f"{batch!r} ends within a record") from error
    if position != len(data):
        raise CorruptBatchError(f"{batch!r} has {len(data) - position} bytes after its last record")


def _open_batch(batch: RecordBatch) -> tuple[bytes, int | None]:
    """Return the decompressed records, and their timestamp if the broker set it (LogAppendTime)."""
    # Convert to bytes: indexing and slicing bytes is faster than a view, and every key and value must be bytes anyway.
    data = bytes(decompress_view(batch.codec, batch.buffer[BATCH_OVERHEAD:]))
    if not 0 <= batch.record_count <= len(data) // MIN_RECORD_BYTES:
        raise CorruptBatchError(f"{batch!r} declares {batch.record_count} records in {len(data)} bytes")
    return data, batch.max_timestamp if batch.timestamp_type is TimestampType.LOG_APPEND_TIME else None


def _decode_batch(batch: RecordBatch) -> list[Record]:
    data, append_time = _open_batch(batch)
    records: list[Record] = []
    position = 0
    for _ in range(batch.record_count):
        record, position = _read_record(data, position, batch.base_offset, batch.base_timestamp, append_time)
        records.append(record)
    if position != len(data):
        raise CorruptBatchError(f"{batch!r} has {len(data) - position} bytes after its last record")
    return records


def _read_record(
    data: bytes, position: int, base_offset: int, base_timestamp: int, append_time: int | None
) -> tuple[Record, int]:
    length, position = read_varint(data, position)
    end = position + length
    if length < MIN_RECORD_BYTES - 1 or end > len(data):
        raise CorruptBatchError(f"Record declares {length} bytes, but only {len(data) - position} remain")
    timestamp_delta, position = read_varint(data, position + 1, _MAX_VARLONG_BITS)
    offset_delta, position = read_varint(data, position)
    key, position = _read_bytes(data, position, end)
    value, position = _read_bytes(data, position, end)
    headers: RecordHeaders = ()
    if data[position] == 0:
        position += 1
    else:
        headers, position = read_headers(data, position, end)
    if position != end:
        raise CorruptBatchError("Declared length of a record differs from its actual length")
    timestamp = base_timestamp + timestamp_delta if append_time is None else append_time
    return Record(key, value, headers, timestamp, base_offset + offset_delta), end


def read_varint(data: bytes, position: int, max_bits: int = _MAX_VARINT_BITS) -> tuple[int, int]:
    """Read a zigzag varint and return its value and the position after it.

    Args:
        data: Decompressed records.
        position: Position of the first byte of the varint.
        max_bits: Largest allowed bit shift.

    Raises:
        CorruptBatchError: The varint is too long.
        IndexError: The data ends within the varint.
    """
    byte = data[position]
    position += 1
    value = byte & 0x7F
    shift = 7
    while byte & 0x80:
        if shift > max_bits:
            raise CorruptBatchError("Varint is too long")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    if max_bits == _MAX_VARINT_BITS:
        value &= 0xFFFFFFFF  # the fifth byte of an int carries more bits than fit; Java discards the excess
    return (value >> 1) ^ -(value & 1), position


def _read_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(data, position)
    if length < 0:
        return None, position
    if length > end - position:
        raise CorruptBatchError(f"Field declares {length} bytes, but only {end - position} remain in the record")
    return data[position : position + length], position + length


def read_headers(data: bytes, position: int, end: int) -> tuple[RecordHeaders, int]:
    """Read the headers of a record of magic 2 and return them and the position after them.

    Args:
        data: Decompressed records.
        position: Position of the header count.
        end: Position after the record.

    Raises:
        CorruptBatchError: The bytes are not valid headers.
        IndexError: The data ends within a varint.
    """
    count, position = read_varint(data, position)
    if not 0 <= count <= (end - position) // 2:
        raise CorruptBatchError(f"Record declares {count} headers in {end - position} bytes")
    headers = []
    for _ in range(count):
        key, position = _read_bytes(data, position, end)
        if key is None:
            raise CorruptBatchError("Header key is null")
        value, position = _read_bytes(data, position, end)
        headers.append((key.decode("utf-8", "surrogateescape"), value))
    return tuple(headers), position


def _decode_message_set(batch: RecordBatch) -> list[Record]:
    record = _read_message(batch)
    if batch.codec == Codec.NONE:
        return [record]
    if record.value is None:
        raise CorruptBatchError(f"{batch!r} is compressed but has no data")
    inner = list(iter_batches(decompress(batch.codec, record.value, magic=batch.magic)))
    if not inner or any(message.magic != batch.magic or message.codec != Codec.NONE for message in inner):
        raise CorruptBatchError(f"{batch!r} holds messages of another magic, or nested compression")
    # Magic 1 uses offsets relative to the wrapper, whose own offset is that of its last message. Magic 0 stores
    # absolute offsets.
    shift = batch.base_offset - inner[-1].base_offset if batch.magic == 1 else 0
    records = [_read_message(message) for message in inner]
    append_time = batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    return [
        item._replace(
            offset=item.offset + shift,
            timestamp=batch.max_timestamp if append_time else item.timestamp,
        )
        for item in records
    ]


def _read_message(message: RecordBatch) -> Record:
    data = message.buffer
    position = _LEGACY_FIELDS_AT + 8 * message.magic
    key, position = _read_sized(data, position)
    value, position = _read_sized(data, position)
    if position != len(data):
        raise CorruptBatchError(f"Declared length of {message!r} differs from its actual length")
    timestamp = message.max_timestamp if message.magic == 1 else NO_TIMESTAMP
    return Record(key, value, (), timestamp, message.base_offset)


def _read_sized(data: memoryview, position: int) -> tuple[bytes | None, int]:
    (length,) = _INT32.unpack_from(data, position)
    position += _INT32.size
    if length == -1:
        return None, position
    if not 0 <= length <= len(data) - position:
        raise CorruptBatchError(f"Field declares {length} bytes, but only {len(data) - position} remain")
    return bytes(data[position : position + length]), position + length

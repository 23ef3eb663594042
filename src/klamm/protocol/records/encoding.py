"""Encoder for record batches (magic 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.protocol.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP, write_crc
from klamm.protocol.records.codecs import Codec, compress
from klamm.protocol.records.layout import (
    BATCH_OVERHEAD,
    CONTROL,
    DELETE_HORIZON,
    HEADER,
    LOG_OVERHEAD,
    MAGIC,
    TIMESTAMP_TYPE,
    TRANSACTIONAL,
)
from klamm.protocol.records.record import Record, TimestampType

if TYPE_CHECKING:
    from collections.abc import Sequence

_NO_CRC_YET: Final = 0
_NULL: Final = b"\x01"
_VARINT_MORE: Final = 0x80


def encode_batch(
    records: Sequence[Record],
    *,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    base_offset: int | None = None,
    last_offset: int | None = None,
    partition_leader_epoch: int = -1,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    log_append_time: int = NO_TIMESTAMP,
    delete_horizon: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytearray:
    """Encode one record batch.

    Args:
        records: Records in offset order. Empty only with ``base_offset`` and ``last_offset``, for a batch that
            compaction has emptied but keeps.
        codec: Compression codec of the records.
        level: Compression level; see ``compress``.
        base_offset: Offset that the record offsets are relative to. None means the first record's offset.
        last_offset: Last offset covered by the batch. None means the last record's offset.
        partition_leader_epoch: Leader epoch; -1 in a produced batch.
        timestamp_type: Timestamp type. LOG_APPEND_TIME sets the timestamp of all records to ``log_append_time``.
        log_append_time: Append time in milliseconds since the epoch.
        delete_horizon: Time from which tombstones may be removed, in milliseconds since the epoch (KIP-534). None means
            unset.
        producer_id: Producer id, or -1 for none.
        producer_epoch: Producer epoch, or -1 for none.
        base_sequence: Sequence number of the first record, or -1 for none.
        is_transactional: Whether the batch is part of a transaction.
        is_control: Whether the batch is a control batch.
    """
    first = base_offset if base_offset is not None else records[0].offset
    last = last_offset if last_offset is not None else records[-1].offset
    first_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    base_timestamp = first_timestamp if delete_horizon is None else delete_horizon
    body = bytearray()
    for record in records:
        _write_record(body, record, first, base_timestamp)
    packed = compress(codec, body, level=level)
    flags = (is_transactional and TRANSACTIONAL) | (is_control and CONTROL)
    flags |= delete_horizon is not None and DELETE_HORIZON
    max_timestamp = max((record.timestamp for record in records), default=NO_TIMESTAMP)
    if timestamp_type is TimestampType.LOG_APPEND_TIME:
        max_timestamp = log_append_time
        flags |= TIMESTAMP_TYPE
    header = HEADER.pack(
        first,
        BATCH_OVERHEAD - LOG_OVERHEAD + len(packed),
        partition_leader_epoch,
        MAGIC,
        _NO_CRC_YET,
        codec | flags,
        last - first,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    batch = bytearray(header) + packed
    write_crc(memoryview(batch))
    return batch


def _write_record(out: bytearray, record: Record, base_offset: int, base_timestamp: int) -> None:
    body = bytearray(1)
    _write_varint(body, record.timestamp - base_timestamp)
    _write_varint(body, record.offset - base_offset)
    _write_bytes(body, record.key)
    _write_bytes(body, record.value)
    _write_varint(body, len(record.headers))
    for key, value in record.headers:
        _write_bytes(body, key.encode("utf-8", "surrogateescape"))
        _write_bytes(body, value)
    _write_varint(out, len(body))
    out += body


def varint(value: int) -> bytes:
    """Return a number encoded as a zigzag varint."""
    out = bytearray()
    _write_varint(out, value)
    return bytes(out)


def _write_varint(out: bytearray, value: int) -> None:
    # Inlined instead of calling write_uvarint: this code runs several times per record, and the call would make
    # encode_batch 20 % slower.
    value = value << 1 if value >= 0 else (-value << 1) - 1
    while value >= _VARINT_MORE:
        out.append(value & 0x7F | _VARINT_MORE)
        value >>= 7
    out.append(value)


def _write_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out += _NULL
    else:
        _write_varint(out, len(value))
        out += value

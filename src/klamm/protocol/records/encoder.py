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
from klamm.protocol.records.record import Record, RecordHeaders, TimestampType

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
    flags = (is_transactional and TRANSACTIONAL) | (is_control and CONTROL)
    flags |= delete_horizon is not None and DELETE_HORIZON
    max_timestamp = max((record.timestamp for record in records), default=NO_TIMESTAMP)
    if timestamp_type is TimestampType.LOG_APPEND_TIME:
        max_timestamp = log_append_time
        flags |= TIMESTAMP_TYPE
    return _batch(
        compress(codec, body, level=level),
        base_offset=first,
        partition_leader_epoch=partition_leader_epoch,
        attributes=codec | flags,
        last_offset_delta=last - first,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )


def encode_section(
    section: bytes | bytearray | memoryview,
    *,
    record_count: int,
    base_timestamp: int,
    max_timestamp: int,
    codec: Codec = Codec.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
) -> bytearray:
    """Return the record batch of a section of records that are encoded already, for a Produce request.

    Args:
        section: Encoded records with the offset deltas 0, 1, 2, … and timestamp deltas relative to ``base_timestamp``.
        record_count: Number of records, at least 1.
        base_timestamp: Timestamp of the first record, in milliseconds since the epoch.
        max_timestamp: Latest timestamp of the records.
        codec: Compression codec of the records.
        producer_id: Producer id, or -1 for none.
        producer_epoch: Producer epoch, or -1 for none.
        base_sequence: Sequence number of the first record, or -1 for none.
        is_transactional: Whether the batch is part of a transaction.
    """
    return _batch(
        compress(codec, section),
        base_offset=0,
        partition_leader_epoch=-1,
        attributes=codec | (is_transactional and TRANSACTIONAL),
        last_offset_delta=record_count - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=record_count,
    )


def _batch(
    packed: bytes,
    *,
    base_offset: int,
    partition_leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    record_count: int,
) -> bytearray:
    """Return a compressed section of records with its header and checksum."""
    header = HEADER.pack(
        base_offset,
        BATCH_OVERHEAD - LOG_OVERHEAD + len(packed),
        partition_leader_epoch,
        MAGIC,
        _NO_CRC_YET,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    batch = bytearray(header) + packed
    write_crc(memoryview(batch))
    return batch


def encode_headers(headers: RecordHeaders) -> bytes:
    """Return the headers of a record with their number before them, as they end a record."""
    out = bytearray()
    _write_headers(out, headers)
    return bytes(out)


def _write_record(out: bytearray, record: Record, base_offset: int, base_timestamp: int) -> None:
    body = bytearray(1)
    _write_varint(body, record.timestamp - base_timestamp)
    _write_varint(body, record.offset - base_offset)
    _write_bytes(body, record.key)
    _write_bytes(body, record.value)
    _write_headers(body, record.headers)
    _write_varint(out, len(body))
    out += body


def _write_headers(out: bytearray, headers: RecordHeaders) -> None:
    _write_varint(out, len(headers))
    for key, value in headers:
        _write_bytes(out, key.encode("utf-8", "surrogateescape"))
        _write_bytes(out, value)


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

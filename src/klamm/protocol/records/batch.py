"""Header of a record batch. It is read, checked and stamped in place; the records after it stay unchanged.

``klamm.protocol.records.layout`` defines the position of each field.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final

from klamm.protocol.errors import CorruptBatchError
from klamm.protocol.records.checksum import Buffer, crc32c
from klamm.protocol.records.layout import (
    ATTRIBUTES_AT,
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL,
    CRC,
    CRC_AT,
    DELETE_HORIZON,
    HEADER,
    INT64,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_AT,
    OFFSET_AND_LENGTH,
    TIMESTAMP_TYPE,
    TRANSACTIONAL,
)
from klamm.protocol.records.record import TimestampType
from klamm.protocol.types import MAX_SEQUENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1

_LEGACY_OVERHEAD: Final = 26
"""Size in bytes of the smallest message of magic 0, with a null key and a null value."""
_ALL_KEPT: Final = (None,) * 6
_LEGACY: Final = struct.Struct(">qiIbb")


class RecordBatch:
    """Header fields of one batch, and a view of all its bytes.

    For message sets of magic 0 and 1, fields that their format lacks are -1. This includes ``record_count``, which only
    decoding can determine.
    """

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "batch_length",
        "buffer",
        "crc",
        "last_offset_delta",
        "magic",
        "max_timestamp",
        "partition_leader_epoch",
        "producer_epoch",
        "producer_id",
        "record_count",
    )

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    def __init__(self, buffer: memoryview) -> None:
        """Read the header.

        Args:
            buffer: Exactly the bytes of one batch of magic 0 to 2, as ``iter_batches`` yields them.
        """
        self.buffer = buffer
        if buffer[MAGIC_AT] == MAGIC:
            (
                self.base_offset,
                self.batch_length,
                self.partition_leader_epoch,
                self.magic,
                self.crc,
                self.attributes,
                self.last_offset_delta,
                self.base_timestamp,
                self.max_timestamp,
                self.producer_id,
                self.producer_epoch,
                self.base_sequence,
                self.record_count,
            ) = HEADER.unpack_from(buffer)
        else:
            self._read_legacy(buffer)

    def _read_legacy(self, buffer: memoryview) -> None:
        self.base_offset, self.batch_length, self.crc, self.magic, self.attributes = _LEGACY.unpack_from(buffer)
        self.partition_leader_epoch = -1
        self.last_offset_delta = 0
        self.base_timestamp = INT64.unpack_from(buffer, _LEGACY.size)[0] if self.magic == 1 else NO_TIMESTAMP
        self.max_timestamp = self.base_timestamp
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.base_sequence = NO_SEQUENCE
        self.record_count = -1

    @property
    def size(self) -> int:
        """Size of the whole batch in bytes."""
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        """Offset of the last record. Magic 0 and 1: ``base_offset``, which in a wrapper is that of its last message."""
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record, or -1 without a producer id. Numbers wrap from 2^31 - 1 to 0."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE

    @property
    def codec(self) -> int:
        """Compression type (bits 0-2): a ``Codec``, or the number of an unknown one."""
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> TimestampType:
        """Timestamp type (bit 3). Magic 0 has no timestamps and yields CREATE_TIME."""
        return TimestampType.LOG_APPEND_TIME if self.attributes & TIMESTAMP_TYPE else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        """Return whether the batch is part of a transaction (bit 4)."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Return whether the batch is a control batch (bit 5): a commit or abort marker, hidden from consumers."""
        return bool(self.attributes & CONTROL)

    @property
    def has_delete_horizon(self) -> bool:
        """Return whether ``base_timestamp`` holds the time from which tombstones may be removed (bit 6, KIP-534)."""
        return bool(self.attributes & DELETE_HORIZON)

    def __repr__(self) -> str:
        """Return the fields that identify a batch in a log line."""
        return (
            f"RecordBatch(base_offset={self.base_offset}, last_offset={self.last_offset}, size={self.size}, "
            f"magic={self.magic}, producer_id={self.producer_id}, base_sequence={self.base_sequence})"
        )


def iter_batches(buffer: Buffer, *, allow_partial_tail: bool = False) -> Iterator[RecordBatch]:
    """Iterate over the batches of a buffer. Nothing is copied and no checksum is computed.

    Args:
        buffer: Consecutive batches.
        allow_partial_tail: Whether to stop before a truncated last batch, which a Fetch response may hold, instead of
            raising.

    Raises:
        CorruptBatchError: A length is negative, too small or exceeds the buffer, or the magic is unknown.
    """
    view = memoryview(buffer)
    end = len(view)
    position = 0
    while position < end:
        left = end - position
        if left <= MAGIC_AT:
            if allow_partial_tail:
                return
            raise CorruptBatchError(f"{left} bytes cannot hold a record batch")
        size = LOG_OVERHEAD + OFFSET_AND_LENGTH.unpack_from(view, position)[1]
        _check_size(size, view[position + MAGIC_AT])
        if size > left:
            if allow_partial_tail:
                return
            raise CorruptBatchError(f"Record batch declares {size} bytes, but only {left} remain")
        yield RecordBatch(view[position : position + size])
        position += size


def _check_size(size: int, magic: int) -> None:
    if magic > MAGIC:
        raise CorruptBatchError(f"Invalid magic found in record: {magic}")
    least = BATCH_OVERHEAD if magic == MAGIC else _LEGACY_OVERHEAD + 8 * magic
    if size < least:
        raise CorruptBatchError(f"Record batch declares {size} bytes, below the minimum of {least}")


def verify_crc(batch: RecordBatch) -> bool:
    """Return whether the checksum matches (CRC32C; CRC32 for magic 0 and 1)."""
    if batch.magic == MAGIC:
        return crc32c(batch.buffer[ATTRIBUTES_AT:]) == batch.crc
    return zlib.crc32(batch.buffer[MAGIC_AT:]) == batch.crc


def patched_header(
    batch: RecordBatch,
    *,
    base_offset: int | None = None,
    partition_leader_epoch: int | None = None,
    attributes: int | None = None,
    base_timestamp: int | None = None,
    max_timestamp: int | None = None,
    producer_id: int | None = None,
    producer_epoch: int | None = None,
    base_sequence: int | None = None,
) -> bytes:
    """Return the 61 header bytes with some fields replaced. The records after the header are only read.

    The checksum is recomputed if a field that it covers is given. None keeps the current value of a field.
    """
    covered = (attributes, base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence)
    header = bytearray(
        HEADER.pack(
            batch.base_offset if base_offset is None else base_offset,
            batch.batch_length,
            batch.partition_leader_epoch if partition_leader_epoch is None else partition_leader_epoch,
            batch.magic,
            batch.crc,
            batch.attributes if attributes is None else attributes,
            batch.last_offset_delta,
            batch.base_timestamp if base_timestamp is None else base_timestamp,
            batch.max_timestamp if max_timestamp is None else max_timestamp,
            batch.producer_id if producer_id is None else producer_id,
            batch.producer_epoch if producer_epoch is None else producer_epoch,
            batch.base_sequence if base_sequence is None else base_sequence,
            batch.record_count,
        )
    )
    if covered != _ALL_KEPT:
        crc = crc32c(batch.buffer[BATCH_OVERHEAD:], crc32c(header[ATTRIBUTES_AT:]))
        CRC.pack_into(header, CRC_AT, crc)
    return bytes(header)


def write_crc(batch: memoryview) -> None:
    """Recompute the checksum of a batch of magic 2 in place.

    Args:
        batch: Exactly the bytes of the batch.
    """
    CRC.pack_into(batch, CRC_AT, crc32c(batch[ATTRIBUTES_AT:]))


def patch_header(
    buffer: bytearray | memoryview,
    offset: int = 0,
    *,
    base_offset: int | None = None,
    partition_leader_epoch: int | None = None,
    attributes: int | None = None,
    base_timestamp: int | None = None,
    max_timestamp: int | None = None,
    producer_id: int | None = None,
    producer_epoch: int | None = None,
    base_sequence: int | None = None,
) -> None:
    """Change header fields of the batch at ``offset`` in place; see ``patched_header``.

    Raises:
        CorruptBatchError: There is no batch of magic 2 at ``offset``.
    """
    view = memoryview(buffer)[offset:]
    batch = next(iter_batches(view), None)
    if batch is None or batch.magic != MAGIC:
        raise CorruptBatchError("The header to patch is not of a record batch of magic 2")
    view[:BATCH_OVERHEAD] = patched_header(
        batch,
        base_offset=base_offset,
        partition_leader_epoch=partition_leader_epoch,
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )

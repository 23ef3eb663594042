"""What a batch from a client must be like (Kafka's LogValidator), told from its header wherever that is enough."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from klamm.protocol.errors import (
    CorruptBatchError,
    InvalidRecordError,
    InvalidTimestampError,
    MessageTooLargeError,
    RecordListTooLargeError,
    UnsupportedCompressionTypeError,
)
from klamm.protocol.records import (
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    Codec,
    RecordBatch,
    TimestampType,
    decode_records,
    encode_batch,
    iter_batches,
    verify_crc,
)
from klamm.storage.log.config import NO_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable

    from klamm.protocol.records import Record
    from klamm.storage.log.config import LogConfig

MAGIC = 2
_TIMESTAMP_TYPE_BIT = 0x08


class RecordError(NamedTuple):
    """One record of a refused batch."""

    batch_index: int
    """The record's place in its batch."""
    message: str


class InvalidRecordsError(InvalidRecordError):
    """Some records of a batch may not be appended, so none of it is."""

    def __init__(self, error_message: str, record_errors: tuple[RecordError, ...]) -> None:
        super().__init__(error_message)
        self.record_errors = record_errors


class InvalidTimestampsError(InvalidTimestampError):
    """Some records of a batch have timestamps that the topic does not allow, so none of it is appended."""

    def __init__(self, error_message: str, record_errors: tuple[RecordError, ...]) -> None:
        super().__init__(error_message)
        self.record_errors = record_errors


def only_batch(records: memoryview, partition: str) -> RecordBatch:
    """Return the one batch that a producer may send for a partition.

    Raises:
        CorruptBatchError: The bytes are no batches.
        InvalidRecordError: None or several, or of an old format.
    """
    batches = iter_batches(records)
    batch = next(batches, None)
    if batch is None or next(batches, None) is not None:
        raise InvalidRecordError(f"Produce requests must have exactly one record batch for {partition}")
    if batch.magic != MAGIC:
        raise InvalidRecordError(f"Produce requests must hold record batches of magic 2, not {batch.magic}")
    return batch


def validate(batch: RecordBatch, config: LogConfig, partition: str, now_ms: int) -> None:
    """Check a batch; its records are decoded only where a rule asks for it.

    Raises:
        InvalidRecordError: Offsets, count, sequence or a missing key break the rules.
        InvalidTimestampError: A timestamp out of the range that the topic allows.
        MessageTooLargeError: Larger than ``max.message.bytes``.
        CorruptBatchError: The checksum is wrong.
        UnsupportedCompressionTypeError: No such codec.
    """
    _validate_header(batch, config, partition)
    if not verify_crc(batch):
        raise CorruptBatchError(f"Record is corrupt (stored crc = {batch.crc}) in topic partition {partition}.")
    if config.is_compacted:
        _refuse_records(
            batch,
            lambda record: record.key is None,
            lambda _: f"Compacted topic cannot accept message without key in topic partition {partition}.",
            InvalidRecordsError,
        )
    if config.message_timestamp_type is TimestampType.CREATE_TIME:
        _validate_timestamps(batch, config, now_ms)


def _validate_header(batch: RecordBatch, config: LogConfig, partition: str) -> None:
    if batch.base_offset != 0:
        raise InvalidRecordError(
            f"The baseOffset of the record batch in the append to {partition} should be 0,"
            f" but it is {batch.base_offset}"
        )
    if batch.size > config.max_message_bytes:
        raise MessageTooLargeError(
            f"The record batch size in the append to {partition} is {batch.size} bytes"
            f" which exceeds the maximum configured value of {config.max_message_bytes}."
        )
    count = batch.last_offset_delta + 1
    if count <= 0 or batch.record_count != count:
        raise InvalidRecordError(
            f"Inconsistent batch offset range [0, {batch.last_offset_delta}] and count of records"
            f" {batch.record_count} in topic partition {partition}"
        )
    if batch.is_control:
        raise InvalidRecordError(f"Clients are not allowed to write control records in topic partition {partition}")
    if batch.is_transactional and batch.producer_id == NO_PRODUCER_ID:
        raise InvalidRecordError(f"A transactional batch without a producer id in topic partition {partition}")
    if batch.producer_id != NO_PRODUCER_ID and batch.base_sequence < 0:
        raise InvalidRecordError(
            f"Invalid sequence number {batch.base_sequence} in record batch with producerId {batch.producer_id}"
            f" in topic partition {partition}"
        )
    if batch.codec > Codec.ZSTD:
        raise UnsupportedCompressionTypeError(f"Unknown compression type id: {batch.codec}")


def _validate_timestamps(batch: RecordBatch, config: LogConfig, now_ms: int) -> None:
    """Upper bound by the header's largest timestamp; a lower bound, which few topics have, by decoding."""
    if batch.timestamp_type is TimestampType.LOG_APPEND_TIME:
        raise InvalidTimestampError("Producer should not set timestamp type to LogAppendTime.")
    latest = now_ms + config.message_timestamp_after_max_ms
    earliest = now_ms - config.message_timestamp_before_max_ms
    if batch.max_timestamp <= latest and config.message_timestamp_before_max_ms == NO_LIMIT:
        return
    _refuse_records(
        batch,
        lambda record: record.timestamp != NO_TIMESTAMP and not earliest <= record.timestamp <= latest,
        lambda record: (
            f"Timestamp {record.timestamp} of message with offset {record.offset} is out of range."
            f" The timestamp should be within [{earliest}, {latest}]"
        ),
        InvalidTimestampsError,
    )
    if batch.max_timestamp > latest:
        raise InvalidTimestampError(f"Largest timestamp {batch.max_timestamp} of the batch is behind {latest}")


def _refuse_records(
    batch: RecordBatch,
    is_bad: Callable[[Record], bool],
    say: Callable[[Record], str],
    error: type[InvalidRecordsError | InvalidTimestampsError],
) -> None:
    errors = tuple(
        RecordError(index, say(record)) for index, record in enumerate(decode_records(batch)) if is_bad(record)
    )
    if errors:
        raise error("One or more records have been rejected", errors)


def recompressed(batch: RecordBatch, config: LogConfig) -> RecordBatch:
    """Return the batch in the codec of ``compression.type``: itself when that is the producer's or has that codec."""
    if config.compression is None or batch.codec == config.compression:
        return batch
    built = encode_batch(
        decode_records(batch),
        codec=config.compression,
        level=config.compression_level,
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        is_transactional=batch.is_transactional,
    )
    return RecordBatch(memoryview(built))


def check_fits_segment(batch: RecordBatch, config: LogConfig, partition: str) -> None:
    """Check what is to be written, in the codec that it will have.

    Raises:
        RecordListTooLargeError: Larger than ``segment.bytes``.
    """
    if batch.size > config.segment_bytes:
        raise RecordListTooLargeError(
            f"Message batch size is {batch.size} bytes in append to partition {partition}, which exceeds the maximum"
            f" configured segment size of {config.segment_bytes}."
        )


def stamped_attributes(batch: RecordBatch) -> int:
    """Return the attributes of a batch whose time is that of appending."""
    return batch.attributes | _TIMESTAMP_TYPE_BIT

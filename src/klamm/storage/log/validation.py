"""Validation of produced batches (Kafka's LogValidator)."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from klamm.protocol.errors import (
    CorruptBatchError,
    DecompressedTooLargeError,
    ErrorCode,
    InvalidRecordError,
    InvalidTimestampError,
    KafkaApiError,
    MessageTooLargeError,
    RecordListTooLargeError,
    UnsupportedCompressionTypeError,
)
from klamm.protocol.records import (
    BATCH_OVERHEAD,
    LOG_OVERHEAD,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    Codec,
    RecordBatch,
    TimestampType,
    check_records,
    compress,
    decompress_view,
    encode_batch,
    iter_batches,
    iter_fields,
    iter_records,
    patch_header,
    verify_crc,
)
from klamm.protocol.records.codecs import MAX_DECOMPRESSED_BYTES, check_lz4_frame
from klamm.protocol.records.layout import (
    BATCH_LENGTH_AT,
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    FLAGS_AT,
    INT32,
    MIN_RECORD_BYTES,
    RECORD_COUNT_AT,
    TIMESTAMP_TYPE,
    TRANSACTIONAL,
)
from klamm.storage.log.config import NO_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable

    from klamm.protocol.records import RecordFields
    from klamm.storage.log.config import LogConfig

MAGIC = 2
DECOMPRESSED_AT_ONCE: Final = 1024 * 1024
"""Largest size of decompressed records that are checked on the event loop, in bytes."""
_RECORDS_AT_ONCE: Final = 2000
_BYTES_AT_ONCE: Final = 4 * 1024 * 1024
_RECOMPRESSED_AT_ONCE: Final = 64 * 1024
_RECORDS_ALWAYS_GRANTED: Final = 1_048_588
"""Records that a compressed batch may contain if ``max.message.bytes``, whose default this is, is smaller."""
_MAX_DELTA: Final = 2**62
"""Limit of timestamp deltas, from ``check_records``. With a base up to it, no timestamp exceeds 64 bits."""
_MAX_RECORD_ERRORS: Final = 1000
"""Largest number of records that an error lists. A list of a million would exceed the size of the request."""
_KEPT_FLAGS: Final = TRANSACTIONAL | CONTROL | DELETE_HORIZON
"""Attributes that are kept when the header of a batch is changed, as in Kafka."""


class RecordError(NamedTuple):
    """An invalid record of a rejected batch."""

    batch_index: int
    """Index of the record in its batch."""
    message: str


class InvalidRecordsError(InvalidRecordError):
    """Some records of a batch are invalid, so the whole batch is rejected."""

    def __init__(self, error_message: str, record_errors: tuple[RecordError, ...]) -> None:
        super().__init__(error_message)
        self.record_errors = record_errors


class InvalidTimestampsError(InvalidTimestampError):
    """Some records of a batch have timestamps outside the topic's range, so the whole batch is rejected."""

    def __init__(self, error_message: str, record_errors: tuple[RecordError, ...]) -> None:
        super().__init__(error_message)
        self.record_errors = record_errors


def only_batch(records: memoryview, partition: str) -> RecordBatch:
    """Return the only batch in a producer's records for a partition.

    As in Kafka, a few bytes after the batch that cannot be a batch are ignored.

    Raises:
        CorruptBatchError: The bytes are not batches.
        InvalidRecordError: No whole batch, several batches, or an old format.
    """
    batches = iter_batches(records, allow_partial_tail=True)
    batch = next(batches, None)
    if batch is None or next(batches, None) is not None:
        raise InvalidRecordError(f"Produce requests must have exactly one record batch for {partition}")
    if batch.magic != MAGIC:
        raise InvalidRecordError(f"Produce requests must hold record batches of magic 2, not {batch.magic}")
    return batch


def prepare(
    batch: RecordBatch, config: LogConfig, partition: str, now_ms: int, *, decompress_up_to: int | None = None
) -> RecordBatch:
    """Validate a client's batch, and return it in the form in which it is appended.

    The checks are those of Kafka's LogValidator, and a batch that no consumer could read is rejected. Every record is
    checked, in compressed batches too. As in Kafka, the result has the codec of ``compression.type``, and its largest
    timestamp and timestamp type are corrected if the header is wrong.

    Args:
        batch: Batch as the client sent it.
        config: Configs of the topic.
        partition: Name of the partition, for messages.
        now_ms: Current time, milliseconds since the epoch.
        decompress_up_to: Limit of decompressed bytes, above which LongBatchError is raised; None for no such limit.

    Raises:
        InvalidRecordError: The records, their count, offsets, sequence or keys are invalid.
        InvalidTimestampError: A timestamp is outside the range that the topic allows.
        MessageTooLargeError: The batch, as sent or in its new codec, is larger than ``max.message.bytes``. Or it is too
            large when decompressed.
        CorruptBatchError: The checksum is wrong.
        UnsupportedCompressionTypeError: The codec is unknown.
        LongBatchError: The batch exceeds ``decompress_up_to``.
    """
    _check_size(batch, config, partition)
    if not verify_crc(batch):
        raise CorruptBatchError(f"Record is corrupt (stored crc = {batch.crc}) in topic partition {partition}.")
    _check_header(batch, config, partition)
    codec = batch.attributes & CODEC_MASK
    data = _decompressed(batch, config, partition, decompress_up_to) if codec else bytes(batch.buffer[BATCH_OVERHEAD:])
    delta, null_keys, is_in_order = check_records(data, batch.record_count)
    if null_keys and config.is_compacted:
        _Records(batch, data).reject_null_keys(partition)
    max_timestamp = max(batch.base_timestamp + delta, NO_TIMESTAMP)
    is_appended_time = config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
    if batch.attributes & TIMESTAMP_TYPE:
        max_timestamp = _checked_append_time(_Records(batch, data), config, now_ms)
    elif is_appended_time:
        if abs(batch.base_timestamp) > _MAX_DELTA:
            _Records(batch, data).reject_timestamps(-NO_LIMIT, NO_LIMIT)
    elif (
        config.message_timestamp_before_max_ms != NO_LIMIT
        or max_timestamp > now_ms + config.message_timestamp_after_max_ms
        or abs(batch.base_timestamp) > _MAX_DELTA
    ):
        _Records(batch, data).reject_timestamps(*_allowed_times(config, now_ms))
    if config.compression is not None and codec != config.compression:
        built = _recompressed(batch, config, data, max_timestamp, is_in_order=is_in_order)
        _check_new_size(built, config, partition)
        return built
    if codec and not is_in_order:
        raise InvalidRecordError(f"Offsets within the compressed batch are not in order in topic partition {partition}")
    if is_appended_time or (max_timestamp == batch.max_timestamp and not batch.attributes & TIMESTAMP_TYPE):
        return batch
    return _built(batch, codec, batch.buffer[BATCH_OVERHEAD:], max_timestamp, flags=_KEPT_FLAGS)


def is_long(records: memoryview, config: LogConfig) -> bool:
    """Return whether validating a batch may take more than a few milliseconds. Only the header is read."""
    if len(records) < BATCH_OVERHEAD:
        return False
    (count,) = INT32.unpack_from(records, RECORD_COUNT_AT)
    if count > _RECORDS_AT_ONCE or len(records) > _BYTES_AT_ONCE:
        return True
    codec = records[FLAGS_AT] & CODEC_MASK
    is_recompressed = config.compression is not None and config.compression != codec
    return is_recompressed and len(records) > _RECOMPRESSED_AT_ONCE


class LongBatchError(KafkaApiError):
    """Validation takes longer than the header of the batch indicates, so a thread has to do it."""

    error_code = ErrorCode.REQUEST_TIMED_OUT


def _check_size(batch: RecordBatch, config: LogConfig, partition: str) -> None:
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


def _check_header(batch: RecordBatch, config: LogConfig, partition: str) -> None:
    count = batch.last_offset_delta + 1
    if count <= 0 or batch.record_count != count:
        raise InvalidRecordError(
            f"Inconsistent batch offset range [0, {batch.last_offset_delta}] and count of records"
            f" {batch.record_count} in topic partition {partition}"
        )
    if batch.is_control:
        raise InvalidRecordError(f"Clients are not allowed to write control records in topic partition {partition}")
    if batch.is_transactional and batch.producer_id <= NO_PRODUCER_ID:
        raise InvalidRecordError(f"A transactional batch without a producer id in topic partition {partition}")
    if batch.producer_id > NO_PRODUCER_ID and batch.base_sequence < 0:
        raise InvalidRecordError(
            f"Invalid sequence number {batch.base_sequence} in record batch with producerId {batch.producer_id}"
            f" in topic partition {partition}"
        )
    if batch.codec > Codec.ZSTD:
        raise UnsupportedCompressionTypeError(f"Unknown compression type id: {batch.codec}")
    if batch.record_count > MAX_DECOMPRESSED_BYTES // MIN_RECORD_BYTES:
        raise InvalidRecordError(f"{batch.record_count} records do not fit the batch in topic partition {partition}")
    most = max(config.max_message_bytes, _RECORDS_ALWAYS_GRANTED)
    if batch.codec != Codec.NONE and batch.record_count > most:
        raise MessageTooLargeError(
            f"The record batch in the append to {partition} has {batch.record_count} records;"
            f" a compressed batch may have {most} (one per byte of max.message.bytes)."
        )


def _decompressed(batch: RecordBatch, config: LogConfig, partition: str, decompress_up_to: int | None) -> bytes:
    """Return the decompressed records.

    Raises:
        MessageTooLargeError: The records are larger than the topic allows.
        LongBatchError: The records are larger than ``decompress_up_to``.
        InvalidRecordError: The records cannot be decompressed, or not by the Java client.
    """
    payload = batch.buffer[BATCH_OVERHEAD:]
    allowed = min(config.max_decompressed_message_bytes, MAX_DECOMPRESSED_BYTES)
    limit = allowed if decompress_up_to is None else min(allowed, decompress_up_to)
    try:
        data = bytes(decompress_view(batch.codec, payload, limit=limit))
        if batch.codec == Codec.LZ4:
            check_lz4_frame(payload)
    except DecompressedTooLargeError as error:
        if limit < allowed:
            raise LongBatchError from error
        raise MessageTooLargeError(
            f"The record batch in the append to {partition} holds more than {limit} bytes when decompressed,"
            " the limit of max.decompressed.message.bytes."
        ) from error
    except CorruptBatchError as error:
        raise InvalidRecordError(f"{error.error_message} in topic partition {partition}") from error
    return data


class _Records:
    """The records of a batch, read again to list the invalid ones."""

    def __init__(self, batch: RecordBatch, data: bytes) -> None:
        self.batch = batch
        self._data = data

    def reject_null_keys(self, partition: str) -> None:
        """Raise an error that lists the records without a key."""
        message = f"Compacted topic cannot accept message without key in topic partition {partition}."
        self._reject(lambda fields: not fields.has_key, lambda _: message, InvalidRecordsError)

    def reject_timestamps(self, earliest: int, latest: int) -> None:
        """Raise an error that lists the records whose timestamp is out of range, if there are any."""
        base = self.batch.base_timestamp

        def is_bad(fields: RecordFields) -> bool:
            timestamp = base + fields.timestamp_delta
            return timestamp != NO_TIMESTAMP and not earliest <= timestamp <= latest

        self._reject(
            is_bad,
            lambda fields: (
                f"Timestamp {base + fields.timestamp_delta} of message with offset {fields.offset_delta} is out of"
                f" range. The timestamp should be within [{earliest}, {latest}]"
            ),
            InvalidTimestampsError,
        )

    def reject_all(self, message: str) -> None:
        """Raise an error that lists all records."""
        self._reject(lambda _: True, lambda _: message, InvalidTimestampsError)

    def _reject(
        self,
        is_bad: Callable[[RecordFields], bool],
        message_of: Callable[[RecordFields], str],
        error: type[InvalidRecordsError | InvalidTimestampsError],
    ) -> None:
        walk = enumerate(iter_fields(self._data, self.batch.record_count))
        bad_records = (RecordError(index, message_of(fields)) for index, fields in walk if is_bad(fields))
        errors = tuple(islice(bad_records, _MAX_RECORD_ERRORS))
        if errors:
            raise error("One or more records have been rejected", errors)


def _allowed_times(config: LogConfig, now_ms: int) -> tuple[int, int]:
    """Return the smallest and the largest allowed timestamp. Both fit into 64 bits."""
    earliest, latest = now_ms - config.message_timestamp_before_max_ms, now_ms + config.message_timestamp_after_max_ms
    return max(earliest, -NO_LIMIT), min(latest, NO_LIMIT)


def _checked_append_time(records: _Records, config: LogConfig, now_ms: int) -> int:
    """Return the timestamp of a batch whose producer has set the timestamp type LogAppendTime.

    All its records then have the timestamp of the header. If the topic has CreateTime, Kafka treats it as the create
    time.

    Raises:
        InvalidTimestampsError: The topic rejects the timestamp type or the timestamp.
    """
    timestamp = records.batch.max_timestamp
    if config.message_timestamp_type is TimestampType.LOG_APPEND_TIME or timestamp == NO_TIMESTAMP:
        records.reject_all("Producer should not set timestamp type to LogAppendTime.")
    earliest, latest = _allowed_times(config, now_ms)
    if not earliest <= timestamp <= latest:
        records.reject_all(
            f"Timestamp {timestamp} is out of range. The timestamp should be within [{earliest}, {latest}]"
        )
    return timestamp


def _recompressed(
    batch: RecordBatch, config: LogConfig, data: bytes, max_timestamp: int, *, is_in_order: bool
) -> RecordBatch:
    """Return the batch in the codec of ``compression.type``. As in Kafka, records out of order get new offsets."""
    codec = config.compression if config.compression is not None else Codec(batch.codec)
    if is_in_order and batch.timestamp_type is TimestampType.CREATE_TIME:
        packed = compress(codec, data, level=config.compression_level)
        return _built(batch, codec, packed, max_timestamp, flags=TRANSACTIONAL)
    built = encode_batch(
        [record._replace(offset=index) for index, record in enumerate(iter_records(batch))],
        codec=codec,
        level=config.compression_level,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        is_transactional=batch.is_transactional,
    )
    return RecordBatch(memoryview(built))


def _check_new_size(batch: RecordBatch, config: LogConfig, partition: str) -> None:
    """Check the size of a recompressed batch, as in Kafka."""
    if batch.size > config.max_message_bytes:
        raise MessageTooLargeError(
            f"Message batch size is {batch.size} bytes in append to partition {partition} which exceeds the maximum"
            f" configured size of {config.max_message_bytes}."
        )


def _built(
    batch: RecordBatch, codec: int, payload: bytes | memoryview, max_timestamp: int, *, flags: int
) -> RecordBatch:
    """Return a batch with another payload, codec and largest timestamp. Of its attributes only ``flags`` are kept."""
    built = bytearray(batch.buffer[:BATCH_OVERHEAD])
    built += payload
    INT32.pack_into(built, BATCH_LENGTH_AT, len(built) - LOG_OVERHEAD)
    patch_header(built, attributes=batch.attributes & flags | codec, max_timestamp=max_timestamp)
    return RecordBatch(memoryview(built))


def check_fits_segment(batch: RecordBatch, config: LogConfig, partition: str) -> None:
    """Check the size of a batch in its final codec.

    Raises:
        RecordListTooLargeError: The batch is larger than ``segment.bytes``.
    """
    if batch.size > config.segment_bytes:
        raise RecordListTooLargeError(
            f"Message batch size is {batch.size} bytes in append to partition {partition}, which exceeds the maximum"
            f" configured segment size of {config.segment_bytes}."
        )


def stamped_attributes(batch: RecordBatch) -> int:
    """Return the attributes of a batch with LogAppendTime."""
    return batch.attributes & (CODEC_MASK | _KEPT_FLAGS) | TIMESTAMP_TYPE


T = TypeVar("T")

_RECORDS: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="klamm-records")
"""One thread for all partitions. A second one would compete for the interpreter and double the decompressed memory."""


class AbandonedError(Exception):
    """The result of a piece of work is no longer needed."""


async def in_records_thread(work: Callable[[threading.Event], T]) -> T:
    """Run work in the thread for records and return its result.

    If the caller is cancelled because its client disconnected, work that has not started is dropped. Work receives an
    event that is set then, and should raise AbandonedError.
    """
    abandoned = threading.Event()
    try:
        return await asyncio.get_running_loop().run_in_executor(_RECORDS, work, abandoned)
    finally:
        abandoned.set()

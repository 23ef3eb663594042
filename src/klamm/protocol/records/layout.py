"""Layout of a record batch's header: the only place that defines the position of each field.

Magic 2 (Kafka's DefaultRecordBatch), big-endian::

    base_offset q | batch_length i | partition_leader_epoch i | magic b | crc I |
    attributes h | last_offset_delta i | base_timestamp q | max_timestamp q |
    producer_id q | producer_epoch h | base_sequence i | record_count i | records

``batch_length`` counts the bytes after it. ``crc`` (CRC32C) covers the bytes after it, so the base offset and the
leader epoch can be stamped without recomputing it. In message sets of magic 0 and 1, the first five fields have the
same positions.
"""

from __future__ import annotations

import struct
from typing import Final

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
"""All header fields in order."""
PREFIX: Final = struct.Struct(">qii")
"""Base offset, batch length and leader epoch: the fields that are stamped without changing the checksum."""
OFFSET_AND_LENGTH: Final = struct.Struct(">qi")
PRODUCER: Final = struct.Struct(">qhi")
"""Producer id, producer epoch and base sequence, at ``PRODUCER_AT``."""
TIMESTAMPS: Final = struct.Struct(">qq")
"""Base timestamp and max timestamp, at ``BASE_TIMESTAMP_AT``."""
INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")
CRC: Final = struct.Struct(">I")

BATCH_LENGTH_AT: Final = 8
LEADER_EPOCH_AT: Final = 12
MAGIC_AT: Final = 16
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
"""Position of the attributes (two bytes). The checksum covers the batch from here on."""
FLAGS_AT: Final = 22
"""Position of the second byte of the attributes, which holds all bits in use."""
LAST_OFFSET_DELTA_AT: Final = 23
BASE_TIMESTAMP_AT: Final = 27
MAX_TIMESTAMP_AT: Final = 35
PRODUCER_AT: Final = 43
RECORD_COUNT_AT: Final = 57

MAGIC: Final = 2
LOG_OVERHEAD: Final = OFFSET_AND_LENGTH.size
"""Size in bytes of ``base_offset`` and ``batch_length``."""
BATCH_OVERHEAD: Final = HEADER.size
"""Size in bytes of the header of magic 2."""
MIN_RECORD_BYTES: Final = 7
"""Size in bytes of the smallest record: length, attributes, two deltas, null key, null value, no headers."""

CODEC_MASK: Final = 0x07
TIMESTAMP_TYPE: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

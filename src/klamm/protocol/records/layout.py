"""Where the fields of a record batch's header lie: the one place that knows.

Magic 2 (Kafka's DefaultRecordBatch), big-endian::

    base_offset q | batch_length i | partition_leader_epoch i | magic b | crc I |
    attributes h | last_offset_delta i | base_timestamp q | max_timestamp q |
    producer_id q | producer_epoch h | base_sequence i | record_count i | records

``batch_length`` counts what follows it; ``crc`` (CRC32C) covers what follows it, so that base offset and leader
epoch can be stamped without touching it. Message sets of magic 0 and 1 share the first five fields' places.
"""

from __future__ import annotations

import struct
from typing import Final

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
"""All fields in their order."""
PREFIX: Final = struct.Struct(">qii")
"""Base offset, batch length, leader epoch: what is stamped outside the checksum."""
OFFSET_AND_LENGTH: Final = struct.Struct(">qi")
PRODUCER: Final = struct.Struct(">qhi")
"""Producer id, producer epoch, base sequence; at ``PRODUCER_AT``."""
INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")
CRC: Final = struct.Struct(">I")

BATCH_LENGTH_AT: Final = 8
LEADER_EPOCH_AT: Final = 12
MAGIC_AT: Final = 16
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
"""Two bytes. Also where begins what the checksum covers."""
FLAGS_AT: Final = 22
"""The second byte of the attributes, which has all that is in use."""
LAST_OFFSET_DELTA_AT: Final = 23
MAX_TIMESTAMP_AT: Final = 35
PRODUCER_AT: Final = 43
RECORD_COUNT_AT: Final = 57

MAGIC: Final = 2
LOG_OVERHEAD: Final = OFFSET_AND_LENGTH.size
"""Bytes of ``base_offset`` and ``batch_length``."""
BATCH_OVERHEAD: Final = HEADER.size
"""Bytes of the header of magic 2."""
LEAST_RECORD: Final = 7
"""Bytes of the smallest record: length, attributes, two deltas, null key, null value, no headers."""

CODEC_MASK: Final = 0x07
TIMESTAMP_TYPE: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

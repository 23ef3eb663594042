"""Partitioning by record key, as in Kafka's default partitioner (``BuiltInPartitioner``)."""

from __future__ import annotations

import struct
from typing import Final

_SEED: Final = 0x9747B28C
_FACTOR: Final = 0x5BD1E995
_WORD_BYTES: Final = 4


def murmur2(data: bytes) -> int:
    """Return the 32-bit murmur2 hash with the seed of Kafka (``Utils.murmur2``), as an unsigned number."""
    value = (_SEED ^ len(data)) & 0xFFFFFFFF
    whole = len(data) - len(data) % _WORD_BYTES
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        mixed = word * _FACTOR & 0xFFFFFFFF
        mixed = (mixed ^ mixed >> 24) * _FACTOR & 0xFFFFFFFF
        value = value * _FACTOR & 0xFFFFFFFF ^ mixed
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * _FACTOR & 0xFFFFFFFF
    value = (value ^ value >> 13) * _FACTOR & 0xFFFFFFFF
    return value ^ value >> 15


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Return the partition that Kafka's Java producer selects for a key.

    Args:
        key: The serialized key.
        partition_count: Number of partitions of the topic, at least 1.
    """
    return (murmur2(key) & 0x7FFFFFFF) % partition_count

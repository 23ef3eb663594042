"""Partitioning by record key, as in Kafka's default partitioner (``BuiltInPartitioner``)."""

from __future__ import annotations

from kafka.partitioner.default import murmur2

__all__ = ["murmur2", "partition_for_key"]


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Return the partition that Kafka's Java producer selects for a key.

    Args:
        key: The serialized key.
        partition_count: Number of partitions of the topic, at least 1.
    """
    return int((murmur2(key) & 0x7FFFFFFF) % partition_count)

"""Partition of a record's key, as Kafka's default partitioner chooses it (Kafka's ``BuiltInPartitioner``)."""

from __future__ import annotations

from kafka.partitioner.default import murmur2

__all__ = ["murmur2", "partition_for_key"]


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Return the partition that Kafka's Java producer chooses for a key.

    Args:
        key: The serialized key.
        partition_count: Partitions of the topic, at least 1.
    """
    return int((murmur2(key) & 0x7FFFFFFF) % partition_count)

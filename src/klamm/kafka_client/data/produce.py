"""Produce requests that send record batches without copying. Only the bytes between the batches are built."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.protocol.messages.produce import ProduceRequest
from klamm.protocol.primitives import write_uvarint

if TYPE_CHECKING:
    from collections.abc import Sequence

TOPIC_IDS_FROM: Final = 13
LAST_IN_TRANSACTION: Final = 11
"""Highest version inside a transaction.

From version 12 on, a Produce request adds its partitions to the transaction by itself, by transaction rules that must
not be mixed with those of ``klamm.kafka_client.data.transactions``.
"""
_ACKS_ALL: Final = -1
_I32: Final = struct.Struct(">i")
_ACKS_AND_TIMEOUT: Final = struct.Struct(">hi")


class TopicName(NamedTuple):
    """Name of a target topic, and its id if the broker reports one (16 zero bytes otherwise)."""

    name: str
    topic_id: bytes


class PartitionRecords(NamedTuple):
    """One record batch for one partition. A Produce request carries one batch per partition."""

    topic: TopicName
    partition: int
    records: memoryview


def produce_body(
    version: int, batches: Sequence[PartitionRecords], *, timeout_ms: int, transactional_id: str | None = None
) -> list[bytes | memoryview]:
    """Return the body of a Produce request (acks=all) as a list of buffers.

    Args:
        version: Version of the request, 3 to 13.
        batches: At most one batch per partition. Batches of one topic must be adjacent.
        timeout_ms: Time in milliseconds that the leader may wait for its replicas.
        transactional_id: Transactional id. None outside of transactions.
    """
    flexible = ProduceRequest.is_flexible(version)
    by_topic: dict[TopicName, list[PartitionRecords]] = {}
    for batch in batches:
        by_topic.setdefault(batch.topic, []).append(batch)
    out: list[bytes | memoryview] = []
    held = _transactional_id(transactional_id, flexible) + _ACKS_AND_TIMEOUT.pack(_ACKS_ALL, timeout_ms)
    held += _count(len(by_topic), flexible)
    for topic, partitions in by_topic.items():
        held += _topic(topic, version, flexible) + _count(len(partitions), flexible)
        for _, partition, records in partitions:
            held += _I32.pack(partition) + _count(len(records), flexible)
            out += (held, records)
            held = b"\0" if flexible else b""
        held += b"\0" if flexible else b""
    held += b"\0" if flexible else b""
    if held:
        out.append(held)
    return out


def _transactional_id(value: str | None, flexible: bool) -> bytes:
    if value is None:
        return b"\0" if flexible else b"\xff\xff"
    return _string(value, flexible)


def _topic(topic: TopicName, version: int, flexible: bool) -> bytes:
    return topic.topic_id if version >= TOPIC_IDS_FROM else _string(topic.name, flexible)


def _string(value: str, flexible: bool) -> bytes:
    data = value.encode()
    return (_uvarint(len(data) + 1) if flexible else struct.pack(">h", len(data))) + data


def _count(count: int, flexible: bool) -> bytes:
    return _uvarint(count + 1) if flexible else _I32.pack(count)


def _uvarint(value: int) -> bytes:
    out = bytearray()
    write_uvarint(out, value)
    return bytes(out)

"""Facts read from record batches: the newest batches of a partition, and the offset syncs of mirrors."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from klamm.impact.facts import BatchFact
from klamm.protocol.errors import CorruptBatchError
from klamm.protocol.partitioner import partition_for_key
from klamm.protocol.records import Codec, decode_records, iter_batches
from klamm.protocol.types import TopicPartition

if TYPE_CHECKING:
    from klamm.protocol.records.checksum import Buffer

NEWEST_RECORDS: Final = 1_000
"""Number of records at the end of each partition that are read at most."""
MAX_PARTITION_BYTES: Final = 1024 * 1024
"""Number of bytes of a partition that are read at most, unless its first batch is larger."""
MAX_SAMPLED_BYTES: Final = 64 * 1024 * 1024
"""Number of bytes of all partitions that are read at most."""
_ALL_KEYS: Final = 0x7FFFFFFF
_OFFSET_SYNCS: Final = re.compile(r"mm2-offset-syncs[.](.+)[.]internal")


def mirror_of(topic: str) -> str | None:
    """Return the alias of the target cluster if a topic has a mirror's offset syncs; None for other topics."""
    match = _OFFSET_SYNCS.fullmatch(topic)
    return None if match is None else match[1]


def batch_facts(records: Buffer) -> list[BatchFact]:
    """Return the complete batches with records. A damaged batch ends the sample."""
    facts: list[BatchFact] = []
    try:
        for batch in iter_batches(records, allow_partial_tail=True):
            if batch.is_control or not batch.record_count:
                if facts:
                    facts[-1] = replace(facts[-1], next_offset=batch.last_offset + 1)
                continue
            decoded = decode_records(batch)
            facts.append(
                BatchFact(
                    size=batch.size,
                    codec=Codec(batch.codec).name.lower(),
                    first_timestamp_ms=min(record.timestamp for record in decoded),
                    max_timestamp_ms=batch.max_timestamp,
                    next_offset=batch.last_offset + 1,
                    keys=tuple(None if r.key is None else partition_for_key(r.key, _ALL_KEYS + 1) for r in decoded),
                )
            )
    except CorruptBatchError:
        return facts
    return facts


def synced_offsets(records: Buffer) -> dict[TopicPartition, int]:
    """Return the newest source offset per partition in offset syncs of MirrorMaker's format (``OffsetSync``)."""
    offsets: dict[TopicPartition, int] = {}
    try:
        for batch in iter_batches(records, allow_partial_tail=True):
            for record in () if batch.is_control else decode_records(batch):
                key: Any = record.key or b""
                (length,) = struct.unpack_from(">h", key)
                (partition,) = struct.unpack_from(">i", key, 2 + length)
                (offset,) = struct.unpack_from(">q", record.value or b"")
                offsets[TopicPartition(key[2 : 2 + length].decode(), partition)] = offset
    except (CorruptBatchError, struct.error, UnicodeDecodeError):
        return offsets
    return offsets

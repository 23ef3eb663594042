"""Classification of fetched record batches: copied unchanged, rebuilt, or dropped.

Only batch headers are read here. Records are not touched unless a batch must be rebuilt.
"""

from __future__ import annotations

import struct
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.protocol.errors import CorruptBatchError
from klamm.protocol.records import (
    Codec,
    RecordBatch,
    TimestampType,
    decode_records,
    encode_batch,
    iter_batches,
    write_crc,
)
from klamm.protocol.records import verify_crc as crc_is_right
from klamm.protocol.records.layout import (
    ATTRIBUTES_AT,
    BATCH_LENGTH_AT,
    CODEC_MASK,
    FLAGS_AT,
    INT16,
    INT32,
    LEADER_EPOCH_AT,
    MAGIC,
    MAGIC_AT,
    PRODUCER,
    PRODUCER_AT,
    TRANSACTIONAL,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from klamm.protocol.records import Record
    from klamm.protocol.types import AbortedTransaction

_OPEN_OFFSET: Final = bytes(BATCH_LENGTH_AT)
_OPEN_LEADER_EPOCH: Final = INT32.pack(-1)
_CONTROL_KEY: Final = struct.Struct(">hh")
_ABORT_MARKER: Final = 0


class Treatment(Enum):
    """Treatment of a fetched batch."""

    COPY = auto()
    """Patch the header and send the record bytes unchanged."""
    REBUILD = auto()
    """Decode the batch and build a new one from its records."""
    DROP = auto()
    """Send nothing to the target, but advance the source offset."""


class FetchedBatch(NamedTuple):
    """A record batch of a fetch response and its treatment."""

    batch: RecordBatch
    treatment: Treatment
    next_offset: int
    """Source offset after the batch."""


class ProducerStamp(NamedTuple):
    """Producer id and epoch from InitProducerId."""

    producer_id: int
    producer_epoch: int
    is_transactional: bool = False


def walk(
    records: memoryview, fetch_offset: int, aborted: Sequence[AbortedTransaction] | None = None
) -> Iterator[FetchedBatch]:
    """Iterate over the complete batches of a fetch that end after ``fetch_offset``.

    Args:
        records: Record data of a fetch response. A truncated last batch is left for the next fetch.
        fetch_offset: First wanted offset.
        aborted: Aborted transactions in this range. None means read_uncommitted.

    Raises:
        CorruptBatchError: A length is invalid or a checksum is wrong.
    """
    waiting = sorted(aborted or (), key=lambda transaction: transaction.first_offset, reverse=True)
    left_out: set[int] = set()
    for batch in iter_batches(records, allow_partial_tail=True):
        # First, because damage may also turn records into a control batch, which is dropped. And a new checksum over
        # changed bytes would hide the damage from the target and from every later reader.
        if not crc_is_right(batch):
            raise CorruptBatchError(f"{batch!r} has a wrong checksum")
        next_offset = batch.last_offset + 1
        if aborted is not None:
            _follow_transactions(batch, waiting, left_out)
        if next_offset > fetch_offset:
            yield FetchedBatch(batch, _treatment(batch, fetch_offset, left_out), next_offset)


def _follow_transactions(batch: RecordBatch, waiting: list[AbortedTransaction], left_out: set[int]) -> None:
    """Update the ids in ``left_out``: producers whose records are dropped until their abort marker."""
    while waiting and waiting[-1].first_offset <= batch.last_offset:
        left_out.add(waiting.pop().producer_id)
    if batch.is_control and batch.producer_id in left_out and _is_abort_marker(batch):
        left_out.discard(batch.producer_id)


def _is_abort_marker(batch: RecordBatch) -> bool:
    markers = decode_records(batch)
    if not markers or len(markers[0].key or b"") < _CONTROL_KEY.size:
        return False
    _, kind = _CONTROL_KEY.unpack_from(markers[0].key or b"")
    return bool(kind == _ABORT_MARKER)


def _treatment(batch: RecordBatch, fetch_offset: int, left_out: set[int]) -> Treatment:
    if batch.magic != MAGIC:
        return Treatment.REBUILD
    if batch.is_control or batch.record_count == 0 or (batch.is_transactional and batch.producer_id in left_out):
        return Treatment.DROP
    if batch.record_count != batch.last_offset_delta + 1 or batch.base_offset < fetch_offset:
        return Treatment.REBUILD
    return Treatment.REBUILD if batch.timestamp_type is TimestampType.LOG_APPEND_TIME else Treatment.COPY


def stamp(
    view: memoryview, *, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool = False
) -> None:
    """Stamp a batch in place: producer and transaction are set, and the checksum is computed.

    Offset and leader epoch are left for the target to assign.

    Only the codec of the attributes is kept. The source's transaction does not exist on the target,
    and a delete horizon would make the target drop tombstones by the source's clock. Record timestamps are not changed.
    """
    view[:BATCH_LENGTH_AT] = _OPEN_OFFSET
    view[LEADER_EPOCH_AT:MAGIC_AT] = _OPEN_LEADER_EPOCH
    kept = view[FLAGS_AT] & CODEC_MASK
    INT16.pack_into(view, ATTRIBUTES_AT, kept | TRANSACTIONAL if transactional else kept)
    PRODUCER.pack_into(view, PRODUCER_AT, producer_id, producer_epoch, base_sequence)
    write_crc(view)


def rebuild(batch: RecordBatch, fetch_offset: int) -> tuple[memoryview, tuple[int, ...]]:
    """Build a batch of the records from ``fetch_offset`` on, without offset gaps, with each record's own timestamp.

    Returns the batch and the source offsets of its records. Both are empty if no record is left.

    Raises:
        CorruptBatchError: The records cannot be decoded.
    """
    kept = [record for record in decode_records(batch) if record.offset >= fetch_offset]
    offsets = tuple(record.offset for record in kept)
    return (_encode(kept, batch.codec) if kept else memoryview(b"")), offsets


def split(view: memoryview) -> tuple[tuple[memoryview, int], tuple[memoryview, int]] | None:
    """Build two batches with half of the records each; return None for a batch of one record."""
    batch = RecordBatch(view)
    records = decode_records(batch)
    middle = len(records) // 2
    if middle == 0:
        return None
    return (
        (_encode(records[:middle], batch.codec), middle),
        (_encode(records[middle:], batch.codec), len(records) - middle),
    )


def _encode(records: Sequence[Record], codec: int) -> memoryview:
    renumbered = [record._replace(offset=offset) for offset, record in enumerate(records)]
    return memoryview(encode_batch(renumbered, codec=Codec(codec)))

"""Control records: commit and abort markers of transactions (Kafka's EndTransactionMarker)."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.protocol.errors import CorruptBatchError
from klamm.protocol.records.decoder import decode_records
from klamm.protocol.records.encoder import encode_batch
from klamm.protocol.records.record import Record

if TYPE_CHECKING:
    from klamm.protocol.records.batch import RecordBatch

_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
_VERSION: Final = 0


class ControlType(IntEnum):
    """Wire values of the type in a control record's key. Other types do not concern transactions."""

    ABORT = 0
    COMMIT = 1


class ControlRecord(NamedTuple):
    """Outcome of a transaction, and the epoch of the coordinator that wrote the marker."""

    control_type: ControlType
    coordinator_epoch: int


def encode_marker(
    control_type: ControlType, *, producer_id: int, producer_epoch: int, coordinator_epoch: int, timestamp: int
) -> bytearray:
    """Build the control batch that ends a producer's transaction; ``timestamp`` is in milliseconds since the epoch."""
    key, value = _KEY.pack(_VERSION, control_type), _VALUE.pack(_VERSION, coordinator_epoch)
    return encode_batch(
        [Record(key, value, (), timestamp, 0)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def decode_marker(batch: RecordBatch) -> ControlRecord | None:
    """Decode a control batch; return None if it does not end a transaction or was emptied by compaction.

    Raises:
        CorruptBatchError: The batch holds no valid control record.
    """
    records = decode_records(batch)
    if not records:
        return None
    key, value = records[0].key, records[0].value
    if key is None or len(key) < _KEY.size:
        raise CorruptBatchError(f"{batch!r} has no control record")
    number = _KEY.unpack_from(key)[1]
    if number not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    if value is None or len(value) < _VALUE.size:
        raise CorruptBatchError(f"{batch!r} has no valid end-of-transaction marker")
    return ControlRecord(ControlType(number), _VALUE.unpack_from(value)[1])

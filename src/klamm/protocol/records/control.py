"""The record in a control batch: whether a transaction was committed or aborted (Kafka's EndTransactionMarker)."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.protocol.errors import CorruptBatchError
from klamm.protocol.records.decoding import decode_records
from klamm.protocol.records.encoding import encode_batch
from klamm.protocol.records.record import Record

if TYPE_CHECKING:
    from klamm.protocol.records.batch import RecordBatch

_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
_VERSION: Final = 0


class ControlType(IntEnum):
    """Wire values of the type in a control record's key; others are of no concern to transactions."""

    ABORT = 0
    COMMIT = 1


class ControlRecord(NamedTuple):
    """How a transaction ended, and the epoch of the coordinator that says so."""

    control_type: ControlType
    coordinator_epoch: int


def encode_marker(
    control_type: ControlType, *, producer_id: int, producer_epoch: int, coordinator_epoch: int, timestamp: int
) -> bytearray:
    """Build the control batch that ends a producer's transaction; ``timestamp`` in milliseconds since the epoch."""
    key, value = _KEY.pack(_VERSION, control_type), _VALUE.pack(_VERSION, coordinator_epoch)
    return encode_batch(
        [Record(key, value, (), timestamp, 0)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def decode_marker(batch: RecordBatch) -> ControlRecord | None:
    """Read a control batch; None when it is no end of a transaction, or was emptied by compaction.

    Raises:
        CorruptBatchError: It is no control record at all.
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
        raise CorruptBatchError(f"{batch!r} has no end of a transaction")
    return ControlRecord(ControlType(number), _VALUE.unpack_from(value)[1])

"""Metadata records as bytes of the metadata log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.protocol.codec import encode
from klamm.protocol.primitives import write_uvarint
from klamm.protocol.records import Record, encode_batch

if TYPE_CHECKING:
    from klamm.protocol.schema import Message


def framed(record: Message, version: int | None = None) -> bytes:
    """Return the value of a record: frame version 1, record type, version, body."""
    chosen = type(record).VERSIONS[1] if version is None else version
    out = bytearray()
    for number in (1, record.API_KEY, chosen):
        write_uvarint(out, number)
    return bytes(out) + encode(record, chosen)


def log_batch(base_offset: int, *records: Message, epoch: int = 1) -> bytes:
    """Return a batch of the metadata log."""
    rows = [Record(None, framed(record), offset=base_offset + index) for index, record in enumerate(records)]
    return bytes(encode_batch(rows, partition_leader_epoch=epoch))


def control_batch(base_offset: int, *, epoch: int = 1) -> bytes:
    """Return a control batch, such as that of a leader change."""
    row = Record(b"\x00\x00\x00\x02", b"\x00\x00", offset=base_offset)
    return bytes(encode_batch([row], partition_leader_epoch=epoch, is_control=True))

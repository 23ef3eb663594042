"""Decoder for the records of the metadata log.

The value of a record is a frame: frame version, record type and version as unsigned varints, then the body. Control
batches (leader changes, and header and footer of a snapshot) belong to Raft and hold no metadata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.kraft.errors import UnsupportedRecordError
from klamm.protocol.codec import decode
from klamm.protocol.errors import CorruptBatchError, ProtocolError
from klamm.protocol.messages import metadata_records
from klamm.protocol.primitives import read_uvarint
from klamm.protocol.records import decode_records, iter_batches, verify_crc
from klamm.protocol.schema import Message

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_FRAME_VERSION: Final = 1
_CLASSES: Final[Mapping[int, type[Message]]] = {
    value.API_KEY: value
    for value in vars(metadata_records).values()
    if isinstance(value, type) and issubclass(value, Message) and value is not Message
}
"""Class of each record type that is read."""


class MetadataBatch(NamedTuple):
    """Metadata records of one batch of the log."""

    last_offset: int
    epoch: int
    """Epoch of the controller that wrote the batch."""
    records: list[Message]
    """Empty for control batches, and for records of types that are not read."""


def read_batches(data: bytes | bytearray | memoryview) -> Iterator[MetadataBatch]:
    """Iterate over the batches of the metadata log in a response or a snapshot. A truncated last batch is skipped.

    Raises:
        CorruptBatchError: A checksum is wrong, or the bytes are no record batches.
        ProtocolError: A record is no metadata record.
        UnsupportedRecordError: A record's version is newer than its schema in this program.
    """
    for batch in iter_batches(data, allow_partial_tail=True):
        if not verify_crc(batch):
            raise CorruptBatchError(f"Metadata log: wrong checksum of the batch at offset {batch.base_offset}")
        records: list[Message] = []
        if not batch.is_control:
            values = [record.value for record in decode_records(batch)]
            records = [record for value in values if value and (record := decode_record(value)) is not None]
        yield MetadataBatch(batch.last_offset, batch.partition_leader_epoch, records)


def decode_record(value: bytes) -> Message | None:
    """Decode the value of one record, or return None for a record type that is not read.

    Raises:
        ProtocolError: The bytes are no metadata record.
        UnsupportedRecordError: The record's version is newer than its schema in this program.
    """
    view = memoryview(value)
    frame_version, position = read_uvarint(view, 0)
    if frame_version != _FRAME_VERSION:
        raise ProtocolError(f"Metadata record of frame version {frame_version}, expected {_FRAME_VERSION}")
    record_type, position = read_uvarint(view, position)
    version, position = read_uvarint(view, position)
    record_class = _CLASSES.get(record_type)
    if record_class is None:
        return None
    if version > record_class.VERSIONS[1]:
        raise UnsupportedRecordError(
            f"The metadata log holds {record_class.__name__} v{version}, but this version of klamm reads up to "
            f"v{record_class.VERSIONS[1]}: the cluster's metadata.version is newer; upgrade klamm"
        )
    return decode(record_class, version, view, position)

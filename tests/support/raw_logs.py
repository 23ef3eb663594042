"""An independent decoder of record batches and segment files.

It uses no code of klamm, so that a checker of klamm's files does not rest on the code it checks.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_COMPRESSED: Final = 0x07
ABORT: Final = 0
"""Type in the key of a control record that ends an aborted transaction."""
COMMIT: Final = 1


class RawBatch(NamedTuple):
    """A record batch of magic 2."""

    base_offset: int
    last_offset: int
    attributes: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: dict[int, tuple[bytes, bytes]]
    """Keys and values by offset. A key or value that is null is empty here."""

    @property
    def is_control(self) -> bool:
        """Whether the batch is the end of a transaction."""
        return bool(self.attributes & _CONTROL)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch is part of a transaction, or its end."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def control_type(self) -> int:
        """``ABORT`` or ``COMMIT``, for control batches only."""
        ((key, _),) = self.records.values()
        control_type: int = struct.unpack(">hh", key)[1]
        return control_type


class Committed(NamedTuple):
    """The records of a partition as a reader with ``read_committed`` gets them."""

    values: list[str]
    open_producers: dict[int, int]
    """First offset of each transaction without a marker, by producer id."""
    all_values: list[str]
    """Committed, aborted and open records."""
    end_offset: int


def read_batches(partition: Path) -> Iterator[RawBatch]:
    """Yield the batches of all segments of a partition's directory, in order.

    Raises:
        AssertionError: A batch is damaged, offsets go back, or a file ends within a batch.
    """
    next_offset = 0
    for path in sorted(partition.glob("*.log")):
        assert int(path.stem) >= next_offset, f"{path} begins below offset {next_offset}"
        for batch in decode(path.read_bytes(), str(path)):
            assert batch.base_offset >= next_offset, f"{path}: offset {batch.base_offset} after {next_offset - 1}"
            next_offset = batch.last_offset + 1
            yield batch


def decode(data: bytes, name: str) -> Iterator[RawBatch]:
    """Yield batches without compression and headers.

    Args:
        data: Whole batches.
        name: Their origin, for messages.

    Raises:
        AssertionError: A checksum or a length is wrong, or the data end within a batch.
    """
    position = 0
    while position < len(data):
        assert len(data) - position >= _HEADER.size, f"{name} ends within a header"
        fields = _HEADER.unpack_from(data, position)
        base_offset, length, _, magic, crc, attributes, delta, _, _, producer_id, epoch, sequence, count = fields
        whole = data[position : position + 12 + length]
        assert magic == 2, f"{name} holds magic {magic}"
        assert len(whole) == 12 + length, f"{name} ends within a batch"
        assert crc32c(whole[21:]) == crc, f"{name}: wrong checksum at offset {base_offset}"
        assert not attributes & _COMPRESSED
        records = dict(_records(whole, count, base_offset))
        assert len(records) == count, f"{name}: an offset comes twice in the batch at offset {base_offset}"
        yield RawBatch(base_offset, base_offset + delta, attributes, producer_id, epoch, sequence, records)
        position += len(whole)


def _records(data: bytes, count: int, base_offset: int) -> Iterator[tuple[int, tuple[bytes, bytes]]]:
    position = _HEADER.size
    for _ in range(count):
        length, position = _varint(data, position)
        end = position + length
        position += 1  # attributes
        _, position = _varint(data, position)  # timestamp
        delta, position = _varint(data, position)
        parts = []
        for _ in range(2):
            size, position = _varint(data, position)
            parts.append(data[position : position + max(size, 0)])
            position += max(size, 0)
        headers, position = _varint(data, position)
        assert headers == 0, "no record has headers"
        assert position == end, f"the record at offset {base_offset + delta} has another length"
        yield base_offset + delta, (parts[0], parts[1])
    assert position == len(data), f"the batch at offset {base_offset} has another length"


def _varint(data: bytes, position: int) -> tuple[int, int]:
    raw = shift = 0
    while True:
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), position


def read_committed_raw(partition: Path) -> Committed:
    """Return the records of a partition's directory, in the order of their offsets."""
    committed: list[tuple[int, str]] = []
    of_open: dict[int, list[tuple[int, str]]] = {}
    all_values: list[str] = []
    end_offset = 0
    for batch in read_batches(partition):
        end_offset = batch.last_offset + 1
        if batch.is_control:
            ended = of_open.pop(batch.producer_id, [])
            if batch.control_type == COMMIT:
                committed += ended
            continue
        values = [(offset, value.decode()) for offset, (_, value) in batch.records.items()]
        all_values += [value for _, value in values]
        if batch.is_transactional:
            of_open.setdefault(batch.producer_id, []).extend(values)
        else:
            committed += values
    return Committed(
        [value for _, value in sorted(committed)],
        {producer_id: values[0][0] for producer_id, values in of_open.items()},
        all_values,
        end_offset,
    )

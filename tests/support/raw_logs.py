"""Segment files read byte by byte, by the format alone: what a checker says must not rest on the code it checks."""

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
_COMMIT: Final = 1


class RawBatch(NamedTuple):
    """A record batch of magic 2."""

    base_offset: int
    last_offset: int
    attributes: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: tuple[tuple[bytes, bytes], ...]
    """Keys and values."""


class Committed(NamedTuple):
    """What a partition holds for readers of committed records."""

    values: list[str]
    open_producers: dict[int, int]
    """Producers whose transaction has no marker, with its first offset."""
    all_values: list[str]
    """Records of every fate."""
    end_offset: int


def read_batches(partition: Path) -> Iterator[RawBatch]:
    """Yield the batches of all segments of a partition's directory, in order.

    Raises:
        AssertionError: A checksum is wrong, offsets go back, or a file ends within a batch.
    """
    next_offset = 0
    for path in sorted(partition.glob("*.log")):
        data, position = path.read_bytes(), 0
        assert int(path.stem) >= next_offset, f"{path} begins below offset {next_offset}"
        while position < len(data):
            assert len(data) - position >= _HEADER.size, f"{path} ends within a header"
            fields = _HEADER.unpack_from(data, position)
            base_offset, length, _, magic, crc, attributes, delta, _, _, producer_id, epoch, sequence, count = fields
            whole = data[position : position + 12 + length]
            assert magic == 2, f"{path} holds magic {magic}"
            assert len(whole) == 12 + length, f"{path} ends within a batch"
            assert crc32c(whole[21:]) == crc & 0xFFFFFFFF, f"{path}: wrong checksum at offset {base_offset}"
            assert base_offset >= next_offset, f"{path}: offset {base_offset} after {next_offset - 1}"
            assert not attributes & _COMPRESSED
            next_offset = base_offset + delta + 1
            records = tuple(_records(whole[_HEADER.size :], count))
            yield RawBatch(base_offset, next_offset - 1, attributes, producer_id, epoch, sequence, records)
            position += len(whole)


def _records(data: bytes, count: int) -> Iterator[tuple[bytes, bytes]]:
    position = 0
    for _ in range(count):
        length, position = _varint(data, position)
        end = position + length
        position += 1  # attributes
        for _ in range(2):  # deltas of time and offset
            _, position = _varint(data, position)
        parts = []
        for _ in range(2):
            size, position = _varint(data, position)
            parts.append(data[position : position + max(size, 0)])
            position += max(size, 0)
        yield parts[0], parts[1]
        position = end


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
    """Return what is committed, in the order of the offsets."""
    committed: list[tuple[int, str]] = []
    of_open: dict[int, list[tuple[int, str]]] = {}
    all_values: list[str] = []
    end_offset = 0
    for batch in read_batches(partition):
        end_offset = batch.last_offset + 1
        if batch.attributes & _CONTROL:
            _, kind = struct.unpack(">hh", batch.records[0][0])
            ended = of_open.pop(batch.producer_id, [])
            if kind == _COMMIT:
                committed += ended
            continue
        values = [(batch.base_offset + index, value.decode()) for index, (_, value) in enumerate(batch.records)]
        all_values += [value for _, value in values]
        if batch.attributes & _TRANSACTIONAL:
            of_open.setdefault(batch.producer_id, []).extend(values)
        else:
            committed += values
    return Committed(
        [value for _, value in sorted(committed)],
        {producer_id: values[0][0] for producer_id, values in of_open.items()},
        all_values,
        end_offset,
    )

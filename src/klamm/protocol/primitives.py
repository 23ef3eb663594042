"""What messages are made of: varints, strings, tagged sections."""

from __future__ import annotations

from struct import Struct as Packer
from types import MappingProxyType
from typing import Final
from uuid import UUID

from klamm.protocol.errors import ProtocolError

ZERO_UUID: Final = UUID(int=0)
UUID_BYTES: Final = 16
MAX_VARINT_BYTES: Final = 5
MAX_VARINT: Final = 2**32 - 1
MAX_TAGGED_FIELDS: Final = 1000
"""In a section that is passed over; Kafka's schemas have three at most."""
CONTINUES: Final = 0x80
"""The bit of a varint's byte that says that another one follows."""

FIXED_SIZE: Final = MappingProxyType(
    {
        "int8": ("b", 1),
        "int16": ("h", 2),
        "uint16": ("H", 2),
        "int32": ("i", 4),
        "uint32": ("I", 4),
        "int64": ("q", 8),
        "float64": ("d", 8),
        "bool": ("?", 1),
    }
)
"""struct's code and the size of the kinds of fields that always take as many bytes."""

_INT16 = Packer(">h")


def read_uvarint(buffer: memoryview, position: int) -> tuple[int, int]:
    """Read an unsigned varint; returns the value and the position behind it.

    Raises:
        ProtocolError: More than five bytes, or more than 32 bits.
        IndexError: The buffer ends before the varint does.
    """
    value = 0
    for index in range(MAX_VARINT_BYTES):
        byte = buffer[position + index]
        value |= (byte & ~CONTINUES) << (7 * index)
        if byte < CONTINUES:
            if value > MAX_VARINT:
                raise ProtocolError("Varint has more than 32 bits")
            return value, position + index + 1
    raise ProtocolError("Varint has more than five bytes")


def write_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned varint."""
    while value >= CONTINUES:
        out.append((value & ~CONTINUES & 0xFF) | CONTINUES)
        value >>= 7
    out.append(value)


def skip_tagged_fields(buffer: memoryview, position: int, end: int) -> int:
    """Pass over a tagged section; returns the position behind it.

    Raises:
        ProtocolError: A field does not fit the bytes that are left.
        IndexError: The buffer ends inside a varint.
    """
    count, position = read_uvarint(buffer, position)
    check_length(count, MAX_TAGGED_FIELDS, "Tagged section")
    for _ in range(count):
        _, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        check_length(size, end - position, "Tagged field")
        position += size
    return position


def read_nullable_string(buffer: memoryview, position: int, end: int) -> tuple[str | None, int]:
    """Read a string with a two-byte length, -1 for null (``client_id`` of a request header).

    Raises:
        ProtocolError: The length is below -1 or larger than the bytes that are left.
    """
    (length,) = _INT16.unpack_from(buffer, position)
    position += 2
    if length == -1:
        return None, position
    check_length(length, end - position, "String")
    return str(buffer[position : position + length], "utf-8"), position + length


def check_length(length: int, left: int, what: str) -> None:
    """Compare a length or count with what the bytes that are left can hold.

    Raises:
        ProtocolError: It is negative or too large.
    """
    if length < 0:
        raise ProtocolError(f"{what} of length {length} where null is not allowed")
    if length > left:
        raise ProtocolError(f"{what} of length {length}, {left} are left")

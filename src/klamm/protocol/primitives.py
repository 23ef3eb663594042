"""Building blocks of messages: varints, strings and tagged sections."""

from __future__ import annotations

import base64
from struct import Struct as Packer
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

from klamm.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

ZERO_UUID: Final = UUID(int=0)
MAX_STRING_BYTES: Final = 2**15 - 1
"""Limit for a string, also in flexible versions, which could carry longer ones.

As in Kafka, so that a name or an id that a client stores fits into the responses of older versions.
"""
CHECKED_BY_HANDLER: Final = "value"
"""Field without this limit: a handler checks the value of a config, and answers with an error code."""
UUID_BYTES: Final = 16
MAX_VARINT_BYTES: Final = 5
MAX_VARINT: Final = 2**32 - 1
MAX_TAGGED_FIELDS: Final = 1000
"""Limit for the tagged fields in a skipped section. Kafka's schemas have at most three."""
CONTINUES: Final = 0x80
"""Continuation bit of a varint byte: another byte follows."""

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
"""``struct`` format code and size in bytes of each field kind of fixed size."""

_INT16 = Packer(">h")


def uuid_text(value: UUID) -> str:
    """Return an id in Kafka's form: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def read_uvarint(buffer: memoryview, position: int) -> tuple[int, int]:
    """Read an unsigned varint and return the value and the position after it.

    Raises:
        ProtocolError: The varint has more than five bytes or more than 32 bits.
        IndexError: The buffer ends within the varint.
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
    """Skip a section of tagged fields and return the position after it.

    Raises:
        ProtocolError: A field exceeds the remaining bytes.
        IndexError: The buffer ends within a varint.
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
    """Read a string with an int16 length, where -1 means null (``client_id`` in a request header).

    Raises:
        ProtocolError: The length is below -1 or exceeds the remaining bytes.
    """
    (length,) = _INT16.unpack_from(buffer, position)
    position += 2
    if length == -1:
        return None, position
    check_length(length, end - position, "String")
    return str(buffer[position : position + length], "utf-8"), position + length


def check_length(length: int, left: int, what: str) -> None:
    """Check a length or count against the number of remaining bytes.

    Raises:
        ProtocolError: The length or count is negative or too large.
    """
    if length < 0:
        raise ProtocolError(f"{what} has length {length}, but null is not allowed")
    if length > left:
        raise ProtocolError(f"{what} declares length {length}, but only {left} bytes remain")


def random_uuid(draw: Callable[[], UUID] = uuid4) -> UUID:
    """Return a random id whose text does not start with ``-``, which command lines would parse as an option.

    Kafka's reserved ids, whose first 64 bits are zero, never occur: a version 4 UUID has bits set there.
    """
    while True:
        drawn = draw()
        if not uuid_text(drawn).startswith("-"):
            return drawn

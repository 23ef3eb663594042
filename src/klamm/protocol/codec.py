"""Strict decoder and encoder of wire messages.

A reader or writer is compiled for each message and version when it is first used. The decoder raises
``ProtocolError`` for a truncated body, a null that the schema forbids, a negative length, a count larger than the
remaining bytes can hold, a varint of more than five bytes, and invalid UTF-8. It does so before it allocates
memory for the value. Unknown tagged fields and bytes after the end of the message are skipped, as in Kafka.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, TypeVar

from klamm.protocol.errors import ProtocolError, UnwritableMessageError
from klamm.protocol.primitives import FIXED_SIZE, write_uvarint
from klamm.protocol.readers import ELEMENT_COST, struct_reader
from klamm.protocol.schema import Message, Struct
from klamm.protocol.writers import struct_writer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

AnyStruct = TypeVar("AnyStruct", bound=Struct)

ELEMENTS_GRANTED_TO_ALL: Final = 20_000
_MIN_ELEMENT_BYTES: Final = 16
ELEMENTS_GRANTED_AT_MOST: Final = 100_000


def granted_elements(size: int, most: int = ELEMENTS_GRANTED_AT_MOST) -> int:
    """Return the most strings and structs that the arrays of a request of ``size`` bytes may hold, up to ``most``.

    The elements that real requests list in bulk (topics, partitions, configs) take at least 16 bytes on the wire and a
    few hundred in memory. Without this limit, a frame of many tiny elements would take a hundred times its size.
    Elements of a fixed size, such as partition numbers, count as a quarter: they take 4 bytes and are cheap to read,
    but the broker looks up and answers each of them. Real requests hardly ever need more than 100,000 elements or
    400,000 numbers, however large their frame is.
    """
    return min(ELEMENTS_GRANTED_TO_ALL + size // _MIN_ELEMENT_BYTES, most)


def decode(
    cls: type[AnyStruct],
    version: int,
    buffer: bytes | bytearray | memoryview,
    offset: int = 0,
    *,
    max_elements: int | None = None,
    is_whole: bool = False,
) -> AnyStruct:
    """Decode a message body.

    Args:
        cls: The message class, or a struct nested in one.
        version: A version that the schema defines.
        buffer: Bytes that end where the body ends. Records in the result are views of this buffer.
        offset: Position of the first byte of the body.
        max_elements: Limit for the number of strings and structs in all arrays together. An element of a fixed size
            counts as a quarter. None means that only the size of the buffer limits the arrays.
        is_whole: Whether to reject bytes after the end of the message, which are otherwise skipped. Needed for API keys
            that two APIs share.

    Raises:
        ProtocolError: The bytes do not form such a message.
    """
    view = memoryview(buffer)
    flexible = cls.is_flexible(version) if issubclass(cls, Message) else False
    left = [ELEMENT_COST * (len(view) if max_elements is None else max_elements)]
    try:
        message, end = struct_reader(cls, version, flexible)(view, offset, len(view), left)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise ProtocolError(f"{cls.__name__} v{version}: {error}") from error
    if is_whole and end != len(view):
        raise ProtocolError(f"{cls.__name__} v{version} has {len(view) - end} bytes after its end in the frame")
    return message  # type: ignore[no-any-return]  # the compiled reader makes one of cls


def encode(message: Struct, version: int, *, flexible: bool | None = None) -> bytearray:
    """Encode a message body, without the fields that ``version`` does not have.

    Args:
        message: The message, or a nested struct if ``flexible`` is given.
        version: A version that the schema defines.
        flexible: Whether to use compact types and tagged fields. None means as the message's schema defines.

    Raises:
        UnwritableMessageError: A value does not fit its field: None where null is not allowed, a number out of
            range, or a string of more than 32,767 bytes.
    """
    if flexible is None:
        flexible = isinstance(message, Message) and message.is_flexible(version)
    out = bytearray()
    try:
        struct_writer(type(message), version, flexible)(message, out)
    except (struct.error, TypeError, AttributeError) as error:
        misfit = next(_misfits(message, version), f"a value does not fit its field ({error})")
        raise UnwritableMessageError(f"{type(message).__name__} v{version} cannot be written: {misfit}") from error
    return out


def _misfits(message: Struct, version: int, path: str = "") -> Iterator[str]:
    """Yield which number or string is none. A value that should be text is not shown: it may be a secret."""
    for field in (field for field in message.FIELDS if field.in_version(version)):
        value = getattr(message, field.name)
        is_array = field.is_array and isinstance(value, (list, tuple))
        for index, item in enumerate(value if is_array else (value,)):
            name = f"{path}{field.name}[{index}]" if is_array else f"{path}{field.name}"
            if isinstance(item, Struct):
                yield from _misfits(item, version, f"{name}.")
            elif field.kind in FIXED_SIZE:
                try:
                    struct.pack(f">{FIXED_SIZE[field.kind][0]}", item)
                except struct.error:
                    yield f"{name} is {item!r}, which is no {field.kind}"
            elif (wanted := str if field.kind == "string" else field.struct) and not isinstance(item, wanted | None):
                yield f"{name} is of type {type(item).__name__}, not {wanted.__name__}"


NO_TAGS: Final = b"\x00"
"""Empty tagged section."""


def with_items(head: bytearray, count: int, items: Sequence[bytes], flexible: bool) -> bytes:
    """Return an encoded struct with items in its last array. The caller appends the tagged section.

    Args:
        head: Struct encoded with an empty last array and no tags. It is modified.
        count: Number of items.
        items: Encoded items, in any number of pieces. The last piece may contain the bytes that follow the array.
        flexible: Whether the struct has compact arrays and tags.
    """
    if flexible:
        del head[-2:]  # the empty array and the empty tagged section
        write_uvarint(head, count + 1)
    else:
        del head[-4:]
        head += count.to_bytes(4, "big")
    return b"".join([head, *items])

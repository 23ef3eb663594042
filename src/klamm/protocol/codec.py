"""Read and write wire messages, strictly.

A reader or writer is compiled for a message and version when it is first used. Reading keeps the decoder
contract: a cut body, null where the schema forbids it, a negative length, a count larger than what the bytes
left could hold, a varint of more than five bytes or invalid UTF-8 raise ``ProtocolError`` before anything is
allocated for them. Unknown tagged fields and bytes after the end are passed over, as Kafka does.
"""

from __future__ import annotations

import struct
from typing import Final, TypeVar

from klamm.protocol.errors import ProtocolError
from klamm.protocol.readers import ELEMENT_COST, struct_reader
from klamm.protocol.schema import Message, Struct
from klamm.protocol.writers import struct_writer

AnyStruct = TypeVar("AnyStruct", bound=Struct)

_ELEMENTS_GRANTED_TO_ALL: Final = 20_000
_LEAST_BYTES_OF_AN_ELEMENT: Final = 16
ELEMENTS_GRANTED_AT_MOST: Final = 100_000


def granted_elements(size: int, most: int = ELEMENTS_GRANTED_AT_MOST) -> int:
    """Return how many strings and structs the arrays of a request of ``size`` bytes may hold in all, up to ``most``.

    The elements that real requests list in bulk (topics, partitions, configs) take 16 bytes or more on the wire and a
    few hundred in memory, so a frame of many tiny elements would take a hundred times its size. Elements of a fixed
    size, such as partition numbers, count a quarter: they take 4 bytes and are cheap to read, but each of them is
    looked up and answered. Hardly any request needs more than 100,000 elements or 400,000 numbers, however large its
    frame is.
    """
    return min(_ELEMENTS_GRANTED_TO_ALL + size // _LEAST_BYTES_OF_AN_ELEMENT, most)


def decode(
    cls: type[AnyStruct],
    version: int,
    buffer: bytes | bytearray | memoryview,
    offset: int = 0,
    *,
    max_elements: int | None = None,
    is_whole: bool = False,
) -> AnyStruct:
    """Read a message body.

    Args:
        cls: The message class (or a nested struct of one).
        version: A version that the schema knows.
        buffer: Holds the body up to its very end; records in the result are views of it.
        offset: Where the body begins.
        max_elements: How many strings and structs all arrays may hold together, or four times as many elements of a
            fixed size; None: as many as fit the bytes.
        is_whole: Refuse bytes behind the end, which otherwise are passed over: for keys that two APIs share.

    Raises:
        ProtocolError: The bytes are not such a message.
    """
    view = memoryview(buffer)
    flexible = cls.is_flexible(version) if issubclass(cls, Message) else False
    left = [ELEMENT_COST * (len(view) if max_elements is None else max_elements)]
    try:
        message, end = struct_reader(cls, version, flexible)(view, offset, len(view), left)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise ProtocolError(f"{cls.__name__} v{version}: {error}") from error
    if is_whole and end != len(view):
        raise ProtocolError(
            f"{cls.__name__} v{version} does not end where its frame ends: {len(view) - end} bytes more"
        )
    return message  # type: ignore[no-any-return]  # the compiled reader makes one of cls


def encode(message: Struct, version: int, *, flexible: bool | None = None) -> bytearray:
    """Write a message body; fields that ``version`` does not have are left out.

    Args:
        message: The message, or a nested struct when ``flexible`` is given.
        version: A version that the schema knows.
        flexible: Compact types and tags; None means what the message's schema says.

    Raises:
        ValueError: A value does not fit its field (None where null is not allowed, a number out of range).
    """
    if flexible is None:
        flexible = isinstance(message, Message) and message.is_flexible(version)
    out = bytearray()
    try:
        struct_writer(type(message), version, flexible)(message, out)
    except (struct.error, TypeError, AttributeError) as error:
        raise ValueError(f"{type(message).__name__} v{version} cannot be written: {error}") from error
    return out

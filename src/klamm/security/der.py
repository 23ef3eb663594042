"""Reader for ASN.1 in DER encoding, as far as certificates and keys need it (X.690)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHORT_LENGTH: Final = 0x80


class DerError(ValueError):
    """The bytes are not valid DER."""


def values(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of each value in ``data``.

    Raises:
        DerError: A value does not end within the data.
    """
    position = 0
    while position < len(data):
        try:
            tag, length = data[position], data[position + 1]
        except IndexError as error:
            raise DerError("A value ends after its tag") from error
        position += 2
        if length >= _SHORT_LENGTH:
            size = length - _SHORT_LENGTH
            length = int.from_bytes(data[position : position + size])
            position += size
        if position + length > len(data):
            raise DerError("A value is longer than its container")
        yield tag, data[position : position + length]
        position += length


def encoded(tag: int, value: bytes) -> bytes:
    """Return a value encoded with its tag and length."""
    if len(value) < _SHORT_LENGTH:
        return bytes([tag, len(value)]) + value
    size = len(value).to_bytes((len(value).bit_length() + 7) // 8)
    return bytes([tag, _SHORT_LENGTH + len(size)]) + size + value


def dotted(oid: bytes) -> str:
    """Return an object identifier as text like ``2.5.4.3``."""
    numbers, current = [], 0
    for byte in oid:
        current = current << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(current)
            current = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))

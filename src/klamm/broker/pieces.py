"""Assembly of responses with many similar entries: their common bytes are encoded once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.protocol.primitives import write_uvarint

if TYPE_CHECKING:
    from collections.abc import Sequence

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

"""Responses in which much is alike: what many entries have in common is written once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.protocol.primitives import write_uvarint

if TYPE_CHECKING:
    from collections.abc import Sequence

NO_TAGS: Final = b"\x00"
"""An empty tagged section."""


def with_items(head: bytearray, count: int, items: Sequence[bytes], flexible: bool) -> bytes:
    """Return a struct with items in its last array, and without its tagged section, which the caller appends.

    Args:
        head: The struct as it was written with that array empty and no tags. It is changed.
        count: How many items there are.
        items: Their bytes, in as few pieces as the caller likes; what is to follow may be the last one.
        flexible: Whether the struct has compact arrays and tags.
    """
    if flexible:
        del head[-2:]  # the empty array, no tags
        write_uvarint(head, count + 1)
    else:
        del head[-4:]
        head += count.to_bytes(4, "big")
    return b"".join([head, *items])

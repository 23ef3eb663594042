"""Order of the parts of a response that comes from a policy and from the upstream. Pure."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

Entry = TypeVar("Entry")


def in_order(order: Iterable[Hashable], entries: Iterable[Entry], key_of: Callable[[Entry], Hashable]) -> list[Entry]:
    """Return entries of a response in the order of the request.

    Args:
        order: Keys of the parts of the request, in its order. A repeated key gets as many entries as there are.
        entries: Entries of the response, in any order: those of denied parts and those of the upstream.
        key_of: Function that returns the key of an entry.

    Returns:
        Each entry once. Entries with a key that the request does not have are last.
    """
    waiting: dict[Hashable, deque[Entry]] = {}
    for entry in entries:
        waiting.setdefault(key_of(entry), deque()).append(entry)
    ordered: list[Entry] = []
    for key in order:
        found = waiting.get(key)
        if found:
            ordered.append(found.popleft())
    for rest in waiting.values():
        ordered.extend(rest)
    return ordered

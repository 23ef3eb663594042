"""Pauses in loops over many logs, so that the event loop serves requests in between.

The broker's requests use ``TimeSlice`` for this, which measures time. Storage cannot import it, so it counts items.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

Item = TypeVar("Item")

_ITEMS_AT_ONCE: Final = 256


def with_pauses(items: Iterable[Item], *, at_once: int = _ITEMS_AT_ONCE) -> _PausingIterator[Item]:
    """Iterate over items, and let other tasks run before every ``at_once``-th item.

    Args:
        items: The items. Other tasks may change the underlying collection during a pause, so pass a copy.
        at_once: Number of items per turn of the event loop.
    """
    return _PausingIterator(items, at_once)


class _PausingIterator(Generic[Item]):
    """An asynchronous iterator that, unlike a generator, needs no closing."""

    __slots__ = ("_at_once", "_count", "_items")

    def __init__(self, items: Iterable[Item], at_once: int) -> None:
        self._items = iter(items)
        self._at_once = at_once
        self._count = 0

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> Item:
        """Return the next item, after a pause if one is due."""
        for item in self._items:
            self._count += 1
            if self._count % self._at_once == 0:
                await asyncio.sleep(0)
            return item
        raise StopAsyncIteration

"""Turns of changes: those of one resource are decided on and made one after the other.

A policy sees the state of one topic, or of the configs of one resource. So two changes can break a rule together only
if they concern the same one. A client that changes others does not delay them.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from klamm.protocol.types import ResourceType

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable


class ResourceTurns:
    """Locks of the resources that are being changed through a gateway. Used on the event loop only."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[int, str], asyncio.Lock] = WeakValueDictionary()

    @property
    def held(self) -> int:
        """Number of resources whose turn is held or waited for."""
        return len(self._locks)

    def of_topics(self, names: Iterable[str]) -> contextlib.AbstractAsyncContextManager[None]:
        """Return the context manager to hold from reading the state of topics to the upstream's response."""
        return self.of((ResourceType.TOPIC, name) for name in names)

    @contextlib.asynccontextmanager
    async def of(self, resources: Iterable[tuple[int, str]]) -> AsyncIterator[None]:
        """Return the same for resources by type and name. All brokers count as one, because they share defaults."""
        keys = {(kind, "" if kind == ResourceType.BROKER else name) for kind, name in resources}
        async with contextlib.AsyncExitStack() as held:
            for key in sorted(keys):  # in one order, so that two requests never wait for each other
                await held.enter_async_context(self._locks.setdefault(key, asyncio.Lock()))
            yield

"""The turns that connections take when many requests wait in them.

A client may send thousands of small requests at once. Each is answered without a pause, so without turns the first
connection would be served to its end while all others wait.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from klamm.broker.time_slice import SLICE_S

ROUND_S: Final = 0.02
"""How long one round over all connections with waiting requests takes, about: what another client waits at most."""


class Turns:
    """Shares the event loop among connections with waiting requests. Loop-confined."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting = 0

    def ends_at(self) -> float:
        """Return when a turn that begins now ends, by ``time.perf_counter``; the more wait, the shorter it is."""
        return time.perf_counter() + min(SLICE_S, ROUND_S / (self._waiting + 1))

    async def next(self) -> float:
        """Let all others have their turn; returns when the new one ends."""
        self._waiting += 1
        try:
            await asyncio.sleep(0)
        finally:
            self._waiting -= 1
        return self.ends_at()

"""Fair sharing of the event loop among connections with many queued requests.

A client may send thousands of small requests at once. Each is answered without a pause, so without turns the broker
would serve the first connection to its end before it serves another.

A connection's turn starts when a frame arrives after a wait, or when ``next`` returns. During its turn the connection
serves queued requests without a pause. A request is never interrupted by this; the time is checked between requests.

=======================  =======================================================================================
Connections that wait    Length of a turn
=======================  =======================================================================================
0 to 3                   ``SLICE_S`` (5 ms)
n > 3                    ``ROUND_S / (n + 1)``, so one round over all of them takes about ``ROUND_S`` (20 ms)
=======================  =======================================================================================

After its turn the connection yields to the event loop once. The loop runs all other ready connections before it
returns to this one.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from klamm.server.time_slice import SLICE_S

ROUND_S: Final = 0.02
"""Approximate seconds of one round over all connections with queued requests: the longest wait of a client."""


class Turns:
    """Scheduler of the turns. Used on the event loop only."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting = 0

    def ends_at(self) -> float:
        """Return the end of a turn that starts now, by ``time.perf_counter``. The more wait, the shorter it is."""
        return time.perf_counter() + min(SLICE_S, ROUND_S / (self._waiting + 1))

    def wait(self) -> None:
        """Count a connection that waits for its next turn, until ``take``."""
        self._waiting += 1

    def take(self) -> float:
        """Start the turn of a connection that waits; return its end."""
        self._waiting -= 1
        return self.ends_at()

    async def next(self) -> float:
        """Let all other connections have their turn; return the end of the new turn."""
        self.wait()
        try:
            await asyncio.sleep(0)
        except BaseException:
            self.take()
            raise
        return self.take()

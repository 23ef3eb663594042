"""Short pauses of the event loop while many bytes are relayed, so that each system call moves more of them.

A relay that is faster than its clients is woken for each small piece that they send, and wakes the brokers as often.
Under load, waking costs more than copying. After a pause, the pieces that arrived meanwhile are read and sent together:
network cards delay their interrupts for the same reason.

A pause would only delay a client that waits for a response before it sends more. So a read counts as load only if more
requests of its connection were in flight shortly before, or need no response.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

PAUSE_S: Final = 50e-6
"""Length of a pause. The kernel adds up to as much (``PR_SET_TIMERSLACK``)."""
BUSY_PER_S: Final = 4000
"""Events per second above which the event loop starts to pause."""
CALM_PER_S: Final = 1000
"""Events per second below which it ends. Pauses alone make several events one, so this rate is lower."""
_SAMPLE: Final = 16
"""Number of events over which the rate is measured."""


class Pacer:
    """Pauses of one event loop. Used on the event loop only.

    Args:
        clock: Returns seconds.
        pause: Pauses for a number of seconds.
    """

    __slots__ = ("_clock", "_events", "_is_busy", "_is_due", "_pause", "_since")

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock = clock
        self._pause = pause
        self._events = 0
        self._since = clock()
        self._is_busy = False
        self._is_due = False

    def on_event(self, loop: asyncio.AbstractEventLoop) -> None:
        """Count a read after which more is to come. Under load, pause before the event loop waits for events."""
        self._events += 1
        if self._events == _SAMPLE:
            now = self._clock()
            self._is_busy = (now - self._since) * (CALM_PER_S if self._is_busy else BUSY_PER_S) <= _SAMPLE
            self._since, self._events = now, 0
        if self._is_busy and not self._is_due:
            self._is_due = True
            loop.call_soon(self._rest)

    def _rest(self) -> None:
        self._is_due = False
        self._pause(PAUSE_S)

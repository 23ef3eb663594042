"""Clock of a broker that its parent process can move forward."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from klamm.clock import wall_clock_ms


@dataclass(slots=True)
class MovableClock:
    """Wall clock and event loop clock with a common shift. Used on the event loop only."""

    moved_s: float = 0.0
    """Seconds by which the clock is ahead of the machine's clock."""

    def now_ms(self) -> int:
        """Return the wall clock time, in milliseconds since the epoch."""
        return wall_clock_ms() + int(self.moved_s * 1000)

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        """Return an event loop whose timers follow this clock.

        It is asyncio's own loop. The clock of uvloop cannot be moved.
        """
        return _MovableLoop(self)


class _MovableLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: MovableClock) -> None:
        self._clock_of_parent = clock
        super().__init__()

    def time(self) -> float:
        """Return the time by which timers are due, in seconds."""
        return super().time() + self._clock_of_parent.moved_s

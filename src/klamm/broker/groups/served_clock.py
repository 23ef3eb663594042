"""A clock that stops while the broker cannot read its sockets."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_TICK_S: Final = 0.5
_TOLERANCE_S: Final = 0.2
"""Delay of a tick, in seconds, above which the event loop counts as paused."""
_SHORTEST_S: Final = 0.5
_LONGEST_S: Final = 5.0


class ServedClock:
    """The clock of session timeouts. Used on the event loop only.

    While the event loop is blocked, or the process or machine is suspended, heartbeats wait in the sockets and sessions
    seem to time out. With a plain clock, the first heartbeat that is read would expire all other members of its group.
    So after a pause this clock shows the time at which the pause began, while the waiting requests are served. It does
    so for as long as the pause took, but at least 0.5 and at most 5 seconds.

    Args:
        now: Clock to show, seconds.
        elapsed: Monotonic clock by which pauses are measured, seconds. Tests move ``now`` forward, and that is not a
            pause.
    """

    def __init__(self, now: Callable[[], float], elapsed: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._elapsed = elapsed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ticked_at = 0.0
        """Time of ``elapsed``, like ``_stands_until``."""
        self._showed = 0.0
        self._stands_until = 0.0
        self._stands_at = 0.0

    def start(self) -> None:
        """Start to detect pauses. Before this, the clock never stops."""
        self._loop = asyncio.get_running_loop()
        self._tick(self._loop)

    def stop(self) -> None:
        """Stop detecting pauses."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop = self._timer = None
        self._stands_until = 0.0

    def now(self) -> float:
        """Return the time in seconds."""
        value = self._now()
        if self._loop is None:
            return value
        elapsed = self._elapsed()
        self._notice_pause(elapsed, value)
        return min(value, self._stands_at) if elapsed < self._stands_until else value

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._notice_pause(self._elapsed(), self._now())
        self._ticked_at, self._showed = self._elapsed(), self._now()
        self._timer = loop.call_later(_TICK_S, self._tick, loop)

    def _notice_pause(self, elapsed: float, value: float) -> None:
        pause = elapsed - self._ticked_at - _TICK_S
        if pause <= _TOLERANCE_S:
            return
        if elapsed >= self._stands_until:
            self._stands_at = self._showed
        self._stands_until = elapsed + min(max(pause, _SHORTEST_S), _LONGEST_S)
        self._ticked_at, self._showed = elapsed, value

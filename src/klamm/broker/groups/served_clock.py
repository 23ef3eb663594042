"""A clock that stands still while the broker could not read its sockets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_TICK_S: Final = 0.5
_TOLERANCE_S: Final = 0.2
"""A tick that is later than this was held up."""
_SHORTEST_S: Final = 0.5
_LONGEST_S: Final = 5.0


class ServedClock:
    """The clock that session timeouts go by. Loop-confined.

    When the event loop was held up, or the process or its machine was suspended, heartbeats of members wait in the
    sockets although their sessions seem to have timed out. Without this clock, the first heartbeat that is read would
    let all other members of its group expire. So after a pause the clock shows the time at which the pause began, for
    as long as the pause took but five seconds at most, while the waiting requests are served.

    Args:
        now: Monotonic clock, seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ticked_at = 0.0
        """By the loop's clock, as ``_stands_until``."""
        self._showed = 0.0
        self._stands_until = 0.0
        self._stands_at = 0.0

    def start(self) -> None:
        """Begin to look out for pauses. Without this the clock never stands."""
        self._loop = asyncio.get_running_loop()
        self._tick(self._loop)

    def stop(self) -> None:
        """Stop looking out for pauses."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop = self._timer = None
        self._stands_until = 0.0

    def now(self) -> float:
        """Return the time in seconds."""
        value = self._now()
        if self._loop is None:
            return value
        time = self._loop.time()
        self._notice_pause(time, value)
        return min(value, self._stands_at) if time < self._stands_until else value

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._notice_pause(loop.time(), self._now())
        self._ticked_at, self._showed = loop.time(), self._now()
        self._timer = loop.call_later(_TICK_S, self._tick, loop)

    def _notice_pause(self, time: float, value: float) -> None:
        pause = time - self._ticked_at - _TICK_S
        if pause <= _TOLERANCE_S:
            return
        if time >= self._stands_until:
            self._stands_at = self._showed
        self._stands_until = time + min(max(pause, _SHORTEST_S), _LONGEST_S)
        self._ticked_at, self._showed = time, value

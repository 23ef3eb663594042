"""Short pauses of the event loop while many bytes are relayed, so that each system call moves more of them.

A relay that shares its core with other programs can be woken for each small piece that a client sends, and then wakes
the broker as often. Waking costs more than copying. After a pause, the pieces that arrived meanwhile are read and sent
together: network cards delay their interrupts for the same reason.

On cores without other load, the pieces are read together anyway, and a pause costs CPU and throughput. So the pacer
tries pauses and keeps them only as long as each read moves more bytes than without them:

=======  =====================================================  ========================================================
Pauses   Sample of reads                                        Next
=======  =====================================================  ========================================================
off      at least ``BUSY_PER_S``, and either a trial is due or  on
         the last sample with pauses moved ``LEAST_GAIN`` times
         as many bytes
off      all others                                             off
on       below ``CALM_PER_S``, or not ``LEAST_GAIN`` times the  off. A trial is due after ``RETRIED_S``.
         bytes of the last sample without pauses
on       the pauses began ``RENEWED_S`` ago                     off, to have a new sample without pauses
on       all others                                             on
=======  =====================================================  ========================================================

A pause would only delay a client that waits for a response before it sends more. So a read counts only if more requests
of its connection were in flight shortly before, or need no response.
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
"""Reads per second from which on the event loop may pause."""
CALM_PER_S: Final = 1000
"""Reads per second below which pauses end. They alone make several reads one, so this rate is lower."""
LEAST_GAIN: Final = 1.5
"""Factor by which pauses must increase the bytes per read."""
RETRIED_S: Final = 1.0
"""Time in seconds after pauses without gain, after which they are tried again."""
RENEWED_S: Final = 0.25
"""Time in seconds after which pauses are interrupted for one sample: other programs may have left the core."""
SAMPLE: Final = 64
"""Number of reads in a sample."""


class Pacer:
    """Pauses of one event loop. Used on the event loop only.

    Args:
        clock: Returns seconds.
        pause: Pauses for a number of seconds.
    """

    __slots__ = (
        "_bytes",
        "_bytes_paused",
        "_bytes_unpaused",
        "_clock",
        "_due",
        "_is_pausing",
        "_pause",
        "_reads",
        "_rests",
        "_since",
    )

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock = clock
        self._pause = pause
        self._reads = 0
        self._bytes = 0
        self._since = clock()
        self._is_pausing = False
        self._due = self._since
        """Time of the next trial; while the event loop pauses, time of the next sample without pauses."""
        self._bytes_paused = 0
        """Number of bytes of the last sample with pauses."""
        self._bytes_unpaused = 0
        """Number of bytes of the last sample without pauses."""
        self._rests = False
        """Whether a pause is scheduled."""

    def on_read(self, count: int, loop: asyncio.AbstractEventLoop) -> None:
        """Count a read of some bytes after which more are to come. Pause before the loop waits for events, if due."""
        self._reads += 1
        self._bytes += count
        if self._reads == SAMPLE:
            self._judge(self._clock())
        if self._is_pausing and not self._rests:
            self._rests = True
            loop.call_soon(self._rest)

    def _judge(self, now: float) -> None:
        """Start or end pauses after a sample of reads, by the table above."""
        took_s, moved = now - self._since, self._bytes
        self._since, self._bytes, self._reads = now, 0, 0
        if not self._is_pausing:
            self._bytes_unpaused = moved
            if took_s * BUSY_PER_S <= SAMPLE and (now >= self._due or moved * LEAST_GAIN <= self._bytes_paused):
                self._is_pausing, self._due = True, now + RENEWED_S
            return
        self._bytes_paused = moved
        if took_s * CALM_PER_S > SAMPLE or moved < LEAST_GAIN * self._bytes_unpaused:
            self._is_pausing, self._due = False, now + RETRIED_S
        elif now >= self._due:
            self._is_pausing = False

    def _rest(self) -> None:
        self._rests = False
        self._pause(PAUSE_S)

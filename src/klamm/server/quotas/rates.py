"""Rate over the latest eleven seconds, counted as Kafka's Rate does, and counters per client."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

SAMPLE_S: Final = 1.0
"""Length of a sample in seconds: Kafka's default of ``quota.window.size.seconds``."""
SAMPLES: Final = 11
"""Number of samples: Kafka's default of ``quota.window.num``."""
_MAX_WAIT_S: Final = (2**31 - 1) / 1000
"""Longest wait in seconds: what ``throttle_time_ms`` can hold. For a tiny quota the quotient may be infinite."""


class RateWindow:
    """Sliding window of amounts, in samples of one second."""

    __slots__ = ("_samples", "_total")

    def __init__(self) -> None:
        self._samples: deque[list[float]] = deque()
        self._total = 0.0

    def add(self, amount: float, now_s: float) -> None:
        """Add an amount. A negative amount reverts one that was added just before."""
        self._forget(now_s)
        if not self._samples or now_s - self._samples[-1][0] >= SAMPLE_S:
            self._samples.append([now_s, 0.0])
        self._samples[-1][1] += amount
        self._total += amount

    def wait_s(self, limit: float, now_s: float, amount: float = 0.0) -> float:
        """Return the seconds without further amounts until the rate falls to ``limit`` per second.

        A new window counts as ten seconds without amounts, so a burst of ten seconds' worth is allowed (Kafka's
        Rate.windowSize, QuotaUtils.throttleTime). The longest wait is what ``throttle_time_ms`` can hold.

        Args:
            limit: Limit per second.
            now_s: Current time, in seconds.
            amount: A further amount that is counted only if it keeps the limit. An empty window takes any amount,
                because waiting longer would not help.
        """
        self._forget(now_s)
        if not self._samples:
            return 0.0
        elapsed_s = now_s - self._samples[0][0]
        elapsed_s += max(0, SAMPLES - 1 - int(elapsed_s / SAMPLE_S)) * SAMPLE_S
        return min(max(0.0, (self._total + amount) / limit - elapsed_s), _MAX_WAIT_S)

    def is_idle(self, now_s: float) -> bool:
        """Return whether the window is empty, so it may be dropped."""
        self._forget(now_s)
        return not self._samples

    def _forget(self, now_s: float) -> None:
        while self._samples and now_s - self._samples[0][0] >= SAMPLES * SAMPLE_S:
            self._total -= self._samples.popleft()[1]


_MANY: Final = 1_000


class _Counted(Protocol):
    def is_idle(self, now_s: float) -> bool: ...


Counted = TypeVar("Counted", bound=_Counted)


class ClientCounters(Generic[Counted]):
    """One counter for each key. Used on the event loop only.

    Args:
        new: Function that creates the counter of a new key.
    """

    def __init__(self, new: Callable[[], Counted]) -> None:
        self._new = new
        self._counts: dict[Hashable, Counted] = {}
        self._next_look_s = -math.inf

    def __len__(self) -> int:
        """Return the number of counters."""
        return len(self._counts)

    def of(self, key: Hashable, now_s: float) -> Counted:
        """Return the counter of a key. From 1,000 counters on, the idle ones are dropped, at most once per second."""
        count = self._counts.get(key)
        if count is None:
            if len(self._counts) >= _MANY and now_s >= self._next_look_s:
                self._next_look_s = now_s + SAMPLE_S
                self._counts = {k: c for k, c in self._counts.items() if not c.is_idle(now_s)}
            count = self._counts[key] = self._new()
        return count

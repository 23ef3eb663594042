"""How much there was in the latest eleven seconds, as Kafka's Rate counts it."""

from __future__ import annotations

from collections import deque
from typing import Final

SAMPLE_S: Final = 1.0
"""``quota.window.size.seconds`` by default."""
SAMPLES: Final = 11
"""``quota.window.num`` by default."""


class RateWindow:
    """Amounts by the second in which they came."""

    __slots__ = ("_samples", "_total")

    def __init__(self) -> None:
        self._samples: deque[list[float]] = deque()
        self._total = 0.0

    def add(self, amount: float, now_s: float) -> None:
        """Count; a negative amount takes back what was counted just now."""
        self._forget(now_s)
        if not self._samples or now_s - self._samples[-1][0] >= SAMPLE_S:
            self._samples.append([now_s, 0.0])
        self._samples[-1][1] += amount
        self._total += amount

    def wait_s(self, limit: float, now_s: float) -> float:
        """Return how long nothing may come until the rate is down to ``limit`` a second; 0.0 when it is.

        A new window counts as ten seconds in which nothing came: so much may come at once (Kafka's Rate.windowSize,
        QuotaUtils.throttleTime).
        """
        self._forget(now_s)
        if not self._samples:
            return 0.0
        elapsed_s = now_s - self._samples[0][0]
        elapsed_s += max(0, SAMPLES - 1 - int(elapsed_s / SAMPLE_S)) * SAMPLE_S
        return max(0.0, self._total / limit - elapsed_s)

    def is_idle(self, now_s: float) -> bool:
        """Tell whether nothing is remembered any more."""
        self._forget(now_s)
        return not self._samples

    def _forget(self, now_s: float) -> None:
        while self._samples and now_s - self._samples[0][0] >= SAMPLES * SAMPLE_S:
            self._total -= self._samples.popleft()[1]

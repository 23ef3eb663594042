"""When the metadata of which topics are asked for again. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_ALL_EVERY_S: Final = 300.0
_FIRST_BACKOFF_S: Final = 0.2
_LAST_BACKOFF_S: Final = 1.0
"""Kafka's default of ``retry.backoff.max.ms``."""


def backoff_s(failures: int) -> float:
    """Return how long to wait after so many failures in a row, of which there is at least one."""
    return float(min(_FIRST_BACKOFF_S * 2 ** min(failures - 1, 30), _LAST_BACKOFF_S))


class TopicRefreshes:
    """The topics of one cluster whose metadata are due: all from time to time, and those in trouble soon."""

    def __init__(self) -> None:
        self._all_at = 0.0
        self._at: dict[str, float] = {}

    def want(self, topic: str, at: float) -> None:
        """Ask for a topic at a time, or earlier if that was wanted before."""
        self._at[topic] = min(at, self._at.get(topic, at))

    def due(self, topics: Iterable[str], now: float) -> list[str]:
        """Return the topics to ask for now.

        Args:
            topics: All that are mirrored; only looked at when all of them are due.
            now: By the clock that ``want`` goes by.
        """
        if now >= self._all_at:
            return sorted(set(topics))
        return sorted(topic for topic, at in self._at.items() if now >= at)

    def done(self, topics: Collection[str], now: float) -> None:
        """Note that the topics that were due have been asked for."""
        if now >= self._all_at:
            self._all_at = now + _ALL_EVERY_S
        for topic in topics:
            self._at.pop(topic, None)

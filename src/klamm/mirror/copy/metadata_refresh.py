"""Schedule of metadata refreshes, per topic. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_ALL_EVERY_S: Final = 300.0
_FIRST_BACKOFF_S: Final = 0.2
_LAST_BACKOFF_S: Final = 1.0
"""Kafka's default of ``retry.backoff.max.ms``."""


def backoff_s(failures: int) -> float:
    """Return the backoff in seconds after a number of failures in a row (at least one)."""
    return float(min(_FIRST_BACKOFF_S * 2 ** min(failures - 1, 30), _LAST_BACKOFF_S))


class TopicRefreshes:
    """Metadata refreshes that are due in one cluster: all topics every 5 minutes, failing topics soon."""

    def __init__(self) -> None:
        self._all_at = 0.0
        self._at: dict[str, float] = {}

    def want(self, topic: str, at: float) -> None:
        """Schedule the refresh of a topic. The earliest requested time applies."""
        self._at[topic] = min(at, self._at.get(topic, at))

    def due(self, topics: Iterable[str], now: float) -> list[str]:
        """Return the topics to refresh now.

        Args:
            topics: All mirrored topics. Read only when all of them are due.
            now: Time of the clock that ``want`` uses, in seconds.
        """
        if now >= self._all_at:
            return sorted(set(topics))
        return sorted(topic for topic, at in self._at.items() if now >= at)

    def done(self, topics: Collection[str], now: float) -> None:
        """Record that the metadata of the due topics were requested."""
        if now >= self._all_at:
            self._all_at = now + _ALL_EVERY_S
        for topic in topics:
            self._at.pop(topic, None)

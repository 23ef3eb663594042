"""Refusals by policies: a log that repeats itself rarely, and a short memory of topics that clients ask for again."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from klamm.broker.author import Author
    from klamm.protocol.errors import ErrorCode

LOG_WINDOW_S: Final = 60.0
"""The same refusal is logged once in this time."""
MAX_LOGGED: Final = 100
"""Log lines about refusals within ``LOG_WINDOW_S``, all together: a client can make up any number of names."""
MEMORY_S: Final = 5.0
"""The time for which a refused automatic creation is refused again without asking the policy."""
MAX_REMEMBERED: Final = 10_000


class LogLimit:
    """Decides which refusals are logged.

    Args:
        now: A clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._logged: deque[tuple[float, Hashable]] = deque()
        self._keys: set[Hashable] = set()
        self._left_out = 0

    def admit(self, key: Hashable) -> int | None:
        """Return None when a refusal is not to be logged now, else how many were left out since the last line.

        Args:
            key: What makes two refusals the same.
        """
        now = self._now()
        while self._logged and self._logged[0][0] <= now - LOG_WINDOW_S:
            self._keys.discard(self._logged.popleft()[1])
        if key in self._keys or len(self._logged) >= MAX_LOGGED:
            self._left_out += 1
            return None
        self._logged.append((now, key))
        self._keys.add(key)
        left_out, self._left_out = self._left_out, 0
        return left_out


class _Remembered(NamedTuple):
    until: float
    error_code: ErrorCode


class RefusedCreations:
    """Topics whose automatic creation a policy refused a moment ago. Loop-confined.

    A client that waits for a topic sends Metadata several times a second. The policy is not asked each time.

    Args:
        now: A clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._known: dict[tuple[str, Author], _Remembered] = {}

    def remember(self, topic: str, author: Author, error_code: ErrorCode) -> None:
        """Remember a refusal for ``MEMORY_S``."""
        if len(self._known) >= MAX_REMEMBERED:
            self._known.clear()
        self._known[topic, author] = _Remembered(self._now() + MEMORY_S, error_code)

    def recall(self, topic: str, author: Author) -> ErrorCode | None:
        """Return the code of a refusal that still counts for a topic and a client; None when there is none."""
        found = self._known.get((topic, author))
        if found is None:
            return None
        if found.until <= self._now():
            del self._known[topic, author]
            return None
        return found.error_code

    def clear(self) -> None:
        """Forget everything: the policies have changed."""
        self._known.clear()

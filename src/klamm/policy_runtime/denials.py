"""Denials by policies: a rate limit for their log lines, and a cache of denied automatic topic creations."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

LOG_WINDOW_S: Final = 60.0
"""Seconds in which an equal denial is logged once."""
MAX_LOGGED: Final = 100
"""Maximum number of denials logged within ``LOG_WINDOW_S``. A client can invent any number of names."""
MEMORY_S: Final = 5.0
"""Seconds for which a denied automatic creation is denied again without asking the policy."""
MAX_REMEMBERED: Final = 10_000


class LogLimit:
    """Rate limit for log lines about denials.

    Args:
        now: Monotonic clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._logged: deque[tuple[float, Hashable]] = deque()
        self._keys: set[Hashable] = set()
        self._left_out = 0

    def admit(self, key: Hashable) -> int | None:
        """Return the number of denials left out since the last line, or None when this one is not logged.

        Args:
            key: Value that is equal for equal denials.
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


class DeniedCreations:
    """Cache of topics whose automatic creation a policy denied a moment ago. Used on the event loop only.

    A client that waits for a topic sends Metadata several times a second. The cache avoids one policy call for each.

    Args:
        now: Monotonic clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._entries: dict[tuple[str, int], _Remembered] = {}
        """By topic and hash of the client, whose client id may have 32 KiB."""

    def remember(self, topic: str, client: Hashable, error_code: ErrorCode) -> None:
        """Cache a denial for ``MEMORY_S`` seconds.

        Args:
            topic: Name of the topic.
            client: Value that is equal for requests of the same client: principal, client id and listener.
            error_code: Error code of the denial.
        """
        if len(self._entries) >= MAX_REMEMBERED:
            self._entries.clear()
        self._entries[topic, hash(client)] = _Remembered(self._now() + MEMORY_S, error_code)

    def recall(self, topic: str, client: Hashable) -> ErrorCode | None:
        """Return the error code of a cached denial for a topic and a client; None when there is none."""
        key = topic, hash(client)
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.until <= self._now():
            del self._entries[key]
            return None
        return entry.error_code

    def answer(self, topic: str, client: Hashable) -> ErrorCode | None:
        """Return the error code for a Metadata request about a topic whose creation was denied a moment ago, or None.

        A policy's own code, POLICY_VIOLATION, is not expected in that response: Java, librdkafka and aiokafka treat it
        as retriable and retry until they time out. TOPIC_AUTHORIZATION_FAILED is reported at once by all clients.
        """
        denial = self.recall(topic, client)
        if denial in (None, ErrorCode.UNKNOWN_SERVER_ERROR):  # a policy that failed may succeed the next time
            return denial
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED

    def clear(self) -> None:
        """Clear the cache, because the policies have changed."""
        self._entries.clear()

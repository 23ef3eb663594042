"""Token bucket that limits the bytes that a copier fetches (``klamm.max.bytes.per.second``)."""

from __future__ import annotations

from typing import Final

_CAPACITY_S: Final = 0.5
"""Most credit that an idle copier saves, in seconds at the limit. It must exceed the round trip to the source, because
a fetch gets no more than the credit at the time it is sent.
"""
_QUANTUM_S: Final = 0.05
"""Least credit for a fetch, in seconds at the limit. Limits the fetches per second, so that a slow copier neither spins
nor sends one fetch per byte.
"""


class FetchThrottle:
    """Token bucket of one copier.

    The credit is kept in seconds at the limit, so that a new limit also applies to debts. A broker returns at least one
    batch, however small the fetch, so the credit may become negative; the next fetches wait until it is paid back. The
    average rate is therefore the limit, also with batches larger than the bucket.

    ``limit`` may be set by any thread. Everything else is confined to the copier's thread.
    """

    def __init__(self) -> None:
        self.limit: int | None = None
        """Bytes per second, at least 1. None: no limit."""
        self._credit_s = 0.0
        self._at: float | None = None
        """Time until which credit was added. None: the limit was not in use before."""

    def wait_s(self, now: float) -> float:
        """Return the seconds until the next fetch may be sent. 0: now."""
        if self.limit is None:
            self._at = None
            return 0.0
        earned = 0.0 if self._at is None else now - self._at
        self._credit_s = 0.0 if self._at is None else min(_CAPACITY_S, self._credit_s + earned)
        self._at = now
        return max(0.0, _QUANTUM_S - self._credit_s)

    def largest(self, max_bytes: int, fetches: int) -> int:
        """Return the size limit of one of several fetches that share the credit: at least 1, at most ``max_bytes``."""
        if self.limit is None:
            return max_bytes
        return max(1, min(max_bytes, int(self._credit_s * self.limit) // fetches))

    def charge(self, size: int) -> None:
        """Take the credit for fetched bytes."""
        if self.limit is not None:
            self._credit_s -= size / self.limit

"""Counters of requests, bounded in number."""

from __future__ import annotations

from collections import Counter
from typing import Final

MOST_CLIENT_IDS: Final = 500
"""Client ids that have their own counters. Requests of further ones are counted under ``OTHER``."""
MOST_CLIENT_ID_LENGTH: Final = 256
"""Characters of a client id that has its own counters. Clients could fill the page of metrics with 32 KiB for each."""
OTHER: Final = "(other)"


class RequestCounts:
    """Requests by API and client id. Used on the event loop only."""

    __slots__ = ("_client_ids", "counts")

    def __init__(self) -> None:
        self._client_ids: set[str | None] = set()
        self.counts: Counter[tuple[int, str | None]] = Counter()
        """Requests by API key and client id."""

    def counted_id(self, client_id: str | None) -> str | None:
        """Return the client id under which requests of a client id are counted."""
        if client_id not in self._client_ids:
            if len(self._client_ids) >= MOST_CLIENT_IDS or len(client_id or "") > MOST_CLIENT_ID_LENGTH:
                return OTHER
            self._client_ids.add(client_id)
        return client_id

    def count(self, api_key: int, client_id: str | None) -> None:
        """Count one request."""
        self.counts[api_key, self.counted_id(client_id)] += 1

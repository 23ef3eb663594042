"""Recently received requests, for tests that check what a client sent."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from klamm.broker.context import RequestContext
    from klamm.faults.levels import Part

MOST_REQUESTS: Final = 10_000
"""Number of requests that are kept."""


class RequestLog:
    """The last requests in the order of their arrival. Used on the event loop only."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._seen: deque[dict[str, Any]] = deque(maxlen=MOST_REQUESTS)

    def add(self, api: str, request: Any, context: RequestContext, parts: Sequence[Part] | None) -> dict[str, Any]:
        """Record a request and return its entry, to which the caller may add the effect of a fault."""
        entry = {
            "api": api,
            "version": context.api_version,
            "client_id": context.client_id,
            "node_id": context.node_id,
            "received_ms": self._now_ms(),
            "partitions": sorted(
                {(part.topic, part.partition) for part in parts or () if part.topic is not None},
                key=lambda one: (one[0], -1 if one[1] is None else one[1]),
            ),
            "group_id": getattr(request, "group_id", None) or None,
            "transactional_id": getattr(request, "transactional_id", None) or None,
            "fault": None,
        }
        self._seen.append(entry)
        return entry

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Iterate over the requests."""
        return iter(tuple(self._seen))

    def clear(self) -> None:
        """Forget all requests."""
        self._seen.clear()

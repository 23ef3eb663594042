"""Recently received requests, for tests that check what a client sent."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from klamm.broker.faults.exchanges import api_name
from klamm.protocol.messages.offset_fetch import OffsetFetchRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from klamm.broker.context import RequestContext
    from klamm.protocol.error_response import Exchange
    from klamm.protocol.schema import Message

MAX_REQUESTS: Final = 10_000
"""Number of requests that are kept."""


class RequestLog:
    """The last requests in the order of their arrival. Used on the event loop only."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._entries: deque[dict[str, Any]] = deque(maxlen=MAX_REQUESTS)

    def add(self, exchange: Exchange, context: RequestContext) -> dict[str, Any]:
        """Record a request, and return its entry: the fields of ``SeenRequest`` as plain values, still without a fault.

        The names of topic ids are looked up here, because the topic may be deleted before the log is read.
        """
        request = exchange.request
        parts = {(part.topic, part.partition) for part in exchange.parts() if part.topic is not None}
        entry = {
            "api": api_name(type(request)),
            "version": exchange.version,
            "client_id": context.client_id,
            "node_id": context.node_id,
            "received_ms": self._now_ms(),
            "partitions": sorted(parts, key=lambda part: (part[0], -1 if part[1] is None else part[1])),
            "group_id": _group_id(request),
            "transactional_id": getattr(request, "transactional_id", None) or None,
            "fault": None,
        }
        self._entries.append(entry)
        return entry

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Iterate over the entries."""
        return iter(tuple(self._entries))

    def clear(self) -> None:
        """Forget all requests."""
        self._entries.clear()


def _group_id(request: Message) -> str | None:
    """Return the group that a request names. OffsetFetch names it in a list since version 8."""
    if isinstance(request, OffsetFetchRequest) and len(request.groups) == 1:
        return request.groups[0].group_id or None
    return getattr(request, "group_id", None) or None
